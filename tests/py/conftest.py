"""Fixtures: ranks to run functions on, and the settings to run them under."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.ranks import RankPool

MOST_RANKS = 4


class _SharedPool:
    """A pool that is started when it is first needed, and again when a test has broken it."""

    def __init__(self) -> None:
        self._pool: RankPool | None = None

    def get(self) -> RankPool:
        if self._pool is not None and not self._pool.alive:
            self.close()
        if self._pool is None:
            self._pool = RankPool(MOST_RANKS)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@pytest.fixture(autouse=True, scope="session")
def interrupts_count() -> Iterator[None]:
    """Ranks inherit no ignored SIGINT, also where the tests run behind `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[_SharedPool]:
    shared = _SharedPool()
    yield shared
    shared.close()


@pytest.fixture
def run(shared_pool: _SharedPool) -> Callable[..., list[Any]]:
    """run(function, *arguments, size=2, env={...}, deadline=60): the results by rank."""

    def run_on_ranks(
        function: Callable[..., Any], *arguments: Any, size: int = 2, **how: Any
    ) -> Any:
        return shared_pool.get().run(function, *arguments, size=size, **how)

    return run_on_ranks


@pytest.fixture
def pool(shared_pool: _SharedPool) -> RankPool:
    """The pool itself, for outcomes() and stderr()."""
    return shared_pool.get()


@pytest.fixture
def fresh_pool() -> Iterator[Callable[[int], RankPool]]:
    """fresh_pool(n): ranks of this test's own, which it may kill."""
    pools: list[RankPool] = []

    def make(count: int) -> RankPool:
        pools.append(RankPool(count))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(params=["local", "tcp"])
def plane(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that chooses each data plane in turn."""
    return {"HVL_CPU_OPERATIONS": request.param}


@pytest.fixture(params=["fused", "unfused"])
def fusion(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment with fusion on and off."""
    return {"HVL_FUSION_THRESHOLD": "0"} if request.param == "unfused" else {}

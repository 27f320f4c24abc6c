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

from support import _store
from support.forks import Ended, Nursery, identity
from support.ranks import RankPool

MOST_RANKS = 4

# Every way in which data travels between ranks of one host, by name: what selects it.
DATA_PATHS = {
    f"{plane}-{fusion}": {"HVL_CPU_OPERATIONS": plane, **threshold}
    for plane in ("local", "tcp")
    for fusion, threshold in (("fused", {}), ("unfused", {"HVL_FUSION_THRESHOLD": "0"}))
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A trial runs on every data path, unless it asks for planes itself."""
    is_trial = metafunc.definition.get_closest_marker("trial") is not None
    names = metafunc.fixturenames
    if is_trial and "data_path" in names and "plane" not in names:
        metafunc.parametrize("data_path", DATA_PATHS, indirect=True)


@pytest.fixture
def data_path(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that chooses how data travels: each way in turn for trials."""
    name = getattr(request, "param", None)
    return DATA_PATHS[name] if name is not None else {}


class _SharedPool:
    """A pool that is started when it is first needed; ranks that tests have killed come back."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._pool: RankPool | None = None

    def get(self) -> RankPool:
        if self._pool is None:
            self._pool = RankPool(MOST_RANKS, self._nursery)
        self._pool.mend()
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


@pytest.fixture(autouse=True, scope="session")
def interrupts_count() -> Iterator[None]:
    """Ranks inherit no ignored SIGINT, also where the tests run behind `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Its children have torch and an optimizer."""
    nursery = Nursery("torch", "horovodlite.torch", job=_store.Job("tests"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def plain_nursery() -> Iterator[Nursery]:
    """Its children have no torch, which takes long to leave."""
    nursery = Nursery("tests.support.plain", job=_store.Job("tests"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def shared_pool(nursery: Nursery) -> Iterator[_SharedPool]:
    shared = _SharedPool(nursery)
    yield shared
    shared.close()


@pytest.fixture
def run(shared_pool: _SharedPool, data_path: dict[str, str]) -> Callable[..., list[Any]]:
    """run(function, *arguments, size=2, env={...}, deadline=60): the results by rank."""

    def run_on_ranks(
        function: Callable[..., Any],
        *arguments: Any,
        size: int = 2,
        env: dict[str, str] | None = None,
        **how: Any,
    ) -> Any:
        chosen = {**data_path, **(env or {})}
        return shared_pool.get().run(function, *arguments, size=size, env=chosen, **how)

    return run_on_ranks


@pytest.fixture
def pool(shared_pool: _SharedPool) -> RankPool:
    """The pool itself, for outcomes() and stderr()."""
    return shared_pool.get()


@pytest.fixture(scope="session")
def torch_nursery() -> Iterator[Nursery]:
    """Its children have torch and nothing of horovodlite."""
    nursery = Nursery("torch")
    yield nursery
    nursery.close()


def _scripts_on_path(nursery: Nursery, data_path: dict[str, str]) -> Callable[..., list[Ended]]:
    def run_on_path(
        scripts: list[str], env: dict[str, str] | None = None, deadline: float = 60.0
    ) -> list[Ended]:
        places = [identity(rank, len(scripts)) for rank in range(len(scripts))]
        return nursery.run(scripts, [{**p, **data_path, **(env or {})} for p in places], deadline)

    return run_on_path


@pytest.fixture
def run_scripts(nursery: Nursery, data_path: dict[str, str]) -> Callable[..., list[Ended]]:
    """run_scripts(scripts, env={...}, deadline=60): how the ranks that ran them ended."""
    return _scripts_on_path(nursery, data_path)


@pytest.fixture
def run_plain_scripts(
    plain_nursery: Nursery, data_path: dict[str, str]
) -> Callable[..., list[Ended]]:
    """The same for scripts that import tests.support.plain and not torch."""
    return _scripts_on_path(plain_nursery, data_path)


@pytest.fixture(params=["local", "tcp"])
def plane(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that chooses each data plane in turn."""
    return {"HVL_CPU_OPERATIONS": request.param}


@pytest.fixture(params=["fused", "unfused"])
def fusion(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment with fusion on and off."""
    return {"HVL_FUSION_THRESHOLD": "0"} if request.param == "unfused" else {}

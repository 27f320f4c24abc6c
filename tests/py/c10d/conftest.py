"""run_world: functions inside of torch.distributed, on ranks that run already."""

from __future__ import annotations

import sys
from typing import Any, Callable

import cloudpickle
import pytest
from support.groups import free_port, world

DEADLINE_SECONDS = 240.0  # on a machine that does many other things


def _inside(
    port: int, backend: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    with world(port, backend):
        return function(*arguments)


@pytest.fixture
def run_world(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """run_world(function, *arguments, size=2): the results by rank."""

    def run_in_world(
        function: Callable[..., Any], *arguments: Any, backend: str = "horovodlite", **how: Any
    ) -> list[Any]:
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        how = {"deadline": DEADLINE_SECONDS, "env": {"HVL_START_TIMEOUT": "120"}, **how}
        call = free_port(), backend, function, arguments
        return run(_inside, *call, initialize=False, **how)

    return run_in_world

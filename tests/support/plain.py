"""The runtime without torch, for scripts of tests in which tensors are not the point.

Importing torch takes each rank seconds of processor time, this none. It is the same session, and
so are the data planes, the errors and what happens at the end of a process.
"""

from __future__ import annotations

import array

from horovodlite import _core
from horovodlite._core import AVERAGE, SUM
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, set_id
from horovodlite.world import (
    cross_rank,
    cross_size,
    init,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    rank,
    session,
    shutdown,
    size,
)

__all__ = [
    "AVERAGE",
    "SUM",
    "HorovodInternalError",
    "ProcessSet",
    "allreduce",
    "barrier",
    "cross_rank",
    "cross_size",
    "init",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "ones",
    "rank",
    "shutdown",
    "size",
    "values",
]


def values(*numbers: float) -> array.array[float]:
    return array.array("f", numbers)


def ones(count: int) -> array.array[float]:
    return array.array("f", [1.0]) * count


def allreduce(
    data: array.array[float],
    name: str = "x",
    op: int = AVERAGE,
    process_set: ProcessSet | None = None,
) -> array.array[float]:
    """Reduces the numbers of all ranks in place, blocks until that is done, and returns them."""
    address, count = data.buffer_info()
    tensor = (address, address, _core.DTYPES["float32"], (count,), 0)
    members = set_id(process_set)
    session().run(_core.ALLREDUCE, f"allreduce.{name}", [tensor], op, process_set=members)
    return data


def barrier() -> None:
    """Blocks until all ranks have called it."""
    session().run(_core.BARRIER, "", [])

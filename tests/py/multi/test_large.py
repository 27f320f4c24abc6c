"""Sizes beyond what 32-bit counters hold.

Nothing of that size is fused, so fusion on and off is the business of the last test alone.
"""

from __future__ import annotations

import psutil
import pytest
import torch

import horovodlite.torch as hvd

pytestmark = pytest.mark.trial("B44")
BEYOND_INT32 = 2**31 + 16
SECONDS = 300.0


def require_memory(gib: float) -> None:
    available = psutil.virtual_memory().available / 2**30
    if available < gib:
        pytest.skip(f"needs {gib} GiB of free memory; there are {available:.1f}")


def test_tensors_of_more_than_two_to_the_31_elements(run, plane) -> None:
    require_memory(10)

    def body() -> None:
        tensor = torch.zeros(BEYOND_INT32, dtype=torch.uint8)
        tensor[-16:] = hvd.rank() + 1
        tensor[:16] = 7
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert tensor[-16:].tolist() == [3] * 16
        assert tensor[:16].tolist() == [14] * 16
        assert tensor[2**31 - 8 : 2**31].tolist() == [0] * 8
        tensor[-16:] = hvd.rank() + 1
        hvd.broadcast_(tensor, 1)
        assert tensor[-16:].tolist() == [2] * 16

    run(body, env=plane, deadline=SECONDS)


def test_gathers_of_more_than_two_to_the_31_elements(run, plane) -> None:
    require_memory(10)

    def body() -> None:
        count = 2**30 + 8
        tensor = torch.full((count,), hvd.rank() + 1, dtype=torch.uint8)
        result = hvd.allgather(tensor)
        assert result.numel() == 2 * count
        assert result[count - 2 : count + 2].tolist() == [1, 1, 2, 2]
        assert result[-1] == 2

    run(body, env=plane, deadline=SECONDS)


def test_objects_of_more_than_two_gibibytes(run, plane) -> None:
    require_memory(14)

    def body() -> None:
        count = 2**31 + 100
        obj = bytearray(count) if hvd.rank() == 0 else None
        if obj is not None:
            obj[-3:] = b"end"
        got = hvd.broadcast_object(obj, 0)
        assert len(got) == count
        assert got[-3:] == b"end"

    run(body, env=plane, deadline=SECONDS)


@pytest.mark.parametrize("threshold", ["0", str(2**32)])
def test_many_large_tensors_fused_and_alone(run, plane, threshold: str) -> None:
    """The variant for small machines: 5 tensors of 256 MiB in flight at once."""
    require_memory(5)

    def body() -> None:
        tensors = [torch.full((2**28,), i + hvd.rank(), dtype=torch.uint8) for i in range(5)]
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum) for tensor in tensors]
        for index, handle in enumerate(handles):
            assert hvd.synchronize(handle)[-16:].tolist() == [2 * index + 1] * 16

    chosen = {"HVL_FUSION_THRESHOLD": threshold}
    run(body, env={**plane, **chosen}, deadline=SECONDS)

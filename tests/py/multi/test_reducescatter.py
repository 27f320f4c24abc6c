"""reducescatter on ranks."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_first_ranks_get_one_row_more(run, plane, fusion, size) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        dtypes = (torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16)
        for dtype in (*dtypes, torch.float32, torch.float64):
            for rows in (0, 1, size, 2 * size - 1, 7):
                values = torch.arange(rows * 3).remainder(5).view(rows, 3)
                result = hvd.reducescatter((values + rank).to(dtype), op=hvd.Sum)
                total = (values * size + size * (size - 1) // 2).to(dtype)
                counts = [rows // size + (r < rows % size) for r in range(size)]
                first = sum(counts[:rank])
                assert torch.equal(result, total[first : first + counts[rank]])

    run(body, size=size, env={**plane, **fusion})


def test_reductions_and_factors(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        ones = torch.full((3, 2), rank + 1.0)
        assert hvd.reducescatter(ones).tolist() == [[2.0, 2.0]]
        assert hvd.reducescatter(ones, op=hvd.Max).tolist() == [[3.0, 3.0]]
        assert hvd.reducescatter(ones, op=hvd.Product).tolist() == [[6.0, 6.0]]
        scaled = hvd.reducescatter(ones, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        assert scaled.tolist() == [[9.0, 9.0]]
        half = hvd.reducescatter(ones, compression=hvd.Compression.fp16)
        assert half.dtype is torch.float32
        assert half.tolist() == [[2.0, 2.0]]

    run(body, size=3, env=plane)


def test_groups_and_handles(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        tensors = [torch.full((2,), 1.0), torch.full((3, 2), rank)]
        a, b = hvd.grouped_reducescatter(tensors, name="g", op=hvd.Sum)
        assert a.tolist() == [2.0]
        assert b.tolist() == ([[1, 1], [1, 1]] if rank == 0 else [[1, 1]])
        assert hvd.grouped_reducescatter([]) == []
        handle = hvd.grouped_reducescatter_async(tensors, op=hvd.Sum)
        assert [len(part) for part in hvd.synchronize(handle)] == [1, 2 - rank]
        assert hvd.synchronize(hvd.reducescatter_async(torch.ones(2), "x", hvd.Sum)) == 2.0

    run(body, env={**plane, **fusion})


def test_what_cannot_be_scattered(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        with pytest.raises(ValueError, match="Reducescatter does not support scalar inputs"):
            hvd.reducescatter(torch.tensor(1.0))
        with pytest.raises(ValueError, match="bool"):
            hvd.reducescatter(torch.ones(2, dtype=torch.bool))
        with pytest.raises(RuntimeError, match="Adasum"):  # as in Horovod
            hvd.reducescatter(torch.ones(2), op=hvd.Adasum)
        with pytest.raises(hvd.HorovodInternalError, match="odd"):
            hvd.reducescatter(torch.ones(2 + hvd.rank()), name="odd")
        assert hvd.reducescatter(torch.ones(2)).tolist() == [1.0]

    run(body, env=plane)


def test_the_gradient_is_the_gathered_one(run, plane) -> None:
    """Times the number of ranks for Sum, as in Horovod, and times the factors."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
            tensor = torch.ones(size + 1, 2, requires_grad=True)
            part = hvd.reducescatter(tensor, op=op, prescale_factor=0.5, postscale_factor=3.0)
            incoming = torch.full_like(part, rank + 1.0)
            part.backward(incoming)
            assert incoming[0, 0] == rank + 1.0  # Horovod changes it
            rows = [1.0, 1.0, *range(2, size + 1)]
            assert torch.equal(tensor.grad[:, 0], torch.tensor(rows) * factor * 1.5)
        tensors = [torch.ones(size, requires_grad=True) for _ in range(2)]
        sum(part.sum() for part in hvd.grouped_reducescatter(tensors)).backward()
        assert tensors[1].grad.tolist() == [1.0] * size

    run(body, size=3, env=plane)

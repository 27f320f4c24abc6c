"""alltoall on ranks, and gather and scatter, which are made of it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_gets_what_is_for_it(run, plane, fusion, size) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.bool):
            tensor = torch.arange(size).repeat_interleave(2).mul(10).add(rank).to(dtype)
            result = hvd.alltoall(tensor.view(-1, 1))
            expected = torch.arange(size).repeat_interleave(2).add(10 * rank).to(dtype)
            assert torch.equal(result, expected.view(-1, 1))

    run(body, size=size, env={**plane, **fusion})


def test_splits_may_be_uneven_and_zero(run, plane) -> None:
    """Rank r sends r + t rows to rank t; rank 0 gets nothing from itself."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        splits = [rank + target for target in range(size)]
        tensor = torch.full((sum(splits) + 1, 3), float(rank))  # the last row is for nobody
        for given in (splits, torch.tensor(splits, dtype=torch.int32)):
            result, received = hvd.alltoall(tensor, given, name="uneven")
            assert received.dtype is torch.int32
            assert received.tolist() == [source + rank for source in range(size)]
            assert torch.equal(result[:, 0], torch.arange(size).repeat_interleave(received).float())
        handle = hvd.alltoall_async(torch.ones(size * 2), name="async")
        result, received = hvd.synchronize(handle)
        assert received.tolist() == [2] * size

    run(body, size=3, env=plane)


def test_one_rank_sends_everything_or_nobody_sends_anything(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        splits = [1, 2] if rank == 0 else [0, 0]
        result, received = hvd.alltoall(torch.arange(3 if rank == 0 else 0), splits)
        assert result.tolist() == ([0] if rank == 0 else [1, 2])
        assert received.tolist() == ([1, 0] if rank == 0 else [2, 0])
        result, received = hvd.alltoall(torch.ones(0, 4), [0, 0])
        assert result.shape == (0, 4)
        assert hvd.alltoall(torch.ones(2, 0)).shape == (2, 0)
        assert hvd.alltoall(torch.ones(0, dtype=torch.bool)).shape == (0,)

    run(body, env=plane)


def test_other_dimensions_and_dtypes_must_agree(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        makes = (
            lambda: torch.ones(2, 3 + rank),
            lambda: torch.ones([2] * (1 + rank)),
            lambda: torch.ones(2, dtype=[torch.int32, torch.float32][rank]),
        )
        for make in makes:
            with pytest.raises(hvd.HorovodInternalError, match="odd"):
                hvd.alltoall(make(), name="odd")
        assert hvd.alltoall(torch.ones(2)).tolist() == [1.0, 1.0]

    run(body, env=plane)


def test_wrong_splits_are_value_errors_in_the_words_of_horovod(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        ones = torch.ones(3)
        int32 = torch.int32
        cases = [
            (None, "splits not provided, but first dimension of tensor is not an even multiple"),
            (torch.ones((1, 2), dtype=int32), "alltoall expects a 1D splits tensor"),
            (torch.ones(2), "alltoall expects splits to contain 32-bit integer elements."),
            ([1.0, 2.0], "alltoall expects splits to contain 32-bit integer elements."),
            ([1], "Number of entries in splits does not equal number of workers."),
            ([], "Number of entries in splits does not equal number of workers."),
            ([2, 2], "Sum of splits entries is greater than the first dimension of tensor."),
            ([-1, 2], "negative"),
        ]
        for splits, text in cases:
            with pytest.raises(ValueError, match=text):
                hvd.alltoall(ones, splits)
        with pytest.raises(ValueError, match="scalar"):
            hvd.alltoall(torch.tensor(1.0))

    run(body)


def test_gradients_go_back_to_where_the_rows_came_from(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        splits = [rank + 1] * size
        tensor = torch.ones(sum(splits) + 1, 2, requires_grad=True)
        result, received = hvd.alltoall(tensor, splits, name="grad")
        assert not received.requires_grad
        (result * (rank + 1)).sum().backward()
        expected = torch.arange(1.0, size + 1).repeat_interleave(rank + 1)
        assert torch.equal(tensor.grad[:-1, 0], expected)
        assert tensor.grad[-1].tolist() == [0.0, 0.0]
        even = torch.ones(size, requires_grad=True)
        hvd.alltoall(even).sum().backward()
        assert even.grad.tolist() == [1.0] * size

    run(body, size=3, env=plane)


def test_gather_and_scatter_serve_the_root(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        gathered = hvd.gather(torch.full((rank, 2), rank), root_rank=1)
        if rank == 1:
            assert gathered[:, 0].tolist() == [1, 2, 2]
        else:
            assert gathered is None
        assert (hvd.synchronize(hvd.gather_async(torch.ones(1), 0)) is None) == (rank != 0)
        whole = torch.arange(6.0) if rank == 2 else torch.zeros(0)
        assert hvd.scatter(whole, root_rank=2).tolist() == [2.0 * rank, 2.0 * rank + 1]
        part = hvd.synchronize(hvd.scatter_async(whole, 2, splits=[0, 1, 2], name="s"))
        assert part.tolist() == [[], [0.0], [1.0, 2.0]][rank]
        with pytest.raises(hvd.HorovodInternalError, match="root rank"):
            hvd.gather(torch.ones(1), root_rank=rank % 2, name="roots")
        with pytest.raises(ValueError, match="gather received invalid root rank 3"):
            hvd.gather(torch.ones(1), root_rank=size)

    run(body, size=3, env=plane)


def test_gradients_of_rooted_operations_are_their_adjoints(run, plane) -> None:
    """The inner products <f(x), y> and <x, f'(y)> over all ranks are the same."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size, root = hvd.rank(), hvd.size(), 1
        torch.manual_seed(rank)
        splits = [2, 0, 1]
        operations = {
            "reduce sum": lambda x, n: hvd.reduce(x, root, name=n, op=hvd.Sum, prescale_factor=0.5),
            "reduce": lambda x, n: hvd.reduce(x, root, name=n, postscale_factor=3.0),
            "gather": lambda x, n: hvd.gather(x[: 1 + rank], root, name=n),
            "scatter": lambda x, n: hvd.scatter(x, root, splits, name=n),
            "even scatter": lambda x, n: hvd.scatter(x, root, name=n),
        }
        for label, operate in operations.items():
            for name in (None, label):
                x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
                result = operate(x, name)
                assert result is not None
                assert result.numel() > 0 or rank != root or label == "scatter"
                y = torch.randn(result.shape, dtype=torch.float64)
                (result * y).sum().backward()
                products = torch.stack([(result * y).sum().detach(), (x * x.grad).sum().detach()])
                left, right = hvd.allreduce(products, op=hvd.Sum)
                torch.testing.assert_close(left, right)
                assert left != 0.0
        largest = hvd.reduce(torch.ones(2, requires_grad=True), root, op=hvd.Max)
        assert largest is None or not largest.requires_grad
        assert size == 3

    run(body, size=3, env=plane)


def test_reduce_serves_the_root(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for op, expected in ((hvd.Sum, 6.0), (hvd.Average, 2.0), (hvd.Max, 3.0)):
            result = hvd.reduce(torch.tensor(rank + 1.0), 2, op=op)
            assert result == expected if rank == 2 else result is None
        handle = hvd.reduce_async(torch.ones(2), 0, op=hvd.Sum, postscale_factor=0.5, name="r")
        result = hvd.synchronize(handle)
        assert result.tolist() == [1.5, 1.5] if rank == 0 else result is None

    run(body, size=3, env=plane)


def test_splits_may_be_integers_of_any_kind(run) -> None:
    def body() -> None:
        import numpy as np
        import torch

        import horovodlite.torch as hvd

        tensor = torch.full((3,), float(hvd.rank()))
        for splits in (np.array([1, 2]), np.array([1, 2], dtype=np.int32), (np.int64(1), 2)):
            joined, received = hvd.alltoall(tensor, splits)
            count = hvd.rank() + 1
            assert joined.tolist() == [0.0] * count + [1.0] * count
            assert received.tolist() == [count, count]

    run(body)

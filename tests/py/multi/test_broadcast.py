"""broadcast on ranks."""

from __future__ import annotations


def test_every_root_and_type_reaches_every_rank(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
        types += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        handles = []
        for root in range(hvd.size()):
            for dtype in types:
                tensor = torch.full((3, 2), rank).to(dtype)
                result = hvd.broadcast(tensor, root)
                assert torch.equal(result, torch.full((3, 2), root).to(dtype))
                assert torch.equal(tensor, torch.full((3, 2), rank).to(dtype))
                handles.append((tensor, root, hvd.broadcast_async_(tensor, root)))
        for tensor, root, handle in handles:
            assert hvd.synchronize(handle) is tensor
            assert torch.equal(tensor, torch.full((3, 2), root).to(tensor.dtype))

    for size in (1, 3):
        run(body, size=size, env={**plane, **fusion})


def test_any_strides_are_accepted(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        base = torch.arange(24.0).reshape(2, 3, 2, 2)
        mine = base * (1 - hvd.rank())
        last = mine.to(memory_format=torch.channels_last)
        result = hvd.broadcast(last, 0)
        assert torch.equal(result, base)
        assert result.stride() == last.stride()
        holes = mine[:, ::2]
        hvd.broadcast_(holes, 0)
        assert torch.equal(holes, base[:, ::2])
        assert hvd.synchronize(hvd.broadcast_async(mine.permute(3, 2, 1, 0), 0)).shape == (
            2,
            2,
            3,
            2,
        )

    run(body)


def test_the_gradient_is_the_average_on_the_root_and_zero_elsewhere(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, 1, name="x") * (rank + 1)).sum().backward()
        assert x.grad.tolist() == ([1.5, 1.5] if rank == 1 else [0.0, 0.0])

    run(body)


def test_a_root_out_of_range_is_refused_on_every_rank(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        with pytest.raises(ValueError, match="invalid root rank 7: ranks are 0 to 1"):
            hvd.broadcast(torch.ones(1), 7)
        assert hvd.broadcast(torch.tensor([hvd.rank()]), 1).tolist() == [1]

    run(body)


def test_the_gradient_is_zero_elsewhere_whatever_the_average_is(run) -> None:
    """Infinity times zero is not zero."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        x = torch.ones(3, requires_grad=True)
        factors = torch.tensor([float("inf"), float("nan"), 2.0])
        (hvd.broadcast(x, 0, name="x") * factors).sum().backward()
        expected = factors if hvd.rank() == 0 else torch.zeros(3)
        assert torch.equal(x.grad.nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))

    run(body)


def test_all_ranks_take_part_in_a_second_derivative(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        x = torch.full((2,), 3.0, requires_grad=True)
        loss = hvd.broadcast(x, 0, name="x").square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        if hvd.rank() == 0:
            assert first.tolist() == [6.0, 6.0]
        assert second is not None

    run(body)

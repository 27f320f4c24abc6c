"""Complex tensors, where an operation is defined for them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd


def values_of(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(*shape, dtype=dtype, generator=generator)


@pytest.mark.trial("B41")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_added_up_moved_and_joined(run, dtype: torch.dtype) -> None:
    def body(dtype: torch.dtype) -> None:
        ranks = [values_of(rank, dtype, 4, 3) for rank in range(hvd.size())]
        own, total = ranks[hvd.rank()], sum(ranks)

        def check(found: torch.Tensor, expected: Any) -> None:
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected)

        check(hvd.allreduce(own, op=hvd.Sum), total)
        check(hvd.allreduce(own), total / hvd.size())
        check(
            hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), total * 1.5
        )
        check(hvd.allreduce(own[0, 0], op=hvd.Sum), total[0, 0])
        check(hvd.grouped_allreduce([own, own[:1]], op=hvd.Sum)[1], total[:1])
        check(hvd.allreduce(own, weight=hvd.rank() + 1.0), (ranks[0] + 2 * ranks[1]) / 3)
        check(hvd.broadcast(own, root_rank=1), ranks[1])
        uneven = own[: 2 + hvd.rank()]
        check(hvd.allgather(uneven), torch.cat([ranks[0][:2], ranks[1][:3]]))
        check(hvd.allgather(own[:0]), own[:0])
        check(hvd.reducescatter(own, op=hvd.Sum), total[2 * hvd.rank() :][:2])
        check(hvd.alltoall(own), torch.cat([r[2 * hvd.rank() :][:2] for r in ranks]))
        result = hvd.reduce(own, root_rank=0, op=hvd.Sum)
        assert (result is None) == (hvd.rank() != 0)
        if result is not None:
            check(result, total)

    run(body, dtype)


def test_views_and_strides_are_kept_and_written_in_place(run) -> None:
    def body() -> None:
        ranks = [values_of(rank, torch.complex64, 2, 3, 4, 5) for rank in range(hvd.size())]
        total = sum(ranks)
        own = ranks[hvd.rank()]
        forms = {
            "plain": lambda t: t.clone(),
            "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
            "transposed": lambda t: t.clone().transpose(1, 3),
            "with holes": lambda t: t.clone()[:, :, ::2],
            "conjugated": lambda t: t.clone().conj(),
        }
        for name, form in forms.items():
            tensor, expected = form(own), form(total)
            result = hvd.allreduce(tensor, op=hvd.Sum)
            torch.testing.assert_close(result, expected, msg=name)
            if name in ("channels_last", "transposed"):
                assert result.stride() == tensor.stride()
            assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
            torch.testing.assert_close(tensor, expected, msg=name)
            joined = hvd.allgather(form(own))
            torch.testing.assert_close(joined, torch.cat([form(r) for r in ranks]), msg=name)
            hvd.broadcast_(tensor, root_rank=0)

    run(body)


@pytest.mark.trial("B41")
@pytest.mark.parametrize("op", ["Min", "Max", "Product", "Adasum"])
def test_what_is_not_defined_for_complex_numbers_is_refused(run, op: str) -> None:
    def body(op: str) -> None:
        tensor = torch.ones(2, dtype=torch.complex64)
        chosen = getattr(hvd, op)
        for call in (hvd.allreduce, hvd.allreduce_async_, lambda t, op: hvd.reduce(t, 0, op=op)):
            with pytest.raises(ValueError, match="complex tensors can only be added up"):
                call(tensor, op=chosen)

    run(body, op)


def test_gradients_pass_through(run) -> None:
    def body() -> None:
        own = values_of(hvd.rank(), torch.complex128, 3).requires_grad_()
        factor = values_of(9, torch.complex128, 3)
        (hvd.allreduce(own, op=hvd.Sum) * factor).sum().abs().backward()
        total = sum(values_of(r, torch.complex128, 3) for r in range(2)).requires_grad_()
        ((total * factor).sum().abs() * 2).backward()
        torch.testing.assert_close(own.grad, total.grad)
        own.grad = None
        (hvd.allgather(own) * torch.cat([factor, factor])).sum().abs().backward()
        assert own.grad.shape == (3,)
        own.grad = None
        hvd.broadcast(own, root_rank=1).abs().sum().backward()
        assert bool(own.grad.any()) == (hvd.rank() == 1)

    run(body)


def test_models_with_complex_parameters_start_alike_and_train(run, plane) -> None:
    def body() -> None:
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 2, dtype=torch.complex128)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        twin = copy.deepcopy(model)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        plain = torch.optim.Adam(twin.parameters(), lr=0.1)
        for step in range(3):
            batches = [values_of(10 * step + r, torch.complex128, 4, 3) for r in range(hvd.size())]
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model(batches[hvd.rank()]).abs().square().mean().backward()
            optimizer.step()
            plain.zero_grad()
            twin(torch.cat(batches)).abs().square().mean().backward()
            plain.step()
            torch.testing.assert_close(model.weight, twin.weight)

    run(body, env=plane)

"""Ordinary gradients are packed, submitted and delivered in C++, and mean what all others mean."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch import _gradients, _hooks, _slots

LONG_WAY = mock.Mock(side_effect=AssertionError("the long way"))


def make(count: int = 4, **how: Any) -> tuple[list[torch.nn.Parameter], Any]:
    shapes = [(3,), (2, 5), (4, 1, 2), ()]
    parameters = [torch.nn.Parameter(torch.zeros(shapes[i % 4])) for i in range(count)]
    named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named, **how)
    return parameters, optimizer


def backward(parameters: list[torch.nn.Parameter], factor: float) -> None:
    sum((factor * (i + 1) * p).sum() for i, p in enumerate(parameters)).backward()


def gradients(parameters: list[torch.nn.Parameter]) -> list[list[float]]:
    return [p.grad.flatten().tolist() for p in parameters if p.grad is not None]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("groups", [None, 2])
def test_ordinary_gradients_take_the_short_way_from_the_second_step_on(
    run, plane, set_to_none: bool, groups: int | None
) -> None:
    def body(set_to_none: bool, groups: int | None) -> None:
        parameters, optimizer = make(groups=groups)
        reducer = _gradients.GradientReducer
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            if step < 2:  # small ones share from the second step on, in other memory
                backward(parameters, hvd.rank() + step)
                optimizer.synchronize()
            else:
                with (
                    mock.patch.object(reducer, "accumulated", LONG_WAY),
                    mock.patch.object(_gradients.Unit, "start", LONG_WAY),
                    mock.patch.object(_slots.Slot, "show", LONG_WAY),
                ):
                    backward(parameters, hvd.rank() + step)
                    optimizer.synchronize()
            for i, parameter in enumerate(parameters):
                expected = torch.full(parameter.shape, (i + 1) * (step + 0.5))
                assert torch.equal(parameter.grad, expected)
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, set_to_none, groups, env=plane)


def test_hooks_that_are_traced_take_the_long_way(run) -> None:
    def body() -> None:
        parameters, optimizer = make()
        optimizer._hvl.strategy._reducer.watch = None  # the first steps take it too
        for step in range(3):
            optimizer.zero_grad()
            traced = mock.Mock()
            with (
                mock.patch.object(_hooks.Hook, "called_from_graph", traced),
                mock.patch.object(torch.compiler, "_is_compiling_flag", step == 1),
            ):
                backward(parameters, hvd.rank() + 1.0)
            assert traced.call_count == (len(parameters) if step == 1 else 0)
            optimizer.synchronize()
            assert gradients(parameters)[:1] == [[1.5] * 3]
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_several_passes_are_counted_on_the_short_way(run) -> None:
    def body() -> None:
        parameters, optimizer = make(backward_passes_per_step=3)
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(3):
                backward(parameters, 1.0)
            with pytest.raises(AssertionError, match="computed 4 times since the last step"):
                backward(parameters[-1:], 1.0)
            optimizer.synchronize()
            assert gradients(parameters[:1]) == [[3.0] * 3], step
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_passes_inside_no_sync_are_not_counted_on_the_short_way(run) -> None:
    def body() -> None:
        parameters, optimizer = make()
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                backward(parameters, float(hvd.rank()))
                backward(parameters, float(hvd.rank()))
            backward(parameters, 0.0)
            optimizer.synchronize()
            assert gradients(parameters[:1]) == [[1.0] * 3]
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


REPLACE: dict[str, Callable[[torch.nn.Parameter], None]] = {
    "by another tensor": lambda p: setattr(p, "grad", torch.full_like(p, 9.0)),
    "by nothing": lambda p: setattr(p, "grad", None),
    "by itself moved away": lambda p: p.grad.set_(p.grad.clone()),
    "by a detached alias": lambda p: setattr(p, "grad", p.grad.detach()),
}


@pytest.mark.parametrize("how", REPLACE)
def test_a_gradient_replaced_before_the_step_gets_the_reduced_one(run, how: str) -> None:
    def body(replace: Callable[[torch.nn.Parameter], None]) -> None:
        parameters, optimizer = make()
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, hvd.rank() + 1.0)
            if step in (1, 2):
                replace(parameters[1])
            optimizer.synchronize()
            assert gradients(parameters)[1] == [3.0] * 10
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, REPLACE[how])


CHANGE: dict[str, Callable[[torch.nn.Parameter], Any]] = {
    "dtype": lambda p: setattr(p, "data", p.data.double()),
    "shape": lambda p: setattr(p, "data", torch.zeros(7, 2)),
    "order of dimensions": lambda p: setattr(p, "data", torch.zeros(5, 2).t()),
    "kind of memory": lambda p: p.share_memory_(),
}


@pytest.mark.parametrize("what", CHANGE)
def test_a_parameter_may_change_between_two_steps(run, what: str) -> None:
    def body(change: Callable[[torch.nn.Parameter], None]) -> None:
        parameters, optimizer = make()
        for step in range(5):
            optimizer.zero_grad()
            if step == 2:
                change(parameters[1])
            backward(parameters, hvd.rank() + 1.0)
            optimizer.synchronize()
            gradient = parameters[1].grad
            assert gradient is not None
            assert (gradient.dtype, gradient.shape) == (parameters[1].dtype, parameters[1].shape)
            assert torch.equal(gradient, torch.full_like(parameters[1], 3.0))
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, CHANGE[what])


def make_large(**how: Any) -> tuple[list[torch.nn.Parameter], Any]:
    """The middle one is too large to be copied while it is in a cache."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3,), (600, 700), (2,))]
    named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
    return parameters, hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named, **how)


def step_large(parameters: list[torch.nn.Parameter], optimizer: Any, factor: float) -> None:
    optimizer.zero_grad()
    backward(parameters, factor)
    optimizer.step()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_large_gradient_is_reduced_from_where_autograd_has_put_it(
    run, plane, set_to_none: bool
) -> None:
    def body(set_to_none: bool) -> None:
        parameters, optimizer = make_large()
        large = parameters[1]
        reducer = _gradients.GradientReducer
        places = set()
        for step in range(8):
            optimizer.zero_grad(set_to_none=set_to_none)
            if step < 2:  # the small ones share from the second step on
                backward(parameters, hvd.rank() + step)
                optimizer.synchronize()
            else:
                with (  # what is copied goes the long way
                    mock.patch.object(reducer, "accumulated", LONG_WAY),
                    mock.patch.object(_slots.Slot, "show", LONG_WAY),
                ):
                    backward(parameters, hvd.rank() + step)
                    optimizer.synchronize()
            assert torch.equal(large.grad, torch.full_like(large, 2 * (step + 0.5)))
            places.add(large.grad.data_ptr())
            with optimizer.skip_synchronize():
                optimizer.step()
        assert len(places) == 1

    run(body, set_to_none, env=plane)


def start_last_on_rank_one(work: Callable[..., None], *arguments: Any) -> None:
    """Nothing that rank 0 submits in `work` can run before that has returned."""
    if hvd.rank() == 1:
        hvd.barrier()
    work(*arguments)
    if hvd.rank() == 0:
        hvd.barrier()


def test_what_a_large_gradient_was_reduced_from_is_freed_with_the_step(run) -> None:
    def body() -> None:
        def large_tensors() -> dict[int, torch.Tensor]:
            found = [tensor for tensor in gc.get_objects() if type(tensor) is torch.Tensor]
            return {tensor.data_ptr(): tensor for tensor in found if tensor.numel() == 420_000}

        parameters, optimizer = make_large()
        for _ in range(3):
            step_large(parameters, optimizer, 1.0)
        optimizer.zero_grad()
        gc.collect()
        before = large_tensors().keys()
        start_last_on_rank_one(backward, parameters, 1.0)
        watch = [weakref.ref(t) for at, t in large_tensors().items() if at not in before]
        optimizer.step()
        if hvd.rank() == 0:  # on rank 1 it may have been freed by then
            assert len(watch) == 1
        assert all(reference() is None for reference in watch)

    run(body)


def test_memory_that_is_not_the_gradients_alone_may_be_written_at_once(run, plane) -> None:
    def body() -> None:
        parameters, optimizer = make_large()
        large = parameters[1]
        for _ in range(3):
            step_large(parameters, optimizer, 1.0)

        def work(seed: torch.Tensor) -> None:
            large.view(-1).backward(seed)  # autograd makes the seed itself the gradient
            seed.fill_(99.0)

        for step in range(3):
            optimizer.zero_grad()
            start_last_on_rank_one(work, torch.full((420_000,), hvd.rank() + 1.0))
            optimizer.synchronize()
            assert torch.equal(large.grad, torch.full_like(large, 1.5)), step
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, env=plane)


def test_a_large_gradient_that_two_parameters_share_is_reduced_for_both(run, plane) -> None:
    def body() -> None:
        shapes = ((600, 700), (700, 600))
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
        for step in range(4):
            optimizer.zero_grad()
            total = parameters[0].view(-1) + parameters[1].view(-1)
            total.backward(torch.full((420_000,), hvd.rank() + 1.0))
            optimizer.synchronize()
            for parameter in parameters:
                assert torch.equal(parameter.grad, torch.full_like(parameter, 1.5)), step
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, env=plane)


def test_a_hook_of_the_user_sees_the_gradient_that_was_computed(run) -> None:
    def body() -> None:
        parameters, optimizer = make_large()
        large = parameters[1]
        seen: list[float] = []
        if hvd.rank() == 0:  # so on the other rank it is reduced from where it is
            large.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad[0, 0].item()))
        for step in range(4):
            optimizer.zero_grad()
            start_last_on_rank_one(backward, parameters, hvd.rank() + step + 1.0)
            optimizer.synchronize()
            assert torch.equal(large.grad, torch.full_like(large, 2 * (step + 1.5)))
            with optimizer.skip_synchronize():
                optimizer.step()
        assert seen == ([2.0, 4.0, 6.0, 8.0] if hvd.rank() == 0 else [])

    run(body)


@pytest.mark.parametrize("how", REPLACE)
def test_a_large_gradient_replaced_before_the_step_gets_the_reduced_one(run, how: str) -> None:
    def body(replace: Callable[[torch.nn.Parameter], None]) -> None:
        parameters, optimizer = make_large()
        for step in range(5):
            optimizer.zero_grad()
            backward(parameters, hvd.rank() + 1.0)
            if step in (1, 2, 3):
                replace(parameters[1])
            optimizer.synchronize()
            assert torch.equal(parameters[1].grad, torch.full_like(parameters[1], 3.0))
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body, REPLACE[how])


def test_a_large_gradient_counts_passes_like_all_others(run) -> None:
    def body() -> None:
        parameters, optimizer = make_large(backward_passes_per_step=2)
        for _ in range(4):
            optimizer.zero_grad()
            with optimizer.no_sync():
                backward(parameters, float(hvd.rank()))
            backward(parameters, 1.0)
            backward(parameters, float(hvd.rank()))
            optimizer.synchronize()
            assert torch.equal(parameters[1].grad, torch.full_like(parameters[1], 4.0))
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_a_large_gradient_survives_a_peer_that_leaves_in_the_middle(run) -> None:
    def body() -> None:
        parameters, optimizer = make_large()
        for _ in range(3):
            step_large(parameters, optimizer, 1.0)
        optimizer.zero_grad()
        if hvd.rank() == 0:
            backward(parameters, 1.0)
            with pytest.raises(HorovodInternalError, match="rank 1 has left"):
                optimizer.synchronize()
        hvd.shutdown()
        hvd.init()
        for _ in range(3):
            optimizer.zero_grad()
            backward(parameters, hvd.rank() + 1.0)
            optimizer.synchronize()
            assert torch.equal(parameters[1].grad, torch.full_like(parameters[1], 3.0))
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_gradients_of_other_kinds_are_reduced_on_the_long_way(run) -> None:
    def body() -> None:
        parameters, optimizer = make()
        one, two = parameters[0], parameters[1]
        for step in range(4):
            optimizer.zero_grad()
            loss = (one * one).sum() + two.t().sum()  # the latter's gradient is not row-major
            loss.backward(create_graph=step % 2 == 1)  # gives gradients that have a history
            optimizer.synchronize()
            assert torch.equal(two.grad, torch.ones(2, 5))
            assert not two.grad.requires_grad
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_an_optimizer_that_is_dropped_frees_its_parameters(run) -> None:
    def body() -> None:
        parameters, optimizer = make()
        backward(parameters, 1.0)
        optimizer.step()
        watch = [weakref.ref(optimizer), weakref.ref(parameters[0])]
        del parameters, optimizer
        gc.collect()
        assert [reference() for reference in watch] == [None, None]

    run(body)


def test_the_functions_refuse_objects_of_other_classes() -> None:
    step, unit = _core.calls.StepState(), _core.calls.UnitState()
    slot, hook = _core.calls.SlotState(), _core.calls.HookState()
    other = pytest.raises(TypeError, match="an object of another class was expected")
    for wrong in ((slot, step), (step, unit), (None, slot)):
        with other:
            _core.calls.accumulated(*wrong)
        with other:
            _core.calls.attach(hook, *wrong)
    for packs_without_unit in (_core.calls.packed, _core.calls.write_flags):
        with pytest.raises(TypeError):
            packs_without_unit(step, slot)
    with other:
        _core.calls.bucket_made(unit)
    with other:
        _core.calls.write_flags(step, [unit], bytearray(16))
    with pytest.raises(ValueError, match="too small for the flags"):
        _core.calls.write_flags(step, [slot], bytearray(15))
    with pytest.raises(TypeError, match="made from HookState"):
        _core.calls.call_in_c(int)
    with pytest.raises(TypeError, match="slots must be a tuple"):
        _core.calls.begin_step(step, [unit])

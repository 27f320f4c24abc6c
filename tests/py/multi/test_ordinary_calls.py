"""Ordinary calls take the short way through the compiled module, and mean what all others mean."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite import _core
from horovodlite.torch import _allreduce, _tensors

ORDINARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "allreduce": hvd.allreduce,
    "allreduce named": lambda t: hvd.allreduce(t, name="x", op=hvd.Sum),
    "allreduce_": lambda t: hvd.allreduce_(t, name="x", prescale_factor=0.5, op=hvd.Max),
    "allreduce_async": lambda t: hvd.synchronize(hvd.allreduce_async(t, name="x", op=hvd.Min)),
    "allreduce_async_": lambda t: hvd.synchronize(hvd.allreduce_async_(t, postscale_factor=2.0)),
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t, t + 1], name="g", op=hvd.Product),
    "grouped_allreduce_": lambda t: hvd.grouped_allreduce_((t, t + 1), process_set=None),
    "grouped_allreduce_async": lambda t: hvd.synchronize(
        hvd.grouped_allreduce_async([t, torch.zeros(0)], op=hvd.Sum)
    ),
    "grouped_allreduce_async_": lambda t: hvd.synchronize(
        hvd.grouped_allreduce_async_([t], name="g")
    ),
}


def values(result: Any) -> Any:
    return [part.tolist() for part in result] if isinstance(result, list) else result.tolist()


@pytest.mark.parametrize("call", ORDINARY)
def test_ordinary_calls_take_the_short_way_and_give_what_the_long_way_gives(run, call) -> None:
    def body(call: Callable[[torch.Tensor], Any]) -> None:
        def tensor() -> torch.Tensor:
            return torch.arange(24.0).view(2, 3, 4).transpose(0, 2) + hvd.rank()

        with mock.patch.object(_allreduce, "_reduce", side_effect=AssertionError("the long way")):
            short = call(tensor())
        nothing = mock.Mock()
        for name in ("allreduce", "allreduce_async", "grouped_allreduce"):
            getattr(nothing.calls, name).return_value = None
        nothing.calls.grouped_allreduce_async.return_value = None
        nothing.ALLREDUCE = _core.ALLREDUCE
        with mock.patch.object(_allreduce, "_core", nothing):
            long = call(tensor())
        assert values(short) == values(long)
        assert type(short) is type(long)
        parts = zip(short, long) if isinstance(short, list) else [(short, long)]
        assert all(one.stride() == other.stride() for one, other in parts)

    run(body, ORDINARY[call])


def test_ordinary_calls_in_process_sets_take_the_short_way(run) -> None:
    def body() -> None:
        alone = [hvd.add_process_set([0]), hvd.add_process_set([1])][hvd.rank()]
        with mock.patch.object(_allreduce, "_reduce", side_effect=AssertionError("the long way")):
            result = hvd.allreduce(torch.tensor([float(hvd.rank())]), process_set=alone)
        assert result.tolist() == [hvd.rank()]
        hvd.barrier()  # who leaves ends the other's set, too

    run(body)


def unusual_tensors() -> dict[str, torch.Tensor]:
    class Own(torch.Tensor):
        pass

    return {
        "a subclass": torch.ones(2).as_subclass(Own),
        "complex": torch.ones(2, dtype=torch.complex64),
        "with holes": torch.ones(4)[::2],
        "overlapping": torch.ones(1).expand(3),
        "a negative view": torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
        "sparse": torch.ones(2).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "uint16": torch.zeros(2, dtype=torch.uint16),
        "nine dimensions": torch.ones(1, 1, 1, 1, 1, 1, 2, 2, 2).transpose(7, 8),
    }


@pytest.mark.parametrize("kind", unusual_tensors())
def test_unusual_tensors_take_the_long_way(kind: str) -> None:
    assert _core.calls.describe(unusual_tensors()[kind]) is None


@pytest.mark.parametrize("dtype", [d for d in _tensors.DTYPE_NUMBERS if d is not torch.bool])
def test_negative_views_are_told_from_what_is_in_their_memory(dtype: torch.dtype) -> None:
    plain = torch.ones(4, dtype=dtype)
    negative = plain._neg_view()
    with torch.inference_mode():
        negatives = [negative, plain._neg_view(), negative[1:], negative.detach()]
    negatives += [negative[1:], negative.detach(), negative.view(2, 2)]
    if dtype.is_floating_point:
        negatives.append(torch.nn.Parameter(negative))
    for tensor in negatives:
        assert tensor.is_neg()
        assert _core.calls.describe(tensor) is None
        for positive in (tensor.detach().resolve_neg(), copy.deepcopy(tensor)):
            assert (_core.calls.describe(positive) is None) == positive.is_neg()
    assert _core.calls.describe(plain) is not None


def test_a_name_that_comes_again_means_what_it_comes_with(run) -> None:
    """The last operation of a name is remembered, and only one that is like it is that one."""

    def body() -> None:
        memory, other = torch.zeros(6), torch.zeros(6)
        calls: list[tuple[torch.Tensor, dict[str, Any], float]] = [
            (memory, {"op": hvd.Sum}, 3.0),
            (memory, {"op": hvd.Sum}, 3.0),
            (other, {"op": hvd.Sum}, 3.0),
            (memory, {"op": hvd.Max}, 2.0),
            (memory, {"op": hvd.Sum, "prescale_factor": 2.0}, 6.0),
            (memory, {"op": hvd.Sum, "postscale_factor": 3.0}, 9.0),
            (memory, {}, 1.5),
            (memory[:4], {}, 1.5),
            (memory.view(2, 3), {}, 1.5),
            (memory.view(2, 3).t(), {}, 1.5),
            (memory[2:], {"op": hvd.Min}, 1.0),
            (memory.view(torch.int32), {"op": hvd.Sum}, 3.0),
        ]
        for blocking in (False, True):
            for tensor, how, expected in calls:
                memory.fill_(7.0)
                tensor.fill_(hvd.rank() + 1)
                if blocking:
                    result = hvd.allreduce_(tensor, name="x", **how)
                else:
                    result = hvd.synchronize(hvd.allreduce_async_(tensor, name="x", **how))
                assert result is tensor
                assert tensor.tolist() == torch.full_like(tensor, expected).tolist()
                if tensor.numel() == 4:  # the rest of the memory is as it was
                    assert memory.tolist().count(7.0) == 2

    run(body)


def test_things_that_are_no_tensors_take_the_long_way() -> None:
    for thing in (None, 1, [1.0], object(), torch.Tensor):
        assert _core.calls.describe(thing) is None


@pytest.mark.parametrize("dtype", _tensors.DTYPE_NUMBERS)
def test_ordinary_tensors_are_read_as_the_long_way_reads_them(dtype: torch.dtype) -> None:
    plain = torch.zeros(2, 3, 4, 5, dtype=dtype)
    tensors = [
        plain,
        plain[1:],
        plain.permute(3, 1, 0, 2),
        plain.to(memory_format=torch.channels_last),
        plain[:, :1].to(memory_format=torch.channels_last),
        plain.new_zeros(()),
        plain.new_zeros(3, 0),
        plain.new_zeros(1, 1, 1, 1, 1, 1, 1, 1, 3, 1),
        plain.new_zeros(3, 1, 5).transpose(0, 2),
    ]
    if dtype.is_floating_point:
        tensors.append(torch.nn.Parameter(plain))
    for tensor in tensors:
        source, layout = _tensors.in_memory_order(tensor)
        long = _tensors.tensor_arg(source, source, layout)
        assert _core.calls.describe(tensor) == long


def test_tensors_that_want_gradients_are_differentiated(run) -> None:
    def body() -> None:
        tensor = torch.ones(2, requires_grad=True)
        hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
        assert tensor.grad is not None
        assert tensor.grad.tolist() == [2.0, 2.0]
        other = torch.ones(2, requires_grad=True)
        sum(t.sum() for t in hvd.grouped_allreduce([torch.ones(1), other])).backward()
        assert other.grad is not None
        assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
        assert hvd.allreduce_(tensor) is tensor

    run(body)


def test_a_group_that_has_a_tensor_twice_is_refused(run) -> None:
    def body() -> None:
        tensor = torch.ones(2)
        with pytest.raises(ValueError, match="tensors 0 and 2 of the group"):
            hvd.grouped_allreduce_([tensor, torch.ones(1), tensor])
        assert len(hvd.grouped_allreduce([tensor, tensor])) == 2

    run(body)


def test_handles_are_numbers_whose_copies_do_not_own_the_result(run) -> None:
    def body() -> None:
        handle = hvd.allreduce_async(torch.ones(1))
        assert isinstance(handle, int)
        number = int(handle)
        for other in (copy.copy(handle), copy.deepcopy(handle), pickle.loads(pickle.dumps(handle))):
            assert (type(other), other) == (int, number)
            del other
        assert hvd.synchronize(number).item() == 1.0
        with pytest.raises(ValueError, match=f"Handle {number} was not created or has been"):
            hvd.synchronize(handle)
        for unknown in (-1, 1 << 70, "x", None, [1], 0.5):
            with pytest.raises(ValueError, match="was not created or has been cleared"):
                hvd.poll(unknown)

    run(body)


def test_a_dropped_handle_throws_the_result_away(run) -> None:
    def body() -> None:
        number = int(hvd.allreduce_async(torch.ones(1)))
        gc.collect()
        with pytest.raises(ValueError, match="was not created or has been cleared"):
            hvd.synchronize(number)
        hvd.barrier()

    run(body)

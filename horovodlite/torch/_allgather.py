"""Joining the tensors of all ranks: allgather and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._allreduce import grouped_allreduce
from horovodlite.torch._arguments import Average, as_list
from horovodlite.torch._calls import Call, apply, gradient_name, named, some, wants_gradient
from horovodlite.torch._handles import Handle
from horovodlite.torch._tensors import (
    ROW_MAJOR,
    check_supported,
    result_tensor,
    row_major,
    tensor_arg,
)


class Part:
    """One tensor of an allgather, joined: the result, and how many rows each rank gave."""

    __slots__ = ("rows", "tensor")

    def __init__(self, gathered: Any, own: torch.Tensor) -> None:
        self.rows = gathered[3]
        joined = result_tensor(gathered, own)
        self.tensor = joined.contiguous(memory_format=_memory_format(own))


def joined(parts: list[Part]) -> list[torch.Tensor]:
    return [part.tensor for part in parts]


def gather(
    tensors: Sequence[torch.Tensor],
    full_name: str,
    process_set: ProcessSet,
    collect: Callable[[list[Part]], Any],
) -> Call:
    """An allgather: joins the ranks' tensors along the first dimension."""
    arguments, keep = [], []
    for tensor in tensors:
        source = row_major(tensor)
        if tensor.dim() == 0:
            raise ValueError(
                "allgather needs tensors with at least one dimension, along which it joins them; "
                "pass tensor.unsqueeze(0)"
            )
        arguments.append(tensor_arg(source, None, ROW_MAJOR))
        keep.append(source)

    def collect_parts(gathered: list[Any]) -> Any:
        return collect([Part(one, own) for one, own in zip(gathered, tensors)])

    return Call(
        _core.ALLGATHER, full_name, arguments, collect_parts, process_set=process_set, keep=keep
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """channels_last for what is laid out so and not row-major as well."""
    if not tensor.is_contiguous():
        for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            if tensor.dim() == dims and tensor.is_contiguous(memory_format=memory_format):
                return memory_format
    return torch.contiguous_format


class _Allgather(torch.autograd.Function):
    """allgather of one or more tensors.

    Horovod defines the gradient as the average (not the sum) of the ranks' gradients, cut down to
    the rows that this rank gave; scripts tune their learning rates by it.
    """

    @staticmethod
    def forward(ctx: Any, full_name: str, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        def collect(parts: list[Part]) -> tuple[torch.Tensor, ...]:
            rank = members(process_set).index(session().rank)
            ctx.first_rows = [sum(part.rows[:rank]) for part in parts]
            return tuple(joined(parts))

        ctx.row_counts = [tensor.shape[0] for tensor in tensors]
        ctx.name, ctx.process_set = full_name or None, process_set
        return gather(tensors, full_name, process_set, collect).run()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = grouped_allreduce(
            gradients, name=gradient_name(ctx.name), op=Average, process_set=ctx.process_set
        )
        own = zip(reduced, ctx.first_rows, ctx.row_counts)
        return (None, None, *(gradient.narrow(0, first, count) for gradient, first, count in own))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns all ranks' tensors joined along the first dimension, in rank order; differentiable.

    Collective; blocks without the GIL.

    Args:
        tensor: At least one dimension. The first may differ between the ranks and be 0, the others
            and the dtype must be the same. Any supported dtype, bool too.
        name: As in allreduce().
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; a scalar; an unsupported dtype.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient is the Average over the ranks of the gradients of the result, cut to the rows that
    this rank gave (as in Horovod; the mathematical adjoint would be the Sum).

    Source: ``horovod.torch.allgather``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.allgather(torch.full((1, 2), hvd.rank()))[:1]
        tensor([[0, 0]])
    """
    check_supported(tensor)
    full_name = named("allgather", name)
    if wants_gradient((tensor,)):
        result: torch.Tensor = apply(_Allgather, full_name, process_set, tensor)[0]
        return result
    results: list[torch.Tensor] = gather((tensor,), full_name, process_set, joined).run()
    return results[0]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts an allgather and returns its handle; synchronize() gives the joined tensor.

    As allgather(), but it never blocks on a peer and is not differentiable.

    Source: ``horovod.torch.allgather_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.allgather_async(torch.zeros(1)))[:1]
        tensor([0.])
    """
    return gather(
        (tensor,), named("allgather", name), process_set, lambda parts: parts[0].tensor
    ).submit()


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns several allgathers, agreed on and started all or nothing; differentiable.

    As allgather() for every tensor of the list. An empty list gives an empty list without asking
    the other ranks.

    Source: ``horovod.torch.grouped_allgather``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> len(hvd.grouped_allgather([torch.zeros(1), torch.ones(2, 3)]))
        2
    """
    tensors = as_list(tensors)
    if not tensors:
        return []
    for tensor in tensors:
        check_supported(tensor)
    full_name = named("grouped_allgather", name)
    if wants_gradient(tensors):
        return list(apply(_Allgather, full_name, process_set, *tensors))
    results: list[torch.Tensor] = gather(tensors, full_name, process_set, joined).run()
    return results


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a grouped allgather and returns one handle; synchronize() gives the list of results.

    As grouped_allgather(), but it never blocks on a peer and is not differentiable.

    Raises:
        ValueError: As allgather(), and for an empty list, which would have no handle.

    Source: ``horovod.torch.grouped_allgather_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> len(hvd.synchronize(hvd.grouped_allgather_async([torch.zeros(1)])))
        1
    """
    tensors = some(tensors)
    return gather(tensors, named("grouped_allgather", name), process_set, joined).submit()

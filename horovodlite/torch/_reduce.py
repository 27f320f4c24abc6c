"""Reductions that one rank gets."""

from __future__ import annotations

from typing import Any

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._arguments import (
    Average,
    Sum,
    check_complex,
    check_root,
    reduce_op,
    scales,
)
from horovodlite.torch._broadcast import broadcast
from horovodlite.torch._calls import Call, apply, gradient_name, named, wants_gradient
from horovodlite.torch._handles import Handle
from horovodlite.torch._tensors import in_memory_order, like, tensor_arg


def _reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    op: int | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> Call:
    """An allreduce whose result only the root keeps; `root_rank` is agreed on."""
    check_root(root_rank, process_set, "reduce")
    prescale, postscale = map(float, factors)
    source, layout = in_memory_order(tensor)
    target = torch.empty_like(source, requires_grad=False)
    numbers = (reduce_op(op), prescale, postscale, root_rank)
    check_complex(numbers[0], (tensor,))
    is_root = session().rank == root_rank

    def collect(_: list[Any]) -> torch.Tensor | None:
        return like(target, tensor) if is_root else None

    return Call(
        _core.ALLREDUCE,
        named("reduce", name),
        [tensor_arg(source, target, layout)],
        collect,
        numbers=numbers,
        process_set=process_set,
        keep=(source, target),
    )


class _Reduce(torch.autograd.Function):
    """reduce by Sum or Average; every rank's gradient is that of the root's result, scaled."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.like, ctx.root_rank, ctx.name, ctx.process_set = tensor, root_rank, name, process_set
        ctx.scale = factors[0] * factors[1]
        if op == Average:
            ctx.scale /= len(members(process_set))
        result = _reduce(tensor, root_rank, name, op, factors, process_set).run()
        return tensor.new_empty(0) if result is None else result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if session().rank != ctx.root_rank:
            gradient = torch.zeros_like(ctx.like)
        name = None if ctx.name is None else gradient_name(f"reduce.{ctx.name}")
        sent = broadcast(gradient, ctx.root_rank, name=name, process_set=ctx.process_set)
        return sent * ctx.scale, None, None, None, None, None


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Returns the reduction of `tensor` over the ranks on the root, and None elsewhere.

    Collective; blocks without the GIL; differentiable with Sum and Average. It costs what an
    allreduce costs.

    Args:
        tensor: As in allreduce().
        root_rank: Who gets the result, the same on all ranks: a rank of the world, also in a
            process set.
        name: As in allreduce().
        op: As in allreduce().
        prescale_factor: Every rank's tensor is multiplied by it first.
        postscale_factor: The result is multiplied by it last.
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: As allreduce(); `root_rank` is no rank of the process set.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient on every rank is that of the root's result, times both factors, and divided by the
    number of ranks for Average (the mathematical adjoint). Backward is collective. So where
    `tensor` requires gradients, as it then has to on all ranks, the others get an empty tensor
    instead of None, and call backward() on what they make of it: ``result.sum().backward()``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> result = hvd.reduce(torch.ones(1), root_rank=0)
        >>> result is None or result.tolist() == [1.0]
        True
    """
    factors = scales(prescale_factor, postscale_factor)
    result: torch.Tensor | None
    if wants_gradient((tensor,)) and reduce_op(op) in (Average, Sum):
        result = apply(_Reduce, tensor, root_rank, name, reduce_op(op), factors, process_set)
    else:
        result = _reduce(tensor, root_rank, name, op, factors, process_set).run()
    return result


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a reduction and returns its handle; synchronize() gives what reduce() returns.

    It is not differentiable.
    """
    factors = prescale_factor, postscale_factor
    return _reduce(tensor, root_rank, name, op, factors, process_set).submit()

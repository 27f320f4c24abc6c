"""One rank's tensor for all: broadcast and its variants."""

from __future__ import annotations

from typing import Any

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import ProcessSet, global_process_set
from horovodlite.torch._allreduce import allreduce
from horovodlite.torch._arguments import Average, check_root
from horovodlite.torch._calls import (
    Call,
    apply,
    elementwise,
    gradient_name,
    named,
    rooted,
    wants_gradient,
)
from horovodlite.torch._handles import Handle
from horovodlite.torch._tensors import check_supported


def _send(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Call:
    check_root(root_rank, process_set)
    return elementwise(
        _core.BROADCAST,
        named("broadcast", name),
        (tensor,),
        rooted(root_rank),
        process_set,
        in_place=in_place,
        single=True,
    )


class _Broadcast(torch.autograd.Function):
    """broadcast of one tensor.

    Horovod defines the gradient on the root as the average (not the sum) of the ranks' gradients,
    and as zero elsewhere.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> Any:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return _send(tensor, root_rank, name, process_set, in_place=False).run()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name = None if ctx.name is None else f"broadcast.{ctx.name}"
        reduced = allreduce(
            gradient, name=gradient_name(name), op=Average, process_set=ctx.process_set
        )
        if session().rank != ctx.root_rank:
            # Zeros that still depend on it, so that these ranks take part in a double backward; not
            # a product, because 0 times inf is NaN.
            reduced = reduced.masked_fill(torch.ones((), dtype=torch.bool), 0)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor on every rank; differentiable, not in place.

    Collective; blocks without the GIL.

    Args:
        tensor: The same shape and dtype on all ranks; only the root's values matter. Any supported
            dtype, bool too; scalars and empty tensors too.
        root_rank: Whose tensor, the same on all ranks: a rank of the world, also in a process set.
        name: As in allreduce().
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; `root_rank` is no rank of the process set; an unsupported
            dtype.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient is, on the root, the Average over the ranks of their gradients (as in Horovod; the
    mathematical adjoint would be the Sum), and zero elsewhere.

    Source: ``horovod.torch.broadcast``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.broadcast(torch.tensor([float(hvd.rank())]), root_rank=0)
        tensor([0.])
    """
    check_supported(tensor)
    if wants_gradient((tensor,)):
        differentiable: torch.Tensor = apply(_Broadcast, tensor, root_rank, name, process_set)
        return differentiable
    result: torch.Tensor = _send(tensor, root_rank, name, process_set, in_place=False).run()
    return result


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a broadcast and returns its handle; synchronize() gives a new tensor.

    As broadcast(), but it never blocks on a peer and is not differentiable.

    Source: ``horovod.torch.broadcast_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.broadcast_async(torch.zeros(1), root_rank=0))
        tensor([0.])
    """
    return _send(tensor, root_rank, name, process_set, in_place=False).submit()


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites `tensor` with the root's values and returns it.

    As broadcast(), but in place and invisible to autograd, also for tensors that require gradients.

    Source: ``horovod.torch.broadcast_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> weight = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        >>> hvd.broadcast_(weight, root_rank=0).tolist()
        [0.0, 0.0]
    """
    result: torch.Tensor = _send(tensor, root_rank, name, process_set, in_place=True).run()
    return result


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a broadcast in place and returns its handle; synchronize() gives `tensor` back.

    As broadcast_(), but it never blocks on a peer. A tensor whose memory has holes is written by
    synchronize(), any other one at some time before.

    Source: ``horovod.torch.broadcast_async_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> weight = torch.zeros(1)
        >>> hvd.synchronize(hvd.broadcast_async_(weight, root_rank=0)) is weight
        True
    """
    return _send(tensor, root_rank, name, process_set, in_place=True).submit()

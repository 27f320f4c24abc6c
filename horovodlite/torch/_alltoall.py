"""Every rank sends something to every other one: alltoall; and gather and scatter, made of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Callable, Union

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._arguments import check_root
from horovodlite.torch._calls import (
    NO_NUMBERS,
    Call,
    Numbers,
    apply,
    gradient_name,
    named,
    rooted,
    wants_gradient,
)
from horovodlite.torch._handles import Handle
from horovodlite.torch._tensors import (
    ROW_MAJOR,
    check_supported,
    result_tensor,
    row_major,
    tensor_arg,
)

Splits = Union[Sequence[int], torch.Tensor, None]


def _split_list(splits: Splits) -> list[int]:
    """Rows for each rank; an empty list when they are to be equal."""
    if splits is None:
        return []
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1:
            raise ValueError("alltoall expects a 1D splits tensor")
        if splits.dtype is not torch.int32:
            raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
        rows: list[int] = splits.tolist()
    else:
        try:
            rows = [operator.index(row) for row in splits]
        except TypeError:
            raise ValueError(
                "alltoall expects splits to contain 32-bit integer elements."
            ) from None
    if not rows:
        raise ValueError("Number of entries in splits does not equal number of workers.")
    return rows


def _exchange(
    tensor: torch.Tensor,
    splits: Splits,
    full_name: str,
    process_set: ProcessSet,
    collect: Callable[[torch.Tensor, torch.Tensor], Any],
    numbers: Numbers = NO_NUMBERS,
) -> Call:
    """An alltoall; `collect` gets the joined rows and how many came from each rank."""
    source = row_major(tensor)
    rows = _split_list(splits)
    device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")

    def collect_rows(gathered: list[Any]) -> Any:
        received = torch.tensor(gathered[0][3], dtype=torch.int32, device=device)
        return collect(result_tensor(gathered[0], tensor), received)

    return Call(
        _core.ALLTOALL,
        full_name,
        [tensor_arg(source, None, ROW_MAJOR)],
        collect_rows,
        numbers=numbers,
        process_set=process_set,
        splits=rows,
        keep=source,
    )


def _both(joined: torch.Tensor, received: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return joined, received


class _Alltoall(torch.autograd.Function):
    """alltoall of one tensor; in the backward pass every row goes back to where it came from."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Splits,
        kind: str,
        name: str | None,
        process_set: ProcessSet,
        numbers: Numbers,
    ) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        ctx.name = name if name is None or kind == "alltoall" else f"{kind}.{name}"
        call = _exchange(tensor, splits, named(kind, name), process_set, _both, numbers)
        joined, ctx.received = call.run()
        ctx.mark_non_differentiable(ctx.received)
        return joined, ctx.received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        sent, _ = alltoall(
            gradient, ctx.received, gradient_name(ctx.name), process_set=ctx.process_set
        )
        kept = ctx.rows - sent.shape[0]  # rows that were for nobody
        if kept:
            sent = torch.cat([sent, sent.new_zeros((kept, *sent.shape[1:]))])
        return sent, None, None, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a slice of `tensor` to every rank and returns what came from every rank, in rank order.

    Collective; blocks without the GIL; differentiable. The slices are along the first dimension.

    Args:
        tensor: At least one dimension. The first may differ between the ranks and be 0, the others
            and the dtype must be the same. Any supported dtype.
        splits: How many rows go to each rank: integers (NumPy's too), or an int32 tensor of one
            dimension. Zeros are allowed; rows beyond their sum go nowhere. Without it every rank
            gets equally many.
        name: As in allreduce().
        process_set: Whose ranks take part: only they call it.

    Returns:
        The received rows; with `splits` also how many came from each rank, an int32 tensor.

    Raises:
        ValueError: Not initialised; a scalar; splits that do not fit the tensor or the number of
            ranks; an unsupported dtype.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient of every row goes back to the rank that sent it.

    Source: ``horovod.torch.alltoall``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.alltoall(torch.arange(hvd.size()) * 0, splits=[1] * hvd.size())[0][:1]
        tensor([0])
    """
    if wants_gradient((tensor,)):
        arguments = tensor, splits, "alltoall", name, process_set, NO_NUMBERS
        joined, received = apply(_Alltoall, *arguments)
    else:
        call = _exchange(tensor, splits, named("alltoall", name), process_set, _both)
        joined, received = call.run()
    return joined if splits is None else (joined, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an alltoall and returns its handle.

    As alltoall(), but it never blocks on a peer and is not differentiable, and synchronize() always
    gives both: the received rows and how many came from each rank.

    Source: ``horovod.torch.alltoall_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> rows, received = hvd.synchronize(hvd.alltoall_async(torch.zeros(hvd.size())))
        >>> int(received.sum()) == len(rows)
        True
    """
    return _exchange(tensor, splits, named("alltoall", name), process_set, _both).submit()


def _gather_rows(tensor: torch.Tensor, root_rank: int, process_set: ProcessSet) -> list[int]:
    """How many rows go where: all to the root."""
    check_root(root_rank, process_set, "gather")
    check_supported(tensor)
    if tensor.dim() == 0:
        raise ValueError("gather needs tensors with a dimension: pass tensor.unsqueeze(0)")
    return [tensor.shape[0] if rank == root_rank else 0 for rank in members(process_set)]


def _gather(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Call:
    """An alltoall in which everything is for the root; `root_rank` is agreed on."""
    rows = _gather_rows(tensor, root_rank, process_set)
    is_root = session().rank == root_rank

    def at_root(joined: torch.Tensor, _: torch.Tensor) -> torch.Tensor | None:
        return joined if is_root else None

    numbers = rooted(root_rank)
    return _exchange(tensor, rows, named("gather", name), process_set, at_root, numbers)


def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Returns all ranks' tensors joined along the first dimension on the root, None elsewhere.

    Collective; blocks without the GIL; differentiable. Only the root receives anything.

    Args:
        tensor: As in allgather().
        root_rank: Who gets them, the same on all ranks: a rank of the world, also in a process set.
        name: As in allreduce().
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; a scalar; `root_rank` is no rank of the process set.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient of every row goes back to the rank that gave it. Backward is collective. So where
    `tensor` requires gradients, as it then has to on all ranks, the others get a tensor without
    rows instead of None, and call backward() on what they make of it: ``rows.sum().backward()``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> rows = hvd.gather(torch.ones(1), root_rank=0)
        >>> rows is None or len(rows) == hvd.size()
        True
    """
    result: torch.Tensor | None
    if wants_gradient((tensor,)):
        rows = _gather_rows(tensor, root_rank, process_set)
        numbers = rooted(root_rank)
        result, _ = apply(_Alltoall, tensor, rows, "gather", name, process_set, numbers)
    else:
        result = _gather(tensor, root_rank, name, process_set).run()
    return result


def gather_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a gather and returns its handle; synchronize() gives what gather() returns.

    It is not differentiable.
    """
    return _gather(tensor, root_rank, name, process_set).submit()


def _scatter_rows(
    tensor: torch.Tensor, root_rank: int, splits: Splits, process_set: ProcessSet
) -> tuple[torch.Tensor, Splits]:
    """What a rank sends, and how many rows go where: only the root has something."""
    check_root(root_rank, process_set, "scatter")
    check_supported(tensor)
    if tensor.dim() == 0:
        raise ValueError("scatter divides a tensor along its first dimension; a scalar has none")
    if session().rank == root_rank:
        return tensor, splits
    return tensor[:0], [0] * len(members(process_set))


def _scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits,
    name: str | None,
    process_set: ProcessSet,
) -> Call:
    """An alltoall in which only the root has something; `root_rank` is agreed on."""
    source, rows = _scatter_rows(tensor, root_rank, splits, process_set)

    def part(joined: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return joined

    numbers = rooted(root_rank)
    return _exchange(source, rows, named("scatter", name), process_set, part, numbers)


def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns this rank's slice of the root's tensor, cut along the first dimension.

    Collective; blocks without the GIL; differentiable.

    Args:
        tensor: On the root, what is divided. On the other ranks only its dtype and the dimensions
            after the first matter, which must be the root's.
        root_rank: Whose tensor, the same on all ranks: a rank of the world, also in a process set.
        splits: On the root, rows for each rank as in alltoall(); ignored elsewhere.
        name: As in allreduce().
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; a scalar; `root_rank` is no rank of the process set; splits
            that do not fit.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient of every slice goes back to the root; elsewhere it is zero. Backward is collective:
    to differentiate, every rank passes a tensor that requires gradients.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.scatter(torch.zeros(hvd.size(), 2), root_rank=0)
        tensor([[0., 0.]])
    """
    result: torch.Tensor
    if wants_gradient((tensor,)):
        source, rows = _scatter_rows(tensor, root_rank, splits, process_set)
        result, _ = apply(_Alltoall, source, rows, "scatter", name, process_set, rooted(root_rank))
    else:
        result = _scatter(tensor, root_rank, splits, name, process_set).run()
    return result


def scatter_async(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts a scatter and returns its handle; synchronize() gives what scatter() returns.

    It is not differentiable.
    """
    return _scatter(tensor, root_rank, splits, name, process_set).submit()

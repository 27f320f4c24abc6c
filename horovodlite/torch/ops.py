"""Collective operations on torch tensors.

Every function here is collective: all ranks have to call it, with the same name if there is a name,
else in the same order among the unnamed operations of its kind. Tensors are in host memory. They
may have any strides; where memory has holes or overlaps, a copy is made. Results keep the memory
format. The asynchronous functions keep their tensors alive, but they must not be changed, and the
tensor of an in-place one not be read, before synchronize().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch._arguments import (
    Average,
    as_list,
    check_root,
    reduce_op,
    require_global,
)
from horovodlite.torch._handles import Handle, new_handle, synchronize
from horovodlite.torch._tensors import (
    DTYPES,
    ROW_MAJOR,
    TensorArg,
    check_supported,
    from_memory,
    in_memory_order,
    tensor_arg,
)
from horovodlite.torch.compression import Compression, Compressor
from horovodlite.world import session

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]


class _Call:
    """One operation on its way to the core: what to submit, and what to do with the result."""

    __slots__ = ("arguments", "collect", "keep", "kind", "name", "numbers")

    def __init__(
        self,
        kind: int,
        name: str,
        arguments: list[TensorArg],
        numbers: tuple[int, float, float, int],
        keep: object,
        collect: Callable[[list[Any]], Any],
    ) -> None:
        self.kind = kind
        self.name = name
        self.arguments = arguments
        self.numbers = numbers  # reduction, prescale, postscale, root
        self.keep = keep
        self.collect = collect

    def run(self) -> Any:
        """Blocks; returns the result."""
        gathered = session().run(self.kind, self.name, self.arguments, *self.numbers, self.keep)
        return self.collect(gathered)

    def submit(self) -> Handle:
        """Returns at once."""
        operation = session().submit(self.kind, self.name, self.arguments, *self.numbers, self.keep)
        collect = self.collect
        return new_handle(operation, lambda done: collect(done.wait_gathered()))


def _in_and_out(
    tensors: Sequence[torch.Tensor], in_place: bool
) -> tuple[list[TensorArg], list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]], object]:
    """Descriptions, results, copies still to be made from the first to the second, what to keep."""
    arguments, results, copies, keep = [], [], [], []
    for tensor in tensors:
        source, layout = in_memory_order(tensor)
        if not in_place:
            target = torch.empty_like(source, requires_grad=False)
            results.append(target)
        else:
            target = source
            results.append(tensor)
            if source is not tensor:  # a copy of memory with holes
                copies.append((source, tensor))
        arguments.append(tensor_arg(source, target, layout))
        keep.append((source, target))
    if in_place and len(arguments) > 1:
        _require_distinct(tensors)
    return arguments, results, copies, keep


def _require_distinct(tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError when a group has a tensor twice: which result it gets would be chance."""
    first: dict[int, int] = {}
    for index, tensor in enumerate(tensors):
        earlier = first.setdefault(tensor.data_ptr(), index) if tensor.numel() else index
        if earlier != index:
            raise ValueError(
                f"tensors {earlier} and {index} of the group are in the same memory, so they "
                "cannot both be reduced in place: pass it once"
            )


def _elementwise(
    kind: int,
    name: str,
    tensors: Sequence[torch.Tensor],
    numbers: tuple[int, float, float, int],
    in_place: bool,
    single: bool,
) -> _Call:
    """An operation whose results have the shapes of its inputs."""
    arguments, results, copies, keep = _in_and_out(tensors, in_place)

    def collect(_: list[Any]) -> Any:
        if copies:
            with torch.no_grad():
                for source, tensor in copies:
                    tensor.copy_(source)
        return results[0] if single else results

    return _Call(kind, name, arguments, numbers, keep, collect)


def _named(kind: str, name: str | None) -> str:
    """The operation's name on all ranks; the core numbers those that have none."""
    return "" if name is None else f"{kind}.{name}"


def _reduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    numbers: tuple[int, float, float, int],
    *,
    in_place: bool,
    single: bool,
) -> _Call:
    kind = "allreduce" if single else "grouped_allreduce"
    full_name = _named(kind, name)
    return _elementwise(_core.ALLREDUCE, full_name, tensors, numbers, in_place, single)


def _wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _gradient_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


class _Allreduce(torch.autograd.Function):
    """allreduce of one or more tensors; the gradient is the same reduction of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        numbers: tuple[int, float, float, int],
        single: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.name, ctx.numbers, ctx.single = name, numbers, single
        results = _reduce(tensors, name, numbers, in_place=False, single=single).run()
        return results if single else tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name = _gradient_name(ctx.name)
        if _wants_gradient(gradients):
            results = _apply(_Allreduce, name, ctx.numbers, ctx.single, *gradients)
        else:
            call = _reduce(gradients, name, ctx.numbers, in_place=False, single=ctx.single)
            results = call.run()
        return (None, None, None, results) if ctx.single else (None, None, None, *results)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over all ranks; differentiable, not in place.

    Collective; blocks without the GIL. The result is bitwise the same on every rank and does not
    depend on what else is in flight. float16 and bfloat16 are added up in float32; an average of
    integers is rounded towards minus infinity; sums of integers wrap around.

    Args:
        tensor: Any shape, also scalar or empty, the same on all ranks. float16, bfloat16, float32,
            float64, int8 to int64, uint8; bool with Min, Max and Product.
        average: Deprecated: True is op=Average, False is op=Sum.
        name: The same on all ranks, not in flight already. Without one, operations are paired by
            their order.
        compression: Type used on the way; see Compression.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: Every rank's tensor is multiplied by it first.
        postscale_factor: The result is multiplied by it last.
        process_set: Must be left out; process sets are not supported yet.

    Raises:
        ValueError: Not initialised; both `average` and `op`; a dtype or name that cannot be used.
        HorovodInternalError: The ranks disagree (every rank gets the error, which names the tensor
            and both sides; the session goes on), or a peer is gone.
        NotImplementedError: A tensor that is not in host memory, Adasum, a process set.

    The gradient of an allreduce is the same allreduce of the gradients.

    Source: ``horovod.torch.allreduce``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), name="x")
        tensor([1., 2.])
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    check_supported(tensor)
    compressed, context = compression.compress(tensor)
    if _wants_gradient((compressed,)):
        reduced = _apply(_Allreduce, name, numbers, True, compressed)
    else:
        reduced = _reduce((compressed,), name, numbers, in_place=False, single=True).run()
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts an allreduce and returns its handle; synchronize() gives a new tensor.

    As allreduce(), but it never blocks on a peer and is not differentiable. Errors of negotiation
    are raised by synchronize().

    Source: ``horovod.torch.allreduce_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> handle = hvd.allreduce_async(torch.tensor([4.0]), op=hvd.Sum)
        >>> hvd.synchronize(handle)
        tensor([4.])
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    return _reduce((tensor,), name, numbers, in_place=False, single=True).submit()


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks in place and returns it.

    As allreduce(), but in place and invisible to autograd, also for tensors that require gradients.

    Source: ``horovod.torch.allreduce_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> total = torch.tensor([4.0])
        >>> hvd.allreduce_(total, op=hvd.Sum) is total
        True
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    result: torch.Tensor = _reduce((tensor,), name, numbers, in_place=True, single=True).run()
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts an allreduce in place and returns its handle; synchronize() gives `tensor` back.

    As allreduce_(), but it never blocks on a peer. A tensor whose memory has holes is written by
    synchronize(), any other one at some time before.

    Source: ``horovod.torch.allreduce_async_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> total = torch.tensor([4.0])
        >>> hvd.synchronize(hvd.allreduce_async_(total, op=hvd.Sum)) is total
        True
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    return _reduce((tensor,), name, numbers, in_place=True, single=True).submit()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """Returns the reductions of several tensors, agreed on and started all or nothing.

    As allreduce() for every tensor of the list; the tensors may differ in shape and dtype. An empty
    list gives an empty list without asking the other ranks.

    Source: ``horovod.torch.grouped_allreduce``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.grouped_allreduce([torch.ones(1), torch.zeros(2)], name="pair")
        [tensor([1.]), tensor([0., 0.])]
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    tensors = as_list(tensors)
    for tensor in tensors:
        check_supported(tensor)
    if not tensors:
        return []
    compressed, contexts = zip(*map(compression.compress, tensors))
    if _wants_gradient(compressed):
        reduced = _apply(_Allreduce, name, numbers, False, *compressed)
    else:
        reduced = _reduce(compressed, name, numbers, in_place=False, single=False).run()
    return [compression.decompress(result, ctx) for result, ctx in zip(reduced, contexts)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts a grouped allreduce and returns one handle; synchronize() gives a list of new tensors.

    As grouped_allreduce(), but it never blocks on a peer and is not differentiable.

    Raises:
        ValueError: As allreduce(), and for an empty list, which would have no handle.

    Source: ``horovod.torch.grouped_allreduce_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1), torch.zeros(1)]))
        [tensor([1.]), tensor([0.])]
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    tensors = _some(tensors)
    return _reduce(tensors, name, numbers, in_place=False, single=False).submit()


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """Reduces several tensors in place, all or nothing, and returns them as a list.

    As grouped_allreduce(), but in place and invisible to autograd.

    Source: ``horovod.torch.grouped_allreduce_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> parts = [torch.ones(1), torch.zeros(1)]
        >>> hvd.grouped_allreduce_(parts)[0] is parts[0]
        True
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    tensors = as_list(tensors)
    if not tensors:
        return []
    results: list[torch.Tensor] = _reduce(tensors, name, numbers, in_place=True, single=False).run()
    return results


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts a grouped allreduce in place; synchronize() gives the tensors back as a list.

    As grouped_allreduce_(), but it never blocks on a peer.

    Raises:
        ValueError: As allreduce(), and for an empty list, which would have no handle.

    Source: ``horovod.torch.grouped_allreduce_async_``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> parts = [torch.ones(1), torch.zeros(1)]
        >>> hvd.synchronize(hvd.grouped_allreduce_async_(parts))[1] is parts[1]
        True
    """
    numbers = (reduce_op(op, average), float(prescale_factor), float(postscale_factor), 0)
    require_global(process_set)
    tensors = _some(tensors)
    return _reduce(tensors, name, numbers, in_place=True, single=False).submit()


def _some(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    listed = as_list(tensors)
    if not listed:
        raise ValueError("a grouped operation needs at least one tensor to have a handle")
    return listed


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int | None = None,
    process_set: Any = None,
) -> Callable[[], torch.Tensor]:
    """Starts adding up sparse tensors; returns a function that waits and gives the sparse sum.

    Every rank's indices and values are gathered in one operation, merged, and for Average divided
    by the number of ranks. Collective; never blocks on a peer, but the returned function does.

    Args:
        tensor: A sparse COO tensor in host memory, on every rank with the same shape and number of
            sparse dimensions; the number of entries may differ and be zero. Duplicates are added.
        name: As in allreduce().
        op: Average (the default) or Sum.
        process_set: Must be left out.

    Returns:
        A function without arguments. Its result is coalesced and bitwise the same on every rank.

    Raises:
        ValueError: Not a sparse COO tensor; another `op`; as allreduce().
        HorovodInternalError: From the returned function: the ranks' shapes differ, or a peer is
            gone.

    Source: ``horovod.torch.sparse_allreduce_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> wait = hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name="s", op=hvd.Sum)
        >>> wait().to_dense()
        tensor([[1., 0.],
                [0., 1.]])
    """
    chosen = reduce_op(op)
    require_global(process_set)
    if chosen not in (Average, _core.SUM):
        raise ValueError("sparse tensors can be reduced with op=hvd.Average or hvd.Sum only")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError("sparse_allreduce_async needs a sparse COO tensor")
    merged = tensor.detach().coalesce()
    shape, ranks = tensor.shape, session().size
    parts = [merged.indices().t().contiguous(), merged.values().contiguous()]
    parts.append(torch.tensor([shape], dtype=torch.int64))
    handle = _gather(parts, _named("allreduce", name), _joined).submit()

    def wait() -> torch.Tensor:
        indices, values, shapes = synchronize(handle)
        if (shapes != shapes[0]).any():
            listed = ", ".join(f"{row} on rank {rank}" for rank, row in enumerate(shapes.tolist()))
            raise HorovodInternalError(
                f"sparse tensor '{name}' differs between ranks: shape: {listed}. Cure: the tensor "
                "needs the same shape on all ranks.",
                code="Mismatch",
            )
        if chosen == Average:
            rounding = None if values.is_floating_point() else "floor"
            values = values.div(ranks, rounding_mode=rounding)
        result = torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)
        return result.coalesce()

    return wait


class _Part:
    """One tensor of an allgather, joined: the result, and how many rows each rank gave."""

    __slots__ = ("rows", "tensor")

    def __init__(self, gathered: Any, memory_format: torch.memory_format) -> None:
        memory, dtype, shape, self.rows = gathered
        joined = from_memory(memory, DTYPES[dtype], shape)
        self.tensor = joined.contiguous(memory_format=memory_format)


def _joined(parts: list[_Part]) -> list[torch.Tensor]:
    return [part.tensor for part in parts]


def _gather(
    tensors: Sequence[torch.Tensor], full_name: str, collect: Callable[[list[_Part]], Any]
) -> _Call:
    """An allgather: joins the ranks' tensors along the first dimension."""
    arguments, keep, formats = [], [], []
    for tensor in tensors:
        check_supported(tensor)
        if tensor.dim() == 0:
            raise ValueError(
                "allgather needs tensors with at least one dimension, along which it joins them; "
                "pass tensor.unsqueeze(0)"
            )
        source = tensor.detach().resolve_neg().contiguous()
        arguments.append(tensor_arg(source, None, ROW_MAJOR))
        keep.append(source)
        formats.append(_memory_format(tensor))

    def collect_parts(gathered: list[Any]) -> Any:
        return collect([_Part(one, form) for one, form in zip(gathered, formats)])

    return _Call(_core.ALLGATHER, full_name, arguments, _NO_NUMBERS, keep, collect_parts)


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
    def forward(ctx: Any, full_name: str, *tensors: torch.Tensor) -> Any:
        def collect(parts: list[_Part]) -> tuple[torch.Tensor, ...]:
            rank = session().rank
            ctx.first_rows = [sum(part.rows[:rank]) for part in parts]
            return tuple(_joined(parts))

        ctx.row_counts = [tensor.shape[0] for tensor in tensors]
        ctx.name = full_name or None
        return _gather(tensors, full_name, collect).run()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = grouped_allreduce(gradients, name=_gradient_name(ctx.name), op=Average)
        own = zip(reduced, ctx.first_rows, ctx.row_counts)
        return (None, *(gradient.narrow(0, first, count) for gradient, first, count in own))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = None
) -> torch.Tensor:
    """Returns all ranks' tensors joined along the first dimension, in rank order; differentiable.

    Collective; blocks without the GIL.

    Args:
        tensor: At least one dimension. The first may differ between the ranks and be 0, the others
            and the dtype must be the same. Any supported dtype, bool too.
        name: As in allreduce().
        process_set: Must be left out; process sets are not supported yet.

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
    require_global(process_set)
    check_supported(tensor)
    full_name = _named("allgather", name)
    if _wants_gradient((tensor,)):
        result: torch.Tensor = _apply(_Allgather, full_name, tensor)[0]
        return result
    results: list[torch.Tensor] = _gather((tensor,), full_name, _joined).run()
    return results[0]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    return _gather((tensor,), _named("allgather", name), lambda parts: parts[0].tensor).submit()


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    tensors = as_list(tensors)
    if not tensors:
        return []
    full_name = _named("grouped_allgather", name)
    if _wants_gradient(tensors):
        return list(_apply(_Allgather, full_name, *tensors))
    results: list[torch.Tensor] = _gather(tensors, full_name, _joined).run()
    return results


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    tensors = _some(tensors)
    return _gather(tensors, _named("grouped_allgather", name), _joined).submit()


def _send(tensor: torch.Tensor, root_rank: int, name: str | None, *, in_place: bool) -> _Call:
    check_root(root_rank, session().size)
    numbers = (Average, 1.0, 1.0, root_rank)
    full_name = _named("broadcast", name)
    return _elementwise(_core.BROADCAST, full_name, (tensor,), numbers, in_place, single=True)


class _Broadcast(torch.autograd.Function):
    """broadcast of one tensor.

    Horovod defines the gradient on the root as the average (not the sum) of the ranks' gradients,
    and as zero elsewhere.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None) -> Any:
        ctx.root_rank, ctx.name = root_rank, name
        return _send(tensor, root_rank, name, in_place=False).run()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name = None if ctx.name is None else f"broadcast.{ctx.name}"
        reduced = allreduce(gradient, name=_gradient_name(name), op=Average)
        if session().rank != ctx.root_rank:
            reduced = reduced * 0
        return reduced, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None
) -> torch.Tensor:
    """Returns the root's tensor on every rank; differentiable, not in place.

    Collective; blocks without the GIL.

    Args:
        tensor: The same shape and dtype on all ranks; only the root's values matter. Any supported
            dtype, bool too; scalars and empty tensors too.
        root_rank: Whose tensor, the same on all ranks.
        name: As in allreduce().
        process_set: Must be left out; process sets are not supported yet.

    Raises:
        ValueError: Not initialised; `root_rank` is no rank; an unsupported dtype.
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
    require_global(process_set)
    check_supported(tensor)
    if _wants_gradient((tensor,)):
        differentiable: torch.Tensor = _apply(_Broadcast, tensor, root_rank, name)
        return differentiable
    result: torch.Tensor = _send(tensor, root_rank, name, in_place=False).run()
    return result


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    return _send(tensor, root_rank, name, in_place=False).submit()


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    result: torch.Tensor = _send(tensor, root_rank, name, in_place=True).run()
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None
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
    require_global(process_set)
    return _send(tensor, root_rank, name, in_place=True).submit()


def barrier(process_set: Any = None) -> None:
    """Returns when every rank has called it. Collective; blocks without the GIL.

    It does not wait for asynchronous operations that are in flight.

    Args:
        process_set: Must be left out; process sets are not supported yet.

    Raises:
        ValueError: Not initialised.
        HorovodInternalError: A peer is gone.

    Source: ``horovod.torch.barrier``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.barrier()
    """
    require_global(process_set)
    _Call(_core.BARRIER, "", [], _NO_NUMBERS, None, lambda _: None).run()


_NO_NUMBERS = (Average, 1.0, 1.0, 0)

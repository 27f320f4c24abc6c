"""Reductions that every rank gets: allreduce and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovodlite import _core
from horovodlite.process_sets import ProcessSet, global_process_set
from horovodlite.torch._arguments import (
    Average,
    Sum,
    as_list,
    check_compression,
    check_weight,
    reduce_op,
    scales,
)
from horovodlite.torch._calls import (
    Call,
    Numbers,
    apply,
    elementwise,
    gradient_name,
    named,
    some,
    wants_gradient,
)
from horovodlite.torch._handles import Handle
from horovodlite.torch._tensors import check_supported
from horovodlite.torch.compression import Compression, Compressor


def _numbers(
    op: int | None, average: bool | None, prescale_factor: float, postscale_factor: float
) -> Numbers:
    return reduce_op(op, average), *scales(prescale_factor, postscale_factor), 0


def _reduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    numbers: Numbers,
    process_set: ProcessSet,
    *,
    in_place: bool,
    single: bool,
) -> Call:
    kind = "allreduce" if single else "grouped_allreduce"
    full_name = named(kind, name)
    single = single and len(tensors) == 1  # a weight travels as one more
    return elementwise(
        _core.ALLREDUCE,
        full_name,
        tensors,
        numbers,
        process_set,
        in_place=in_place,
        single=single,
    )


class _Allreduce(torch.autograd.Function):
    """allreduce of one or more tensors; the gradient is the same reduction of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        numbers: Numbers,
        process_set: ProcessSet,
        single: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.name, ctx.single = name, single
        ctx.how = numbers, process_set
        results = _reduce(tensors, name, *ctx.how, in_place=False, single=single).run()
        return results if isinstance(results, torch.Tensor) else tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name = gradient_name(ctx.name)
        results = _reduced(gradients, name, *ctx.how, single=ctx.single)
        return (None,) * 4 + ((results,) if isinstance(results, torch.Tensor) else tuple(results))


def _reduced(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    numbers: Numbers,
    process_set: ProcessSet,
    *,
    single: bool,
) -> Any:
    """The results of a blocking reduction that autograd knows of if it has to."""
    if wants_gradient(tensors):
        return apply(_Allreduce, name, numbers, process_set, single, *tensors)
    return _reduce(tensors, name, numbers, process_set, in_place=False, single=single).run()


def _weighted(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    numbers: Numbers,
    compression: type[Compressor],
    process_set: ProcessSet,
    weight: float,
    *,
    single: bool,
) -> list[torch.Tensor]:
    """Averages in which each rank's tensors count `weight` times; differentiable.

    The sums of the weighted tensors and of the weights travel together, under the name of the
    operation without weights: it is a mismatch when only some ranks give one.
    """
    op, prescale, postscale, _ = numbers
    if op != Average:
        raise ValueError("weight is for averages: leave out op, or pass op=hvd.Average")
    if not all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        raise ValueError("weight needs floating-point or complex tensors: pass tensor.float()")
    weight = check_weight(weight)
    sent = [compression.compress(tensor * (weight * prescale)) for tensor in tensors]
    parts = [tensor for tensor, _ in sent] + [torch.tensor(weight, dtype=torch.float64)]
    plain_sum = _numbers(Sum, None, 1.0, 1.0)
    *sums, total = _reduced(parts, name, plain_sum, process_set, single=single)
    factor = postscale / (total.item() or 1.0)
    contexts = [context for _, context in sent]
    return [compression.decompress(part, ctx) * factor for part, ctx in zip(sums, contexts)]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over the ranks; differentiable, not in place.

    Collective; blocks without the GIL. The result is bitwise the same on every rank and does not
    depend on what else is in flight. float16 and bfloat16 are added up in float32; an average of
    integers is rounded towards zero; sums of integers wrap around.

    Args:
        tensor: Any shape, also scalar or empty, the same on all ranks. float16, bfloat16, float32,
            float64, int8 to int64, uint8; complex64 and complex128 with Average and Sum; bool with
            Min, Max and Product.
        average: Deprecated: True is op=Average, False is op=Sum.
        name: The same on all ranks, not in flight already. Without one, operations are paired by
            their order.
        compression: Type used on the way; see Compression.
        op: Average (the default; divides by the size of the process set), Sum, Min, Max, Product,
            or Adasum (floating-point types only).
        prescale_factor: Every rank's tensor is multiplied by it first.
        postscale_factor: The result is multiplied by it last.
        process_set: Whose ranks take part: only they call it.
        weight: How often this rank's tensor counts in the average: its number of samples makes an
            average over the ranks' batches one over all samples. Given on all ranks or on none; at
            least 0. If all are 0, so is the result. Not for integers.

    Raises:
        ValueError: Not initialised; both `average` and `op`; a dtype or name that cannot be used; a
            weight that is negative, or with another op than Average.
        HorovodInternalError: The ranks disagree (every rank gets the error, which names the tensor
            and both sides; the session goes on), or a peer is gone.
        NotImplementedError: A tensor that is not in host memory.

    The gradient of an allreduce is the same allreduce of the gradients.

    Source: ``horovod.torch.allreduce``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), name="x")
        tensor([1., 2.])
    """
    if weight is None and compression is Compression.none:
        done: torch.Tensor | None = _core.calls.allreduce(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set, False
        )
        if done is not None:
            return done
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    check_supported(tensor)
    check_compression(compression)
    if weight is not None:
        return _weighted([tensor], name, numbers, compression, process_set, weight, single=True)[0]
    compressed, context = compression.compress(tensor)
    reduced = _reduced((compressed,), name, numbers, process_set, single=True)
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    handle = _core.calls.allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, False
    )
    if handle is not None:
        return handle
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    return _reduce((tensor,), name, numbers, process_set, in_place=False, single=True).submit()


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    done: torch.Tensor | None = _core.calls.allreduce(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, True
    )
    if done is not None:
        return done
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    result: torch.Tensor = _reduce(
        (tensor,), name, numbers, process_set, in_place=True, single=True
    ).run()
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    handle = _core.calls.allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, True
    )
    if handle is not None:
        return handle
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    return _reduce((tensor,), name, numbers, process_set, in_place=True, single=True).submit()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
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
    if weight is None and compression is Compression.none:
        done: list[torch.Tensor] | None = _core.calls.grouped_allreduce(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, False
        )
        if done is not None:
            return done
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    tensors = as_list(tensors)
    check_compression(compression)
    for tensor in tensors:
        check_supported(tensor)
    if not tensors:
        return []
    if weight is not None:
        return _weighted(tensors, name, numbers, compression, process_set, weight, single=False)
    compressed, contexts = zip(*map(compression.compress, tensors))
    reduced = _reduced(compressed, name, numbers, process_set, single=False)
    return [compression.decompress(result, ctx) for result, ctx in zip(reduced, contexts)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    handle = _core.calls.grouped_allreduce_async(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, False
    )
    if handle is not None:
        return handle
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    tensors = some(tensors)
    return _reduce(tensors, name, numbers, process_set, in_place=False, single=False).submit()


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    done: list[torch.Tensor] | None = _core.calls.grouped_allreduce(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, True
    )
    if done is not None:
        return done
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    tensors = as_list(tensors)
    if not tensors:
        return []
    results: list[torch.Tensor] = _reduce(
        tensors, name, numbers, process_set, in_place=True, single=False
    ).run()
    return results


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    handle = _core.calls.grouped_allreduce_async(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, True
    )
    if handle is not None:
        return handle
    numbers = _numbers(op, average, prescale_factor, postscale_factor)
    tensors = some(tensors)
    return _reduce(tensors, name, numbers, process_set, in_place=True, single=False).submit()

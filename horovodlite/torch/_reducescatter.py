"""Reductions of which every rank gets a part: reducescatter and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovodlite import _core
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._allgather import grouped_allgather
from horovodlite.torch._arguments import (
    Adasum,
    Average,
    Sum,
    as_list,
    check_complex,
    check_compression,
    reduce_op,
    scales,
)
from horovodlite.torch._calls import (
    Call,
    Numbers,
    apply,
    gradient_name,
    named,
    some,
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
from horovodlite.torch.compression import Compression, Compressor


def _scatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    numbers: Numbers,
    process_set: ProcessSet,
    *,
    single: bool,
) -> Call:
    """A reducescatter of one or more tensors."""
    check_complex(numbers[0], tensors)
    arguments, keep = [], []
    for tensor in tensors:
        source = row_major(tensor)
        if tensor.dim() == 0:
            raise ValueError("Reducescatter does not support scalar inputs")
        arguments.append(tensor_arg(source, None, ROW_MAJOR))
        keep.append(source)

    def collect(gathered: list[Any]) -> Any:
        parts = [result_tensor(part, tensor) for part, tensor in zip(gathered, tensors)]
        return parts[0] if single else parts

    kind = "reducescatter" if single else "grouped_reducescatter"
    return Call(
        _core.REDUCESCATTER,
        named(kind, name),
        arguments,
        collect,
        numbers=numbers,
        process_set=process_set,
        keep=keep,
    )


class _Reducescatter(torch.autograd.Function):
    """reducescatter of one or more tensors.

    Horovod defines the gradient as the allgather of the ranks' gradients, multiplied by the number
    of ranks for Sum, and by the scale factors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        numbers: Numbers,
        process_set: ProcessSet,
        single: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        op, prescale, postscale, _ = numbers
        if op not in (Average, Sum):
            raise ValueError("only the gradients of reducescatter with Average and Sum are defined")
        ranks = len(members(process_set)) if op == Sum else 1
        ctx.factor = ranks * prescale * postscale
        ctx.name, ctx.process_set = named("reducescatter", name) or None, process_set
        results = _scatter(tensors, name, numbers, process_set, single=single).run()
        return results if single else tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        scaled = [gradient * ctx.factor for gradient in gradients]
        joined = grouped_allgather(scaled, gradient_name(ctx.name), process_set=ctx.process_set)
        return (None, None, None, None, *joined)


def _numbers(op: int, prescale_factor: float, postscale_factor: float) -> Numbers:
    if op == Adasum:
        raise NotImplementedError(
            "Adasum is defined for allreduce only: use hvd.Average or hvd.Sum for a reducescatter"
        )
    return reduce_op(op), *scales(prescale_factor, postscale_factor), 0


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's rows of the reduction of `tensor` over the ranks; differentiable.

    Collective; blocks without the GIL. The rows are divided in rank order, as equally as can be:
    when they do not come out even, each of the first ranks gets one more. A rank may get none.

    Args:
        tensor: At least one dimension; the same shape and dtype on all ranks. Dtypes as in
            allreduce().
        name: As in allreduce().
        compression: Type used on the way; see Compression.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: Whose ranks take part: only they call it.
        prescale_factor: Every rank's tensor is multiplied by it first.
        postscale_factor: The result is multiplied by it last.

    Raises:
        ValueError: Not initialised; a scalar; a dtype or `op` that cannot be used.
        NotImplementedError: `op` is Adasum.
        HorovodInternalError: The ranks disagree, or a peer is gone.

    The gradient is the allgather of the ranks' gradients, times the number of ranks for Sum (as in
    Horovod), times both factors.

    Source: ``horovod.torch.reducescatter``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.reducescatter(torch.ones(hvd.size(), 2))
        tensor([[1., 1.]])
    """
    numbers = _numbers(op, prescale_factor, postscale_factor)
    check_supported(tensor)
    check_compression(compression)
    compressed, context = compression.compress(tensor)
    if wants_gradient((compressed,)):
        part = apply(_Reducescatter, name, numbers, process_set, True, compressed)
    else:
        part = _scatter((compressed,), name, numbers, process_set, single=True).run()
    return compression.decompress(part, context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a reducescatter and returns its handle; synchronize() gives this rank's rows.

    As reducescatter(), but it never blocks on a peer and is not differentiable.

    Source: ``horovod.torch.reducescatter_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.reducescatter_async(torch.ones(hvd.size()), op=hvd.Max))
        tensor([1.])
    """
    numbers = _numbers(op, prescale_factor, postscale_factor)
    return _scatter((tensor,), name, numbers, process_set, single=True).submit()


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Returns several reducescatters, agreed on and started all or nothing; differentiable.

    As reducescatter() for every tensor of the list. An empty list gives an empty list without
    asking the other ranks.

    Source: ``horovod.torch.grouped_reducescatter``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> len(hvd.grouped_reducescatter([torch.ones(2), torch.ones(3, 2)]))
        2
    """
    numbers = _numbers(op, prescale_factor, postscale_factor)
    tensors = as_list(tensors)
    check_compression(compression)
    for tensor in tensors:
        check_supported(tensor)
    if not tensors:
        return []
    compressed, contexts = zip(*map(compression.compress, tensors))
    if wants_gradient(compressed):
        parts = apply(_Reducescatter, name, numbers, process_set, False, *compressed)
    else:
        parts = _scatter(compressed, name, numbers, process_set, single=False).run()
    return [compression.decompress(part, context) for part, context in zip(parts, contexts)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a grouped reducescatter and returns one handle; synchronize() gives the list of parts.

    As grouped_reducescatter(), but it never blocks on a peer and is not differentiable.

    Raises:
        ValueError: As reducescatter(), and for an empty list, which would have no handle.

    Source: ``horovod.torch.grouped_reducescatter_async``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> len(hvd.synchronize(hvd.grouped_reducescatter_async([torch.ones(2)])))
        1
    """
    numbers = _numbers(op, prescale_factor, postscale_factor)
    return _scatter(some(tensors), name, numbers, process_set, single=False).submit()

"""Sums of sparse tensors."""

from __future__ import annotations

from typing import Callable

import torch

from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._allgather import gather, joined
from horovodlite.torch._arguments import Average, reduce_op
from horovodlite.torch._calls import named
from horovodlite.torch._handles import synchronize


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts adding up sparse tensors; returns a function that waits and gives the sparse sum.

    Every rank's indices and values are gathered in one operation, merged, and for Average divided
    by the number of ranks in the process set. Collective; never blocks on a peer, but the returned
    function does.

    Args:
        tensor: A sparse COO tensor in host memory, on every rank with the same shape and number of
            sparse dimensions; the number of entries may differ and be zero. Duplicates are added.
        name: As in allreduce().
        op: Average (the default) or Sum.
        process_set: As in allreduce().

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
    if chosen not in (Average, _core.SUM):
        raise ValueError("sparse tensors can be reduced with op=hvd.Average or hvd.Sum only")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError("sparse_allreduce_async needs a sparse COO tensor")
    merged = tensor.detach().coalesce()
    shape, ranks = tensor.shape, len(members(process_set))
    parts = [merged.indices().t().contiguous(), merged.values().contiguous()]
    parts.append(torch.tensor([shape], dtype=torch.int64))
    handle = gather(parts, named("allreduce", name), process_set, joined).submit()

    def wait() -> torch.Tensor:
        indices, values, shapes = synchronize(handle)
        if (shapes != shapes[0]).any():
            listed = ", ".join(f"{row} on rank {rank}" for rank, row in enumerate(shapes.tolist()))
            raise HorovodInternalError(
                f"sparse tensor '{name}' differs between ranks: shape: {listed}. Cure: the tensor "
                "needs the same shape on all ranks.",
                code="Mismatch",
            )
        result = torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)
        result = result.coalesce()
        if chosen == Average:  # of the sums: integers are rounded once
            is_exact = values.is_floating_point() or values.is_complex()
            result.values().div_(ranks, rounding_mode=None if is_exact else "trunc")
        return result

    return wait

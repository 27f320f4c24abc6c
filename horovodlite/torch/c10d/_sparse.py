"""Sums of sparse tensors, as embeddings with sparse gradients have them under DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from horovodlite.torch.c10d._flat import flat
from horovodlite.torch.c10d._work import Work

if TYPE_CHECKING:
    from horovodlite.torch.c10d._group import ProcessGroup


def sparse_allreduce(
    group: ProcessGroup, tensors: list[torch.Tensor], op: Any, seconds: float
) -> Work:
    """Overwrites one sparse COO tensor with the sum of the ranks' tensors, coalesced.

    Raises:
        ValueError: Another reduction than SUM or AVG, another layout, more than one tensor.
    """
    kind = op.op if hasattr(op, "op") else op
    kinds: Any = dist.ReduceOp.RedOpType
    if len(tensors) != 1 or tensors[0].layout is not torch.sparse_coo:
        raise ValueError("a sparse allreduce takes one tensor of layout torch.sparse_coo")
    if kind not in (kinds.SUM, kinds.AVG):
        raise ValueError(f"a sparse allreduce is a SUM or AVG, not {kind.name}")
    (tensor,) = tensors
    own = tensor.detach().coalesce()
    indices, values = own.indices(), own.values()

    def finish(gathered: list[list[torch.Tensor]]) -> None:
        columns = [part.view(indices.shape[0], -1) for part in gathered[0]]
        rows = [_like(part, values) for part in gathered[1]]
        total = torch.sparse_coo_tensor(
            torch.cat(columns, dim=1), torch.cat(rows), tensor.shape
        ).coalesce()
        if kind == kinds.AVG:
            total = total / group.size()
        with torch.no_grad():  # detach() would make another tensor, whose values it would change
            tensor.copy_(total)

    name = group._next()
    pending = group._lane.allgather(name, [flat(indices), flat(values)], wake=True)
    return group._work("allreduce", name, pending, finish, tensors, seconds)


def _like(part: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Gathered values in the shape of this rank's, with their own number of rows."""
    if values.is_complex():
        part = torch.view_as_complex(part.view(-1, 2))
    return part.view(-1, *values.shape[1:]) if values.dim() > 1 else part

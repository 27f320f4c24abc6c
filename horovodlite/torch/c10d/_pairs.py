"""Groups that only their members know of: the operations of a lane, over pairs of ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite.torch._arguments import Average, Max, Min, Product, Sum
from horovodlite.torch._tensors import ROW_MAJOR, TensorArg, tensor_arg
from horovodlite.torch.c10d._flat import cut
from horovodlite.torch.c10d._lane import CoreLane, CorePending, _parts
from horovodlite.torch.c10d._reductions import Reduction
from horovodlite.torch.c10d._work import AllPending

_FOLDS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Sum: torch.add,
    Average: torch.add,
    Max: torch.maximum,
    Min: torch.minimum,
    Product: torch.mul,
}


class Then:
    """A pending operation whose result is made of what it takes."""

    def __init__(self, pending: AllPending, make: Callable[[list[Any]], Any]) -> None:
        self.done = pending.done
        self.wait_for = pending.wait_for
        self._pending = pending
        self._make = make

    def take(self) -> Any:
        return self._make(self._pending.take())


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in the order in which they lie in memory; no copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _reduced(parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """As the core reduces: in rank order, 16-bit floats in 32 bits and rounded once."""
    dtype = parts[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        parts = [part.float() for part in parts]
    if reduction.prescale != 1.0:
        parts = [(part * reduction.prescale).to(part.dtype) for part in parts]
    total = functools.reduce(_FOLDS[reduction.op], parts)
    if reduction.op == Average:
        rounding = None if total.dtype.is_floating_point else "trunc"
        total = torch.div(total, len(parts), rounding_mode=rounding)
    return total.to(dtype)


class PairLane(CoreLane):
    """A CoreLane for ranks that have no process set: everybody exchanges with everybody.

    Every two ranks have a set without being registered. Each rank sends to and receives from each
    other one, so a reduction costs as many times more bytes as there are ranks.
    """

    def __init__(self, session: _core.Session, ranks: Sequence[int]) -> None:
        super().__init__(session, 0, ranks)
        self._place = self._ranks.index(session.rank)

    def _exchange(
        self,
        name: str,
        rows: Sequence[Sequence[torch.Tensor]],
        peers: Sequence[int],
        wake: bool,
    ) -> AllPending:
        """Sends rows[peer] to each peer; takes, for each, the list of what it has sent."""
        pendings = []
        for peer in peers:
            low, high = sorted((self._ranks[self._place], self._ranks[peer]))
            from_low = self._ranks[peer] == low

            def read(gathered: list[Any], from_low: bool = from_low) -> list[torch.Tensor]:
                return [_parts(one)[0 if from_low else 1] for one in gathered]

            handle = self._session.submit(
                _core.ALLGATHER,
                name,
                [tensor_arg(row, None, ROW_MAJOR) for row in rows[peer]],
                keep=rows,
                process_set=_core.pair_set(low, high),
                wake=wake,
            )
            pendings.append(CorePending(handle, read))
        return AllPending(pendings)

    def _others(self) -> list[int]:
        return [rank for rank in range(len(self._ranks)) if rank != self._place]

    def _everywhere(
        self, name: str, rows: Sequence[torch.Tensor], wake: bool
    ) -> tuple[AllPending, Callable[[list[Any]], list[list[torch.Tensor]]]]:
        """Sends rows to all; how to sort what comes: for each row, the ranks' ones."""
        pending = self._exchange(name, [rows] * len(self._ranks), self._others(), wake)

        def by_row(taken: list[Any]) -> list[list[torch.Tensor]]:
            by_rank = list(taken)
            by_rank.insert(self._place, rows)
            return [[of_rank[row] for of_rank in by_rank] for row in range(len(rows))]

        return pending, by_row

    def allreduce(
        self, name: str, arguments: list[TensorArg], reduction: Reduction, keep: Any, wake: bool
    ) -> Any:
        del arguments
        pending, by_row = self._everywhere(name, [_memory(source) for source, _ in keep], wake)

        def reduce_here(taken: list[Any]) -> None:
            for parts, (_, target) in zip(by_row(taken), keep):
                _memory(target).copy_(_reduced(parts, reduction))

        return Then(pending, reduce_here)

    def reduce(
        self, name: str, argument: TensorArg, reduction: Reduction, root: int, keep: Any, wake: bool
    ) -> Any:
        del root
        return self.allreduce(name, [argument], reduction, [keep], wake)

    def broadcast(
        self, name: str, arguments: list[TensorArg], root: int, keep: Any, wake: bool
    ) -> Any:
        del arguments
        own = [_memory(source) for source, _ in keep]
        if root == self._place:
            sent = self._exchange(name, [own] * len(self._ranks), self._others(), wake)
            return Then(sent, lambda _: None)
        nothing = [row[:0] for row in own]
        pending = self._exchange(name, [nothing] * len(self._ranks), [root], wake)

        def put_here(taken: list[Any]) -> None:
            for row, came in zip(own, taken[0]):
                if row.numel() != came.numel():
                    raise ValueError(
                        f"broadcast '{name}': rank {root} of the group has sent {came.numel()} "
                        f"elements, and this rank expects {row.numel()}"
                    )
                row.copy_(came)

        return Then(pending, put_here)

    def allgather(self, name: str, flats: Sequence[torch.Tensor], wake: bool) -> Any:
        pending, by_row = self._everywhere(name, list(flats), wake)
        return Then(pending, by_row)

    def reducescatter(
        self, name: str, flats: Sequence[torch.Tensor], reduction: Reduction, wake: bool
    ) -> Any:
        size = len(self._ranks)
        chunks = [one.view(size, -1).unbind() for one in flats]
        rows = [[chunk[rank] for chunk in chunks] for rank in range(size)]
        pending = self._exchange(name, rows, self._others(), wake)

        def reduce_here(taken: list[Any]) -> list[torch.Tensor]:
            by_rank = list(taken)
            by_rank.insert(self._place, rows[self._place])
            return [
                _reduced([of_rank[row] for of_rank in by_rank], reduction)
                for row in range(len(chunks))
            ]

        return Then(pending, reduce_here)

    def alltoall(
        self, name: str, rows: torch.Tensor, counts: Sequence[int], root: int, wake: bool
    ) -> Any:
        del root
        parts = cut(rows, counts)
        pending = self._exchange(name, [[part] for part in parts], self._others(), wake)

        def by_rank(taken: list[Any]) -> list[torch.Tensor]:
            came = [one[0] for one in taken]
            came.insert(self._place, parts[self._place])
            return came

        return Then(pending, by_rank)

    def barrier(self, name: str, wake: bool) -> Any:
        nothing = [torch.empty(0, dtype=torch.uint8)]
        pending = self._exchange(name, [nothing] * len(self._ranks), self._others(), wake)
        return Then(pending, lambda _: None)

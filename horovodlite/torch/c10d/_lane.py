"""The operations of one process group on their way through the session, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite._sites import caller_site
from horovodlite.torch._arguments import Sum
from horovodlite.torch._tensors import DTYPES, ROW_MAJOR, TensorArg, from_memory, tensor_arg
from horovodlite.torch.c10d._flat import cut
from horovodlite.torch.c10d._reductions import Reduction

_NOTHING = Reduction(Sum)


class CorePending:
    """An operation of the session, and how to read what it made."""

    __slots__ = ("_handle", "_read", "done", "wait_for")

    def __init__(self, handle: _core.Handle, read: Callable[[list[Any]], Any] | None) -> None:
        self._handle = handle
        self._read = read
        self.done = handle.done
        self.wait_for = handle.wait_for

    def take(self) -> Any:
        if self._read is None:
            self._handle.wait()
            return None
        return self._read(self._handle.wait_gathered())


def _parts(gathered: tuple[Any, ...]) -> list[torch.Tensor]:
    """What each rank has given, one-dimensional; no copy."""
    memory, dtype, shape, counts = gathered
    return cut(from_memory(memory, DTYPES[dtype], shape), counts)


def _whole(gathered: tuple[Any, ...]) -> torch.Tensor:
    memory, dtype, shape, _ = gathered
    return from_memory(memory, DTYPES[dtype], shape)


class CoreLane:
    """Operations of a process set of the session.

    Tensors are one-dimensional but in allreduce and broadcast; lists by rank are in the order of
    the group's ranks. Every method returns at once and raises ValueError for what the core refuses.

    Args:
        session: Of the whole world.
        process_set: A number of the session's; 0 is the world.
        ranks: The group's ranks of the world, in the order of the group.
    """

    def __init__(self, session: _core.Session, process_set: int, ranks: Sequence[int]) -> None:
        self._session = session
        self._set = process_set
        self._ranks = list(ranks)
        # The core works in the order of the world's ranks.
        by_world = sorted(range(len(ranks)), key=ranks.__getitem__)
        self._by_world = by_world if by_world != list(range(len(ranks))) else None

    def _submit(
        self,
        kind: int,
        name: str,
        arguments: list[TensorArg],
        read: Callable[[list[Any]], Any] | None,
        *,
        wake: bool,
        keep: object,
        reduction: Reduction = _NOTHING,
        root: int = 0,
        splits: Sequence[int] = (),
    ) -> CorePending:
        handle = self._session.submit(
            kind,
            name,
            arguments,
            reduction.op,
            reduction.prescale,
            1.0,
            root,
            keep,
            self._set,
            splits,
            caller_site() if self._session.debug else "",
            wake,
        )
        return CorePending(handle, read)

    def _to_world(self, parts: Sequence[Any]) -> list[Any]:
        by_world = self._by_world
        return list(parts) if by_world is None else [parts[place] for place in by_world]

    def _to_group(self, parts: Sequence[Any]) -> list[Any]:
        if self._by_world is None:
            return list(parts)
        ordered = list(parts)
        for part, place in zip(parts, self._by_world):
            ordered[place] = part
        return ordered

    def allreduce(
        self, name: str, arguments: list[TensorArg], reduction: Reduction, keep: object, wake: bool
    ) -> CorePending:
        """Reduces from the first to the second address of each argument."""
        return self._submit(
            _core.ALLREDUCE, name, arguments, None, wake=wake, keep=keep, reduction=reduction
        )

    def reduce(
        self, name: str, argument: TensorArg, reduction: Reduction, root: int, keep: object,
        wake: bool,
    ) -> CorePending:  # fmt: skip
        """As allreduce of one tensor; the ranks agree on the group's rank that wants it."""
        return self._submit(
            _core.ALLREDUCE,
            name,
            [argument],
            None,
            wake=wake,
            keep=keep,
            reduction=reduction,
            root=self._ranks[root],
        )

    def broadcast(
        self, name: str, arguments: list[TensorArg], root: int, keep: object, wake: bool
    ) -> CorePending:
        """Overwrites the tensors with those of the group's rank `root`."""
        return self._submit(
            _core.BROADCAST, name, arguments, None, wake=wake, keep=keep, root=self._ranks[root]
        )

    def allgather(self, name: str, flats: Sequence[torch.Tensor], wake: bool) -> CorePending:
        """Takes, for each tensor, the list of the ranks' tensors; sizes may differ."""

        def read(gathered: list[Any]) -> list[list[torch.Tensor]]:
            return [self._to_group(_parts(one)) for one in gathered]

        arguments = [tensor_arg(one, None, ROW_MAJOR) for one in flats]
        return self._submit(_core.ALLGATHER, name, arguments, read, wake=wake, keep=flats)

    def reducescatter(
        self, name: str, flats: Sequence[torch.Tensor], reduction: Reduction, wake: bool
    ) -> CorePending:
        """Takes, for each tensor, this rank's part of the sum; parts are equally large."""
        if self._by_world is not None:
            size = len(self._ranks)
            flats = [torch.cat(self._to_world(one.view(size, -1).unbind())) for one in flats]

        def read(gathered: list[Any]) -> list[torch.Tensor]:
            return [_whole(one) for one in gathered]

        arguments = [tensor_arg(one, None, ROW_MAJOR) for one in flats]
        return self._submit(
            _core.REDUCESCATTER, name, arguments, read, wake=wake, keep=flats, reduction=reduction
        )

    def alltoall(
        self, name: str, rows: torch.Tensor, counts: Sequence[int], root: int, wake: bool
    ) -> CorePending:
        """Takes the list of what each rank has sent here; `counts` is how much goes to each.

        The ranks agree on `root`, a rank of the group: who gathers or scatters, else 0.
        """
        if self._by_world is not None and rows.numel():
            rows = torch.cat(self._to_world(cut(rows, counts)))

        def read(gathered: list[Any]) -> list[torch.Tensor]:
            return self._to_group(_parts(gathered[0]))

        return self._submit(
            _core.ALLTOALL,
            name,
            [tensor_arg(rows, None, ROW_MAJOR)],
            read,
            wake=wake,
            keep=rows,
            root=self._ranks[root],
            splits=self._to_world(counts),
        )

    def barrier(self, name: str, wake: bool) -> CorePending:
        """Is done when all ranks have called it."""
        return self._submit(_core.BARRIER, name, [], None, wake=wake, keep=None)

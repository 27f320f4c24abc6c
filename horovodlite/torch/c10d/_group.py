"""The process group: torch.distributed's methods on the session of this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Union

import torch
import torch.distributed as dist

from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch._calls import _in_and_out as in_and_out
from horovodlite.torch._tensors import (
    DTYPE_NUMBERS,
    ROW_MAJOR,
    in_memory_order,
    like,
    tensor_arg,
)
from horovodlite.torch.c10d._eager import eager
from horovodlite.torch.c10d._flat import cut, flat, flat_count, joined, put
from horovodlite.torch.c10d._identity import Identity
from horovodlite.torch.c10d._lane import CoreLane
from horovodlite.torch.c10d._reductions import Reduction, reduction
from horovodlite.torch.c10d._sparse import sparse_allreduce
from horovodlite.torch.c10d._transfers import Transfers, unpack
from horovodlite.torch.c10d._work import (
    AllPending,
    Completer,
    Done,
    OwnThreads,
    Pending,
    Work,
    WorkPending,
    wait_until,
)

_POLL_SECONDS = 0.02
_DRAIN_SECONDS = 30.0  # a send that nobody has received by then is lost when the group ends

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
Finish = Callable[[Any], None]


def _listed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


@eager
class ReceiveWork(Work):
    """A receive, which knows who has sent."""

    source: Callable[[], int]

    def source_rank(self) -> int:
        """Who has sent it, as a rank of the group; -1 until that is known."""
        return self.source()


@eager
class ProcessGroup(Identity):
    """A group of ``torch.distributed`` whose operations the session of this process runs.

    Made by init_process_group() and new_group(). Its operations are paired by their order in the
    group: every rank calls them in the same one. They are named ``c10d.<group>.<number>``, and
    ranks that differ in what they call get a HorovodInternalError which says in what. Ranks in
    arguments are those of the group.

    Args:
        session: Of the whole world.
        lane: Of this group.
        ranks: The group's ranks of the world, in the order of the group.
        rank: This rank of the group.
        prefix: The same on all ranks of the group, and no other group's.
        seconds: The time limit of operations that have none of their own.
        store: The group's.
    """

    def __init__(
        self,
        session: _core.Session,
        lane: CoreLane,
        ranks: Sequence[int],
        rank: int,
        prefix: str,
        seconds: float,
        store: Any,
    ) -> None:
        super().__init__(rank, len(ranks), store)
        self._session = session
        self._lane = lane
        self._ranks = list(ranks)
        self._prefix = prefix
        self._seconds = seconds
        self._count = 0
        self._barriers = 0
        self._completer = Completer()
        self._transfers = Transfers(session, ranks, rank, prefix)
        self._coalesced: list[Work] | None = None
        self._at_end: list[Callable[[], None]] = []

    # What all operations share.

    def _get_sequence_number_for_group(self) -> int:
        return self._count

    def set_timeout(self, timeout: timedelta) -> None:
        """Of operations from now on that have no time limit of their own."""
        self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _next(self) -> str:
        """The name of the next operation. It is used up when that has been started."""
        return f"{self._prefix}.{self._count}"

    def _limit(self, opts: Any, timeout: timedelta | None = None) -> float:
        limit = timeout if timeout is not None else getattr(opts, "timeout", None)
        if limit is None or limit <= timedelta(0):
            return self._seconds
        return float(limit.total_seconds())

    def _work(
        self,
        kind: str,
        name: str,
        pending: Pending,
        finish: Finish | None,
        result: Sequence[torch.Tensor],
        seconds: float,
    ) -> Work:
        self._count += 1
        return self._begun(
            Work(pending, finish, result, seconds, f"{kind} '{name}'", self._completer)
        )

    def _begun(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self._extent:
            raise ValueError(f"{what} {rank} is no rank of this group: they are 0 to "
                             f"{self._extent - 1}")  # fmt: skip

    def _check_count(self, tensors: Sequence[Any], what: str) -> None:
        if len(tensors) != self._extent:
            raise ValueError(
                f"{what} needs one tensor for each of the {self._extent} ranks of the group, and "
                f"got {len(tensors)}"
            )

    # Reductions.

    def allreduce(
        self, tensors: Tensors, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Overwrites each tensor with its reduction over the ranks; the same everywhere."""
        return self._allreduce(_listed(tensors), opts, op, timeout)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """As allreduce of each tensor, agreed on in one operation."""
        return self._allreduce(_listed(tensors), opts, None, None)

    def _allreduce(
        self, tensors: list[torch.Tensor], opts: Any, op: Any, timeout: timedelta | None
    ) -> Work:
        if op is None:
            op = getattr(opts, "reduceOp", opts)
        if op is None:
            op = dist.ReduceOp.SUM
        if any(tensor.is_sparse for tensor in tensors):
            return sparse_allreduce(self, tensors, op, self._limit(opts, timeout))
        kinds = {reduction(op, tensor.dtype) for tensor in tensors}
        if not kinds:
            raise ValueError("allreduce needs at least one tensor")
        if len(kinds) > 1:
            raise ValueError("allreduce of several tensors needs types that are reduced alike")
        (how,) = kinds
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)
        if how.fold is not None:
            return self._folded(name, tensors, how, seconds, wake)
        arguments, _, copies, keep = in_and_out(tensors, True)

        def copy_back(_: None) -> None:
            for source, tensor in copies:
                tensor.detach().copy_(source)

        pending = self._lane.allreduce(name, arguments, how, keep, wake)
        return self._work(
            "allreduce", name, pending, copy_back if copies else None, tensors, seconds
        )

    def _folded(
        self, name: str, tensors: list[torch.Tensor], how: Reduction, seconds: float, wake: bool
    ) -> Work:
        """A reduction that the core has not: every rank gets all, and folds them in rank order."""

        def finish(gathered: list[list[torch.Tensor]]) -> None:
            for parts, tensor in zip(gathered, tensors):
                put(how.folded(parts), tensor)

        pending = self._lane.allgather(name, [flat(tensor) for tensor in tensors], wake)
        return self._work("allreduce", name, pending, finish, tensors, seconds)

    def reduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Overwrites the root's tensor with the reduction; the others' stay as they are."""
        if isinstance(opts, int):
            root, opts = opts, None
        (tensor,) = _listed(tensors)
        to = int(root if root is not None else opts.rootRank)
        self._check_rank(to, "root")
        how = reduction(op if op is not None else opts.reduceOp, tensor.dtype)
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)
        is_root = to == self._place

        def finish(taken: Any) -> None:
            if is_root and how.fold is not None:
                put(how.folded(taken[0]), tensor)
            elif is_root:
                tensor.detach().copy_(like(target, tensor))

        if how.fold is not None:
            pending = self._lane.allgather(name, [flat(tensor)], wake)
        else:
            source, layout = in_memory_order(tensor.detach())
            target = torch.empty_like(source)
            argument = tensor_arg(source, target, layout)
            pending = self._lane.reduce(name, argument, how, to, (source, target), wake)
        return self._work("reduce", name, pending, finish, [tensor], seconds)

    # Copies.

    def broadcast(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Overwrites the tensors with those of the root."""
        if isinstance(opts, int):
            root, opts = opts, None
        changed = _listed(tensors)
        source_rank = int(root if root is not None else opts.rootRank)
        self._check_rank(source_rank, "root")
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)
        numbers, copies = [], []
        for tensor in changed:
            source, layout, back = _movable(tensor)
            numbers.append((source, layout))
            if back is not None and source_rank != self._place:
                copies.append(back)

        def finish(_: None) -> None:
            for copy in copies:
                copy()

        arguments = [tensor_arg(source, source, layout) for source, layout in numbers]
        pending = self._lane.broadcast(name, arguments, source_rank, numbers, wake)
        return self._work("broadcast", name, pending, finish, changed, seconds)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Fills a list with the tensors of all ranks, for each input."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors = [output_tensors]
        inputs = _listed(input_tensors)
        outputs = [list(one) for one in output_tensors]
        if len(outputs) != len(inputs):
            raise ValueError(f"allgather got {len(inputs)} inputs and {len(outputs)} output lists")
        for one, tensor in zip(outputs, inputs):
            self._check_count(one, "allgather")
            _check_alike([*one, tensor], "allgather")
        return self._gather_all("allgather", outputs, inputs, opts, timeout)

    def allgather_coalesced(self, output_lists: Any, input_list: Tensors, opts: Any = None) -> Work:
        """Fills one list for each input tensor."""
        by_rank = [list(one) for one in output_lists]
        inputs = _listed(input_list)
        if len(by_rank) == self._extent and all(len(one) == len(inputs) for one in by_rank):
            by_tensor = [[of_rank[i] for of_rank in by_rank] for i in range(len(inputs))]
            return self._gather_all("allgather", by_tensor, inputs, opts, None)
        raise ValueError(
            f"allgather_coalesced needs {self._extent} lists, one for each rank, of "
            f"{len(inputs)} tensors each"
        )

    def all_gather_single(
        self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None, *,
        timeout: timedelta | None = None,
    ) -> Work:  # fmt: skip
        """Fills `output` with the tensors of all ranks, one after the other."""
        return self.all_gather_single_coalesced([output], [input_tensor], opts, timeout=timeout)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        """As all_gather_single of each pair, agreed on in one operation."""
        lists, copies = [], []
        for output, own in zip(outputs, inputs):
            _check_alike([output, own], "all_gather_single")
            if output.numel() != own.numel() * self._extent:
                raise ValueError(
                    "output tensor size must be equal to world_size times input tensor size: the "
                    f"output has {output.numel()} elements, the input {own.numel()}, and there "
                    f"are {self._extent} ranks"
                )
            whole = output.detach() if output.is_contiguous() else output.detach().contiguous()
            if whole.data_ptr() != output.data_ptr():
                copies.append((whole, output))
            lists.append(list(whole.view(self._extent, -1).unbind()))
        return self._gather_all("allgather", lists, list(inputs), opts, timeout, outputs, copies)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(
        self,
        kind: str,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any,
        timeout: timedelta | None,
        result: Sequence[torch.Tensor] | None = None,
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> Work:
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)

        def finish(gathered: list[list[torch.Tensor]]) -> None:
            for parts, tensors in zip(gathered, outputs):
                for part, tensor in zip(parts, tensors):
                    put(part, tensor)
            for source, target in copies:
                target.detach().copy_(source)

        pending = self._lane.allgather(name, [flat(tensor) for tensor in inputs], wake)
        changed = result if result is not None else [one for each in outputs for one in each]
        return self._work(kind, name, pending, finish, changed, seconds)

    # Reductions of which each rank gets a part.

    def reduce_scatter(
        self,
        outputs: Tensors,
        inputs: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Overwrites the output with the reduction of the ranks' inputs for this rank."""
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        results, lists = _listed(outputs), [list(one) for one in inputs]
        for output, parts in zip(results, lists):
            self._check_count(parts, "reduce_scatter")
            _check_alike([*parts, output], "reduce_scatter")
            if parts[self._place].numel() != output.numel():
                raise ValueError(
                    f"reduce_scatter: the output has {output.numel()} elements, and the input for "
                    f"this rank {parts[self._place].numel()}"
                )
        counts = [[flat_count(part) for part in parts] for parts in lists]
        rows = [joined(parts) for parts in lists]
        return self._reduce_parts(results, rows, counts, opts, op, timeout)

    def reduce_scatter_single(
        self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None, *, op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:  # fmt: skip
        """Overwrites `output` with this rank's part of the reduction of `input_tensor`."""
        return self.reduce_scatter_single_coalesced(
            [output], [input_tensor], opts, op=op, timeout=timeout
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """As reduce_scatter_single of each pair, agreed on in one operation."""
        for output, own in zip(outputs, inputs):
            _check_alike([output, own], "reduce_scatter_single")
            if own.numel() != output.numel() * self._extent:
                raise ValueError(
                    "input tensor must be the same size as output size times world size: the "
                    f"input has {own.numel()} elements, the output {output.numel()}, and there "
                    f"are {self._extent} ranks"
                )
        counts = [[flat_count(output)] * self._extent for output in outputs]
        rows = [flat(own) for own in inputs]
        return self._reduce_parts(list(outputs), rows, counts, opts, op, timeout)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_parts(
        self,
        outputs: list[torch.Tensor],
        rows: list[torch.Tensor],
        counts: list[list[int]],
        opts: Any,
        op: Any,
        timeout: timedelta | None,
    ) -> Work:
        if op is None:
            op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        kinds = {reduction(op, output.dtype) for output in outputs}
        if len(kinds) != 1:
            raise ValueError("reduce_scatter needs tensors whose types are reduced alike")
        (how,) = kinds
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)

        if how.fold is not None or any(len(set(one)) > 1 for one in counts):
            return self._reduce_other_parts(name, outputs, rows, counts, how, seconds, wake)

        def finish(parts: list[torch.Tensor]) -> None:
            for part, output in zip(parts, outputs):
                put(part, output)

        pending = self._lane.reducescatter(name, rows, how, wake)
        return self._work("reduce_scatter", name, pending, finish, outputs, seconds)

    def _reduce_other_parts(
        self,
        name: str,
        outputs: list[torch.Tensor],
        rows: list[torch.Tensor],
        counts: list[list[int]],
        how: Reduction,
        seconds: float,
        wake: bool,
    ) -> Work:
        """Parts of different sizes, or of a reduction that the core has not: cut from the whole."""
        places = [(sum(one[: self._place]), one[self._place]) for one in counts]

        def finish_folded(gathered: list[list[torch.Tensor]]) -> None:
            for parts, place, output in zip(gathered, places, outputs):
                put(how.folded([part.narrow(0, *place) for part in parts]), output)

        def finish_uneven(_: None) -> None:
            for reduced, place, output in zip(wholes, places, outputs):
                put(reduced.narrow(0, *place), output)

        if how.fold is not None:
            pending: Pending = self._lane.allgather(name, rows, wake)
            return self._work("reduce_scatter", name, pending, finish_folded, outputs, seconds)
        wholes = [torch.empty_like(row) for row in rows]
        pairs = list(zip(rows, wholes))
        arguments = [tensor_arg(row, whole, ROW_MAJOR) for row, whole in pairs]
        pending = self._lane.allreduce(name, arguments, how, pairs, wake)
        return self._work("reduce_scatter", name, pending, finish_uneven, outputs, seconds)

    # Exchanges.

    def alltoall(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Sends the i-th input to rank i, and fills the i-th output with what rank i has sent."""
        self._check_count(output_tensors, "alltoall's output")
        self._check_count(input_tensors, "alltoall's input")
        _check_alike([*output_tensors, *input_tensors], "alltoall")
        rows = joined(list(input_tensors))
        counts = [flat_count(tensor) for tensor in input_tensors]
        return self._exchange("alltoall", rows, counts, list(output_tensors), 0, opts, timeout)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input_tensor: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """As alltoall of slices of the first dimension; no sizes mean equally many rows for all."""
        _check_alike([output, input_tensor], "all_to_all_single")
        counts = self._row_counts(input_tensor, input_split_sizes, "input")
        out_counts = self._row_counts(output, output_split_sizes, "output")
        whole = output.detach() if output.is_contiguous() else output.detach().contiguous()
        parts = cut(whole.view(-1), out_counts)
        numbers = flat_count(input_tensor) // max(input_tensor.numel(), 1)
        copies = [] if whole.data_ptr() == output.data_ptr() else [(whole, output)]
        return self._exchange(
            "all_to_all", flat(input_tensor), [count * numbers for count in counts], parts, 0, opts,
            timeout, result=[output], copies=copies,
        )  # fmt: skip

    alltoall_base = all_to_all_single

    def _row_counts(
        self, tensor: torch.Tensor, splits: Sequence[int] | None, what: str
    ) -> list[int]:
        """How many elements each rank sends or gets."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._extent:
                raise ValueError(
                    "Tensor's dim 0 does not divide equally across group size: the "
                    f"{what} has {rows} rows, and there are {self._extent} ranks"
                )
            splits = [rows // self._extent] * self._extent
        if len(splits) != self._extent:
            raise ValueError(
                "Number of tensor splits not equal to group size: there are "
                f"{len(splits)} for {self._extent} ranks"
            )
        if sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                "Split sizes doesn't match total dim 0 size: those of the "
                f"{what} are {list(splits)}, and it has {rows} rows"
            )
        per_row = tensor.numel() // rows if rows else 0
        return [split * per_row for split in splits]

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Fills the root's list with the tensors of all ranks."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors = [output_tensors] if output_tensors else []
            root, opts = (opts, None) if isinstance(opts, int) else (root, opts)
        (tensor,) = _listed(input_tensors)
        to = int(root if root is not None else opts.rootRank)
        self._check_rank(to, "root")
        outputs: list[torch.Tensor] = []
        if to == self._place:
            if len(output_tensors) != 1:
                raise ValueError("gather: the root needs one list of output tensors")
            outputs = list(output_tensors[0])
            self._check_count(outputs, "gather")
            _check_alike([*outputs, tensor], "gather")
        elif output_tensors:
            raise ValueError("requires empty output on non-root: gather fills the root's list only")
        counts = [0] * self._extent
        counts[to] = flat_count(tensor)
        return self._exchange("gather", flat(tensor), counts, outputs, to, opts, timeout)

    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Fills the output with the root's tensor for this rank."""
        if isinstance(output_tensors, torch.Tensor):
            input_tensors = [input_tensors] if input_tensors else []
            root, opts = (opts, None) if isinstance(opts, int) else (root, opts)
        (output,) = _listed(output_tensors)
        source = int(root if root is not None else opts.rootRank)
        self._check_rank(source, "root")
        rows, counts = flat(output)[:0], [0] * self._extent
        if source == self._place:
            if len(input_tensors) != 1:
                raise ValueError("scatter: the root needs one list of input tensors")
            inputs = list(input_tensors[0])
            self._check_count(inputs, "scatter")
            _check_alike([*inputs, output], "scatter")
            rows, counts = joined(inputs), [flat_count(tensor) for tensor in inputs]
        elif input_tensors:
            raise ValueError("requires empty input on non-root: scatter takes the root's list only")
        outputs = [output if rank == source else output[:0] if output.dim() else
                   output.new_empty(0) for rank in range(self._extent)]  # fmt: skip
        return self._exchange(
            "scatter", rows, counts, outputs, source, opts, timeout, result=[output]
        )

    def _exchange(
        self,
        kind: str,
        rows: torch.Tensor,
        counts: list[int],
        outputs: list[torch.Tensor],
        root: int,
        opts: Any,
        timeout: timedelta | None,
        *,
        result: Sequence[torch.Tensor] | None = None,
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> Work:
        """Sends `counts` elements of `rows` to each rank, and puts what comes into `outputs`."""
        name, seconds, wake = self._next(), self._limit(opts, timeout), _is_async(opts)

        def finish(parts: list[torch.Tensor]) -> None:
            for part, output in zip(parts, outputs):
                put(part, output)
            for source, target in copies:
                target.detach().copy_(source)

        pending = self._lane.alltoall(name, rows, counts, root, wake)
        changed = outputs if result is None else result
        return self._work(kind, name, pending, finish, changed, seconds)

    # Two ranks.

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Sends a copy of the tensor. It is through at once; any number may be on their way."""
        (tensor,) = _listed(tensors)
        self._check_rank(dstRank, "dst")
        pending = self._transfers.send(tensor, dstRank, tag)
        what = f"send '{self._prefix}.send.{tag}'"
        return self._begun(Work(pending, None, [tensor], self._seconds, what, self._completer))

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Overwrites the tensor with what a rank sends next with this tag."""
        (tensor,) = _listed(tensors)
        self._check_rank(srcRank, "src")
        pending = self._transfers.receive(srcRank, tag)
        return self._received(tensor, pending, lambda: srcRank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Overwrites the tensor with what whichever other rank sends next with this tag."""
        (tensor,) = _listed(tensors)
        pending = self._transfers.receive_any(tag)
        return self._received(tensor, pending, lambda: pending.source, tag)

    def _received(
        self, tensor: torch.Tensor, pending: Pending, source: Callable[[], int], tag: int
    ) -> Work:
        def finish(message: torch.Tensor) -> None:
            unpack(message, tensor, source())

        what = f"recv '{self._prefix}.send.{tag}'"
        work = ReceiveWork(pending, finish, [tensor], self._seconds, what, OwnThreads())
        work.source = source
        return self._begun(work)

    # Meetings.

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Is done when all ranks have called it."""
        name = self._next()
        pending = self._lane.barrier(name, _is_async(opts))
        return self._work("barrier", name, pending, None, [], self._limit(opts, timeout))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Blocks until all ranks have called it; rank 0 of the group tells which did not come.

        Raises:
            HorovodInternalError: Rank 0: some ranks did not call it in time (all of them with
                `wait_all_ranks`, else the first one). Others: rank 0 gave up, or did not come.
        """
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + seconds
        tag, token = f"barrier{self._barriers}", torch.zeros(1, dtype=torch.uint8)
        self._barriers += 1
        if self._place:
            self._transfers.send(token, 0, tag)
            if not wait_until(self._transfers.receive(0, tag), deadline):
                raise _barrier_error(f"Rank {self._place} waited in vain for rank 0", seconds)
            return
        others = range(1, self._extent)
        coming = {rank: self._transfers.receive(rank, tag) for rank in others}
        missing = []
        for rank in others:
            if wait_until(coming[rank], deadline):
                coming[rank].take()
                continue
            missing.append(rank)
            if not wait_all_ranks:
                break
        if missing:
            who = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise _barrier_error(f"[Rank 0]: {who} failed to pass monitoredBarrier", seconds)
        for rank in others:
            self._transfers.send(token, rank, tag)

    # Several at once.

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        """What follows is waited for as one, until _end_coalescing()."""
        if self._coalesced is not None:
            raise RuntimeError("coalescing has begun already in this group")
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:  # noqa: ARG002
        """All operations since _start_coalescing(), as one."""
        if self._coalesced is None:
            raise RuntimeError("_end_coalescing() without _start_coalescing() in this group")
        works, self._coalesced = self._coalesced, None
        result = [tensor for work in works for tensor in work.result()]
        pending = AllPending([WorkPending(work) for work in works]) if works else Done()
        what = f"{len(works)} coalesced operations of {self._prefix}"
        return Work(pending, None, result, self._seconds, what, OwnThreads())

    # The end.

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls it when the group ends."""
        self._at_end.append(call)

    def shutdown(self) -> None:
        """Ends the group here, when what it has sent has been received.

        Where that ends the session, it waits for all ranks: those that are not through may be using
        groups without this rank, and in a session that a rank has left nothing runs any more.
        """
        self.drain(min(self._seconds, _DRAIN_SECONDS))
        if self._at_end and self._session.healthy:
            self._meet_at_end()
        self.abort()

    def _meet_at_end(self) -> None:
        """Blocks until all ranks end the group, or one has gone, or goes on with the group."""
        end = self._lane.barrier(f"{self._prefix}.end", wake=True)
        going_on = self._lane.barrier(self._next(), wake=True)  # meets what others call instead
        deadline = time.monotonic() + self._seconds
        while not end.wait_for(_POLL_SECONDS) and not going_on.done():
            if time.monotonic() >= deadline:
                break

    def drain(self, seconds: float) -> None:
        """Blocks until what this rank has sent has been received, at most so long."""
        if self._session.healthy:
            self._transfers.drain(seconds)

    def abort(self) -> None:
        """Ends the group here at once. What is in flight goes on until the session ends."""
        self._completer.close()
        ends, self._at_end = self._at_end, []
        for end in ends:
            end()


def _barrier_error(what: str, seconds: float) -> HorovodInternalError:
    return HorovodInternalError(
        f"{what} in {1000 * seconds:.0f} ms. Each rank of the group has to call "
        "monitored_barrier(); look where these are",
        code="Timeout",
    )


def _check_alike(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raises ValueError when the tensors of one operation are of different types."""
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        names = ", ".join(sorted(map(str, types)))
        raise ValueError(f"{what}: Invalid usage of tensors with different dtypes: {names}")


def _movable(tensor: torch.Tensor) -> tuple[torch.Tensor, int, Callable[[], None] | None]:
    """What travels for a tensor, its layout, and how the tensor gets it, unless it shares memory.

    Raises:
        TypeError, ValueError, NotImplementedError: As check_supported().
    """
    if tensor.dtype not in DTYPE_NUMBERS and not tensor.is_complex():
        rows = flat(tensor)
        shares = rows.data_ptr() == tensor.data_ptr()
        return rows, ROW_MAJOR, None if shares else lambda: put(rows, tensor)
    source, layout = in_memory_order(tensor.detach())

    def copy_back() -> None:
        tensor.detach().copy_(like(source, tensor))

    return source, layout, None if source.data_ptr() == tensor.data_ptr() else copy_back

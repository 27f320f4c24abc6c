"""One operation on its way to the core: what all operations on tensors share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite._session import Holder, session
from horovodlite._sites import caller_site
from horovodlite.process_sets import ProcessSet, global_process_set, set_id
from horovodlite.torch._arguments import Average, as_list, check_complex, check_name
from horovodlite.torch._handles import Handle, new_handle
from horovodlite.torch._hooks import is_compiling
from horovodlite.torch._tensors import TensorArg, in_memory_order, like, tensor_arg

Numbers = tuple[int, float, float, int]
"""Reduction, prescale, postscale, root."""


def rooted(root_rank: int) -> Numbers:
    """Of an operation that has a root and reduces nothing."""
    return Average, 1.0, 1.0, root_rank


NO_NUMBERS: Numbers = rooted(0)

_with_gradient = torch.nn.Parameter(torch.zeros(()))
_with_gradient.grad = torch.zeros(())


def _mark_negative(tensor: torch.Tensor) -> None:
    """Makes a tensor's values the negatives of what is in its memory."""
    torch._C._set_tensor_metadata(tensor, {"neg": True})  # type: ignore[attr-defined]


# What `_core.calls` cannot know by itself. Its functions do the ordinary calls, and say None to
# all others, which are done here.
_core.calls.use(
    Holder,
    torch.Tensor,
    torch.nn.Parameter,
    torch.empty_like,
    ProcessSet,
    global_process_set,
    caller_site,
    is_compiling,
    _with_gradient,
    getattr(torch._C, "_storage_Use_Count", None),
    _mark_negative,
)


class Call:
    """What to submit, and what to do with the result."""

    __slots__ = (
        "arguments",
        "collect",
        "from_one_place",
        "keep",
        "kind",
        "name",
        "numbers",
        "process_set",
        "splits",
    )

    def __init__(
        self,
        kind: int,
        name: str,
        arguments: list[TensorArg],
        collect: Callable[[list[Any]], Any],
        *,
        numbers: Numbers = NO_NUMBERS,
        process_set: ProcessSet | None = None,
        splits: Sequence[int] = (),
        keep: object = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.arguments = arguments
        self.collect = collect
        self.numbers = numbers
        self.process_set = set_id(process_set)
        self.splits = splits
        self.keep = keep
        self.from_one_place = True  # it is a mistake if ranks submit it at different lines

    def _site(self, current: _core.Session) -> str:
        """Where it is submitted, if anybody will ask."""
        checked = self.from_one_place and not self.name and current.checks_sites
        wanted = checked or (current.debug and bool(self.name))
        return caller_site() if wanted else ""

    def _operation(self, current: _core.Session) -> tuple[Any, ...]:
        """The arguments that run() and submit() of a session have in common."""
        return (
            self.kind,
            self.name,
            self.arguments,
            *self.numbers,
            self.keep,
            self.process_set,
            self.splits,
            self._site(current),
        )

    def run(self) -> Any:
        """Blocks; returns the result."""
        current = session()
        gathered = current.run(*self._operation(current))
        return self.collect(gathered)

    def submit(self) -> Handle:
        """Returns at once."""
        current = session()
        operation = current.submit(*self._operation(current))
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
            results.append(like(target, tensor))
        else:
            require_writable(tensor)
            target = source
            results.append(tensor)
            if source.data_ptr() != tensor.data_ptr():  # a copy of memory with holes, for example
                copies.append((like(source, tensor), tensor))
        arguments.append(tensor_arg(source, target, layout))
        keep.append((source, target))
    if in_place and len(arguments) > 1:
        _require_distinct(tensors, [source for source, _ in keep])
    return arguments, results, copies, keep


def require_writable(tensor: torch.Tensor) -> None:
    """Raises ValueError when elements share memory, as after expand(): they cannot all be set."""
    strides = zip(tensor.stride(), tensor.shape)
    if tensor.numel() and any(stride == 0 and extent > 1 for stride, extent in strides):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} whose elements share memory (strides "
            f"{tensor.stride()}), as expand() makes them, cannot be changed in place: pass "
            "tensor.clone()"
        )


def _require_distinct(tensors: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Raises ValueError when tensors share elements: which result these get would be chance.

    Each source is the tensor itself, or a copy when the tensor has holes. Other tensors may lie in
    the holes, so of such a tensor only the first element counts.
    """
    blocks = []  # begin, end, index
    for index, (tensor, source) in enumerate(zip(tensors, sources)):
        begin = tensor.data_ptr()
        has_holes = source.data_ptr() != begin
        if tensor.numel():
            blocks.append((begin, begin + (1 if has_holes else tensor.nbytes), index))
    blocks.sort()
    for (_, end, index), (begin, _, other) in zip(blocks, blocks[1:]):
        if begin < end:
            raise ValueError(
                f"tensors {min(index, other)} and {max(index, other)} of the group share memory, "
                "so they cannot both be reduced in place: pass each element once"
            )


def elementwise(
    kind: int,
    name: str,
    tensors: Sequence[torch.Tensor],
    numbers: Numbers,
    process_set: ProcessSet | None,
    *,
    in_place: bool,
    single: bool,
) -> Call:
    """An operation whose results have the shapes of its inputs."""
    check_complex(numbers[0], tensors)
    arguments, results, copies, keep = _in_and_out(tensors, in_place)

    def collect(_: list[Any]) -> Any:
        if copies:
            with torch.no_grad():
                for source, tensor in copies:
                    tensor.copy_(source)
        return results[0] if single else results

    return Call(kind, name, arguments, collect, numbers=numbers, process_set=process_set, keep=keep)


def named(kind: str, name: str | None) -> str:
    """The operation's name on all ranks; the core numbers those that have none."""
    if name is None:
        return ""
    full_name = f"{kind}.{name}"
    return full_name if full_name.isascii() else check_name(full_name)


def gradient_name(name: str | None) -> str | None:
    """Of the operation in the backward pass."""
    return None if name is None else f"{name}.gradient"


def wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd has to know of an operation. What is no tensor is refused later."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Function.apply(), which has no types."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def some(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group that is not empty: only that has a handle."""
    listed = as_list(tensors)
    if not listed:
        raise ValueError("a grouped operation needs at least one tensor to have a handle")
    return listed

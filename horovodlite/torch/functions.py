"""Making all ranks start alike: parameters, optimizer state and any Python object."""

from __future__ import annotations

import io
import operator
import pickle
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from horovodlite._session import session
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, global_process_set, members
from horovodlite.torch._agreement import describe, gather_bytes, printable, require_same
from horovodlite.torch._arguments import check_root
from horovodlite.torch._handles import synchronize
from horovodlite.torch._tensors import DTYPE_NUMBERS, check_supported, in_memory_order
from horovodlite.torch.ops import broadcast_, broadcast_async_

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites parameters or a state_dict with the root's values, in place.

    Collective; blocks without the GIL. All tensors travel at once, fused. Before anything is
    changed, the ranks compare names, shapes, dtypes and memory formats.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, or an iterable of tensors.
            Entries that are None are skipped.
        root_rank: Whose values.
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; `root_rank` is no rank; an entry is no tensor.
        HorovodInternalError: The ranks' parameters differ (the message names the first that does),
            or a peer is gone.

    Source: ``horovod.torch.broadcast_parameters``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(3, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    check_root(root_rank, process_set)
    named = _named_tensors(params)
    rows = [describe(name, tensor) for name, tensor in named]
    require_same("the parameters", rows, process_set)
    handles = []
    for index, (name, tensor) in enumerate(named):
        unique = f"parameters.{index}.{name}"
        handles.append(broadcast_async_(tensor, root_rank, unique, process_set))
    for handle in handles:
        synchronize(handle)


def _named_tensors(params: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        entries = sorted(((str(n), v) for n, v in params.items()), key=operator.itemgetter(0))
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        entries = [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
    else:
        raise ValueError(
            f"invalid params of type: {type(params)}; pass model.state_dict(), "
            "model.named_parameters() or a list of tensors"
        )
    for entry in entries:
        if len(entry) != 2:
            raise ValueError(f"broadcast_parameters takes pairs (name, tensor), not {entry!r}")
    named = [(name, value) for name, value in entries if value is not None]
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"broadcast_parameters: '{name}' is a {type(value).__name__}, not a tensor; "
                "use broadcast_object() for it"
            )
        check_supported(value)
    return named


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001  (Horovod's scripts pass it)
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's optimizer state and options.

    Collective; blocks. No step is taken, so no parameter moves. All options of the parameter groups
    (lr, betas, what a scheduler added) and all state, however nested, get the root's values and
    keep their Python types; a rank whose root has no state for a parameter loses its own. LBFGS
    works too. An optimizer without any state yet leaves gradients of zeros where there were none.

    Args:
        optimizer: The same kind of optimizer over the same parameters on every rank; plain, or made
            by DistributedOptimizer.
        root_rank: Whose state.
        model: Not needed; accepted for Horovod's scripts.
        process_set: Whose ranks take part: only they call it.

    Raises:
        TypeError: `optimizer` is none.
        ValueError: Not initialised; `root_rank` is no rank.
        HorovodInternalError: The ranks' parameter groups differ, the root's state cannot be
            pickled, or a peer is gone. Nothing was changed then.

    Source: ``horovod.torch.broadcast_optimizer_state``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * hvd.size())
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    check_root(root_rank, process_set)
    if not all(hasattr(optimizer, part) for part in ("param_groups", "state")):
        raise TypeError(
            f"broadcast_optimizer_state needs an optimizer, not a {type(optimizer).__name__}"
        )
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    rows = [f"group of {len(group['params'])} parameters" for group in groups]
    rows += [describe(type(optimizer).__name__, parameter) for parameter in parameters]
    require_same("the optimizer's parameter groups", rows, process_set)
    options = [{key: v for key, v in group.items() if key != "params"} for group in groups]
    state = [optimizer.state.get(parameter) for parameter in parameters]
    other = {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
    options, state, other = broadcast_object(
        (options, state, other), root_rank, process_set=process_set
    )
    if not optimizer.state and not isinstance(optimizer, torch.optim.SparseAdam):
        _give_gradients(parameters)
    if session().rank == root_rank:
        return
    for group, new_options in zip(groups, options):
        members = group["params"]
        group.clear()
        group.update({"params": members, **new_options})
    optimizer.state.clear()
    optimizer.state.update(other)
    for parameter, values in zip(parameters, state):
        if values is not None:
            optimizer.state[parameter] = values


def _give_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Gives parameters the gradients that Horovod's scripts find after the broadcast: zeros."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank: itself on the root, a copy elsewhere.

    Collective; blocks. The object is pickled by cloudpickle, so functions defined in scripts work;
    plain tensors inside travel as tensors. There is no limit of size. Unpickling runs code that the
    root chose: the ranks of a job trust each other.

    Args:
        obj: Any object that can be pickled; ignored on ranks other than the root.
        root_rank: Whose object.
        name: The same on all ranks, not in flight already.
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised; `root_rank` is no rank.
        Exception: On the root, whatever pickling raised.
        HorovodInternalError: On the other ranks: the root could not pickle the object, or a peer is
            gone.

    Source: ``horovod.torch.broadcast_object``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
        {'epoch': 3}
    """
    current = session()
    check_root(root_rank, process_set)
    parts = _Parts(root_rank, name, process_set)
    if current.rank == root_rank:
        return _send_object(obj, parts)
    failed, payload_bytes = parts.numbers([0, 0])
    payload = parts.payload(bytearray(payload_bytes))
    if failed:
        raise HorovodInternalError(
            f"broadcast_object: rank {root_rank} could not pickle its object: {payload.decode()}",
            culprit_rank=root_rank,
        )
    stream = io.BytesIO(payload)
    tensors = [torch.empty_strided(*spec[:2], dtype=spec[2]) for spec in pickle.load(stream)]
    parts.tensors(tensors)
    return _TensorUnpickler(stream, tensors).load()


def _send_object(obj: Any, parts: _Parts) -> Any:
    body = io.BytesIO()
    pickler = _TensorPickler(body)
    try:
        pickler.dump(obj)
    except Exception as error:
        text = bytearray(_said(error).encode())
        parts.numbers([1, len(text)])
        parts.payload(text)
        raise
    specs = [(tuple(t.shape), t.stride(), t.dtype) for t in pickler.tensors]
    payload = bytearray(pickle.dumps(specs))
    payload += body.getbuffer()
    parts.numbers([0, len(payload)])
    parts.payload(payload)
    parts.tensors(pickler.tensors)
    return obj


def _said(error: Exception) -> str:
    """The error as text that can be sent, whatever it holds: the other ranks wait for it."""
    lines = traceback.format_exception_only(type(error), error)
    return printable("".join(lines).strip())


class _Parts:
    """The broadcasts that make up one object. Root and receivers call the same methods in order."""

    def __init__(self, root_rank: int, name: str | None, process_set: ProcessSet) -> None:
        self._root_rank = root_rank
        self._process_set = process_set
        self._name = name

    def _part(self, suffix: str) -> str | None:
        return None if self._name is None else f"{self._name}.{suffix}"

    def numbers(self, values: list[int]) -> list[int]:
        numbers = torch.tensor(values, dtype=torch.int64)
        self._send(numbers, "sz")
        result: list[int] = numbers.tolist()
        return result

    def _send(self, tensor: torch.Tensor, suffix: str) -> None:
        broadcast_(tensor, self._root_rank, self._part(suffix), self._process_set)

    def payload(self, buffer: bytearray) -> bytearray:
        if buffer:
            view = torch.frombuffer(buffer, dtype=torch.uint8)
            self._send(view, "t")
        return buffer

    def tensors(self, tensors: list[torch.Tensor]) -> None:
        handles = [
            broadcast_async_(tensor, self._root_rank, self._part(str(index)), self._process_set)
            for index, tensor in enumerate(tensors)
        ]
        for handle in handles:
            synchronize(handle)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors of 8-bit floats too, which torch 2.13 has no storage class for."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.is_floating_point() and obj.itemsize == 1:
            return _as_dtype, (obj.detach().view(torch.uint8), obj.dtype, obj.requires_grad)
        return super().reducer_override(obj)


def _as_dtype(bits: torch.Tensor, dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:
    return bits.view(dtype).requires_grad_(requires_grad)


class _TensorPickler(_Pickler):
    """Pickles everything but plain tensors, which it collects in `tensors`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._indices: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # ids are unique only among living objects

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not torch.Tensor or obj.requires_grad or obj.layout is not torch.strided:
            return None
        if not obj.is_cpu or obj.dtype not in DTYPE_NUMBERS:
            return None
        index = self._indices.setdefault(id(obj), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(in_memory_order(obj)[0])
            self._alive.append(obj)
        return index


class _TensorUnpickler(pickle.Unpickler):
    """The other side of _TensorPickler."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns every rank's object, in rank order.

    Collective; blocks. The objects are pickled by cloudpickle and may differ in size; there is no
    limit. Unpickling runs code that the other ranks chose: the ranks of a job trust each other.

    Args:
        obj: Any object that can be pickled.
        name: The same on all ranks, not in flight already.
        process_set: Whose ranks take part: only they call it.

    Raises:
        ValueError: Not initialised.
        Exception: On the rank whose object cannot be pickled, whatever pickling raised.
        HorovodInternalError: On the other ranks then; or a peer is gone.

    Source: ``horovod.torch.allgather_object``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.allgather_object({"rank": hvd.rank()})[0]
        {'rank': 0}
    """
    full_name = "" if name is None else f"allgather.{name}"
    try:
        body = io.BytesIO()
        _Pickler(body).dump(obj)
    except Exception as error:
        text = f"rank {session().rank} could not pickle its object: {_said(error)}"
        gather_bytes(_FAILED + bytearray(text.encode()), full_name, process_set)
        raise
    parts = gather_bytes(_PICKLED + body.getvalue(), full_name, process_set)
    for rank, part in zip(members(process_set), parts):
        if part[:1] == _FAILED:
            text = bytes(part[1:]).decode()
            raise HorovodInternalError(f"allgather_object: {text}", culprit_rank=rank)
    return [pickle.loads(part[1:]) for part in parts]


_PICKLED = bytearray(b"\x00")
_FAILED = bytearray(b"\x01")

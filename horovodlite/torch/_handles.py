"""Handles of asynchronous operations: integers, as in Horovod, that own what they stand for."""

from __future__ import annotations

import itertools
from typing import Any, Callable

from horovodlite import _core

Finish = Callable[[_core.Handle], Any]
"""Waits for the operation and gives its result."""

_numbers = itertools.count()
_operations: dict[int, tuple[_core.Handle, Finish]] = {}


class Handle(int):
    """A number for poll() and synchronize(). The result lives as long as the handle.

    Dropping a handle that nobody has waited for does not cancel the operation; it only throws the
    result away.
    """

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """A copy is a plain number, so that its end does not make the handle unknown."""
        return int, (int(self),)

    def __del__(self) -> None:
        """Forgets the result; other objects equal to this number are then unknown."""
        _operations.pop(self, None)


def new_handle(operation: _core.Handle, finish: Finish) -> Handle:
    """Registers a submitted operation."""
    number = next(_numbers)
    _operations[number] = (operation, finish)  # not the handle itself: it would never be dropped
    return Handle(number)


def _find(handle: int) -> tuple[_core.Handle, Finish]:
    try:
        return _operations[handle]
    except (KeyError, TypeError):
        raise ValueError(f"Handle {handle} was not created or has been cleared.") from None


def poll(handle: int) -> bool:
    """Returns whether an asynchronous operation has finished, well or badly. Never blocks. Local.

    Args:
        handle: What an ``*_async`` function returned.

    Raises:
        ValueError: The handle is unknown, or synchronize() has been called for it.

    Source: ``horovod.torch.poll``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
        >>> hvd.poll(handle) in (True, False)
        True
        >>> _ = hvd.synchronize(handle)
    """
    return _find(handle)[0].done()


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation and returns its result; afterwards the handle is unknown.

    Blocks, without the GIL, until every rank has submitted the operation and it is done. Ctrl-C
    ends the wait but not the operation, and the handle stays valid.

    Args:
        handle: What an ``*_async`` function returned.

    Returns:
        The tensor, or the list of tensors of a grouped operation. In-place operations return the
        tensors they were given.

    Raises:
        ValueError: The handle is unknown or has been waited for. (Horovod returns None.)
        HorovodInternalError: The operation failed: ranks disagree, a peer is gone.

    Source: ``horovod.torch.synchronize``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.allreduce_async(torch.full((2,), 3.0)))
        tensor([3., 3.])
    """
    operation, finish = _find(handle)
    try:
        result = finish(operation)
    except Exception:
        _operations.pop(handle, None)
        raise
    _operations.pop(handle, None)
    return result

"""Handles of asynchronous operations: integers, as in Horovod, that own what they stand for."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Callable

from horovodlite import _core

Finish = Callable[[_core.Handle], Any]
"""Waits for the operation and gives its result."""

Handle = _core.calls.Number


def new_handle(operation: _core.Handle, finish: Finish) -> Handle:
    """Registers a submitted operation."""
    return _core.calls.new_handle(operation, finish)


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
    return _core.calls.poll(handle)


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
        ValueError: The handle is unknown or has been waited for. Where ``import horovod`` finds
            horovodlite, the result is None as in Horovod, and the first time there is a warning.
        HorovodInternalError: The operation failed: ranks disagree, a peer is gone.

    Source: ``horovod.torch.synchronize``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.synchronize(hvd.allreduce_async(torch.full((2,), 3.0)))
        tensor([3., 3.])
    """
    if _STANDS_IN in sys.modules and not _is_known(handle):
        _Warned.about_unknown(handle)
        return None
    return _core.calls.synchronize(handle)


_STANDS_IN = "horovodlite.drop_in"  # once it is imported, scripts are Horovod's


def _is_known(handle: int) -> bool:
    try:
        poll(handle)
    except ValueError:
        return False
    return True


class _Warned:
    """Whether a script has been told that it waits for what is not there."""

    once = False

    @classmethod
    def about_unknown(cls, handle: int) -> None:
        """Warns the first time."""
        if not cls.once:
            cls.once = True
            warnings.warn(
                f"synchronize() of handle {handle}, which was not created or has been cleared, "
                "returns None, as in Horovod; without --drop-in it is a ValueError. Wait for each "
                "handle once. (Further ones are not reported.)",
                RuntimeWarning,
                stacklevel=3,
            )

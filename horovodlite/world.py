"""Where this process stands in the world: joining, leaving, rank and size, for all frameworks.

A process has at most one session. It lives here, because the API it serves is one of functions.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from horovodlite import _core

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class _Holder:
    """The session of this process, or None outside init() ... shutdown()."""

    session: _core.Session | None = None
    lock = threading.Lock()

    @classmethod
    def forget(cls) -> None:
        """In a forked child: the session belongs to the parent."""
        cls.session = None
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_Holder.forget)


def session() -> _core.Session:
    """The running session, for the adapters.

    Raises:
        ValueError: init() has not been called, or shutdown() has.
    """
    current = _Holder.session
    if current is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return current


def current_session() -> _core.Session | None:
    """The running session, or None outside init() ... shutdown()."""
    return _Holder.session


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the world that the launcher describes; does nothing when this process has joined.

    Without a launcher this is a world of one. Collective: blocks, without the GIL, until every rank
    has called it, at most ``HVL_START_TIMEOUT``. After shutdown() it may be called again. A forked
    child starts outside.

    Args:
        comm: Must be None; a subset of the ranks is not supported yet.
        process_sets: Must be None; process sets are not supported yet.

    Raises:
        ValueError: The environment is contradictory (the message names the variable).
        HorovodInternalError: Some rank did not come (the message names it), or the ranks disagree
            on a setting.
        NotImplementedError: ``comm`` or ``process_sets`` was given.

    Source: ``horovod.torch.init``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.rank() < hvd.size()
        True
        >>> hvd.shutdown()
    """
    if comm is not None:
        raise NotImplementedError("init(comm=...) is not supported yet: call init() without it")
    if process_sets is not None:
        raise NotImplementedError("init(process_sets=...) is not supported yet: leave it out")
    with _Holder.lock:
        if _Holder.session is None:
            _Holder.session = _core.Session.create()


def shutdown() -> None:
    """Leaves the world; does nothing outside of one. Runs by itself when Python exits.

    Local: the other ranks' operations that need this rank fail with an error that names it. Pending
    operations of this process fail too. Tensors, also gradients in shared memory, stay valid.

    Source: ``horovod.torch.shutdown``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.shutdown()
        >>> hvd.is_initialized()
        False
    """
    with _Holder.lock:
        leaving, _Holder.session = _Holder.session, None
        if leaving is not None:
            leaving.shutdown()


atexit.register(shutdown)


def is_initialized() -> bool:
    """Returns whether this process is between init() and shutdown(). Local."""
    return _Holder.session is not None


def rank() -> int:
    """Returns this process's rank, counted from 0. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().rank


def size() -> int:
    """Returns the number of ranks. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().size


def local_rank() -> int:
    """Returns the rank among the processes of this host: the usual index of the device. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().local_rank


def local_size() -> int:
    """Returns the number of ranks on this host. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().local_size


def cross_rank() -> int:
    """Returns the rank among the processes that have this local rank, one per host. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().cross_rank


def cross_size() -> int:
    """Returns the number of hosts that have a process with this local rank. Local.

    Raises:
        ValueError: Outside init() ... shutdown().
    """
    return session().cross_size


def is_homogeneous() -> bool:
    """Returns whether every host has the same number of ranks. Local.

    Raises:
        ValueError: Outside init() ... shutdown().

    Source: ``horovod.torch.mpi_ops.is_homogeneous``.
    """
    current = session()
    return current.size == current.local_size * current.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts writing a timeline of every tensor to a file. Local; rank 0 writes, others do nothing.

    The file is Chrome trace-event JSON: open it in Perfetto or chrome://tracing. It is valid JSON
    at any time. A timeline that is being written already is completed, and this one follows.

    Args:
        file_path: File to create, on rank 0.
        mark_cycles: Also mark each round of negotiation.

    Raises:
        ValueError: Outside init() ... shutdown().
        HorovodInternalError: The file cannot be opened, or something of the timeline before it
            could not be written.

    Source: ``horovod.torch.start_timeline``.
    """
    current = session()
    if current.rank == 0:
        current.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; its file is complete then. Local; does nothing on ranks other than 0.

    Blocks, without the GIL, until the disk has taken what was recorded. Does nothing when no
    timeline is being written.

    Raises:
        ValueError: Outside init() ... shutdown().
        HorovodInternalError: Something of it could not be written.
    """
    current = session()
    if current.rank == 0:
        current.stop_timeline()


# What Horovod's scripts ask about the build. The answers are about what this package contains now.


def mpi_threads_supported() -> bool:
    """Never returns: the question makes sense only where MPI is in use.

    Raises:
        ValueError: Always.
    """
    raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")


def mpi_enabled() -> bool:
    """Returns whether MPI carries the operations: False."""
    return False


def mpi_built() -> bool:
    """Returns whether MPI support is built in: False."""
    return False


def gloo_enabled() -> bool:
    """Returns whether Gloo carries the operations: False; this package has its own data planes."""
    return False


def gloo_built() -> bool:
    """Returns whether Gloo is built in: False; this package has its own data planes."""
    return False


def nccl_built() -> int:
    """Returns the NCCL version as a number such as 21805, or 0 without NCCL: 0."""
    return 0


def ddl_built() -> bool:
    """Returns whether IBM DDL is built in: False."""
    return False


def ccl_built() -> bool:
    """Returns whether oneCCL is built in: False."""
    return False


def cuda_built() -> bool:
    """Returns whether CUDA support is built in: False."""
    return False


def rocm_built() -> bool:
    """Returns whether ROCm support is built in: False."""
    return False

"""Where this process stands in the world: joining, leaving, rank and size, for all frameworks.

A process has at most one session.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Sequence
from typing import Any

from horovodlite import _core
from horovodlite._session import Holder, current_session, session
from horovodlite.process_sets import ProcessSet, forget_all, register_all

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "current_session",
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
    "session",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Joins the world that the launcher describes; does nothing when this process has joined.

    Without a launcher this is a world of one. Collective: blocks, without the GIL, until every rank
    has called it, at most ``HVL_START_TIMEOUT``, or until Ctrl-C. After that, and after shutdown(),
    it may be called again. A forked child starts outside.

    Args:
        comm: Ranks that make a world of their own, in which they are numbered in ascending order,
            this process among them. Each of them passes the same ones; other processes may make
            other worlds at the same time. None or an empty list: all ranks. All processes that were
            started together meet at each init(), whatever their worlds: so one of several worlds
            cannot end and begin again alone, it waits for the others to do so too.
        process_sets: Sets to register at once, the same on every rank. "dynamic" means none, as
            add_process_set() always works.

    Raises:
        ValueError: The environment is contradictory (the message names the variable); wrong ranks.
        HorovodInternalError: Some rank did not come (the message names it), or the ranks disagree
            on a setting or a process set.
        NotImplementedError: ``comm`` is an MPI communicator.

    Source: ``horovod.torch.init``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.rank() < hvd.size()
        True
        >>> hvd.shutdown()
    """
    ranks, sets = _ranks(comm), _sets(process_sets)
    with Holder.lock:
        if Holder.session is not None:
            return
        Holder.session = _core.Session.create(ranks)
        try:
            register_all(Holder.session, sets)
        except BaseException:
            _leave()
            raise


def _ranks(comm: Any) -> list[int]:
    if comm is None:
        return []
    if not isinstance(comm, Iterable):
        raise NotImplementedError(
            "init(comm=...) takes a list of ranks; MPI communicators are not supported"
        )
    ranks = list(comm)
    if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
        raise ValueError(f"init(comm=...) takes a list of ranks, and {ranks} is not one")
    return sorted(ranks)


def _sets(process_sets: Any) -> list[ProcessSet]:
    if process_sets is None or (
        isinstance(process_sets, str) and process_sets.lower() == "dynamic"
    ):
        return []
    is_list = isinstance(process_sets, Iterable) and not isinstance(process_sets, str)
    sets: list[Any] = list(process_sets) if is_list else [None]
    if not all(isinstance(process_set, ProcessSet) for process_set in sets):
        raise ValueError(
            'init(process_sets=...) takes a list of ProcessSet objects or "dynamic", not '
            f"{process_sets!r}"
        )
    return sets


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
    with Holder.lock:
        _leave()


def _leave() -> None:
    leaving, Holder.session = Holder.session, None
    forget_all()
    if leaving is not None:
        leaving.shutdown()


atexit.register(shutdown)


def is_initialized() -> bool:
    """Returns whether this process is between init() and shutdown(). Local."""
    return current_session() is not None


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


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts writing a timeline of every tensor to a file. Local; rank 0 writes, others do nothing.

    The file is Chrome trace-event JSON: open it in Perfetto or chrome://tracing. It is valid JSON
    at any time. A timeline that is being written already is completed, and this one follows.

    Args:
        file_path: File to create, on rank 0.
        mark_cycles: Also mark each round of negotiation.

    Raises:
        TypeError: `file_path` is no path.
        ValueError: Outside init() ... shutdown().
        HorovodInternalError: The file cannot be opened, or something of the timeline before it
            could not be written.

    Source: ``horovod.torch.start_timeline``.
    """
    current = session()
    if not isinstance(file_path, (str, os.PathLike)):
        raise TypeError(f"file_path must be the path of a file, not {file_path!r}")
    if current.rank == 0:
        current.start_timeline(os.fspath(file_path), bool(mark_cycles))


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
    """Returns whether MPI lets other threads call it while the runtime does. Local.

    Raises:
        ValueError: Outside init() ... shutdown(), or MPI does not carry the operations.

    Source: ``horovod.torch.mpi_threads_supported``.
    """
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    return _core.mpi_threads_supported()


def mpi_enabled() -> bool:
    """Returns whether MPI carries the operations (``HVL_CPU_OPERATIONS=mpi``). Local."""
    current = current_session()
    return current is not None and current.data_plane == "mpi"


def mpi_built() -> bool:
    """Returns whether this build has a plug-in for some MPI. Local."""
    return bool(_core.mpi_families())


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

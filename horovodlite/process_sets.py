"""Groups of ranks to which operations can be limited, for all frameworks."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

from horovodlite import _core
from horovodlite._session import session

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_GLOBAL_ID = 0


class User(Protocol):
    """Who has prepared operations of a process set."""

    def process_set_ended(self) -> None:
        """It is unregistered now. When it is registered again, its number is another one."""

    def ranks_have_joined(self) -> None:
        """All ranks have called join(), each after as many operations as it had data for."""


class ProcessSet:
    """Some of the ranks. Sets may overlap.

    Making the object is local and tells nobody. Pass it to ``init(process_sets=[...])`` or to
    add_process_set(), on every rank, to have it registered; then it can be the `process_set` of any
    operation. After shutdown() it is unregistered again, and may be used once more.

    Args:
        ranks_or_comm: The ranks, in any order. (MPI communicators, which Horovod takes too, are
            refused; the name is Horovod's.)

    Raises:
        ValueError: Something other than ranks.

    Attributes:
        process_set_id: A number, the same on every rank; None while it is not registered.
        ranks: Ascending.
        mpi_comm: None; there for Horovod's scripts.
        users: Who has prepared operations of it; not for users of this package.

    Source: ``horovod.torch.ProcessSet``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> print(hvd.ProcessSet([2, 0]))
        ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: None = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        members = list(ranks_or_comm) if isinstance(ranks_or_comm, Iterable) else [None]
        if any(isinstance(rank, bool) or not hasattr(rank, "__index__") for rank in members):
            raise ValueError(
                "ProcessSet should be initialized with a list of process ranks; MPI communicators "
                "are not supported"
            )
        self.ranks = sorted(operator.index(rank) for rank in members if rank is not None)
        self.users: weakref.WeakSet[User] = weakref.WeakSet()

    def size(self) -> int | None:
        """Returns the number of ranks in it, or None while it is not registered. Local."""
        if self.process_set_id is None:
            return None
        return len(session().process_set_ranks(self.process_set_id))

    def rank(self) -> int | None:
        """Returns where this process stands in it, counted from 0. None while it is not registered.

        Local. Operations take ranks of the world, not this one, also in a process set.

        Raises:
            ValueError: This process is not a member.
        """
        if self.process_set_id is None:
            return None
        current = session()
        if self.process_set_id == _GLOBAL_ID:
            return current.rank
        ranks = current.process_set_ranks(self.process_set_id)
        if current.rank not in ranks:
            raise ValueError(
                f"Rank {current.rank} is not a member of process set {self.process_set_id} {ranks}."
            )
        return ranks.index(current.rank)

    def included(self) -> bool | None:
        """Returns whether this process is a member; None when the ranks are not known. Local."""
        if self.process_set_id == _GLOBAL_ID:
            return session() is not None
        if self.ranks is None:
            return None
        return session().rank in self.ranks

    def _invalidate(self) -> None:
        self.process_set_id = None
        for user in list(self.users):
            user.process_set_ended()

    def __deepcopy__(self, _: object) -> ProcessSet:
        """Itself: it stands for a group that exists once."""
        return self

    def __reduce__(self) -> str | tuple[object, ...]:
        """The ranks travel, not the number: in another session that is another set's."""
        return "global_process_set" if self is global_process_set else (_unpickled, (self.ranks,))

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet([])
"""All ranks. Always registered."""
global_process_set.process_set_id = _GLOBAL_ID

_registered: list[ProcessSet] = []  # in the session that runs now, without the global one


def _unpickled(ranks: list[int]) -> ProcessSet:
    """The registered set of these ranks, of which there is at most one; else an unregistered."""
    found = [registered for registered in _registered if registered.ranks == ranks]
    return found[0] if found else ProcessSet(ranks)


def set_id(process_set: ProcessSet | None) -> int:
    """The number of a process set, for the adapters; None stands for all ranks.

    Raises:
        TypeError: Not a ProcessSet.
        ValueError: It is not registered.
    """
    if process_set is global_process_set or process_set is None:
        return _GLOBAL_ID
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise TypeError(
            f"process_set must be a ProcessSet, not a {type(process_set).__name__}; "
            "add_process_set() makes one"
        ) from None
    if number is None:
        session()  # outside of init() that is what is wrong
        raise ValueError(
            f"{process_set} does not exist, or has not been registered: pass it to "
            "init(process_sets=[...]) or add_process_set() on every rank"
        )
    return number


def members(process_set: ProcessSet | None) -> list[int]:
    """The ranks of a registered process set, ascending."""
    return session().process_set_ranks(set_id(process_set))


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set and returns it.

    Collective over all ranks, also those that are no members: everybody adds the same sets in the
    same order. Blocks without the GIL. Ctrl-C ends the wait, not the change: the next call for the
    same ranks takes it up. Works at any time (Horovod needs a setting for it).

    Args:
        process_set: A ProcessSet, or the ranks.

    Raises:
        ValueError: Not initialised; ranks that do not exist; a set of these ranks exists already.
        HorovodInternalError: The ranks disagree about the set, or a peer is gone.

    Source: ``horovod.torch.add_process_set``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.add_process_set([0]) if hvd.size() > 1 else None
    """
    current = session()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.process_set_id is not None:
        raise ValueError(f"Attempted to add a process set that is registered already: {added}")
    assert added.ranks is not None
    added.process_set_id = current.add_process_set(added.ranks)
    _registered.append(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a process set; returns whether there was one to unregister.

    Collective over all ranks; blocks without the GIL, and Ctrl-C ends the wait as in
    add_process_set(). The global process set stays.

    Args:
        process_set: One that no operation uses any more.

    Raises:
        TypeError: It is no ProcessSet.
        ValueError: Not initialised.
        HorovodInternalError: The ranks disagree; an operation of the set still waits for some rank
            (the set stays, on all ranks); a peer is gone.

    Source: ``horovod.torch.remove_process_set``.
    """
    current = session()
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"remove_process_set() takes what add_process_set() has returned, a ProcessSet, not a "
            f"{type(process_set).__name__}"
        )
    number = process_set.process_set_id
    if number is None or number == _GLOBAL_ID:
        return False
    current.remove_process_set(number)
    process_set._invalidate()
    _registered[:] = [other for other in _registered if other is not process_set]
    return True


def register_all(current: _core.Session, process_sets: Sequence[ProcessSet]) -> None:
    """Begins a session with the sets of init().

    Sets whose ranks come twice, or are all ranks, stay unregistered, as in Horovod.
    """
    everybody = current.process_set_ranks(_GLOBAL_ID)
    global_process_set.ranks = everybody
    seen = [everybody]
    for process_set in process_sets:
        process_set._invalidate()
        if process_set.ranks not in seen:
            assert process_set.ranks is not None
            seen.append(process_set.ranks)
            add_process_set(process_set)


def forget_all() -> None:
    """At the end of a session: no set is registered any more. Local."""
    for process_set in _registered:
        process_set._invalidate()
    _registered.clear()


os.register_at_fork(after_in_child=forget_all)

"""Waiting for the other ranks: barrier and join."""

from __future__ import annotations

from typing import Any

from horovodlite import _core
from horovodlite.process_sets import ProcessSet, global_process_set
from horovodlite.torch._calls import Call


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it. Collective; blocks without the GIL.

    It does not wait for asynchronous operations that are in flight.

    Args:
        process_set: Whose ranks are waited for: only they call it.

    Raises:
        ValueError: Not initialised.
        HorovodInternalError: A peer is gone.

    Source: ``horovod.torch.barrier``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.barrier()
    """
    call = Call(_core.BARRIER, "", [], lambda _: None, process_set=process_set)
    call.from_one_place = False  # no harm is done where ranks meet at different lines
    call.run()


def join(device: int = -1) -> int:  # noqa: ARG001  (Horovod's scripts pass it)
    """Says that this rank has no more data, and waits until all ranks have said so.

    Collective; blocks without the GIL. Until then this rank takes part in the allreduces of the
    others with zeros; an average is still divided by the number of all ranks. Other operations than
    allreduce fail while a rank has joined. It concerns all ranks: process sets have no join.

    Args:
        device: Ignored; accepted for Horovod's scripts.

    Returns:
        The rank that joined last.

    Raises:
        ValueError: Not initialised.
        HorovodInternalError: A peer is gone.

    Source: ``horovod.torch.join``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.join() < hvd.size()
        True
    """

    def last(gathered: list[Any]) -> int:
        rank: int = gathered[0][3][0]
        return rank

    call = Call(_core.JOIN, "", [], last)
    call.from_one_place = False  # ranks run out of data where they do
    joined: int = call.run()
    for user in list(global_process_set.users):
        user.ranks_have_joined()
    return joined

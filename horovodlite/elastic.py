"""State that survives the loss of ranks, and the loop that goes on with it; for all frameworks.

Terms. A state is *saved* in this process's memory, *restored* from there, and *synced*: made equal
to rank 0's on all ranks. A *reset* is leaving the world and joining a new one.
"""

from __future__ import annotations

import copy
import enum
import functools
import queue
from collections.abc import Iterable
from typing import Any, Callable, TypeVar

from horovodlite.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HostUpdateResult", "ObjectState", "State", "notification_manager", "run_fn"]

_Result = TypeVar("_Result")


class HostUpdateResult(enum.IntFlag):
    """What has happened to the hosts of a job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class NotificationManager:
    """Passes news about the hosts on to the states of this process.

    An elastic launcher has such news, and calls handle_hosts_updated() with it. Without one nobody
    does, and there is nothing to listen to.
    """

    def __init__(self) -> None:
        self._listeners: list[State] = []

    def init(self) -> None:
        """Does nothing here; run_fn() calls it before each loop.

        A manager that has to connect to a launcher's news first does that in its own init().
        """

    def register_listener(self, listener: State) -> None:
        """From now on `listener.on_hosts_updated` is called."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        """From now on it is not; does nothing when it was not before."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update: int) -> None:
        """Tells all listeners. Any thread.

        Args:
            timestamp: Later than that of all news before.
            update: What has happened, a HostUpdateResult.
        """
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update)


notification_manager = NotificationManager()


class State:
    """What training needs to go on after a reset. Subclasses say what that is.

    Source: ``horovod.common.elastic.State``.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        """Local.

        Args:
            bcast_object: Gives rank 0's object on every rank; collective.
            get_rank: This process's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Functions to call after each reset, for example to scale the learning rate. Local."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """After a reset: forgets old news, calls reset() and the callbacks. Local."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """News about the hosts; check_host_updates() acts on them. Local, any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then checks for news about the hosts.

        Collective. It costs a copy of the state and a broadcast: commit every so many batches.

        Raises:
            HostsUpdatedInterrupt: On all ranks alike, when rank 0 has news.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises when rank 0 has news about the hosts that it had not the last time. Collective.

        Raises:
            HostsUpdatedInterrupt: On all ranks alike.
        """
        before, latest = self._last_updated_timestamp, self._last_updated_timestamp
        news = int(HostUpdateResult.no_update)
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest, news = timestamp, news | int(update)
        before, self._last_updated_timestamp, news = self._bcast_object((before, latest, news))
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(skip_sync=news == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the present state in memory. Local."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last. Local."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the state that of rank 0, and saves it. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """What a subclass wants to do after a reset, before sync(). Local."""


class ObjectState(State):
    """A state of plain Python objects, which become attributes.

    Args:
        bcast_object: Gives rank 0's object on every rank; collective.
        get_rank: This process's rank.
        kwargs: Names and first values.

    What is saved is a copy, so that lists and dicts changed in place can be restored.

    Source: ``horovod.common.elastic.ObjectState``.

    Example:
        >>> state = ObjectState(lambda value: value, lambda: 0, batch=0)
        >>> state.batch = 3
        >>> state.restore()
        >>> state.batch
        0
    """

    _saved_state: dict[str, Any]

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._save_attributes()

    def restore(self) -> None:
        """Sets the attributes to copies of what was saved."""
        self._restore_attributes()

    def sync(self) -> None:
        """Sets the attributes to what rank 0 has in its attributes, and saves that.

        It calls neither save() nor restore(), which subclasses extend.
        """
        if self._saved_state:
            self._save_attributes()
            self._saved_state = self._bcast_object(self._saved_state)
            self._restore_attributes()

    def _save_attributes(self) -> None:
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def _restore_attributes(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


def run_fn(func: Callable[..., _Result], reset: Callable[[], None]) -> Callable[..., _Result]:
    """The function in the loop that survives the loss of ranks. Local.

    Each round syncs the state and calls the function. A lost rank ends the round: the state is
    restored to the last commit. News about hosts end it too: the state is kept. Then comes a reset.

    Args:
        func: Takes a State first.
        reset: Leaves the world and joins the new one; collective.

    A disagreement of the ranks is a mistake of the program, which the next round would only repeat:
    it is raised.

    Source: ``horovod.common.elastic.run_fn``.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _Result:
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    if error.code == "Mismatch":
                        raise
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as news:
                    skip_sync = news.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper

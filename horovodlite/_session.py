"""The session of this process. There is at most one, because the API it serves is of functions."""

from __future__ import annotations

import os
import threading

from horovodlite import _core


class Holder:
    """The session, or None outside init() ... shutdown()."""

    session: _core.Session | None = None
    lock = threading.Lock()

    @classmethod
    def forget(cls) -> None:
        """In a forked child: the session belongs to the parent."""
        cls.session = None
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=Holder.forget)


def session() -> _core.Session:
    """The running session, for the adapters.

    Raises:
        ValueError: init() has not been called, or shutdown() has.
    """
    current = Holder.session
    if current is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return current


def current_session() -> _core.Session | None:
    """The running session, or None outside init() ... shutdown()."""
    return Holder.session

"""Keeps the gradients of several optimizers apart when their parameters have the same names."""

from __future__ import annotations

from collections.abc import Sequence

from horovodlite import _core
from horovodlite._session import current_session


class _Book:
    """Which suffixes of each name have been claimed in one session."""

    session: _core.Session | None = None
    taken: dict[str, set[int]] = {}  # noqa: RUF012  (replaced as a whole, never shared)

    @classmethod
    def open(cls) -> dict[str, set[int]]:
        """The book of the session that runs now. What was claimed before init() belongs to it."""
        current = current_session()
        if current is not cls.session:
            if cls.session is not None:
                cls.taken = {}
            cls.session = current
        return cls.taken


class NameClaim:
    """A suffix that makes a set of names unique in this session.

    It depends only on which optimizers have been made in the session before, in which order, so it
    is the same on every rank. It does not depend on which of them are still alive, because garbage
    is collected at different times on different ranks; and not on earlier sessions, because a rank
    may be new.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._claim(wanted=None)

    @property
    def suffix(self) -> str:
        """Empty for the first who has these names."""
        return f"@{self._index + 1}" if self._index else ""

    def renew(self) -> None:
        """Claims the same suffix in a new session; another one if somebody has claimed it there."""
        self._claim(wanted=self._index)

    def _claim(self, wanted: int | None) -> None:
        self._book = _Book.open()
        taken = set().union(*(self._book.get(name, ()) for name in self._names))
        if wanted is None or wanted in taken:
            wanted = max(taken, default=-1) + 1
        self._index = wanted
        for name in self._names:
            self._book.setdefault(name, set()).add(wanted)

    def give_back(self) -> None:
        """Lets the next claim have this suffix: the optimizer has been replaced by another one."""
        for name in self._names:
            self._book[name].discard(self._index)

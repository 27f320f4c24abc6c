"""Keeps the gradients of several optimizers apart when their parameters have the same names."""

from __future__ import annotations

from collections.abc import Sequence

_times_used: dict[str, int] = {}


class NameClaim:
    """The suffix that makes a set of names unique in this process.

    It depends only on which optimizers were made before, and in which order, so that it is the same
    on every rank. It does not depend on which of them are still alive: garbage is collected at
    different times on different ranks.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._index = max((_times_used.get(name, 0) for name in names), default=0)
        for name in names:
            _times_used[name] = self._index + 1
        self.suffix = f"@{self._index + 1}" if self._index else ""

    def give_back(self) -> None:
        """Lets the next claim have this suffix: the optimizer has been replaced by another one."""
        for name in self._names:
            if _times_used[name] == self._index + 1:
                _times_used[name] = self._index

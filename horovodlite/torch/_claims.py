"""Which optimizer has which parameters, and what keeps equal names of several optimizers apart."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from horovodlite import _core
from horovodlite._session import current_session
from horovodlite.torch._tensors import check_supported

Named = Sequence[tuple[str, torch.nn.Parameter]]


class Owner(Protocol):
    """Who reduces the parameters of one DistributedOptimizer."""

    def be_replaced(self) -> None:
        """A newer optimizer has got some of the parameters: give up all of them."""


class _Book:
    """Which suffixes of each name have been claimed in one session."""

    session: weakref.ref[_core.Session] | None = None
    taken: dict[str, set[int]] = {}  # noqa: RUF012  (replaced as a whole, never shared)

    @classmethod
    def open(cls) -> dict[str, set[int]]:
        """The book of the session that runs now. What was claimed before init() belongs to it."""
        current = current_session()
        if cls.session is not None and (current is None or cls.session() is not current):
            cls.session, cls.taken = None, {}
        if cls.session is None and current is not None:
            cls.session = weakref.ref(current)
        return cls.taken


class _Registry:
    """The newest claim on each parameter, and the parameter's name in it."""

    entries: MutableMapping[torch.Tensor, tuple[Claim, str]] = WeakTensorKeyDictionary()


def name_of(parameter: torch.Tensor | None) -> str:
    """What the parameter's optimizer calls it; empty when no optimizer has claimed it."""
    entry = None if parameter is None else _Registry.entries.get(parameter)
    return "" if entry is None else entry[1]


class Claim:
    """The parameters of one optimizer, and a suffix that makes their names unique in the session.

    A parameter belongs to the newest optimizer that has claimed it; earlier ones are replaced.

    The suffix depends only on which optimizers have been made in the session before, in which
    order, so it is the same on every rank. It does not depend on which of them are still alive,
    because garbage is collected at different times on different ranks; and not on earlier sessions,
    because a rank may be new.
    """

    def __init__(self, owner: Owner, parameters: Named) -> None:
        self._owner = weakref.ref(owner)
        self._names: list[str] = []
        self._index = 0
        self._book: dict[str, set[int]] = {}
        self._replaced = False
        self.add(parameters)

    @property
    def suffix(self) -> str:
        """Empty for the first who has these names."""
        return f"@{self._index + 1}" if self._index else ""

    def require_current(self) -> None:
        """Raises RuntimeError when a newer optimizer has some of the parameters."""
        if self._replaced:
            raise RuntimeError(
                "The parameters of this DistributedOptimizer have been handed to a newer one: use "
                "that, or give the two different parameters."
            )

    def add(self, parameters: Named) -> None:
        """Claims more parameters; the suffix may become another one.

        Raises:
            ValueError, TypeError, NotImplementedError: One of them cannot be reduced; nothing has
                changed then.
        """
        for name, parameter in parameters:
            _check_parameter(name, parameter)
        self._replace_earlier(parameter for _, parameter in parameters)
        wanted = self._index if self._names else None
        self._give_back()
        self._names += [name for name, _ in parameters]
        self._take(wanted)
        for name, parameter in parameters:
            _Registry.entries[parameter] = (self, name)

    def renew(self) -> None:
        """In a new session: claims the same suffix; another one if somebody has claimed it there.

        Does nothing in the session of the claim.
        """
        if self._book is not _Book.open():
            self._take(self._index)

    def _replace_earlier(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        entries = (_Registry.entries.get(parameter) for parameter in parameters)
        earlier = dict.fromkeys(entry[0] for entry in entries if entry is not None)
        for claim in earlier:
            if claim is not self and not claim._replaced:
                claim._be_replaced()

    def _be_replaced(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.be_replaced()
        self._replaced = True
        self._give_back()

    def _take(self, wanted: int | None) -> None:
        self._book = _Book.open()
        taken = set().union(*(self._book.get(name, ()) for name in self._names))
        if wanted is None or wanted in taken:
            wanted = max(taken, default=-1) + 1
        self._index = wanted
        for name in self._names:
            self._book.setdefault(name, set()).add(wanted)

    def _give_back(self) -> None:
        """Lets others have this suffix."""
        for name in self._names:
            self._book[name].discard(self._index)


def _check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    if torch.nn.parameter.is_lazy(parameter):
        raise ValueError(
            f"Parameter '{name}' has no shape yet: run the model once before wrapping its optimizer"
        )
    try:
        check_supported(parameter)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise type(error)(f"Parameter '{name}': {error}") from None

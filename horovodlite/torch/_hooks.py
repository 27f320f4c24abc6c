"""What a parameter calls when a backward pass has added to its gradient.

In eager backward the hook calls the reducer directly. Compiled autograd traces the hook instead,
and there it calls one operator, which stays in the graph because it says that it changes its
argument; so the reduction still starts as soon as the gradient exists, without a graph break.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Protocol

import torch

from horovodlite import _core
from horovodlite.torch._overlap import OverlapWatch


class Owner(Protocol):
    """Who wants to know, unless it is an ordinary gradient, which is packed without asking."""

    watch: OverlapWatch | None  # while it looks at when gradients arrive

    def accumulated(self, number: int, gradient: torch.Tensor | None) -> None:
        """A gradient has been added to; the tensor is None when it is in its parameter."""


is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)
_keys = itertools.count()
_hooks: weakref.WeakValueDictionary[int, Hook] = weakref.WeakValueDictionary()


class Hook:
    """The hook of one parameter."""

    __slots__ = ("__weakref__", "_key", "_number", "_place", "owner")

    def __init__(
        self,
        owner: Owner,
        number: int,
        place: tuple[_core.calls.StepState, _core.calls.UnitState, _core.calls.SlotState],
    ) -> None:
        self.owner = owner
        self._number = number
        self._place = place
        self._key = next(_keys)
        _hooks[self._key] = self

    def __call__(self, parameter: torch.Tensor) -> None:
        """Called by autograd after it has accumulated into ``parameter.grad``."""
        if is_compiling():
            torch.ops.horovodlite.gradient_ready.default(parameter.grad, self._key)
            return
        watch = self.owner.watch
        if watch is not None:
            watch.gradient()
        if not _core.calls.accumulated(*self._place):
            self.owner.accumulated(self._number, None)
        if watch is not None:
            watch.gradient_done()

    def called_from_graph(self, gradient: torch.Tensor) -> None:
        """The graph runs: `gradient` is the value that ``parameter.grad`` will have after it."""
        self.owner.accumulated(self._number, gradient)


def _gradient_ready(gradient: torch.Tensor, key: int) -> None:
    hook = _hooks.get(key)
    if hook is not None:  # else the optimizer has been dropped since the graph was made
        hook.called_from_graph(gradient)


_library: Any = torch.library.Library("horovodlite", "DEF")  # type: ignore[no-untyped-call]
_library.define("gradient_ready(Tensor(a!) gradient, int key) -> ()")
_library.impl("gradient_ready", _gradient_ready, "CPU")
_library.impl("gradient_ready", lambda gradient, key: None, "Meta")  # noqa: ARG005

"""What a parameter calls when a backward pass has added to its gradient.

In eager backward the hook tells the reducer, for an ordinary gradient without any Python. Compiled
autograd traces the hook instead, and there it calls one operator, which stays in the graph because
it says that it changes its argument; so the reduction still starts as soon as the gradient exists,
without a graph break.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable

import torch

from horovodlite import _core
from horovodlite.torch._overlap import OverlapWatch

is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)
_keys = itertools.count()
_hooks: weakref.WeakValueDictionary[int, Hook] = weakref.WeakValueDictionary()


@_core.calls.call_in_c
class Hook(_core.calls.HookState):
    """The hook of one parameter."""

    __slots__ = ("__weakref__", "_key", "_number")

    def __init__(self, owner: _core.calls.StepState, slot: Any) -> None:
        _core.calls.attach(self, owner, slot)
        self._number = slot.number
        self._key = next(_keys)
        _hooks[self._key] = self

    def __call__(self, parameter: torch.Tensor) -> None:
        """Called by autograd after it has accumulated into ``parameter.grad``.

        Ordinary gradients do not get here, but are dealt with in C; those do that are traced.
        """
        if is_compiling():
            torch.ops.horovodlite.gradient_ready.default(parameter.grad, self._key)
            return
        watch: OverlapWatch | None = self.owner.watch
        if watch is not None:
            watch.gradient()
        if not _core.calls.accumulated(self.owner, self.slot):
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

"""Tells a program once when its gradients arrive so late that their reduction overlaps nothing.

A model that torch.compile has compiled as a whole delivers all gradients from one node of the
graph, at the end of backward. It trains correctly, and slower than it could.
"""

from __future__ import annotations

import sys
import time
import warnings

_STEPS = 10  # looked at, from the first on; later ones cost nothing
_LATE_STEPS = 3  # so many in a row are no accident
_LEAST_GRADIENTS = 8  # fewer say nothing
_LEAST_SECONDS = 0.005  # of a step: below, there is nothing to hide
_SPREAD = 0.02  # of a step, between first and last gradient: in eager mode it is a third or more


class OverlapWatch:
    """Looks at the first steps of one optimizer."""

    def __init__(self) -> None:
        self._steps = 0
        self._late_steps = 0
        self._begin: float | None = None  # of the step: the end of the one before
        self._count = 0
        self._last = 0.0  # when the last gradient had been dealt with
        self._spread = 0.0  # seconds of backward between gradients, without dealing with them

    def gradient(self) -> None:
        """A gradient has arrived."""
        if self._count > 0:
            self._spread += time.perf_counter() - self._last
        self._count += 1

    def gradient_done(self) -> None:
        """It has been dealt with."""
        self._last = time.perf_counter()

    def step(self) -> bool:
        """The gradients of a step have been reduced. False when there is nothing more to see."""
        late = self._is_late()
        self._late_steps = self._late_steps + 1 if late else 0
        if self._late_steps == _LATE_STEPS:
            self._warn()
            return False
        self._steps += 1
        self._begin, self._count, self._spread = time.perf_counter(), 0, 0.0
        return self._steps < _STEPS

    def _is_late(self) -> bool:
        if self._begin is None or self._count < _LEAST_GRADIENTS:
            return False
        step = self._last - self._begin
        compiles = "torch._dynamo" in sys.modules  # which torch.compile imports when it is called
        return compiles and step > _LEAST_SECONDS and self._spread < _SPREAD * step

    def _warn(self) -> None:
        warnings.warn(
            f"All {self._count} gradients arrive at the end of backward(), within "
            f"{1e3 * self._spread:.1f} ms, so that their reduction overlaps nothing. "
            "A model compiled as a whole delivers them so. Cure: compile its blocks one by one "
            "(for block in model.blocks: block.compile()), or use compiled autograd.",
            RuntimeWarning,
            stacklevel=2,
        )

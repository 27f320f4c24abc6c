"""What a DistributedOptimizer does around step() when gradients travel."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch

from horovodlite.torch._arguments import Average, check_weight
from horovodlite.torch._claims import Named
from horovodlite.torch._gradients import GradientReducer
from horovodlite.torch._scaling import refuse_unseen
from horovodlite.torch._slots import Settings
from horovodlite.torch.ops import allreduce


class ReducedGradients:
    """Gradients are reduced during backward, and step() uses the results."""

    def __init__(self, reducer: GradientReducer, decides_by_loss: bool) -> None:
        self._reducer = reducer
        self._decides_by_loss = decides_by_loss
        self._skips = False
        self._asked_to = False  # the last synchronize() was the user's own

    @property
    def settings(self) -> Settings:
        """What the user chose."""
        return self._reducer.settings

    @property
    def passes(self) -> int:
        """How many backward passes are added up before gradients are reduced."""
        return self._reducer.passes_per_step

    def set_passes(self, passes: int) -> None:
        """Changes that. Local."""
        self._reducer.passes_per_step = passes

    def set_weight(self, weight: float) -> None:
        """How often this rank's gradients count in averages. Local."""
        if self.settings.op != Average:
            raise ValueError("set_weight() is for averages: this optimizer has another op")
        self._reducer.set_weight(check_weight(weight))

    def synchronize(self) -> None:
        """Waits for all reductions, at the user's wish. Collective."""
        self._reducer.synchronize()
        self._asked_to = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside it, step() takes the gradients as they are."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside it, backward() adds to this rank's gradients only."""
        reducer = self._reducer
        before, reducer.keeps_local = reducer.keeps_local, True
        try:
            yield
        finally:
            reducer.keeps_local = before

    def before_unscaling(self) -> None:
        """A gradient scaler is about to read the gradients. Collective."""
        if not self._reducer.synchronized:
            self._reducer.synchronize()
            self._asked_to = False

    def step(self, own_step: Callable[..., Any], closure: Callable[[], Any] | None) -> Any:
        """Takes the optimizer's own step with reduced gradients. Collective."""
        reducer = self._reducer
        if closure is not None:
            if reducer.in_flight and not self._skips:  # from before: the closure zeroes them
                reducer.synchronize()
            return own_step(lambda: self._reduced(closure))
        if self._skips:
            self._require_reduced()
        elif not reducer.synchronized:
            refuse_unseen(sys._getframe(2))
            reducer.synchronize()
        elif self._asked_to:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): the gradients are not reduced a second time. Put step() "
                "inside skip_synchronize() to show that this is meant.",
                stacklevel=3,
            )
        reducer.synchronized = False
        return own_step()

    def _reduced(self, closure: Callable[[], Any]) -> Any:
        """The loss of the closure, followed by the reduction of the gradients it has computed."""
        reducer = self._reducer
        loss = closure()
        if self._skips:
            self._require_reduced()
        elif not reducer.synchronized:
            reducer.synchronize()
        reducer.synchronized = False
        process_set = self.settings.process_set
        if not self._decides_by_loss or not process_set.included():
            return loss
        return allreduce(
            torch.as_tensor(loss).detach(),
            name=f"{reducer.label}.loss",
            op=self.settings.op,
            process_set=process_set,
            weight=reducer.weight if self.settings.op == Average else None,
        )

    def _require_reduced(self) -> None:
        """Raises RuntimeError while peers still write the gradients."""
        if self._reducer.in_flight:
            raise RuntimeError(
                "step() was called inside skip_synchronize() while gradients are being reduced: "
                "call synchronize() first, also at the end of a closure"
            )

    def discard(self) -> None:
        """The gradients are being zeroed. Local."""
        self._reducer.discard()

    def drain(self) -> None:
        """The optimizer's state is being replaced: waits for what is in flight, and forgets it."""
        self._reducer.drain()

    def require_idle(self) -> None:
        """Raises RuntimeError when no parameters can be added now."""
        self._reducer.require_idle()

    def add_parameters(self, parameters: Named) -> None:
        """Parameters that join later. Local."""
        self._reducer.add_parameters(parameters)

    def release(self) -> None:
        """The optimizer is gone."""
        self._reducer.release()

"""Notices when a gradient scaler is at work on an optimizer.

A scaler reads the gradients in unscale_() and in step(), and skips a step in which they are not
finite. All that it touches of the optimizer before is ``param_groups``; so whoever reads that asks
here whether a scaler is behind it, and gets gradients ready on which all ranks decide alike.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

_SCALER: type = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
_METHODS = frozenset({"unscale_", "step"})  # the public ones that read gradients; what they call
_NEAR = 12  # frames: the scaler's own helpers, and wrappers that schedulers put around step()


def scaler_near(frame: FrameType | None) -> Any | None:
    """The GradScaler, or an object of a subclass, in whose unscale_() or step() a frame runs."""
    for _ in range(_NEAR):
        if frame is None:
            return None
        if frame.f_code.co_name in _METHODS:
            caller = frame.f_locals.get("self")
            if isinstance(caller, _SCALER):
                return caller
        frame = frame.f_back
    return None


def refuse_unseen(frame: FrameType | None) -> None:
    """For a step() with gradients that nobody has made ready for a scaler.

    Raises:
        RuntimeError: It is a scaler who calls it, from `frame`: it has decided by this rank's own.
    """
    scaler = scaler_near(frame)
    if scaler is not None and scaler.is_enabled():
        raise RuntimeError(
            f"{type(scaler).__name__} calls step(), but has not read the gradients through "
            "optimizer.param_groups since backward(), so it has seen this rank's own ones and "
            "ranks may skip different steps. Cure: let its unscale_() go through "
            "optimizer.param_groups; or, unless op=hvd.Adasum, call optimizer.synchronize() before "
            "it reads gradients, and its step() inside optimizer.skip_synchronize()."
        )

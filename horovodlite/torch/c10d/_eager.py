"""Keeps torch.compile out of classes that talk to other ranks.

``torch.compiler.disable`` would do, at the price of importing the whole compiler with this package
and of a wrapper around every call. The two marks that it sets can be set alone.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar

import torch

_Class = TypeVar("_Class", bound=type)
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def _skip(function: types.FunctionType) -> None:
    marked: Any = function
    marked._torchdynamo_disable = True  # not to be inlined into what is compiled
    marked._torchdynamo_disable_msg = "it talks to other ranks"
    if _frames is not None and hasattr(_frames, "_FrameExecStrategy"):
        skip = _frames._FrameAction.SKIP
        strategy = _frames._FrameExecStrategy(skip, skip)  # nor compiled when it is called alone
        _frames.set_code_exec_strategy(function.__code__, strategy)


def eager(made: _Class) -> _Class:
    """Marks all functions of a class, so that they run as they are: a graph breaks there."""
    for member in vars(made).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, types.FunctionType):
            _skip(function)
    return made

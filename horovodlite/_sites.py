"""Where in the user's program an operation is submitted, for messages about mispaired ones."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).absolute().parent) + "/"


@cache
def _frameworks() -> tuple[str, ...]:
    """Folders whose frames stand between the user's line and ours, in a backward for example."""
    folders = [_PACKAGE]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.append(str(Path(torch.__file__).parent) + "/")
    return tuple(folders)


# By code object, as its file name does not change and there are few of them. Users may make code
# without end, so the cache is emptied when it is large.
_is_ours: dict[CodeType, bool] = {}
_MOST_CODES = 4096


def caller_site() -> str:
    """The innermost line outside of this package and of the framework: "train.py:12"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = _is_ours.get(code)
        if ours is None:
            if len(_is_ours) >= _MOST_CODES:
                _is_ours.clear()
            ours = _is_ours[code] = code.co_filename.startswith(_frameworks())
        if not ours:
            return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""

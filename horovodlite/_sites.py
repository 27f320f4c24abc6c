"""Where in the user's program an operation is submitted, for messages about mispaired ones."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).absolute().parent) + "/"


@cache
def _frameworks() -> tuple[str, ...]:
    """Folders whose frames stand between the user's line and ours, in a backward for example."""
    folders = [_PACKAGE]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.append(str(Path(torch.__file__).parent) + "/")
    return tuple(folders)


# By file name, of which there are few. Users may make code without end, so the cache is emptied
# when it is large.
_is_ours: dict[str, bool] = {}
_MOST_FILES = 4096


def caller_site() -> str:
    """The innermost line outside of this package and of the framework: "train.py:12"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _is_ours.get(name)
        if ours is None:
            if len(_is_ours) >= _MOST_FILES:
                _is_ours.clear()
            ours = _is_ours[name] = name.startswith(_frameworks())
        if not ours:
            site = f"{name.rpartition('/')[2]}:{frame.f_lineno}"
            return site.encode("utf-8", "backslashreplace").decode()  # names of files may be odd
        frame = frame.f_back
    return ""

"""Data-parallel training: one process per device, gradients reduced during backward.

Import the door of your framework: ``import horovodlite.torch as hvd``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from horovodlite.exceptions import HorovodInternalError

try:
    from horovodlite import _core
except ImportError as error:
    raise ImportError(
        f"horovodlite's compiled module cannot be loaded: {error}. Install a wheel that was built "
        "for this Python, or run `pip install .`. In the source tree Python finds the sources, not "
        "what is installed: start it from another folder, or build here with tests/dev build."
    ) from error

__version__: str = _core.VERSION

if TYPE_CHECKING:
    from horovodlite.runner import RunError, run

__all__ = ["HorovodInternalError", "Knob", "RunError", "__version__", "knobs", "run"]


class Knob(NamedTuple):
    """One setting of the runtime and the value that the environment gives it now."""

    name: str
    """The variable, e.g. ``HVL_FUSION_THRESHOLD``."""
    alias: str
    """Horovod's name of the same knob, or an empty string."""
    flag: str
    """The option of ``hvlrun`` that sets it, or an empty string."""
    type: str
    """Kind of value: ``bytes``, ``seconds``, ``bool``, ..."""
    default: str
    allowed: str
    """What is allowed, in words."""
    value: str
    """What init() would use now."""
    must_agree: bool
    """Whether all ranks must have the same value."""
    help: str


def knobs() -> list[Knob]:
    """Returns every knob with the value that the environment gives it now.

    Local; never blocks. Setting a variable afterwards has no effect on a session that runs.

    Raises:
        ValueError: A variable holds something that its knob does not allow.

    Example:
        >>> import horovodlite
        >>> [knob.name for knob in horovodlite.knobs() if knob.alias == "HOROVOD_RANK"]
        ['HVL_RANK']
    """
    return [Knob(**row) for row in _core.knobs()]


def __getattr__(name: str) -> Any:
    """Loads what starts jobs when it is asked for: ranks and ``hvlrun`` start without it."""
    if name in ("RunError", "run"):
        from horovodlite import runner

        return getattr(runner, name)
    raise AttributeError(f"module 'horovodlite' has no attribute {name!r}")

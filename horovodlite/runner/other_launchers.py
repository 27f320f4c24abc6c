"""The names of Horovod's MPI and jsrun launchers, which horovodlite does not have.

They are there so that files which import them can be loaded; calling them is an error.
"""

from __future__ import annotations

from typing import Any, Callable, NoReturn

__all__ = ["mpi_available"]


def mpi_available(env: Any = None) -> bool:  # noqa: ARG001
    """Returns whether ranks can be started by mpirun: False."""
    return False


def _get_mpi_implementation_flags(*_: Any, **__: Any) -> tuple[None, None, None]:
    """Options for the mpirun that is installed: there are none for this launcher."""
    return None, None, None


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Any other name of these launchers."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name}: horovodlite starts ranks with hvlrun only, not with MPI or jsrun"
        )

    return refuse

"""The names of Horovod's MPI and jsrun launchers, which horovodlite does not have.

Which MPI is installed can be asked. The other names are there so that files which import them can
be loaded; calling them is an error that names ``hvlrun``.

Source: ``horovod.runner.mpi_run`` and ``horovod.runner.js_run``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, NoReturn

from horovodlite.runner import tiny_shell as tiny_shell_exec

__all__ = ["mpi_available"]

_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"

_SIGNS = {  # in what `mpirun --version` prints
    "Open MPI": _OMPI_IMPL,
    "OpenRTE": _OMPI_IMPL,
    "IBM Spectrum MPI": _SMPI_IMPL,
    "MPICH": _MPICH_IMPL,
    "HYDRA": _MPICH_IMPL,
    "Intel(R) MPI": _IMPI_IMPL,
}


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    """Which MPI ``mpirun`` belongs to, as one of the names above.

    Runs ``mpirun --version`` in ``env`` (None: this environment) and waits for it. What it prints
    goes to standard error if it says nothing that is known.
    """
    command = "mpirun --version"
    done = tiny_shell_exec.execute(command, env)
    if done is None:
        return _MISSING_IMPL
    output, status = done
    if status != 0:
        sys.stderr.write(f"{command} ended with status {status}:\n{output}\n")
        return _MISSING_IMPL
    known = next((name for sign, name in _SIGNS.items() if sign in output), _UNKNOWN_IMPL)
    if known == _UNKNOWN_IMPL:
        sys.stderr.write(f"{command} names no MPI that is known:\n{output}\n")
    return known


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

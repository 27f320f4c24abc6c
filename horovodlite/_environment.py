"""The environments of jobs: what one says, and what one is started in.

Source: ``horovod.runner.common.util.env`` and ``horovod.common.util.env``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

__all__ = [
    "env",
    "environment_with",
    "get_env_rank_and_size",
    "is_exportable",
    "is_kubeflow_mpi",
    "set_default",
]

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]

# Horovod's own launcher does not pass these on to ranks.
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"}


def is_exportable(name: str) -> bool:
    """Returns whether Horovod's launcher passes a variable on to ranks. Local."""
    return not any(re.match(pattern, name) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns rank and size from the variables of a launcher, (0, 1) without one. Local.

    Raises:
        RuntimeError: Only one of the two is set.
    """
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        names = (f"{prefix}_RANK", f"{prefix}_SIZE")
        values = [os.environ.get(name) for name in names]
        rank, size = values
        if rank is not None and size is not None:
            return int(rank), int(size)
        if values != [None, None]:
            raise RuntimeError(
                f"only one of {names[0]} and {names[1]} is in the environment: rank and size of "
                "this process are unknown"
            )
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Returns whether mpirun was started by Kubeflow's MPI operator. Local."""
    agent = "OMPI_MCA_plm_rsh_agent"  # Open MPI's variables end in names of its own
    return os.environ.get(agent) == "/etc/mpi/kubexec.sh"


def environment_with(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns this process's environment with changes; None takes a variable away. Local."""
    changed = {**os.environ, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def set_default(name: str, value: str) -> None:
    """Sets a variable of this process, and of those that it starts, where it is absent. Local."""
    os.environ.setdefault(name, value)


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets environment variables for a while; those that are None are left alone. Local."""
    changed = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

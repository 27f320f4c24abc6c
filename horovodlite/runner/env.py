"""What the environment says of a job.

Source: ``horovod.runner.common.util.env``.
"""

from __future__ import annotations

import os
import re

__all__ = ["get_env_rank_and_size", "is_exportable", "is_kubeflow_mpi"]

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

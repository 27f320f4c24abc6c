"""A short shell command whose output is wanted as text.

Source: ``horovod.runner.common.util.tiny_shell_exec``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

__all__ = ["execute"]


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Runs a shell command to its end.

    Args:
        command: Read by ``/bin/sh``.
        env: Its whole environment; None stands for this process's.

    Returns:
        What it wrote to standard output and standard error, in order, and its exit status
        (negative: the signal that ended it). None if no shell could be started; standard error
        says why.
    """
    try:
        done = subprocess.run(
            command,
            shell=True,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        sys.stderr.write(f"{command}: no shell could be started: {error}\n")
        return None
    return done.stdout, done.returncode

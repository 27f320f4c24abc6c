"""What a job is started with, and how long starting it may take.

Source: ``horovod.runner.common.util.settings`` and ``.timeout``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["BaseSettings", "Settings", "Timeout", "TimeoutException"]


class TimeoutException(Exception):  # noqa: N818  (the name is Horovod's)
    """An activity has taken too long."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Timeout:
    """A point in time by which several activities have to be done.

    Example:
        >>> Timeout(60, "Timed out waiting for {activity}.").timed_out()
        False
    """

    def __init__(self, timeout: float, message: str) -> None:
        """Starts now.

        Args:
            timeout: Seconds.
            message: What to say when it is over; ``{activity}`` stands for what was waited for.
        """
        self._timeout = timeout
        self._timeout_at = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Returns the seconds left, 0 when it is over. Local."""
        return max(0.0, self._timeout_at - time.monotonic())

    def timed_out(self) -> bool:
        """Returns whether it is over. Local."""
        return time.monotonic() > self._timeout_at

    def check_time_out_for(self, activity: str) -> None:
        """Raises when it is over. Local.

        Raises:
            TimeoutException: It is.
        """
        if self.timed_out():
            said = self._message.format(activity=activity).rstrip().rstrip(".")
            raise TimeoutException(f"{said}. Timeout after {self._timeout} seconds.")


@dataclass
class BaseSettings:
    """What a job is started with."""

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Timeout | None = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Iterable[str] | None = None
    elastic: bool = False
    prefix_output_with_timestamp: bool | None = False


@dataclass(init=False)
class Settings(BaseSettings):
    """The same, with hosts."""

    hosts: str | None = None

    def __init__(self, hosts: str | None = None, **settings: Any) -> None:
        """Takes the hosts by position, as Horovod does, and everything else by name.

        Args:
            hosts: As ``-H`` of hvlrun.
            **settings: The fields of BaseSettings.
        """
        super().__init__(**settings)
        self.hosts = hosts

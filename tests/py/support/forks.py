"""Processes for tests that are forked from one which has imported everything once.

Importing torch and making the first optimizer takes seconds of processor time, far more than most
tests do in a process. Its exit takes half a second, so what is no matter of tensors goes without.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from support import _store

ROOT = Path(__file__).resolve().parents[3]
FORKER = Path(__file__).with_name("forker.py")
ABORT_SECONDS = 10.0  # for printing stacks and dying
START_SECONDS = 300.0  # for importing torch on a machine that does many other things


def identity(rank: int, size: int) -> dict[str, str]:
    """The variables that a launcher sets on one host."""
    values = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": size,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
    }
    return {f"HVL_{name}": str(value) for name, value in values.items()}


@dataclass
class Ended:
    """How one script ended."""

    status: int
    output: str
    errors: str
    seconds: float


class Forked:
    """A process that a nursery has forked; as far as it goes like subprocess.Popen."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._pidfd = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = self._nursery.ask("exit_status", self.pid)
            os.close(self._pidfd)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, signo: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signo)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Forks processes that have imported the modules. Not thread-safe."""

    def __init__(self, *modules: str, job: _store.Job | None = None) -> None:
        environment = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'py'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        secret = []
        if job is not None:
            secret = [job.secret_fd]
            environment |= {
                "HVL_JOB_ID": "tests",
                "HVL_STORE": job.address,
                "HVL_SECRET_FD": str(job.secret_fd),
            }
        self._job = job  # lives as long as the ranks
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, str(FORKER), str(theirs.fileno()), *modules],
            env={**os.environ, **environment},
            pass_fds=(theirs.fileno(), *secret),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._receive(START_SECONDS)

    def _receive(self, seconds: float) -> Any:
        assert self._connection.poll(seconds), f"the nursery is silent for {seconds} s"
        return self._connection.recv()

    def ask(self, request: str, *arguments: Any) -> Any:
        """What the process answers at once."""
        self._connection.send((request, *arguments))
        return self._receive(ABORT_SECONDS)

    def fork_rank(self, environment: dict[str, str], connection: int, errors: int) -> Forked:
        """A rank of a RankPool, with descriptors for its orders and its standard error."""
        self._connection.send(("rank", environment))
        for handle in (connection, errors):
            send_handle(self._connection, handle, self._process.pid)
        return Forked(self, self._receive(ABORT_SECONDS))

    def run(
        self,
        scripts: list[str],
        environments: Sequence[dict[str, str]],
        deadline: float = 60.0,
    ) -> list[Ended]:
        """Runs all scripts at once, each as ``__main__`` of a process, and returns how they ended.

        Raises:
            AssertionError: Some did not end in time. All are killed then; the message has what
                they wrote.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = [(f"{folder}/{n}.out", f"{folder}/{n}.err") for n in range(len(scripts))]
            self._connection.send(("scripts", list(zip(scripts, environments, files)), deadline))
            ended = [
                Ended(status, Path(out).read_text(), Path(err).read_text(), seconds)
                for (status, seconds), (out, err) in zip(
                    self._receive(deadline + ABORT_SECONDS), files
                )
            ]
        late = [number for number, each in enumerate(ended) if each.seconds >= deadline]
        assert not late, f"scripts {late} did not end within {deadline} s: {ended}"
        return ended

    def close(self) -> None:
        """Between two calls it has nothing to lose."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

"""Ranks that run a script from start to exit: for what happens at the end of a process.

Importing torch takes longer than most scripts. So a nursery imports it once, and forks a process
for every rank that has nothing else: it runs its script as ``__main__`` and then ends as any
interpreter does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from support import _store
from support.ranks import ABORT_SECONDS, ROOT, START_SECONDS, identity

NURSERY = Path(__file__).with_name("nursery.py")


@dataclass
class Ended:
    """How one rank ended."""

    status: int
    output: str
    errors: str
    seconds: float


class Nursery:
    """Starts scripts as ranks. Not thread-safe."""

    def __init__(self) -> None:
        self._job = _store.Job("scripts")
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY), str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=(theirs.fileno(), self._job.secret_fd),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        assert self._connection.poll(START_SECONDS), "the nursery did not start"
        self._connection.recv()

    def run(
        self, scripts: list[str], env: dict[str, str] | None = None, deadline: float = 60.0
    ) -> list[Ended]:
        """Runs one script per rank of a world and returns how each ended, by rank.

        Raises:
            AssertionError: Some rank did not end in time. All are killed then; the message has
                what they wrote.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = [
                (f"{folder}/{rank}.out", f"{folder}/{rank}.err") for rank in range(len(scripts))
            ]
            environments = [
                {
                    **identity(rank, len(scripts)),
                    "HVL_JOB_ID": "scripts",
                    "HVL_STORE": self._job.address,
                    "HVL_SECRET_FD": str(self._job.secret_fd),
                    **(env or {}),
                }
                for rank in range(len(scripts))
            ]
            self._connection.send((list(zip(scripts, environments, files)), deadline))
            assert self._connection.poll(deadline + ABORT_SECONDS), "the nursery is stuck"
            ended = [
                Ended(status, Path(out).read_text(), Path(err).read_text(), seconds)
                for (status, seconds), (out, err) in zip(self._connection.recv(), files)
            ]
        late = [rank for rank, each in enumerate(ended) if each.seconds >= deadline]
        assert not late, f"ranks {late} did not end within {deadline} s: {ended}"
        return ended

    def close(self) -> None:
        """Between two calls of run() the nursery has nothing to lose."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

"""A team: the processes of one contestant, started once, which do one piece of work when told to.

Each rank connects to a Unix socket and is blocked in reading it between commands, so that a waiting
team uses no processor while another one is measured. The ranks' end is native/control.h and
torch_worker.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 120.0
REPLY_SECONDS = 300.0
STOP_SECONDS = 10.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class TeamError(Exception):
    """A team did not start, or one of its ranks failed."""


@dataclass(frozen=True)
class Process:
    """What to start, with which variables and descriptors."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()


class Rank:
    """One rank's connection; the rank begins with `hello <team> <rank> <process id>`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(REPLY_SECONDS)
        self._connection = connection
        self._lines = connection.makefile("r", encoding="ascii", newline="\n")
        _, _, rank, pid = self._lines.readline().split()
        self.rank, self.pid = int(rank), int(pid)

    def send(self, command: str) -> None:
        self._connection.sendall(f"{command}\n".encode("ascii"))

    def receive(self) -> list[float]:
        line = self._lines.readline()
        words = line.split()
        if not words or words[0] != "ok":
            raise TeamError(line.strip() or "the connection was closed")
        return [float(word) for word in words[1:]]

    def processor_seconds(self) -> float:
        """User and system time of the process so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class Team:
    """Started by the constructor; a context manager that ends every process."""

    def __init__(self, name: str, ranks: int, processes: Sequence[Process], folder: Path) -> None:
        self.name = name
        self.ranks: list[Rank] = []
        self._log_path = folder / f"{name}.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        path = folder / f"{name}.socket"
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            listener.listen(ranks)
            with self._log_path.open("wb") as log:
                for process in processes:
                    self._processes.append(self._start(process, path, log.fileno()))
            self.ranks = self._accept(listener, ranks)
        except BaseException:
            self.stop()
            raise
        finally:
            listener.close()

    def _start(self, process: Process, path: Path, log: int) -> subprocess.Popen[bytes]:
        env = {"HVL_BENCH_SOCKET": str(path), "HVL_BENCH_TEAM": self.name, **process.env}
        return subprocess.Popen(
            process.command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=process.descriptors,
            start_new_session=True,
        )

    def _accept(self, listener: socket.socket, count: int) -> list[Rank]:
        found: dict[int, Rank] = {}
        deadline = time.monotonic() + START_SECONDS
        listener.settimeout(0.2)  # between looks at whether the processes still live
        while len(found) < count:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._check_alive()
                if time.monotonic() > deadline:
                    what = f"not all ranks came in {START_SECONDS:.0f} s"
                    raise TeamError(self._explain(what)) from None
                continue
            rank = Rank(connection)
            found[rank.rank] = rank
        return [found[rank] for rank in sorted(found)]

    def _check_alive(self) -> None:
        for process in self._processes:
            status = process.poll()
            if status not in (None, 0):
                raise TeamError(self._explain(f"a process ended with status {status}"))

    def _explain(self, what: str) -> str:
        tail = self._log_path.read_text(errors="replace").splitlines()[-15:]
        return "\n  ".join([f"{self.name}: {what}", *tail])

    def run(self, command: str) -> list[list[float]]:
        """All ranks carry out the command; returns the numbers that each answered."""
        try:
            for rank in self.ranks:
                rank.send(command)
            return [rank.receive() for rank in self.ranks]
        except (OSError, TeamError) as error:
            raise TeamError(self._explain(f"'{command}' failed: {error}")) from error

    def processor_seconds(self) -> float:
        return sum(rank.processor_seconds() for rank in self.ranks)

    def stop(self) -> None:
        """Closing the connections ends the ranks; what does not end is killed."""
        for rank in self.ranks:
            rank.close()
        deadline = time.monotonic() + STOP_SECONDS
        while self._running() and time.monotonic() < deadline:
            time.sleep(0.01)  # two processes end at once, there is nothing to wait on for both
        for process in self._running():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """For sockets (whose paths must be short) and logs."""
    return tempfile.TemporaryDirectory(prefix="hvl-bench-")

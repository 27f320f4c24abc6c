"""Runs Python scripts for whoever a launcher starts, in forks of a process that has torch already.

Importing torch and making the first optimizer takes every process seconds of processor time. Where
a test starts one script again and again, its command is this file with the path of a socket:

    hvlrun -np 4 python forked.py SOCKET train.py arguments ...

That process hands over all that a launcher has given to it: environment, folder, descriptors,
processors and namespaces. A fork runs the script with them, and the process ends as the fork does.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 300.0  # for importing torch on a machine that does many other things
MOST_DESCRIPTORS = 250  # what the kernel takes in one message
NAMESPACES = ("net", "uts")  # what stands for hosts


class Forks:
    """The process that forks, from `with` to its end."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "forks")

    def __enter__(self) -> Forks:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(64)
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def command(self, *words: str) -> list[str]:
        """The command that runs a script with its arguments."""
        return [sys.executable, __file__, self.path, *words]


# --- The process that a launcher has started --------------------------------------------------


def hand_over(path: str, words: list[str]) -> int:
    """Lets a fork be this process, and returns its exit status."""
    links = list(Path("/proc/self/fd").iterdir())
    numbers = [int(link.name) for link in links if link.is_symlink()]
    place = (os.getpid(), dict(os.environ), str(Path.cwd()), numbers, words)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_S)
        connection.connect(path)
        socket.send_fds(connection, [b"!"], numbers)
        connection.sendall(pickle.dumps(place))
        said = connection.recv(16)
    return int(said) if said else 1


# --- The forks --------------------------------------------------------------------------------


def become(
    descriptors: list[int], pid: int, environment: dict[str, str], folder: str, numbers: list[int]
) -> None:
    """Takes over what the process `pid` has."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in NAMESPACES:
        theirs = Path(f"/proc/{pid}/ns/{name}")
        if theirs.readlink() != Path(f"/proc/self/ns/{name}").readlink():
            with theirs.open() as file:
                if libc.setns(file.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"setns {theirs}")
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    os.chdir(folder)
    above = max(numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    os.closerange(3, above)
    for descriptor, number in zip(moved, numbers):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


def exit_status(connection: socket.socket, pid: int) -> int:
    """How the fork has ended. It does not outlive the process that it stands for."""
    pidfd = os.pidfd_open(pid)
    ready, _, _ = select.select([pidfd, connection], [], [])
    if pidfd not in ready:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def serve(connection: socket.socket) -> list[str] | None:
    """In a fork: the words of the script that it has to run. Else None, when that has ended."""
    connection.settimeout(None)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, MOST_DESCRIPTORS)
    with connection.makefile("rb") as file:
        place: Any = pickle.load(file)
    child = os.fork()
    if child == 0:
        words: list[str] = place[-1]
        become(descriptors, *place[:-1])
        return words
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(str(exit_status(connection, child)).encode())
    return None


def main(listener: socket.socket) -> list[str] | None:
    """Forks for whoever comes; returns as serve()."""
    import torch

    import horovodlite.torch  # noqa: F401

    torch.optim.SGD([torch.ones(1)], lr=1.0)  # the first one imports as much again
    gc.collect()
    gc.freeze()  # or every fork looks at all that when it exits
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how servers of one have ended
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return serve(connection)
        connection.close()


if __name__ == "__main__":
    if not sys.argv[1].isdigit():
        sys.exit(hand_over(sys.argv[1], sys.argv[2:]))
    script = main(socket.socket(fileno=int(sys.argv[1])))
    if script is not None:
        sys.argv = script
        sys.path[0] = str(Path(script[0]).parent)
        runpy.run_path(script[0], run_name="__main__")

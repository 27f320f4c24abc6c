"""The process that Nursery of support/scripts.py talks to: forks ranks that have torch already."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any


def become_rank(script: str, environment: dict[str, str], files: tuple[str, str]) -> None:
    """Runs a script in this process, a fresh child."""
    for descriptor, path in zip((1, 2), files):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(environment)
    main: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(script, "<script>", "exec"), main)  # noqa: S102  (what it is for)


def wait_for(pids: list[int], deadline: float) -> list[tuple[int, float]]:
    """Exit status and seconds by rank; those that remain at the deadline are killed."""
    begin = time.monotonic()
    running = {os.pidfd_open(pid): pid for pid in pids}
    ended: dict[int, tuple[int, float]] = {}
    while running:
        left = begin + deadline - time.monotonic()
        ready, _, _ = select.select(list(running), [], [], max(0.0, left))
        for descriptor in ready or list(running):
            pid = running.pop(descriptor)
            os.close(descriptor)
            if not ready:
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ended[pid] = (status, time.monotonic() - begin)
    return [ended[pid] for pid in pids]


def main(descriptor: int) -> None:
    """Serves until the connection closes; returns in each child when its script has ended."""
    connection = Connection(descriptor)
    import torch

    import horovodlite.torch  # noqa: F401  (so that no rank has to)

    torch.optim.SGD([torch.ones(1)], lr=1.0)  # the first one imports as much again
    faulthandler.enable()
    connection.send("ready")
    while True:
        try:
            ranks, deadline = connection.recv()
        except EOFError:
            return
        pids = []
        for rank in ranks:
            pid = os.fork()
            if pid == 0:
                connection.close()
                become_rank(*rank)
                return
            pids.append(pid)
        connection.send(wait_for(pids, deadline))


if __name__ == "__main__":
    main(int(sys.argv[1]))

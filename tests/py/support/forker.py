"""The process that Nursery of support/forks.py talks to: imports modules once and forks.

It owns its children, so it also tells how they have ended.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from support import worker

Script = tuple[str, dict[str, str], tuple[str, str]]


def run_script(script: str, environment: dict[str, str], files: tuple[str, str]) -> None:
    """Runs a script in this process, a fresh child."""
    for descriptor, path in zip((1, 2), files):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(environment)
    main: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(script, "<script>", "exec"), main)  # noqa: S102  (what it is for)


def work(environment: dict[str, str], connection: int, errors: int) -> None:
    """Makes this process, a fresh child, one rank of a RankPool."""
    os.dup2(errors, 2)
    os.close(errors)
    os.environ.update(environment)
    worker.main(connection)


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
            ended[pid] = (exit_status(pid), time.monotonic() - begin)
    return [ended[pid] for pid in pids]


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepare(modules: list[str]) -> None:
    """Does once what every child would have to do."""
    for module in modules:
        importlib.import_module(module)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
        torch.optim.SGD([torch.ones(1)], lr=1.0)  # the first one imports as much again
    faulthandler.enable()  # SIGABRT prints the stacks of all threads
    gc.collect()
    gc.freeze()  # or every child looks at all that when it collects and when it exits


class Child(Exception):  # noqa: N818  (no error: the way out of the loop for who has been forked)
    """Carries what a forked process has to do."""


def main(descriptor: int, modules: list[str]) -> None:
    """Serves until the connection closes; returns in each child when it has done its work."""
    connection = Connection(descriptor)
    prepare(modules)
    connection.send("ready")

    def fork(*task: Any) -> int:
        pid = os.fork()
        if pid == 0:
            connection.close()
            raise Child(*task)
        return pid

    def scripts(ranks: list[Script], deadline: float) -> list[tuple[int, float]]:
        return wait_for([fork(run_script, *rank) for rank in ranks], deadline)

    def rank(environment: dict[str, str]) -> int:
        handles = [recv_handle(connection) for _ in range(2)]
        pid = fork(work, environment, *handles)
        for handle in handles:
            os.close(handle)
        return pid

    requests = {"scripts": scripts, "rank": rank, "exit_status": exit_status}
    while True:
        try:
            request, *arguments = connection.recv()
        except EOFError:
            return
        connection.send(requests[request](*arguments))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2:])
    except Child as child:
        task, *arguments = child.args
    else:
        sys.exit()
    task(*arguments)

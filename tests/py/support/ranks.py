"""Ranks for tests: processes that are started once and play worlds of any size."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

import cloudpickle

from support.forks import ABORT_SECONDS, START_SECONDS, Nursery, identity

DEADLINE_SECONDS = 60.0


class RankError(AssertionError):
    """A rank raised, died or did not end in time. The message has all that is known."""


class _Rank:
    """One worker process."""

    def __init__(self, nursery: Nursery) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        with theirs:
            self.process = nursery.fork_rank(
                {"HVL_START_TIMEOUT": "30"}, theirs.fileno(), self._stderr.fileno()
            )
        self.connection = Connection(ours.detach())
        self._read_from = 0

    def stderr(self) -> str:
        """What the rank has written since the last call began."""
        data = os.pread(self._stderr.fileno(), 1 << 20, self._read_from)
        return data.decode(errors="replace")

    def forget_stderr(self) -> None:
        self._read_from = os.fstat(self._stderr.fileno()).st_size

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """The worker ends by itself when the connection closes; what does not is killed."""
        self.connection.close()
        try:
            self.process.wait(timeout=ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


class RankPool:
    """Up to `count` ranks on this host. Not thread-safe."""

    def __init__(self, count: int, nursery: Nursery) -> None:
        self._nursery = nursery
        self._ranks = [_Rank(nursery) for _ in range(count)]
        self._wait_for(self._ranks)

    @staticmethod
    def _wait_for(ranks: list[_Rank]) -> None:
        for rank in ranks:
            if not rank.connection.poll(START_SECONDS):
                raise RankError(f"a rank did not start: {rank.stderr()}")
            rank.connection.recv_bytes()

    def mend(self) -> None:
        """Starts the ranks anew that have died."""
        dead = [place for place, rank in enumerate(self._ranks) if not rank.alive]
        for place in dead:
            self._ranks[place].end()
            self._ranks[place] = _Rank(self._nursery)
        self._wait_for([self._ranks[place] for place in dead])

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        size: int,
        env: dict[str, str] | None = None,
        deadline: float = DEADLINE_SECONDS,
        initialize: bool = True,
    ) -> list[Any]:
        """What the function returns on each of `size` ranks.

        Raises:
            RankError: Some rank raised, died, or did not end in time.
        """
        outcomes = self.outcomes(
            function, *arguments, size=size, env=env, deadline=deadline, initialize=initialize
        )
        if any(kind != "value" for kind, _ in outcomes):
            raise RankError(self._report(outcomes))
        return [value for _, value in outcomes]

    def outcomes(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        size: int,
        env: dict[str, str] | None = None,
        deadline: float = DEADLINE_SECONDS,
        initialize: bool = True,
    ) -> list[tuple[str, Any]]:
        """As run, whatever happens: ("value" | "error" | "died" | "late", details) by rank."""
        module = sys.modules.get(function.__module__)
        if module is not None and function.__module__ != "__main__":
            cloudpickle.register_pickle_by_value(module)
        ranks = self._ranks[:size]
        for rank, worker in enumerate(ranks):
            environment = {**identity(rank, size), **(env or {})}
            call = (function, arguments, environment, initialize)
            worker.forget_stderr()
            worker.connection.send_bytes(cloudpickle.dumps(call))
        return self._collect(ranks, time.monotonic() + deadline)

    def _collect(self, ranks: list[_Rank], end: float) -> list[tuple[str, Any]]:
        outcomes: dict[int, tuple[str, Any]] = {}
        waiting = {worker.connection: rank for rank, worker in enumerate(ranks)}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[call-overload]
                outcomes[rank] = self._receive(ranks[rank])
        for rank in waiting.values():
            ranks[rank].process.send_signal(signal.SIGABRT)
        for rank in waiting.values():
            self._wait_or_kill(ranks[rank])
            outcomes[rank] = ("late", ranks[rank].stderr())
        return [outcomes[rank] for rank in range(len(ranks))]

    def _receive(self, worker: _Rank) -> tuple[str, Any]:
        try:
            kind, value = cloudpickle.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._wait_or_kill(worker)
            return "died", worker.process.returncode
        return kind, value

    @staticmethod
    def _wait_or_kill(worker: _Rank) -> None:
        try:
            worker.process.wait(timeout=ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()

    def _report(self, outcomes: list[tuple[str, Any]]) -> str:
        lines = []
        for rank, (kind, details) in enumerate(outcomes):
            lines.append(f"--- rank {rank}: {kind}")
            if kind != "value":
                lines.append(str(details))
            text = self._ranks[rank].stderr()
            if text and kind != "late":
                lines.append(f"--- its standard error:\n{text}")
        return "\n".join(lines)

    def stderr(self, rank: int) -> str:
        """What a rank wrote to its standard error in the last call."""
        return self._ranks[rank].stderr()

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks]

    def close(self) -> None:
        for rank in self._ranks:
            rank.end()

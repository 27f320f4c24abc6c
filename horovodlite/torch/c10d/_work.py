"""What an operation of a process group returns, and the threads that complete its futures."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Protocol

import torch
import torch.distributed as dist

from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch.c10d._eager import eager

_LONGEST_WAIT = 3600.0  # seconds in one call; who waits longer calls again
_IDLE_SECONDS = 10.0


class Pending(Protocol):
    """An operation that has been started."""

    def done(self) -> bool:
        """Whether it has ended, well or badly. Never blocks."""

    def wait_for(self, seconds: float) -> bool:
        """Blocks, without the GIL, until it has ended, at most so long; whether it has."""

    def take(self) -> Any:
        """What the runtime made for it. Requires done(); raises what went wrong."""


class Done:
    """What has nothing to wait for."""

    def done(self) -> bool:
        return True

    def wait_for(self, seconds: float) -> bool:  # noqa: ARG002
        return True

    def take(self) -> None:
        return None


def wait_until(pending: Pending, deadline: float) -> bool:
    """Blocks until `pending` has ended or time.monotonic() is `deadline`; whether it has ended."""
    while not pending.wait_for(max(0.0, min(deadline - time.monotonic(), _LONGEST_WAIT))):
        if time.monotonic() >= deadline:
            return False
    return True


Complete = tuple[Callable[[], Any], Callable[[], Any]]
"""Blocks until an operation has ended; completes its future, which runs the user's callbacks."""


class Completer:
    """Completes futures in the order in which they were asked for.

    Operations of one group end without help from those after them, so one thread can wait for them
    in their order. When one has ended, another thread goes on waiting before the callbacks run,
    because they may wait for later operations, as that of PowerSGD does. Threads start when they
    are needed, and end when they were not for a while.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: collections.deque[Complete] = collections.deque()
        self._is_waiting = False  # whether a thread waits for an operation
        self._idle = 0
        self._closed = False

    def add(self, wait: Callable[[], Any], complete: Callable[[], Any]) -> None:
        """Calls `complete` when `wait` has returned, on another thread. Does not block."""
        with self._changed:
            self._works.append((wait, complete))
            self._wake()

    def _wake(self) -> None:
        if not self._works or self._is_waiting:
            return
        if self._idle:
            self._changed.notify()
        else:
            threading.Thread(target=self._run, name="hvl-future", daemon=True).start()

    def _next(self) -> Complete | None:
        """The first one, which this thread now waits for; None when there was none for long."""
        with self._changed:
            while not self._works or self._is_waiting:
                self._idle += 1
                woken = not self._closed and self._changed.wait(_IDLE_SECONDS)
                self._idle -= 1
                if not woken and (not self._works or self._is_waiting):
                    return None
            self._is_waiting = True
            return self._works.popleft()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            wait, complete = work
            wait()
            with self._changed:
                self._is_waiting = False
                self._wake()
            complete()

    def close(self) -> None:
        """What was added before is still completed. Does not block."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class OwnThreads:
    """For operations that may end in any order: each future has a thread, as long as it is open."""

    def add(self, wait: Callable[[], Any], complete: Callable[[], Any]) -> None:
        """As Completer.add()."""

        def run() -> None:
            wait()
            complete()

        threading.Thread(target=run, name="hvl-future", daemon=True).start()


@eager
class Work(dist.Work):
    """An operation in flight.

    It keeps the tensors alive until it is done; dropping it cancels nothing.

    Args:
        pending: The operation.
        finish: Puts what pending.take() returns where the caller wants it; runs once, on the thread
            that finds the operation done.
        result: The tensors that the operation changes.
        seconds: How long wait() waits when it is not told.
        what: The operation for messages, as in "allreduce 'c10d.0.7'".
        completer: Who completes the future.
    """

    def __init__(
        self,
        pending: Pending,
        finish: Callable[[Any], None] | None,
        result: Sequence[torch.Tensor],
        seconds: float,
        what: str,
        completer: Completer | OwnThreads,
    ) -> None:
        super().__init__()
        self._pending = pending
        self._finish = finish
        self._result = list(result)
        self._seconds = seconds
        self._what = what
        self._completer = completer
        self._lock = threading.Lock()
        self._finished = False
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks, without the GIL, until the operation is done; returns True.

        Raises:
            HorovodInternalError: The ranks disagree, a peer is gone, or the time is over (`code` is
                "Timeout"): then the operation goes on, and the tensors must not be used.
            ValueError: What came from another rank does not fit into the tensors.
        """
        seconds = self._seconds if not timeout else timeout.total_seconds()
        if not wait_until(self._pending, time.monotonic() + seconds):
            raise self._timed_out(seconds)
        self._complete()
        return True

    def _timed_out(self, seconds: float) -> HorovodInternalError:
        return HorovodInternalError(
            f"{self._what} timed out after {seconds:g} s: not all ranks of the group have called "
            "it, or one is late. Every rank has to call the operations of a group in the same "
            "order; a longer limit is the timeout of init_process_group() or new_group()",
            code="Timeout",
        )

    def _complete(self) -> None:
        """What is left to do when the operation is done; raises what went wrong."""
        with self._lock:
            if not self._finished:
                try:
                    taken = self._pending.take()
                    if self._finish is not None:
                        self._finish(taken)
                except Exception as error:
                    self._error = error
                self._finished = True
                self._finish = None
        if self._error is not None:
            raise self._error

    def _outcome(self) -> list[torch.Tensor]:
        """For the future: its completer has waited."""
        if not self._pending.done():
            raise self._timed_out(self._seconds)
        self._complete()
        return self._result

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly. Never blocks on a peer."""
        if not self._finished:
            if not self._pending.done():
                return False
            try:
                self._complete()
            except Exception:
                return self._finished  # wait() and exception() tell
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, once it has ended."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that it changes; they hold the result when it is done."""
        return self._result

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def source_rank(self) -> int:
        """Who sent it, as a rank of the group."""
        raise RuntimeError(f"{self._what} has no source rank: only receives have one")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the list of tensors; it is completed by another thread."""
        with self._lock:
            if self._future is not None:
                return self._future
            # An exception must come out of a callback for C++ to see it as an error.
            base: torch.futures.Future[Any] = torch.futures.Future()
            self._future = base.then(lambda _: self._outcome())
        if self._finished:
            base.set_result(None)
        else:
            deadline = time.monotonic() + self._seconds
            self._completer.add(
                lambda: wait_until(self._pending, deadline), lambda: base.set_result(None)
            )
        return self._future


class AllPending:
    """Several operations as one; what it takes is the list of what they give."""

    def __init__(self, parts: Sequence[Pending]) -> None:
        self._parts = parts

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait_for(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(wait_until(part, deadline) for part in self._parts)

    def take(self) -> list[Any]:
        return [part.take() for part in self._parts]


class WorkPending:
    """A Work as a part of another one."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def done(self) -> bool:
        return self._work.is_completed()

    def wait_for(self, seconds: float) -> bool:
        return wait_until(self._work._pending, time.monotonic() + seconds)

    def take(self) -> list[torch.Tensor]:
        self._work._complete()
        return self._work.result()

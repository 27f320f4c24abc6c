"""Functions that run in threads.

Source: ``horovod.runner.util.threads``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Runs a function in a thread that it returns.

    Args:
        target: The function.
        args: Its arguments.
        name: Of the thread.
        daemon: Whether Python may exit before it ends.
        silent: Whether an exception ends it without a word.

    Raises:
        ValueError: `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(
            f"args must be a tuple, not {type(args)}, for a single argument use (arg,)"
        )

    def quietly(*args: Any) -> None:
        with contextlib.suppress(Exception):
            target(*args)

    chosen = quietly if silent else target
    thread = threading.Thread(target=chosen, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Runs a function in a thread once an event is set, unless another one is set before.

    Args:
        event: Starts the function.
        func: The function.
        args: Its arguments.
        stop: Ends the wait.
        check_stop_interval_s: Seconds until the thread sees `stop`.
        daemon: As in in_thread(); without it `stop` is needed.
        silent: As in in_thread().

    Raises:
        ValueError: Arguments that make no sense.
    """
    if event is None:
        raise ValueError("Event must not be None")
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait(*args: Any) -> None:
        if stop is None:
            event.wait()
        else:
            while not event.is_set() and not stop.is_set():
                event.wait(timeout=check_stop_interval_s)
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait, args, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls a function once for each list of arguments, in threads.

    Returns:
        The results by index, or None when it does not wait for them.

    Raises:
        Exception: The first that a call has raised.
    """
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)))
    calls = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=block_until_all_done)
    if not block_until_all_done:
        return None
    return {index: call.result() for index, call in enumerate(calls)}

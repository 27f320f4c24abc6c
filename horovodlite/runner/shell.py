"""A shell command that ends with the process that runs it, and whose output lands where it should.

The command runs below a *guard*, a process that holds one end of a pipe, the lifeline. The other
end is ours: when it closes, because the command is to end or because this process is no more, the
guard ends the command.

Source: ``horovod.runner.common.util.safe_shell_exec``.
"""

from __future__ import annotations

import codecs
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, TextIO

from horovodlite.runner.threads import in_thread, on_event

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute", "prefix_connection"]

GRACEFUL_TERMINATION_TIME_S = 5
"""Between asking a command to end (SIGTERM) and ending it (SIGKILL)."""

_GUARD = """
import os, signal, subprocess, sys, threading

lifeline, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
child = subprocess.Popen(command, shell=True, start_new_session=True)

def end():
    os.read(lifeline, 1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(grace)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass

threading.Thread(target=end, daemon=True).start()
status = child.wait()
os._exit(status if status >= 0 else 128 - status)
"""


def prefix_connection(
    src_connection: Any,
    dst_stream: TextIO,
    prefix: str | None,
    index: int | None,
    prefix_output_with_timestamp: bool,
) -> None:
    """Copies text until its end, each line as soon as it is there and with its tag.

    Args:
        src_connection: Has ``fileno()`` and ``close()``; UTF-8; closed at the end.
        dst_stream: Where lines go, as ``[index]<prefix>:line``.
        prefix: Without one, lines have no tag.
        index: Likewise.
        prefix_output_with_timestamp: Whether the tag begins with the time.

    A line ends with a newline or a carriage return, so that progress bars move.

    Raises:
        Exception: What writing has raised first. The source has been read to its end all the same:
            who writes to it would block on a full pipe otherwise.
    """
    tag = None if prefix is None or index is None else f"[{index}]<{prefix}>:"
    failure = _copy(src_connection, dst_stream, tag, prefix_output_with_timestamp, lambda: None)
    if failure is not None:
        raise failure


def _copy(
    source: Any, target: TextIO, tag: str | None, stamp: bool, give_up: Callable[[], None]
) -> Exception | None:
    """Copies, and returns why writing has failed; calls `give_up` as soon as it has."""

    def write(line: str) -> None:
        if tag is not None:
            now = time.asctime(time.localtime(time.time()))  # users' tests replace time.time()
            target.write(f"{now}{tag}" if stamp else tag)
        target.write(line)
        target.flush()

    failure: Exception | None = None
    for line in _lines(source):
        if failure is not None:
            continue
        try:
            write(line)
        except Exception as error:
            failure = error
            give_up()
    return failure


def _lines(source: Any) -> Iterator[str]:
    """What can be read there until its end; closes it."""
    decoder = codecs.getincrementaldecoder("utf8")(errors="replace")
    rest = ""
    while data := os.read(source.fileno(), 1 << 16):
        *lines, rest = re.split(r"(?<=[\r\n])", rest + decoder.decode(data))
        yield from lines
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest
    source.close()


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    index: int | None = None,
    events: Iterable[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Runs a shell command, blocks until it has ended, and returns its exit status.

    Args:
        command: For the shell.
        env: Its environment; this process's own by default.
        stdout: Where its output goes; ``sys.stdout`` by default.
        stderr: Likewise.
        index: Tags the lines; see prefix_connection().
        events: Each of them, once set, ends the command.
        prefix_output_with_timestamp: See prefix_connection().

    Returns:
        The command's status, or 128 plus the number of the signal that has ended it.

    Raises:
        Exception: What writing the output has raised; it ends the command.
    """
    lifeline, ours = os.pipe()
    grace = str(GRACEFUL_TERMINATION_TIME_S)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(lifeline), grace, command],
        env=env,
        pass_fds=[lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(lifeline)
    end = threading.Lock()

    def cut() -> None:
        if end.acquire(blocking=False):
            os.close(ours)

    stop = threading.Event()
    for event in events or ():
        on_event(event, cut, stop=stop, check_stop_interval_s=0.1)
    failures: list[Exception] = []

    def copy(source: Any, target: TextIO, name: str) -> None:
        tag = None if index is None else f"[{index}]<{name}>:"
        failure = _copy(source, target, tag, prefix_output_with_timestamp, cut)
        if failure is not None:
            failures.append(failure)

    copies = [
        in_thread(copy, (guard.stdout, stdout or sys.stdout, "stdout")),
        in_thread(copy, (guard.stderr, stderr or sys.stderr, "stderr")),
    ]
    try:
        status = guard.wait()
    except BaseException:
        cut()
        guard.wait()
        raise
    finally:
        stop.set()
        cut()
    for thread in copies:
        thread.join()
    if failures:
        raise failures[0]
    return status

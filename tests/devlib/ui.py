"""What a person sees: steps with their time, commands, the tally of tests."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

ROOT = Path(__file__).resolve().parents[2]
START = time.monotonic()

Word = Union[str, "os.PathLike[str]"]


class DevError(Exception):
    """Something a person has to know or to do. The text says what failed and the cure."""


@dataclass
class Tally:
    """Outcomes of tests; `failures` names what failed and how to run it again."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures

    def line(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text

    def finish(self) -> int:
        """Prints the summary, its last line in the plain form; returns the exit status."""
        if self.passed + self.failed == 0:
            self.failed = 1
            self.failures.append("no test ran: a run without tests counts as a failure")
        if self.failures:
            print("\nFailed:")
            for failure in self.failures:
                print(f"  {failure}")
        print(f"\n{self.line()}", flush=True)
        return 1 if self.failed else 0


def paint(text: str, code: str) -> str:
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str) -> None:
    print(f"{paint(f'[{time.monotonic() - START:6.1f} s]', '2')} {text}", flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announces a piece of work, and its duration when it ends well."""
    say(paint(title, "1"))
    begin = time.monotonic()
    yield
    say(f"{title}: done in {time.monotonic() - begin:.1f} s")


def run(
    command: Sequence[Word],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    cure: str = "",
    quiet: bool = False,
) -> None:
    """Runs a command that must succeed; `quiet` shows its output only when it fails."""
    done = attempt(command, env=env, cwd=cwd, capture=quiet)
    if done.returncode != 0:
        if quiet:
            print(done.stdout)
        shown = shlex.join(os.fspath(word) for word in command)
        raise DevError(
            f"this command ended with status {done.returncode}:\n  {shown}"
            + (f"\n{cure}" if cure else "")
        )


def attempt(
    command: Sequence[Word],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    capture: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns its outcome; with `capture`, stdout holds stderr as well."""
    sys.stdout.flush()
    return subprocess.run(
        [os.fspath(word) for word in command],
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT if capture else None,
        text=True,
        errors="replace",
        check=False,
    )

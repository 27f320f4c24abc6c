"""Runs hvlrun for real: every test has a launcher with a deadline, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HVLRUN = Path(os.environ.get("HVL_TEST_HVLRUN", ROOT / "build" / "launcher" / "hvlrun"))
DEADLINE_S = 60.0
MARK = "HVL_TEST_MARK"


@dataclass(frozen=True)
class Ended:
    """How a launcher ended and what it printed."""

    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def error_text(self) -> str:
        return self.err.decode(errors="replace")


@pytest.fixture(autouse=True, scope="session")
def signals_count() -> Iterator[None]:
    """Launchers inherit no ignored signal, also where the tests run under nohup or behind `&`."""
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGINT, interrupt)


def marked_processes(mark: str) -> dict[int, str]:
    """The living processes whose environment holds the mark: pid -> command line."""
    entry = f"{MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (OSError, IndexError):  # it has just gone
            continue
    return found


def wait_until(what: str, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of the condition; fails when none comes in time."""
    give_up = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < give_up, f"waited {seconds} s in vain until {what}"
        time.sleep(0.01)  # polls an outside process, which has no event to wait for


class Running:
    """A launcher that has been started."""

    def __init__(self, process: subprocess.Popen[bytes], started: float) -> None:
        self.process = process
        self.pid = process.pid
        self._started = started

    def signal(self, signo: int) -> None:
        self.process.send_signal(signo)

    def wait(self, deadline_s: float = DEADLINE_S) -> Ended:
        out, err = self.process.communicate(timeout=deadline_s)
        seconds = time.monotonic() - self._started
        return Ended(self.process.returncode, out or b"", err or b"", seconds)

    def read_lines(self, count: int) -> list[bytes]:
        """The next lines of its output; wait() will not have them."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def supervisor(self) -> int:
        """The pid of the supervisor process."""

        def named() -> list[int]:
            # By its name: before hvlrun itself runs, this may be a shell with children.
            return [pid for pid in self._children(self.pid) if self._name(pid) == "hvl-supervisor"]

        return int(wait_until("the supervisor runs", named)[0])

    def ranks(self, count: int) -> list[int]:
        """The pids of the ranks' processes, once all `count` of them run."""
        supervisor = self.supervisor()

        def running() -> list[int]:
            pids = self._children(supervisor)
            return pids if len(pids) == count else []

        return list(wait_until(f"{count} ranks run", running))

    @staticmethod
    def _name(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return ""

    @staticmethod
    def _children(pid: int) -> list[int]:
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return sorted(int(word) for word in text.split())


class Launcher:
    """Starts hvlrun with an environment that carries this test's mark."""

    def __init__(self, folder: Path) -> None:
        assert HVLRUN.exists(), f"{HVLRUN} is missing: build it with `tests/dev build`"
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.running: list[Running] = []

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HVL_", "HOROVOD_"))}
        return {**plain, "NO_COLOR": "", MARK: self.mark, **(extra or {})}

    def script(self, text: str, name: str = "rank.py") -> list[str]:
        """A Python script as the command of a job."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return [sys.executable, str(path)]

    def start(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        **options: Any,
    ) -> Running:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.folder)
        started = time.monotonic()
        command = [*command_prefix, str(HVLRUN), *words]
        process = subprocess.Popen(command, env=self.env(env), **options)
        running = Running(process, started)
        self.running.append(running)
        return running

    def __call__(self, *words: str, deadline_s: float = DEADLINE_S, **options: Any) -> Ended:
        return self.start(*words, **options).wait(deadline_s)

    def left(self) -> dict[int, str]:
        return marked_processes(self.mark)

    def expect_nothing_left(self, seconds: float = 3.0) -> None:
        give_up = time.monotonic() + seconds
        while self.left():
            assert time.monotonic() < give_up, f"left behind: {self.left()}"
            time.sleep(0.01)

    def clean_up(self) -> None:
        for running in self.running:
            if running.process.poll() is None:
                running.process.kill()
            for stream in (running.process.stdout, running.process.stderr, running.process.stdin):
                if stream is not None:
                    stream.close()
            running.process.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hvlrun(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose jobs must have left no process when the test ends."""
    launcher = Launcher(tmp_path)
    try:
        yield launcher
        for running in launcher.running:
            assert running.process.poll() is not None, "the test did not wait for its launcher"
        launcher.expect_nothing_left()
    finally:
        launcher.clean_up()


def read_json(folder: Path, pattern: str) -> list[Any]:
    """What the ranks wrote into files, in the order of the files' names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]

"""The launcher that the package brings along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horovodlite import _hvlrun


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "horovodlite", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_module_is_the_launcher() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "-np" in done.stdout


def test_arguments_and_exit_status_are_passed_on() -> None:
    done = run("-np", "2", sys.executable, "-c", "import sys; print('a b'); sys.exit(7)")
    assert done.returncode == 7
    assert done.stdout.count("a b") == 2


def test_a_package_without_the_launcher_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hvlrun, "LAUNCHER", Path("/nonexistent/hvlrun"))
    with pytest.raises(SystemExit, match="/nonexistent/hvlrun is missing"):
        _hvlrun.main()

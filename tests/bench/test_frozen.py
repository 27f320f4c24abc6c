"""A frozen plan costs neither messages nor system calls per tensor."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "tests" / "bench" / "cpp" / "frozen_steps"
TENSORS = 1000
RANKS = 2


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_sent_while_the_plan_is_frozen() -> None:
    for _ in range(5):  # a machine that stands still for a moment may make a plan thaw
        ranks = run(str(PROGRAM), "100", str(TENSORS)).splitlines()
        assert len(ranks) == RANKS
        if all("thaws 0" in rank for rank in ranks):
            break
    for rank in ranks:
        numbers = dict(re.findall(r"(\w+) (\d+)", rank))
        assert (numbers["freezes"], numbers["thaws"], numbers["frames"]) == ("1", "0", "0")
        assert int(numbers["batches"]) <= 100 * 4, "a thousand tensors of 1 KiB are a few batches"


def system_calls(steps: int, summary: Path) -> int:
    """Of the whole run, by all threads of all ranks."""
    strace = ["strace", "-f", "-q", "-c", "-U", "calls,name", "-o", str(summary)]
    run(*strace, str(PROGRAM), str(steps), str(TENSORS))
    total = re.search(r"^\s*(\d+)\s+total$", summary.read_text(), re.MULTILINE)
    assert total is not None, summary.read_text()
    return int(total[1])


def test_the_system_calls_of_a_step_do_not_depend_on_the_number_of_tensors(tmp_path: Path) -> None:
    """Some for threads that fall asleep; while traced, they do so all the time."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    traced = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if traced.returncode != 0:
        pytest.skip(f"strace may not trace here: {traced.stderr.decode()}")
    few, many = 20, 220
    calls = system_calls(many, tmp_path / "many") - system_calls(few, tmp_path / "few")
    per_tensor = calls / ((many - few) * TENSORS * RANKS)
    print(f"{per_tensor:.4f} system calls per tensor")
    assert per_tensor < 0.2

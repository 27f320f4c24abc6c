"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HVLRUN = ROOT / "horovodlite" / "bin" / "hvlrun"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_first_block_is_the_two_commands() -> None:
    commands = [line.split("#")[0].split() for line in blocks("")[0].splitlines()]
    assert commands == [["tests/dev", "demo"], ["tests/dev", "test"]]


def test_the_example_is_short() -> None:
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line]) <= 15


def test_the_example_trains_on_two_ranks_and_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(blocks("python")[0], encoding="utf-8")
    for command, ranks in (([str(HVLRUN), "-np", "2"], 2), ([], 1)):
        done = subprocess.run(
            [*command, sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        losses = re.findall(r"(\d) ([\d.]+)$", done.stdout, re.MULTILINE)
        assert sorted(rank for rank, _ in losses) == [str(rank) for rank in range(ranks)]
        assert len({loss for _, loss in losses}) == 1  # the average is the same on every rank
        assert float(losses[0][1]) < 1.0  # it starts at about 8


def test_each_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    text = (folder / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\)", text, re.MULTILINE)
    found = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for _, name in listed] == found
    assert [number for number, _ in listed] == [name[:4] for name in found]

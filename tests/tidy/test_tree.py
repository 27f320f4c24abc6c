"""This tree keeps the house rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .rules import RULES, Rule

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def files() -> dict[str, str]:
    """Every text file that is or would be committed."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [path for path in listed.split("\0") if (ROOT / path).is_file()]
    texts = {}
    for path in paths:
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            texts[path] = data.decode("utf-8")
    return texts


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule, files: dict[str, str]) -> None:
    breaches = list(rule(files))
    assert not breaches, f"{rule.__doc__}\n" + "\n".join(breaches)

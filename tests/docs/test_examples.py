"""The examples run on two ranks and show what they promise; briefly, so not how well they learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HVLRUN = ROOT / "horovodlite" / "bin" / "hvlrun"
PNG = b"\x89PNG\r\n"


@pytest.mark.parametrize(
    ("name", "words", "unit", "result"),
    [
        ("mnist", ["--epochs", "1"], "images", r"accuracy on 500 .* 2 ranks: (\d+\.\d)%"),
        (
            "char_transformer",
            ["--steps", "20", "--sample", "20"],
            "characters",
            r"held-out loss .* 2 ranks: (\d+\.\d\d) bits a character",
        ),
    ],
)
def test_an_example_trains_shows_progress_on_rank_0_and_draws(
    tmp_path: Path, name: str, words: list[str], unit: str, result: str
) -> None:
    script = ROOT / "docs" / "examples" / f"{name}.py"
    done = subprocess.run(
        [str(HVLRUN), "-np", "2", sys.executable, str(script), *words, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(result, done.stdout)
    assert found, done.stdout
    reached = float(found[1])
    assert (reached > 50.0) if name == "mnist" else (reached < 6.0)  # chance: 10 %, 6.6 bits
    assert re.search(rf"\[0\]<stderr>:.*loss \d\.\d+, [\d,]+ {unit}/s", done.stderr)
    assert "[1]<" not in done.stdout + done.stderr
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)

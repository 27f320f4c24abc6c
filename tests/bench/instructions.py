"""Counts the instructions of the hot paths and compares them with the committed counts.

Unlike times, they are the same on a busy machine. They depend on the compiler, so the committed
counts hold for one version of it.

    python -m tests.bench.instructions             the comparison
    python -m tests.bench.instructions --record    commits to the counts of the tree as built
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_suffix(".json")
PROGRAM = ROOT / "build" / "tests" / "bench" / "cpp" / "hot_paths"
TOLERANCE = 0.03  # of the committed count, upwards and downwards


@dataclass(frozen=True)
class Counts:
    """Instructions of each path per tensor, operation or KiB, and the compiler that made them."""

    compiler: str
    paths: Mapping[str, float]


class MissingError(Exception):
    """Something that counting needs is not there; the text says what."""


def compiler() -> str:
    """Name and version of the compiler of the tree as built."""
    cache = (ROOT / "build" / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.MULTILINE)
    if found is None:
        raise MissingError("build/CMakeCache.txt names no compiler")
    done = subprocess.run([found[1], "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def count() -> Counts:
    """Runs the program under callgrind: a few seconds."""
    if shutil.which("valgrind") is None:
        raise MissingError("valgrind is not installed")
    if not PROGRAM.exists():
        raise MissingError(f"{PROGRAM} is not built: valgrind/callgrind.h was missing")
    with tempfile.TemporaryDirectory() as folder:
        out = f"--callgrind-out-file={folder}/out"
        command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", out, str(PROGRAM)]
        subprocess.run(command, check=True, timeout=300)
        paths = dict(filter(None, map(read_dump, Path(folder).glob("out.*"))))
    return Counts(compiler(), paths)


def read_dump(dump: Path) -> tuple[str, float] | None:
    """Name and count of one dump; None for the one at the end of the program."""
    text = dump.read_text(errors="replace")
    name = re.search(r"^desc: Trigger: Client Request: (.+) / (\d+)$", text, re.MULTILINE)
    total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
    if name is None or total is None:
        return None
    return name[1], round(int(total[1]) / int(name[2]), 1)


def recorded() -> Counts:
    """The committed counts."""
    content = json.loads(BASELINE.read_text())
    return Counts(content["compiler"], content["paths"])


def record(counts: Counts) -> None:
    """Writes what is to be committed."""
    content = {"compiler": counts.compiler, "paths": dict(sorted(counts.paths.items()))}
    BASELINE.write_text(json.dumps(content, indent=2) + "\n")


def deviations(now: Counts, committed: Counts) -> list[str]:
    """A line for each path that has got slower, faster, lost or new."""
    lines = []
    for name in sorted({*now.paths, *committed.paths}):
        if name not in now.paths or name not in committed.paths:
            where = "the committed counts" if name in now.paths else "the program"
            lines.append(f"{name}: is not in {where}")
            continue
        was, is_now = committed.paths[name], now.paths[name]
        if abs(is_now - was) > TOLERANCE * was:
            word = "slower" if is_now > was else "faster"
            change = f"{100 * (is_now / was - 1):+.1f} %, {word}"
            lines.append(f"{name}: {was:,.1f} -> {is_now:,.1f} instructions ({change})")
    return lines


def table(now: Counts, committed: Counts) -> str:
    """All counts beside the committed ones."""
    lines = [f"{'instructions':<32}{'committed':>12}{'now':>12}"]
    for name, number in sorted(now.paths.items()):
        was = committed.paths.get(name)
        lines.append(f"{name:<32}{'-' if was is None else f'{was:,.1f}':>12}{number:>12,.1f}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Counts the instructions of the hot paths.")
    parser.add_argument("--record", action="store_true", help="write the counts to be committed")
    options = parser.parse_args()
    now = count()
    if options.record:
        record(now)
    print(table(now, recorded()))
    return 1 if deviations(now, recorded()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The commands that are more than tests: demo, benchmarks, simulation, fuzzing, generated docs."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import needs, suites
from .build import PACKAGE, TREES, build, jobs
from .ui import ROOT, DevError, Tally, attempt, run, say, step

DEMO = ROOT / "docs" / "examples" / "mnist.py"
NEXT_STEPS = """
That was {script} on two ranks. What to try next:
  {hvlrun} -np 2 {python} {script} --help
  {hvlrun} -np 1 {python} {script}        the same without a second rank
  {hvlrun} --help                         launching: logs per rank, dry runs, knobs
  tests/dev test                          every test
  docs/ARCHITECTURE.md                    how one gradient travels
"""


def demo(arguments: Sequence[str]) -> int:
    """Trains the example on two ranks; returns the exit status of the run."""
    build(TREES["release"], [PACKAGE])
    if not DEMO.exists():
        raise DevError(f"{DEMO.relative_to(ROOT)} is missing from this checkout")
    hvlrun, python = needs.VENV / "bin" / "hvlrun", needs.VENV / "bin" / "python"
    built = str(ROOT / "horovodlite" / "bin" / "hvlrun")
    with step("training on two ranks"):
        command = [built, "-np", "2", str(python), str(DEMO), *arguments]
        done = attempt(command, env=needs.environment())
    if done.returncode == 0:
        shown = {"hvlrun": short(hvlrun), "python": short(python), "script": short(DEMO)}
        print(NEXT_STEPS.format(**shown), flush=True)
    return done.returncode


def short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def at_once(
    commands: Sequence[Sequence[str]], env: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Runs the commands side by side, then shows what each has printed."""
    with ThreadPoolExecutor(len(commands)) as pool:
        ended = list(pool.map(lambda words: attempt(words, env=env, capture=True), commands))
    for done in ended:
        print(done.stdout, flush=True)
    return ended


def shares(seeds: int, first: int, count: int) -> list[tuple[int, int]]:
    """The seeds, split for so many processes: (first, how many) of each that has any."""
    size = -(-seeds // count)
    starts = range(first, first + seeds, size)
    return [(start, min(size, first + seeds - start)) for start in starts]


def simulate(seeds: int | None, seed: int | None) -> Tally:
    """Runs the simulation of the negotiation for many seeds, each a test, or for one again."""
    if seeds is None:
        seeds = 2000 if seed is None else 1
    if seed is None:
        seed = random.getrandbits(32)
    tree = TREES["release"]
    build(tree, ["hvl_sim"])
    program = str(tree.path / "tests/cpp/sim/hvl_sim")
    commands = [
        [program, "--seeds", str(count), "--seed", str(first)]
        for first, count in shares(seeds, seed, jobs())
    ]
    with step(f"simulating worlds: {seeds}"):
        ended = at_once(commands, {})
    if all(done.returncode == 0 for done in ended):
        return Tally(passed=seeds)
    return Tally(failed=1, failures=["simulation: the seed and what happened are shown above"])


def fuzz(seconds: int) -> Tally:
    """Fuzzes the parsers for this long on each processor, with AddressSanitizer."""
    tree = TREES["asan"]
    build(tree, ["hvl_fuzz"])
    command = [str(tree.path / "tests/cpp/fuzz/hvl_fuzz"), "--seconds", str(seconds)]
    with step(f"fuzzing for {seconds} s in {jobs()} processes"):
        ended = at_once([command] * jobs(), suites.SANITIZER_OPTIONS["asan"])
    if all(done.returncode == 0 for done in ended):
        return Tally(passed=len(ended[0].stdout.splitlines()))  # a line for each target
    return Tally(failed=1, failures=["fuzzing: the target and the input are shown above"])


def bench(arguments: Sequence[str]) -> int:
    """Prints the table of benchmarks."""
    build(TREES["release"])
    python = str(needs.VENV / "bin" / "python")
    command = [python, "-m", "tests.bench", *arguments]
    return attempt(command, env=needs.environment()).returncode


def docs(*, check: bool) -> Tally:
    """Regenerates what is generated in docs/, or only compares it."""
    tree = TREES["release"]
    build(tree, ["config_test"])
    test = tree.path / "tests" / "cpp" / "config" / "config_test"
    if not check:
        run([test, "docs*"], env={"HVL_TEST_UPDATE_DOCS": "1"}, quiet=True)
        say("docs/knobs.md is written from csrc/config/knobs.def")
    done = attempt([test, "docs*"])
    if done.returncode == 0:
        return Tally(passed=1)
    return Tally(failed=1, failures=["docs/knobs.md is out of date; cure: tests/dev docs"])

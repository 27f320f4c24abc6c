"""The commands that are more than tests: demo, benchmarks, simulation, fuzzing, generated docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import needs, suites
from .build import PACKAGE, TREES, build
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


def simulate(seeds: int | None, seed: int | None) -> Tally:
    """Runs the simulation of the negotiation for many seeds, each a test, or for one again."""
    if seeds is None:
        seeds = 2000 if seed is None else 1
    tree = TREES["release"]
    build(tree, ["hvl_sim"])
    command = [str(tree.path / "tests/cpp/sim/hvl_sim"), "--seeds", str(seeds)]
    if seed is not None:
        command += ["--seed", str(seed)]
    with step(f"simulating worlds: {seeds}"):
        done = attempt(command)
    if done.returncode == 0:
        return Tally(passed=seeds)
    return Tally(failed=1, failures=["simulation: the seed and what happened are shown above"])


def fuzz(seconds: int) -> Tally:
    """Fuzzes the parsers for this long, with AddressSanitizer."""
    tree = TREES["asan"]
    build(tree, ["hvl_fuzz"])
    command = [str(tree.path / "tests/cpp/fuzz/hvl_fuzz"), "--seconds", str(seconds)]
    with step(f"fuzzing for {seconds} s"):
        done = attempt(command, env=suites.SANITIZER_OPTIONS["asan"], capture=True)
    print(done.stdout)
    if done.returncode == 0:
        return Tally(passed=len(done.stdout.splitlines()))  # a line for each target
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

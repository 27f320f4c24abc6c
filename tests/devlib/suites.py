"""Runs the test suites and counts their tests."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import needs
from .build import PACKAGE, TREES, Tree, build, configure, jobs
from .ui import ROOT, DevError, Tally, attempt, say, step

# pytest suites: name on the command line -> folder.
PYTHON_SUITES = {
    "python": "tests/py",
    "launcher": "tests/launcher",
    "bench": "tests/bench",
    "docs": "tests/docs",
    "tidy": "tests/tidy",
}
# The longest, whose processes wait for each other half of the time. They run at once.
TOGETHER = ("python", "launcher")


def cpp_rooms() -> list[str]:
    """The rooms that have C++ tests."""
    folder = ROOT / "tests" / "cpp"
    return sorted(path.parent.name for path in folder.glob("*/CMakeLists.txt"))


def has_python_tests(folder: str) -> bool:
    return any((ROOT / folder).rglob("test_*.py"))


def catch_counts(output: str) -> tuple[int, int] | None:
    """(passed, failed) test cases of a Catch2 run, or None when there is no summary."""
    good = re.search(r"^All tests passed \(.* in (\d+) test cases?\)", output, re.MULTILINE)
    if good:
        return int(good[1]), 0
    row = re.search(r"^test cases:\s+(\d+)(.*)$", output, re.MULTILINE)
    if row is None:
        return None
    failed = re.search(r"(\d+) failed(?! as expected)", row[2])
    bad = int(failed[1]) if failed else 0
    return int(row[1]) - bad, bad


def read_ctest(report: Path, rerun: str) -> Tally:
    """Counts the test cases in a JUnit report of CTest; `rerun` may use {room}."""
    tally = Tally()
    for case in ET.parse(report).getroot().iter("testcase"):
        room = case.get("name", "?")
        state = case.get("status", "fail")
        passed, failed = catch_counts(case.findtext("system-out") or "") or (1, 0)
        if state == "disabled" or state == "notrun":
            tally.add(Tally(failed=1, failures=[f"{room}: not run (was it built?)"]))
        elif state == "run":
            tally.add(Tally(passed, failed))
        else:  # a crash or a time-out has no summary, or one that says nothing of the end
            tally.add(Tally(passed if failed else 0, max(failed, 1)))
            tally.failures.append(f"{room}: see its output above; again: {rerun.format(room=room)}")
    return tally


def read_pytest(report: Path, rerun: str) -> Tally:
    tally = Tally()
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            tally.add(Tally(failed=1, failures=[f"{name}; again: {rerun}"]))
        elif case.find("skipped") is not None:
            tally.skipped += 1
        else:
            tally.passed += 1
    return tally


def run_ctest(tree: Tree, rooms: Sequence[str], command: str, env: Mapping[str, str]) -> Tally:
    """Runs the C++ tests of the rooms (all of them when empty) that are built in `tree`."""
    report = tree.path / "ctest.xml"
    report.unlink(missing_ok=True)
    ctest = ["ctest", "--test-dir", str(tree.path), "--output-on-failure", "--no-tests=ignore"]
    ctest += ["--output-junit", str(report), "--parallel", str(jobs())]
    ctest += ["--test-output-size-passed", "1000000", "--test-output-size-failed", "1000000"]
    if rooms:
        ctest += ["-R", f"^({'|'.join(map(re.escape, rooms))})(_.*)?$"]
    with step(f"C++ tests in {tree.name}: {', '.join(rooms) or 'all rooms'}"):
        done = attempt(ctest, env={**needs.environment(), **env})
    if not report.exists():
        raise DevError(f"ctest ended with status {done.returncode} and wrote no report")
    tally = read_ctest(report, f"tests/dev {command} {{room}}")
    if done.returncode != 0 and tally.failed == 0:
        tally.add(Tally(failed=1, failures=[f"ctest ended with status {done.returncode}"]))
    return tally


def run_pytest(suite: str, arguments: Sequence[str], *, quiet: bool = False) -> Tally:
    """Runs a suite; `quiet` shows its output when it has ended, as one piece."""
    folder = PYTHON_SUITES[suite]
    report = ROOT / "build" / f"pytest-{suite}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    pytest = [str(needs.VENV / "bin" / "python"), "-m", "pytest", folder, "-q", "-ra", "-p"]
    with step(f"Python tests in {folder}"):
        done = attempt(
            [*pytest, "no:cacheprovider", f"--junitxml={report}", *arguments],
            env=needs.environment(),
            capture=quiet,
        )
        if quiet:
            print(done.stdout, flush=True)
    if not report.exists():
        return Tally(failed=1, failures=[f"{folder}: pytest ended with status {done.returncode}"])
    tally = read_pytest(report, f"tests/dev test {suite}")
    if done.returncode not in (0, 1, 5) and tally.failed == 0:  # 5: no test matched
        tally.add(Tally(failed=1, failures=[f"{folder}: pytest status {done.returncode}"]))
    return tally


def run_suites(suites: Sequence[str], arguments: Sequence[str]) -> Tally:
    """Runs the suites one after the other, but those of TOGETHER at once."""
    tally = Tally()
    together = [suite for suite in suites if suite in TOGETHER]
    quiet = len(together) > 1
    with ThreadPoolExecutor(len(TOGETHER)) as threads:
        run = partial(run_pytest, arguments=arguments, quiet=quiet)
        for part in threads.map(run, together):
            tally.add(part)
    for suite in suites:
        if suite not in TOGETHER:
            tally.add(run_pytest(suite, arguments))
    return tally


def split_rooms(rooms: Sequence[str]) -> tuple[list[str], list[str]]:
    """The C++ rooms and the Python suites that these names stand for; none stands for all."""
    known_cpp, known_python = cpp_rooms(), list(PYTHON_SUITES)
    unknown = [room for room in rooms if room not in known_cpp and room not in known_python]
    if unknown:
        known = ", ".join(sorted({*known_cpp, *known_python}))
        raise DevError(f"no room is called {', '.join(unknown)}; there are: {known}")
    if not rooms:
        return [], known_python
    return [r for r in rooms if r in known_cpp], [r for r in rooms if r in known_python]


def test_targets(tree: Tree, rooms: Sequence[str]) -> list[str]:
    """The targets of the rooms' tests: <room>_test, or <room>_<part>_test."""
    if not rooms:
        return []
    configure(tree)
    listing = attempt(["ninja", "-C", str(tree.path), "-t", "targets", "all"], capture=True).stdout
    pattern = rf"^((?:{'|'.join(rooms)})(?:_\w+)?_test): phony$"
    found = re.findall(pattern, listing, re.MULTILINE)
    if not found:
        raise DevError(f"{', '.join(rooms)}: there are no tests to build")
    return found


def run_tests(rooms: Sequence[str], arguments: Sequence[str]) -> Tally:
    """Builds, then runs the C++ and Python tests of the rooms (all when empty)."""
    cpp, python = split_rooms(rooms)
    tree = TREES["release"]
    python = [suite for suite in python if has_python_tests(PYTHON_SUITES[suite])]
    tally = Tally()
    targets = test_targets(tree, cpp)
    if set(python) - {"tidy"}:
        targets.append(PACKAGE)
    if targets or not rooms:
        build(tree, targets if rooms else ["all"])
    else:
        needs.ensure()
    if cpp or not rooms:
        tally.add(run_ctest(tree, cpp, "test", {}))
    tally.add(run_suites(python, arguments))
    return tally


SANITIZER_OPTIONS = {
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    "tsan": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}


def sanitize(kind: str, rooms: Sequence[str]) -> Tally:
    """Builds and runs the C++ tests under a sanitizer."""
    cpp, python = split_rooms(rooms)
    if rooms and python and not cpp:
        raise DevError(f"{', '.join(python)} has no C++ tests to run under a sanitizer")
    tree = TREES[kind]
    build(tree, test_targets(tree, cpp) if rooms else ["all"])
    return run_ctest(tree, cpp, kind, SANITIZER_OPTIONS[kind])


def clean() -> None:
    """Removes what builds leave behind; the virtual environment stays."""
    for tree in TREES.values():
        shutil.rmtree(tree.path, ignore_errors=True)
    say("removed the build directories")

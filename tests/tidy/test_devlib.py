"""`tests/dev` counts tests rightly, and says what to do when something is missing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from devlib import extras, joined, lint, needs, suites, ui, wheel  # noqa: E402  (path set above)


def dev(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "dev"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("=====\nAll tests passed (7 assertions in 3 test cases)\n", (3, 0)),
        ("All tests passed (1 assertion in 1 test case)\n", (1, 0)),
        ("test cases: 5 | 4 passed | 1 failed\nassertions: 9 | 8 passed | 1 failed\n", (4, 1)),
        ("test cases:  5 |  2 passed |  3 failed as expected\n", (5, 0)),
        ("terminate called without an active exception\n", None),
    ],
)
def test_catch_summaries_are_read(output: str, counts: tuple[int, int] | None) -> None:
    assert suites.catch_counts(output) == counts


CTEST_REPORT = """<testsuite>
<testcase name="plan" status="run"><system-out>All tests passed (9 assertions in 4 test cases)
</system-out></testcase>
<testcase name="net" status="fail"><failure/><system-out>test cases: 3 | 2 passed | 1 failed
</system-out></testcase>
<testcase name="wire" status="fail"><failure/><system-out>Segmentation fault</system-out></testcase>
<testcase name="engine" status="notrun"><system-out/></testcase>
<testcase name="plain" status="run"><system-out>fine</system-out></testcase>
</testsuite>"""


def test_every_kind_of_end_in_a_ctest_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "ctest.xml"
    report.write_text(CTEST_REPORT)
    tally = suites.read_ctest(report, "tests/dev test {room}")
    assert (tally.passed, tally.failed, tally.skipped) == (4 + 2 + 1, 1 + 1 + 1, 0)
    assert any("tests/dev test net" in failure for failure in tally.failures)
    assert any("engine: not run" in failure for failure in tally.failures)


PYTEST_REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure/></testcase>
<testcase classname="a" name="broken"><error/></testcase>
<testcase classname="a" name="not_here"><skipped/></testcase>
</testsuite></testsuites>"""


def test_every_kind_of_end_in_a_pytest_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "pytest.xml"
    report.write_text(PYTEST_REPORT)
    tally = suites.read_pytest(report, "tests/dev test python")
    assert (tally.passed, tally.failed, tally.skipped) == (1, 2, 1)
    assert tally.failures[0].startswith("a::bad; again: tests/dev test python")


def test_the_two_longest_suites_run_at_once_and_the_others_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = threading.Barrier(2, timeout=60)
    ended: list[str] = []

    def run(suite: str, arguments: Sequence[str], *, quiet: bool = False) -> ui.Tally:
        assert list(arguments) == ["-x"]
        assert quiet == (suite in suites.TOGETHER)  # or their lines would be mixed
        if quiet:
            both.wait()
        ended.append(suite)
        return ui.Tally(passed=1)

    monkeypatch.setattr(suites, "run_pytest", run)
    assert suites.run_suites(["python", "docs", "launcher", "tidy"], ["-x"]).passed == 4
    assert set(ended[:2]) == {"python", "launcher"}
    assert ended[2:] == ["docs", "tidy"]


def test_one_of_the_two_longest_suites_alone_shows_its_output_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(suite: str, arguments: Sequence[str], *, quiet: bool = False) -> ui.Tally:
        assert (suite, list(arguments), quiet) == ("python", [], False)
        return ui.Tally(passed=1)

    monkeypatch.setattr(suites, "run_pytest", run)
    assert suites.run_suites(["python"], []).passed == 1


def test_the_last_line_is_the_plain_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.Tally(passed=3, skipped=1).finish() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed, 1 skipped"
    assert ui.Tally(passed=3, failed=1, failures=["x"]).finish() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 1 failed"


def test_a_run_without_tests_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.Tally().finish() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def test_help_names_every_command_with_examples() -> None:
    done = dev("--help")
    assert done.returncode == 0
    for word in ("demo", "build", "test", "bench", "sim", "lint", "asan", "tsan", "wheel", "fuzz"):
        assert f"    {word} " in done.stdout
    assert "examples:" in done.stdout


def test_an_unknown_room_is_named_with_those_that_exist() -> None:
    done = dev("test", "attic")
    assert done.returncode == 1
    assert "no room is called attic" in done.stderr
    assert "plan" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_packages_without_root_are_one_line_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "missing_packages", lambda _: ["libfmt-dev", "mold"])
    monkeypatch.setattr("devlib.needs.shutil.which", lambda _: "/usr/bin/dpkg-query")
    monkeypatch.setattr("devlib.needs.os.geteuid", lambda: 1000)
    with pytest.raises(ui.DevError) as caught:
        needs.ensure_packages()
    assert "sudo apt-get install -y --no-install-recommends libfmt-dev mold" in str(caught.value)


def test_a_command_that_fails_is_an_error_with_its_cure() -> None:
    with pytest.raises(ui.DevError) as caught:
        ui.run([sys.executable, "-c", "raise SystemExit(3)"], cure="Try this.", quiet=True)
    assert "status 3" in str(caught.value)
    assert "Try this." in str(caught.value)


def test_a_check_that_failed_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bad = lint.Check("bad", (sys.executable, "-c", "raise SystemExit(1)"), ROOT, key="1")
    good = lint.Check("good", (sys.executable, "-c", ""), ROOT, key="2")
    for _ in range(2):
        tally = lint.run_checks("sample", [bad, good])
        assert (tally.passed, tally.failed) == (1, 1)
        assert tally.failures == ["sample: bad"]


def test_the_key_of_a_check_changes_with_a_header_two_steps_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    (tmp_path / "a.cc").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "c.h"\n')
    keys = []
    for text in ("// one", "// two"):
        (tmp_path / "c.h").write_text(text)
        paths = lint.Includes().closure(tmp_path / "a.cc")
        assert [path.name for path in paths] == ["a.cc", "b.h", "c.h"]
        keys.append(lint.key_of(["flags"], paths))
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("library", "from_glibc"),
    [
        ("libc.so.6", True),
        ("libm.so.6", True),
        ("libpthread.so.0", True),
        ("ld-linux-x86-64.so.2", True),
        ("libcrypto.so.3", False),
        ("libstdc++.so.6", False),
        ("libgcc_s.so.1", False),
        ("libfmt.so.9", False),
        ("libcap.so.2", False),
    ],
)
def test_only_glibc_counts_as_present_everywhere(library: str, from_glibc: bool) -> None:
    assert bool(wheel.GLIBC.fullmatch(library)) == from_glibc


HEADER = "#pragma once\n#include <stddef.h>\nnamespace hvl {\nsize_t Size();\nsize_t Twice();\n}\n"
SOURCE = '#include "csrc/room/a.h"\n#include <stddef.h>\nnamespace hvl {\n'
ROOM = ("size_t Size() { return 1; }\n}\n", "size_t Twice() { return 2 * Size(); }\n}\n")
# Tests have helpers of the same name.
HELP = "namespace {\n[[maybe_unused]] size_t Help() { return Size(); }\n}\n}\n"
TEXTS = {
    "csrc/room/a.cc": SOURCE + ROOM[0],
    "csrc/room/b.cc": SOURCE + ROOM[1],
    "tests/cpp/room/a_test.cc": SOURCE + HELP,
    "tests/cpp/room/b_test.cc": SOURCE + HELP,
}
FINDINGS = {
    "none": ("-", ""),
    "misc-use-internal-linkage": ("b", "int Lonely() { return 3; }"),
    "clang-diagnostic-unused-function": ("a", "static int Lonely() { return 3; }"),
    "clang-diagnostic-unused-const-variable": ("b", "static const int kLonely = 3;"),
    "misc-unused-using-decls": ("a", "namespace { using hvl::Size; }"),
    "readability-duplicate-include": ("b", "#include <stddef.h>"),
    "readability-identifier-naming": ("header", "inline int bad_Name() { return 3; }"),
    "modernize-use-nullptr": ("b", "inline void* Nothing() { return 0; }"),
}


@pytest.mark.parametrize("folder", ["csrc/room", "tests/cpp/room"])
@pytest.mark.parametrize("finding", FINDINGS)
def test_clang_tidy_finds_in_joined_files_what_it_finds_in_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, finding: str
) -> None:
    monkeypatch.setattr(joined, "ROOT", tmp_path)
    for config in (".clang-tidy", "tests/.clang-tidy"):
        (tmp_path / config).parent.mkdir(exist_ok=True)
        (tmp_path / config).write_text((ROOT / config).read_text())
    place, text = FINDINGS[finding]
    header = tmp_path / "csrc" / "room" / "a.h"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER + (text if place == "header" else "") + "\n")
    units = []
    for name in [name for name in TEXTS if name.startswith(folder)]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXTS[name] + (text if path.name.startswith(place) else "") + "\n")
        words = ("c++", "-std=c++20", "-Wall", "-Wextra", f"-I{tmp_path}", "-o", "x.o", "-c")
        units.append(joined.Unit(path, (*words, str(path)), tmp_path))
    (group,) = joined.groups(units)
    (path,) = joined.write([group], tmp_path / "build")
    command = [lint.tool("clang-tidy"), "--quiet", "-p", str(tmp_path / "build"), str(path)]
    done = ui.attempt(command, capture=True)
    assert (done.returncode == 0) == (finding == "none"), done.stdout
    assert finding == "none" or finding in done.stdout


def test_files_that_are_compiled_otherwise_are_not_joined() -> None:
    def unit(name: str, *options: str) -> joined.Unit:
        return joined.Unit(Path(name), ("c++", *options, "-o", name, "-c", name), ROOT)

    units = [unit("a/1.cc"), unit("a/2.cc", "-mavx2"), unit("a/3.cc"), unit("b/4.cc")]
    assert [len(group) for group in joined.groups(units)] == [2, 1, 1]
    many = [unit(f"c/{number}.cc") for number in range(joined.MOST_FILES + 1)]
    assert sorted(map(len, joined.groups(many))) == [6, 7]


FAKE_DEV = """import os, sys
words = sys.argv[1:]
print("ran", *words)
broken = words[0] == os.environ.get("BROKEN")
if words[0] != "build" and not broken:
    failed = int(words[0] == os.environ.get("FAILING"))
    print(f"2 passed, {failed} failed, 1 skipped")
    sys.exit(failed)
sys.exit(3 * broken)
"""


@pytest.mark.parametrize(
    ("world", "tally", "said"),
    [
        ({}, "14 passed, 0 failed, 7 skipped", "tests/dev lint"),
        ({"FAILING": "lint"}, "14 passed, 1 failed, 7 skipped", "tests/dev lint FAILED"),
        ({"BROKEN": "tsan"}, "12 passed, 1 failed, 6 skipped", "tests/dev tsan FAILED"),
        ({"BROKEN": "build"}, "14 passed, 0 failed, 7 skipped", "build asan tsan FAILED"),
    ],
)
def test_what_ci_runs_ends_with_times_and_the_sum_of_all(
    tmp_path: Path, world: dict[str, str], tally: str, said: str
) -> None:
    for name, text in {".ci/run": (ROOT / ".ci/run").read_text(), "tests/dev": FAKE_DEV}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    command = ["bash", str(tmp_path / ".ci" / "run")]
    done = ui.attempt(command, env={"FAILING": "", "BROKEN": "", **world}, capture=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == tally
    assert done.returncode == int(bool(world))
    assert [line for line in lines[-13:] if line.endswith(said)], done.stdout
    ran = {line.split()[1] for line in lines if line.startswith("ran ")}
    assert ran == {"test", "build", "lint", "asan", "tsan", "sim", "fuzz", "wheel"}


def test_simulated_seeds_are_split_without_loss() -> None:
    assert extras.shares(5, 10, 2) == [(10, 3), (13, 2)]
    assert extras.shares(1, 7, 4) == [(7, 1)]

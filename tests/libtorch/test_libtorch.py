"""C++ programs with LibTorch, built with the installed package and run on two and three ranks.

The cases are those of project/cases.cc, built with AddressSanitizer in a folder outside of the
tree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
EXAMPLES = ROOT / "docs" / "examples" / "cpp"
JOBS = str(len(os.sched_getaffinity(0)))

# What LibTorch keeps until the end.
SUPPRESSIONS = "leak:libtorch\nleak:libc10\nleak:libgomp\n"
SANITIZED = "-fsanitize=address -fno-omit-frame-pointer -O0 -g1"

ON_TWO_RANKS = [
    "equal_sgd", "equal_adam", "equal_adamw", "equal_rmsprop", "equal_adagrad", "equal_lbfgs",
    "accumulation", "no_sync", "too_many_passes", "unused_parameters", "frozen_parameters",
    "sparse_gradients", "large_gradients", "small_gradients_share", "later_parameters",
    "newer_optimizer_wins", "clipping", "clipping_too_early", "scheduler_and_checkpoint",
    "broadcasts", "optimizer_state", "operations_of_every_type", "non_contiguous",
    "other_operations", "bad_arguments", "sampler", "uneven_data", "no_python", "left_early",
]  # fmt: skip
ON_THREE_RANKS = ["equal_sgd", "unused_parameters", "uneven_data", "other_operations",
                  "process_sets"]  # fmt: skip


def execute(
    command: Sequence[str | Path], *, timeout: float = 600, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, **more},
        timeout=timeout,
        check=False,
    )


def must(command: Sequence[str | Path], *, timeout: float = 600) -> str:
    done = execute(command, timeout=timeout)
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return done.stdout


class Built:
    """The installed package, and the programs that were built with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "site" / "horovodlite"
        self.suppressions = folder / "lsan.txt"
        self.suppressions.write_text(SUPPRESSIONS)

    def run(
        self, program: str, *words: str, ranks: int = 2, **more: str
    ) -> subprocess.CompletedProcess[str]:
        options = "detect_container_overflow=0:detect_stack_use_after_return=1:exitcode=42"
        return execute(
            [self.package / "bin" / "hvlrun", "-np", str(ranks), self.folder / "build" / program,
             *words],
            timeout=240,
            ASAN_OPTIONS=options,
            LSAN_OPTIONS=f"suppressions={self.suppressions}:print_suppressions=0",
            **more,
        )  # fmt: skip


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not (ROOT / "build" / "cmake_install.cmake").is_file():
        pytest.skip("the tree is not built: tests/dev build")
    built = Built(tmp_path_factory.mktemp("libtorch"))
    site = str(built.package.parent)
    must(["cmake", "--install", ROOT / "build", "--component", "package", "--prefix", site])
    source = shutil.copytree(HERE / "project", built.folder / "project")
    examples = shutil.copytree(EXAMPLES, built.folder / "examples")
    configure = ["cmake", "-S", source, "-B", built.folder / "build", "-G", "Ninja"]
    configure += [f"-Dhorovodlite_DIR={built.package / 'cmake'}", f"-DEXAMPLES={examples}"]
    configure += [f"-DTorch_DIR={torch_dir()}", f"-DCMAKE_CXX_FLAGS={SANITIZED}"]
    configure += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG="]
    must(configure)
    must(["cmake", "--build", built.folder / "build", "--parallel", JOBS], timeout=1800)
    return built


def torch_dir() -> Path:
    import torch

    return Path(torch.utils.cmake_prefix_path) / "Torch"


@pytest.fixture(scope="session")
def two_ranks(built: Built) -> subprocess.CompletedProcess[str]:
    return built.run("cases", *ON_TWO_RANKS)


@pytest.fixture(scope="session")
def three_ranks(built: Built) -> subprocess.CompletedProcess[str]:
    return built.run("cases", *ON_THREE_RANKS, ranks=3)


def passed_on(done: subprocess.CompletedProcess[str], case: str, ranks: int) -> None:
    output = done.stdout + done.stderr
    for rank in range(ranks):
        assert re.search(rf"^\[{rank}\]<stdout>: ?ok {case}$", output, re.MULTILINE), output[-6000:]


@pytest.mark.parametrize("case", ON_TWO_RANKS)
def test_on_two_ranks(two_ranks: subprocess.CompletedProcess[str], case: str) -> None:
    passed_on(two_ranks, case, 2)


@pytest.mark.parametrize("case", ON_THREE_RANKS)
def test_on_three_ranks(three_ranks: subprocess.CompletedProcess[str], case: str) -> None:
    passed_on(three_ranks, case, 3)


def test_the_address_sanitizer_is_silent(
    two_ranks: subprocess.CompletedProcess[str], three_ranks: subprocess.CompletedProcess[str]
) -> None:
    for done in (two_ranks, three_ranks):
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        assert "Sanitizer" not in done.stdout + done.stderr


def test_the_address_sanitizer_is_there(built: Built) -> None:
    symbols = must(["nm", "-C", built.folder / "build" / "cases"])
    assert "__asan_init" in symbols


def test_a_killed_rank_is_an_exception_on_the_others_within_a_second(built: Built) -> None:
    done = built.run("cases", "killed", ranks=3)
    output = done.stdout + done.stderr
    times = re.findall(r"^\[(\d)\]<stdout>: ?after (\d+\.\d+) s: (.*)$", output, re.MULTILINE)
    assert sorted(rank for rank, _, _ in times) == ["0", "2"], output
    for _, seconds, message in times:
        assert float(seconds) < 1.0
        assert message.startswith("Unavailable: ")
        assert "rank 1" in message


def test_the_first_reduction_starts_before_backward_ends(built: Built, tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    done = built.run("cases", "overlap", HVL_TIMELINE=str(timeline))
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"backward (\d+) (\d+)", done.stdout)
    begin, end = map(int, found[-1])
    events = json.loads(timeline.read_text())
    zero = events[0]["args"]["start_time_since_epoch_in_micros"]
    reductions = [
        zero + event["ts"]
        for event in events
        if event.get("name") == "ALLREDUCE" and event.get("ph") in ("B", "X")
    ]
    inside = [time for time in reductions if begin < time < end]
    assert inside, (begin - zero, end - zero, sorted(reductions)[-20:])


def test_the_template_trains_on_two_ranks_and_alone(built: Built) -> None:
    done = built.run("template/train")
    found = re.search(r"loss on 2 ranks: (\d\.\d+)", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found
    assert float(found[1]) < 1.0
    assert "loss on 1 ranks" in built.run("template/train", ranks=1).stdout


def test_the_example_learns_digits(built: Built, tmp_path: Path) -> None:
    must([sys.executable, EXAMPLES / "mnist" / "export.py", tmp_path])
    done = built.run("mnist/train", str(tmp_path), "1")
    found = re.search(r"accuracy on 500 held-out images .* 2 ranks: (\d+\.\d)%", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) > 50.0  # chance: 10 %
    missing = built.run("mnist/train", str(tmp_path / "nothing"), "1")
    assert missing.returncode != 0
    assert "no file of bytes" in missing.stdout + missing.stderr


def test_nothing_of_the_source_tree_is_used(built: Built) -> None:
    commands = (built.folder / "build" / "compile_commands.json").read_text()
    for folder in ("csrc", "python", "launcher", "horovodlite"):
        assert f"{ROOT}/{folder}" not in commands
    libraries = must(["readelf", "-d", built.folder / "build" / "cases"])
    assert str(built.package) in libraries  # its rpath


# --- Finding it -----------------------------------------------------------------------------------

PROJECT = """cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES CXX)
find_package(horovodlite {version} CONFIG REQUIRED {components})
add_executable(user user.cc)
target_link_libraries(user PRIVATE {target})
"""


def project(folder: Path, version: str, components: str, target: str, source: Path) -> Path:
    folder.mkdir()
    text = PROJECT.format(version=version, components=components, target=target)
    (folder / "CMakeLists.txt").write_text(text)
    shutil.copy(source, folder / "user.cc")
    return folder


def test_the_package_says_where_cmake_finds_it() -> None:
    done = execute([sys.executable, "-m", "horovodlite", "--cmake-dir"], PYTHONPATH=str(ROOT))
    assert done.stdout == f"{ROOT / 'horovodlite' / 'cmake'}\n"
    assert (ROOT / "horovodlite" / "cmake" / "horovodliteConfig.cmake").is_file()


def test_an_installed_tree_serves_programs_without_a_framework(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    must(["cmake", "--install", ROOT / "build", "--component", "cpp", "--prefix", prefix])
    assert not list(prefix.rglob("_core*"))
    source = project(tmp_path / "user", "0.1", "", "horovodlite::core", EXAMPLES / "allreduce.cc")
    build = tmp_path / "build"
    must(["cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"])
    must(["cmake", "--build", build])
    output = must([prefix / "bin" / "hvlrun", "-np", "2", build / "user"])
    assert "rank 0 of 2: average 0.5" in output
    assert "rank 1 of 2: average 0.5" in output


@pytest.mark.parametrize(
    ("components", "options", "messages"),
    [
        ("COMPONENTS torch", ["-DTorch_DIR=/nowhere", "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON"],
         ["LibTorch was not found. Say where it is", "-DTorch_DIR="]),
        ("COMPONENTS tensorflow", [], ["There is no component tensorflow, only torch"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(
    tmp_path: Path, components: str, options: list[str], messages: list[str]
) -> None:
    source = project(
        tmp_path / "user", "0.1", components, "horovodlite::core", EXAMPLES / "allreduce.cc"
    )
    where = f"-Dhorovodlite_DIR={ROOT / 'horovodlite' / 'cmake'}"
    done = execute(["cmake", "-S", source, "-B", tmp_path / "build", where, *options])
    assert done.returncode != 0
    words = " ".join(done.stderr.split())
    for message in messages:
        assert message in words


def test_another_version_or_abi_is_refused(tmp_path: Path) -> None:
    where = f"-Dhorovodlite_DIR={ROOT / 'horovodlite' / 'cmake'}"
    program = EXAMPLES / "allreduce.cc"
    source = project(tmp_path / "version", "9.0", "", "horovodlite::core", program)
    done = execute(["cmake", "-S", source, "-B", tmp_path / "version-build", where])
    assert done.returncode != 0
    assert 'requested version "9.0"' in " ".join(done.stderr.split())
    fake = tmp_path / "Torch"
    fake.mkdir()
    (fake / "TorchConfig.cmake").write_text(
        'set(Torch_FOUND TRUE)\nset(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n'
    )
    source = project(tmp_path / "abi", "0.1", "COMPONENTS torch", "horovodlite::torch", program)
    done = execute(
        ["cmake", "-S", source, "-B", tmp_path / "abi-build", where, f"-DTorch_DIR={fake}"]
    )
    assert done.returncode != 0
    words = " ".join(done.stderr.split())
    assert "has _GLIBCXX_USE_CXX11_ABI=0, and this horovodlite was built with 1" in words

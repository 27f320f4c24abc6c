"""Configures and builds one tree with CMake and Ninja, and puts the result into `horovodlite/`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import needs
from .ui import ROOT, DevError, attempt, run, step


@dataclass(frozen=True)
class Tree:
    """A build directory and its options."""

    name: str
    options: tuple[str, ...]
    python: bool = False

    @property
    def path(self) -> Path:
        return ROOT / self.name


def sanitized(sanitizers: str) -> tuple[str, ...]:
    """One unit per room, as `pip install` compiles it: quicker, and seen to compile before that."""
    units = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")
    return ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DHVL_SANITIZE={sanitizers}", *units)


TREES = {
    "release": Tree("build", ("-DCMAKE_BUILD_TYPE=Release",), python=True),
    "asan": Tree("build-asan", sanitized("address,undefined")),
    "tsan": Tree("build-tsan", sanitized("thread")),
}


def trees(names: Sequence[str]) -> list[Tree]:
    """The trees of these names; none stands for the one that tests run in."""
    for name in names:
        if name not in TREES:
            raise DevError(f"no tree is called {name}; there are: {', '.join(TREES)}")
    return [TREES[name] for name in names or ("release",)]


# The target of the Python package's compiled parts.
PACKAGE = "hvl_package"


def jobs() -> int:
    return len(os.sched_getaffinity(0))


def build_environment() -> dict[str, str]:
    """ccache shares its results between clones and build directories."""
    return {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}


@contextlib.contextmanager
def alone(tree: Tree) -> Iterator[None]:
    """Waits until no other `tests/dev` builds this tree, which neither CMake nor Ninja sees to."""
    tree.path.mkdir(exist_ok=True)
    with (tree.path / ".in-use").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def configure(tree: Tree) -> None:
    """Runs CMake; quick when nothing has changed."""
    python = needs.ensure()
    with alone(tree):
        _configure(tree, python)


def _configure(tree: Tree, python: Path) -> None:
    command: list[str] = ["cmake", "-S", str(ROOT), "-B", str(tree.path), "-G", "Ninja"]
    command += ["-DHVL_BUILD_TESTS=ON", "-DHVL_WERROR=ON", *tree.options]
    if shutil.which("ccache"):
        command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    if shutil.which("mold"):
        linker = "-fuse-ld=mold"
        command += [f"-DCMAKE_{kind}_LINKER_FLAGS={linker}" for kind in ("EXE", "MODULE")]
    if tree.python:
        where = attempt([python, "-m", "pybind11", "--cmakedir"], capture=True).stdout.strip()
        command += ["-DHVL_BUILD_PYTHON=ON", f"-Dpybind11_DIR={where}"]
        command += [f"-DPython_EXECUTABLE={python}"]
    run(command, env=build_environment(), quiet=True)


def build(tree: Tree, targets: Sequence[str] = ("all",)) -> None:
    """Builds the targets; a tree with Python then holds a package that can be imported."""
    python = needs.ensure()
    with alone(tree), step(f"building {tree.name}: {' '.join(targets)}"):
        _configure(tree, python)
        ninja = [
            "cmake",
            "--build",
            str(tree.path),
            "--parallel",
            str(jobs()),
            "--target",
            *targets,
        ]
        run(ninja, env=build_environment())
        if tree.python and not {"all", PACKAGE}.isdisjoint(targets):
            install = ["cmake", "--install", str(tree.path), "--component", "package"]
            run([*install, "--prefix", str(ROOT)], quiet=True)

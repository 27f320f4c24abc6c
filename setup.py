"""Builds the wheel: calls CMake and puts `_core` and `hvlrun` into the package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def version() -> str:
    """The version of the CMake project: the one place where it stands."""
    found = re.search(r"^project\(horovodlite VERSION (\S+)", read("CMakeLists.txt"), re.MULTILINE)
    if found is None:
        raise SystemExit("setup.py: CMakeLists.txt has no line 'project(horovodlite VERSION ...'")
    return found[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def require_compiler() -> None:
    """CMake's own message about this is long; the other requirements are checked by CMake."""
    candidates = [os.environ["CXX"].split()[0]] if os.environ.get("CXX") else ["c++", "g++"]
    if not any(map(shutil.which, candidates)):
        packages = re.findall(r"^build +(\S+)", read("csrc/cmake/packages.txt"), re.MULTILINE)
        raise SystemExit(
            f"horovodlite cannot be built here: no C++ compiler ({' or '.join(candidates)}) was "
            f"found.\nOn Debian or Ubuntu this installs all that is needed:\n"
            f"  apt-get install -y {' '.join(packages)}"
        )


class CMakeBuild(build_ext):
    """Builds everything with CMake, from scratch: a build environment of pip lives only once."""

    def run(self) -> None:
        require_compiler()
        build = Path(self.build_temp).resolve()
        shutil.rmtree(build, ignore_errors=True)
        build.mkdir(parents=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", "-DHVL_BUILD_PYTHON=ON"]
        # Half the compiler's time is spent reading headers: one unit per room reads them once. (Not
        # for developers, whose changes and clang-tidy look at single files.)
        configure += ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0"]
        configure += ["-DHVL_STATIC_RUNTIME=ON", f"-DPython_EXECUTABLE={sys.executable}"]
        configure += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        done = subprocess.run(configure, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip() or done.stdout)
        # What is built depends on what is there.
        for line in done.stdout.splitlines():
            if "plug-in" in line:
                self.announce(line.removeprefix("-- "), level=2)
        jobs = str(len(os.sched_getaffinity(0)))
        compile_all = ["cmake", "--build", str(build), "--parallel", jobs]
        install = ["cmake", "--install", str(build), "--strip", "--component", "package"]
        target = ROOT if self.inplace else Path(self.build_lib).resolve()
        for command in (
            [*compile_all, "--target", "hvl_package"],
            [*install, "--prefix", str(target)],
        ):
            if subprocess.run(command, check=False).returncode != 0:
                raise SystemExit(f"horovodlite: this step of the build failed: {command}")


setup(
    version=version(),
    ext_modules=[Extension("horovodlite._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    options={"build": {"build_base": "build-wheel"}, "egg_info": {"egg_base": "."}},
)

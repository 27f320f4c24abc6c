"""What a person reads when something that the build needs is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGURE = ("cmake", "-G", "Ninja", "-S", str(ROOT), "-B")
APT_LINE = (
    "apt-get install -y g++ libcli11-dev libfmt-dev libssl-dev libyaml-cpp-dev nlohmann-json3-dev "
    "python3-dev"
)


def test_missing_headers_are_one_message_with_the_cure(tmp_path: Path) -> None:
    command = [*CONFIGURE, str(tmp_path), "-DCMAKE_IGNORE_PATH=/usr/include"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1
    for missing in ("fmt/core.h (package libfmt-dev)", "openssl/hmac.h", "CLI/CLI.hpp"):
        assert missing in done.stderr
    assert APT_LINE in done.stderr


def test_setup_passes_the_message_on_without_a_page_around_it() -> None:
    env = {**os.environ, "CMAKE_ARGS": "-DCMAKE_IGNORE_PATH=/usr/include"}
    done = setup_build(env)
    assert done.returncode != 0
    assert APT_LINE in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 20


def test_a_missing_compiler_is_one_message_with_the_cure() -> None:
    done = setup_build({**os.environ, "CXX": "no-such-compiler"})
    assert done.returncode != 0
    assert "no C++ compiler (no-such-compiler)" in done.stderr
    assert APT_LINE in done.stderr
    assert "Traceback" not in done.stderr


def setup_build(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", "build/no-setup"]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_an_old_compiler_is_named(tmp_path: Path) -> None:
    compiler = tmp_path / "old-compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *c++20*) exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    command = [*CONFIGURE, str(tmp_path), f"-DCMAKE_CXX_COMPILER={compiler}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"a C++20 compiler; {compiler}" in done.stderr
    assert APT_LINE in done.stderr

"""What hvlrun finds out about the machine before a job: --doctor and --preflight."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence

import pytest
from conftest import Launcher


def need(prefix: Sequence[str]) -> None:
    probe = subprocess.run([*prefix, "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"cannot make such a machine here: {probe.stderr.decode()}")


def test_every_line_has_a_level_and_every_trouble_a_cure(hvlrun: Launcher) -> None:
    ended = hvlrun("--doctor")
    assert ended.code in (0, 1)
    text, _, sum_up = ended.out.decode().partition("\n\n")
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""]):
        if line.startswith(("[warn]", "[fail]")):
            assert after.startswith(" ")
            assert "-> " in after
        else:
            assert line.startswith(("[ok]", "      "))
    assert sum_up.count("\n") == 1


def test_the_python_of_the_command_is_asked(hvlrun: Launcher) -> None:
    json_out = hvlrun("--doctor", "--json", "-np", "1", sys.executable, "train.py").out
    findings = {entry["topic"]: entry["text"] for entry in json.loads(json_out)["findings"]}
    assert findings["python"].startswith(f"{sys.executable} {platform.python_version()}; torch ")
    (hvlrun.folder / "horovodlite.py").touch()
    here = ["-x", f"PYTHONPATH={hvlrun.folder}"]
    seen = hvlrun("--doctor", *here, sys.executable, "train.py", cwd="/")
    assert "horovodlite from a source tree" in seen.out.decode()


def test_a_broken_python_is_a_failure_for_a_command_that_needs_it(hvlrun: Launcher) -> None:
    python = hvlrun.folder / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    ended = hvlrun("--doctor", str(python), "train.py")
    assert ended.code == 1
    assert f"[fail] python           {python} does not run" in ended.out.decode()
    refused = hvlrun("-np", "1", "--preflight", str(python), "train.py")
    assert refused.code == 125
    assert "hvlrun: preflight: this machine cannot run the job\n" in refused.error_text


def test_a_limit_of_open_files_that_is_too_low_is_a_failure(hvlrun: Launcher) -> None:
    prefix = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh"]
    ended = hvlrun("--doctor", "-np", "40", command_prefix=prefix)
    assert ended.code == 1
    assert "a rank may open 100, hvlrun 100, which needs 184" in ended.out.decode()


def test_without_the_loopback_no_job_can_run(hvlrun: Launcher) -> None:
    prefix = ["unshare", "-r", "-n"]
    need(prefix)
    ended = hvlrun("--doctor", command_prefix=prefix)
    assert ended.code == 1
    assert "[fail] connections      ranks cannot meet: a connection over 127.0.0.1" in (
        ended.out.decode()
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting another /dev/shm needs root")
@pytest.mark.parametrize(
    ("mount", "said"),
    [("size=64m", "/dev/shm         64 MiB free of 64 MiB"), ("ro", "is not writable")],
)
def test_a_small_or_closed_dev_shm_is_a_warning(hvlrun: Launcher, mount: str, said: str) -> None:
    line = f'mount -t tmpfs -o {mount} tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "-m", "sh", "-c", line, "sh"]
    need(prefix)
    assert said in hvlrun("--doctor", command_prefix=prefix).out.decode()


def test_preflight_says_what_could_be_better_and_starts(hvlrun: Launcher) -> None:
    ranks = str(len(os.sched_getaffinity(0)) + 1)
    ended = hvlrun("-np", ranks, "--preflight", "true")
    assert ended.code == 0
    assert "hvlrun: preflight: processors: " in ended.error_text
    assert "start no more ranks than cores" in ended.error_text

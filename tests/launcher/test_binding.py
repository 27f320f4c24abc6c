"""Which processors ranks may run on, and how many threads of computation they are told to use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Launcher, read_json

ALLOWED = sorted(os.sched_getaffinity(0))
NODES = list(Path("/sys/devices/system/node").glob("node[0-9]*"))

# Notes the rank's own processors, and those of a process that it starts, as a data loader is.
NOTE = """
    import json, os, subprocess, sys
    worker = "import os; print(sorted(os.sched_getaffinity(0)))"
    note = {
        "rank": sorted(os.sched_getaffinity(0)),
        "worker": json.loads(subprocess.check_output([sys.executable, "-c", worker])),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "shared": int(os.environ["HVL_LOCAL_PROCESSORS"]),
    }
    with open(f"note{os.environ['RANK']}.json", "w") as file:
        json.dump(note, file)
"""


def core_of(processor: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(processor)


CORES = len({core_of(processor) for processor in ALLOWED})
needs_two_cores = pytest.mark.skipif(CORES < 2, reason="needs two cores")


def notes(hvlrun: Launcher, *words: str, **options: Any) -> tuple[list[Any], str]:
    """What each rank found, and what hvlrun said."""
    for old in hvlrun.folder.glob("note*.json"):
        old.unlink()
    ended = hvlrun(*words, *hvlrun.script(NOTE), **options)
    assert ended.code == 0, ended.error_text
    return read_json(hvlrun.folder, "note*.json"), ended.error_text


@needs_two_cores
def test_ranks_share_the_cores_among_them_and_workers_have_those_of_their_rank(
    hvlrun: Launcher,
) -> None:
    (first, second), said = notes(hvlrun, "-np", "2", "--bind", "core", "--report-bindings")
    assert sorted(first["rank"] + second["rank"]) == ALLOWED
    for note in (first, second):
        assert note["worker"] == note["rank"]
        assert note["threads"] == CORES // 2
        assert note["shared"] == len(ALLOWED)
    assert "hvlrun: rank 0 is bound to " in said
    assert "hvlrun: rank 1 is bound to " in said


@needs_two_cores
def test_a_lone_rank_has_all_cores(hvlrun: Launcher) -> None:
    (alone,), said = notes(hvlrun, "-np", "1", "--bind", "core")
    assert (alone["rank"], alone["threads"], said) == (ALLOWED, CORES, "")


@pytest.mark.skipif(len(NODES) > 1, reason="ranks are bound to the nodes of this machine")
def test_with_one_node_nothing_is_bound_unless_asked(hvlrun: Launcher) -> None:
    found, said = notes(hvlrun, "-np", "2")
    assert [note["rank"] for note in found] == [ALLOWED, ALLOWED]
    assert [note["shared"] for note in found] == [0, 0]
    assert said == ""
    _, said = notes(hvlrun, "-np", "2", "--report-bindings", "--bind", "none")
    assert said.startswith("hvlrun: ranks 0-1 are not bound to processors: --bind none; there ")


def test_more_ranks_than_cores_are_not_bound_and_that_is_said(hvlrun: Launcher) -> None:
    ranks = CORES + 1
    for policy in ("core", "numa"):
        found, said = notes(hvlrun, "-np", str(ranks), "--bind", policy)
        assert [note["rank"] for note in found] == ranks * [ALLOWED]
        assert {note["threads"] for note in found} == {1}
        assert said.startswith(
            f"hvlrun: --bind: ranks are not bound: {ranks} ranks outnumber the {CORES} core"
        )


def test_the_processors_that_hvlrun_was_given_are_not_left(hvlrun: Launcher) -> None:
    last = ALLOWED[-1]
    prefix = ["taskset", "-c", str(last)]
    for policy in ("auto", "none", "core", "numa"):
        (alone,), said = notes(hvlrun, "-np", "1", "--bind", policy, command_prefix=prefix)
        assert (alone["rank"], alone["worker"], alone["threads"]) == ([last], [last], 1)
        assert said == ""
    found, said = notes(hvlrun, "-np", "2", "--bind", "core", command_prefix=prefix)
    assert [note["rank"] for note in found] == [[last], [last]]
    assert "2 ranks outnumber the 1 core that may be used" in said


@needs_two_cores
def test_a_dry_run_shows_the_binding(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "--bind", "core", "--dry-run", "true")
    assert ended.code == 0
    assert [line for line in ended.lines if line.startswith("rank 1 is bound to ")]


@needs_two_cores
@pytest.mark.skipif(os.geteuid() != 0, reason="limiting a control group's time needs root")
def test_a_quota_of_processor_time_counts_like_fewer_cores(hvlrun: Launcher) -> None:
    root = Path("/sys/fs/cgroup")
    old = (root / "cpu").is_dir()
    group = (root / "cpu" if old else root) / f"hvl-test-{hvlrun.mark}"
    try:
        group.mkdir()
        if old:
            (group / "cpu.cfs_quota_us").write_text("100000")
        else:
            (group / "cpu.max").write_text("100000 100000")
    except OSError as error:
        pytest.skip(f"no control group for processor time here: {error}")
    try:
        prefix = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        (alone,), _ = notes(hvlrun, "-np", "1", command_prefix=prefix)
        assert alone["threads"] == 1
        found, said = notes(hvlrun, "-np", "2", "--bind", "core", command_prefix=prefix)
        assert [note["rank"] for note in found] == [ALLOWED, ALLOWED]
        assert "outnumber the 1 core that the quota of the control group allows" in said
    finally:
        hvlrun.expect_nothing_left()
        group.rmdir()


def test_an_unknown_policy_is_refused(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "1", "--bind", "socket", "true")
    assert ended.code == 125
    assert ended.error_text == (
        "hvlrun: --bind 'socket' is not valid: expected auto, none, core or numa\n"
    )

"""The timeline of a job as its user meets it: any JSON parser reads it, whatever happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Launcher

INIT_ONLY = """
    from tests.support import plain as hvd
    hvd.init()
"""
ONE_OPERATION = """
    from tests.support import plain as hvd
    hvd.init()
    assert hvd.allreduce(hvd.ones(3), "gradient", hvd.SUM).tolist() == 3 * [hvd.size()]
"""
# The events of the operation are in the file before the crash: what is younger than 20 ms may not.
CRASH = """
    import os, signal, time
    from tests.support import plain as hvd
    hvd.init()
    hvd.allreduce(hvd.ones(3), name="gradient")
    while hvd.rank() == 0 and "gradient" not in open(os.environ["HVL_TIMELINE"]).read():
        time.sleep(0.01)
    hvd.allreduce(hvd.ones(3), name="last")
    os.kill(os.getpid(), signal.SIGKILL)
"""


# A single rank has no peer, and so no plane.
ON_EACH_PLANE = pytest.mark.parametrize(
    ("ranks", "plane"), [(1, "local"), (2, "local"), (2, "tcp")], ids=["alone", "local", "tcp"]
)


def events_of(
    hvlrun: Launcher, ranks: int, plane: str, script: str, code: int
) -> list[dict[str, Any]]:
    path = hvlrun.folder / "timeline.json"
    words = ["-np", str(ranks), "--timeline-filename", str(path), *hvlrun.script(script)]
    ended = hvlrun(*words, env={"PYTHONPATH": str(ROOT), "HVL_CPU_OPERATIONS": plane})
    assert ended.code == code, ended.error_text
    return list(json.loads(path.read_text()))


@pytest.mark.trial("B100")
@ON_EACH_PLANE
def test_a_job_in_which_nothing_happened_leaves_a_complete_file(
    hvlrun: Launcher, ranks: int, plane: str
) -> None:
    events = events_of(hvlrun, ranks, plane, INIT_ONLY, 0)
    assert events[0]["args"]["name"] == "rank 0"


@pytest.mark.trial("B100")
@ON_EACH_PLANE
def test_one_operation_is_there_with_negotiation_and_every_rank(
    hvlrun: Launcher, ranks: int, plane: str
) -> None:
    events = events_of(hvlrun, ranks, plane, ONE_OPERATION, 0)
    rows = {e["pid"]: e["args"].get("name") for e in events if e.get("name") == "process_name"}
    assert "allreduce.gradient" in rows.values()
    row = next(pid for pid, name in rows.items() if name == "allreduce.gradient")
    mine = [event for event in events if event.get("pid") == row]
    names = {event.get("name") for event in mine}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= names
    assert {f"rank {rank} ready" for rank in range(ranks)} <= names
    phases = [event["ph"] for event in mine]
    assert phases.count("B") == phases.count("E")


@pytest.mark.trial("B100")
@ON_EACH_PLANE
def test_a_crash_leaves_a_complete_file_with_what_came_before(
    hvlrun: Launcher, ranks: int, plane: str
) -> None:
    events = events_of(hvlrun, ranks, plane, CRASH, 137)
    assert any("gradient" in str(event) for event in events)


def test_a_timeline_that_cannot_be_written_does_not_keep_the_job_from_running(
    hvlrun: Launcher, tmp_path: Path
) -> None:
    path = tmp_path / "no" / "such" / "folder.json"
    words = ["-np", "1", "--timeline-filename", str(path), *hvlrun.script(ONE_OPERATION)]
    ended = hvlrun(*words, env={"PYTHONPATH": str(ROOT)})
    assert ended.code == 0, ended.error_text
    assert str(path) in ended.error_text

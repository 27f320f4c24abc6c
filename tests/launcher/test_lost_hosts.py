"""A host that is cut off while the ranks of a job still come together, without hvlrun.

The hosts are network namespaces with a rank each. A cut link resets nothing: whoever waits for that
host hears nothing more of it.

HVL_TEST_STRICT  1 = also hold the promised times, which a busy machine may miss
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, wait_until

from tests.support.network import Network, run, why_not

HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
REASON = why_not() or ("" if HAS_PACKAGE else "needs the built package (`tests/dev build`)")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

LIMIT_S = 3.0 if os.environ.get("HVL_TEST_STRICT") == "1" else 20.0
HOSTS = 3
PORT = 29531  # MASTER_PORT; the ranks meet at the next one
# Longer than a host may be silent: who is only stopped for so long must not be taken for lost.
STOPPED_S = 3.0

JOIN = """
    import json, os, time
    from horovodlite import HorovodInternalError, _core, world

    memory = None
    note = {}
    try:
        world.init()
        session = world.session()
        memory = session.allocate(1 << 10)
        tensor = (memory.address, memory.address, _core.DTYPES["float32"], (1 << 8,), 0)
        session.run(_core.ALLREDUCE, "x", [tensor], _core.SUM, keep=memory)
        world.shutdown()  # so that nobody who is later takes its end for a loss
    except HorovodInternalError as error:
        note = {"at": time.monotonic(), "text": str(error)}
    rank = os.environ["RANK"]
    with open(f"note{rank}.new", "w") as file:
        json.dump(note, file)
    os.rename(f"note{rank}.new", f"note{rank}")
    os._exit(0)
"""


class Job:
    """Ranks on hosts of their own that meet at rank 0, on host 1."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.script = folder / "join.py"
        self.script.write_text("\n".join(line[4:] for line in JOIN.splitlines()))

    def start(self, rank: int) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HVL_", "HOROVOD_", "MASTER_", "RANK", "WORLD_SIZE"))
        }
        place = {"RANK": str(rank), "WORLD_SIZE": str(HOSTS), "LOCAL_RANK": "0"}
        place |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": self.network.hosts[0]}
        place |= {"MASTER_PORT": str(PORT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.ranks[rank] = subprocess.Popen(
            self.network.inside(rank + 1, sys.executable, str(self.script)),
            cwd=self.folder,
            env={**kept, **place},
            stdin=subprocess.DEVNULL,
        )

    def waits_at_store(self, rank: int) -> bool:
        """Whether a rank's connection to the store stands."""
        words = ("ss", "-Htn", "state", "established", "dport", "=", f":{PORT + 1}")
        return bool(run(*self.network.inside(rank + 1, *words)))

    def note(self, rank: int) -> Path:
        return self.folder / f"note{rank}"

    def told(self, rank: int, cut_at: float) -> str:
        """What a rank has raised, in time."""
        wait_until(f"rank {rank} raises", self.note(rank).exists, 60)
        note = json.loads(self.note(rank).read_text())
        assert note, f"rank {rank} raised nothing"
        print(f"rank {rank} raised {note['at'] - cut_at:.3f} s after the cut: {note['text']}")
        assert 0 < note["at"] - cut_at < LIMIT_S
        return str(note["text"])

    def end(self) -> None:
        for process in self.ranks.values():
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Network(HOSTS) as network:
        made = Job(network, tmp_path)
        try:
            yield made
        finally:
            made.end()


def two_wait_for_the_third(job: Job) -> None:
    for rank in (0, 1):
        job.start(rank)
    for rank in (0, 1):
        wait_until(f"rank {rank} waits", lambda rank=rank: job.waits_at_store(rank), 60)


def test_a_host_lost_while_another_is_missing_ends_the_wait_of_all(job: Job) -> None:
    two_wait_for_the_third(job)
    os.kill(job.ranks[1].pid, signal.SIGSTOP)  # its host answers for it
    time.sleep(STOPPED_S)
    os.kill(job.ranks[1].pid, signal.SIGCONT)
    assert not job.note(0).exists()
    cut_at = time.monotonic()
    job.network.cut(2)
    assert "rank 1 was lost while the ranks were joining" in job.told(0, cut_at)
    assert "its host has shown no sign of life" in job.told(1, cut_at)  # of the store


def test_a_host_lost_before_its_links_stand_is_named(job: Job) -> None:
    two_wait_for_the_third(job)
    os.kill(job.ranks[1].pid, signal.SIGSTOP)
    job.start(2)  # the last one: rank 1 has its answer, but does not read it
    wait_until("all have met", lambda: not job.waits_at_store(0), 60)
    time.sleep(STOPPED_S)
    assert not job.note(0).exists()
    cut_at = time.monotonic()
    job.network.cut(2)
    assert "rank 1 was lost while the ranks were connecting" in job.told(0, cut_at)
    job.told(2, cut_at)  # it has no link to rank 1, and hears of it from rank 0 or by its end


def test_a_rank_that_was_stopped_before_its_links_stand_still_takes_part(job: Job) -> None:
    two_wait_for_the_third(job)
    os.kill(job.ranks[1].pid, signal.SIGSTOP)
    job.start(2)
    wait_until("all have met", lambda: not job.waits_at_store(0), 60)
    time.sleep(STOPPED_S)
    os.kill(job.ranks[1].pid, signal.SIGCONT)
    for rank in range(HOSTS):
        wait_until(f"rank {rank} is done", job.note(rank).exists, 60)
        assert json.loads(job.note(rank).read_text()) == {}

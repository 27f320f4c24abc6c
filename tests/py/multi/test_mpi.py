"""The mpi data plane: scripts that mpirun starts, with and without other MPI code in them.

The operations themselves are tested by tests/cpp/mpi.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from test_launchers import (
    DEADLINE_SECONDS,
    REPORT,
    again_and_again,
    environment,
    finish,
    mpirun,
    reports,
    start,
)

import horovodlite.torch as hvd

pytestmark = pytest.mark.skipif(not hvd.mpi_built(), reason="this build has no MPI plug-in")

MPI = {"HVL_CPU_OPERATIONS": "mpi"}
PLACE = "int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])"

AGAIN_AND_AGAIN = again_and_again(
    20, "(hvd.mpi_built(), hvd.mpi_enabled(), hvd.mpi_threads_supported())"
)


def test_sessions_over_mpi_begin_and_end_twenty_times(tmp_path: Path) -> None:
    finish(start(tmp_path, AGAIN_AND_AGAIN, *mpirun(3), **MPI))
    for seen in reports(tmp_path, 3):
        assert seen["sums"] == [3.0 + 3 * n for n in range(20)]
        assert seen["questions"] == [True, True, True]


def test_all_calls_can_come_from_one_thread(tmp_path: Path) -> None:
    alone = {**MPI, "HOROVOD_MPI_THREADS_DISABLE": "1"}
    finish(start(tmp_path, AGAIN_AND_AGAIN, *mpirun(2), **alone))
    for seen in reports(tmp_path, 2):
        assert seen["sums"] == [1.0 + 2 * n for n in range(20)]
        assert seen["questions"] == [True, True, False]


# Both use MPI at the same time, from threads of their own.
WITH_MPI4PY = """
import threading
theirs = []
def talk():
    for n in range(200):
        theirs.append(MPI.COMM_WORLD.allreduce(n))
talker = threading.Thread(target=talk)
talker.start()
ours = [hvd.allreduce(hvd.values(n), op=hvd.SUM)[0] for n in range(200)]
talker.join()
report(ours=ours, theirs=theirs)
"""
BEFORE = REPORT + "from mpi4py import MPI\nhvd.init()\n" + WITH_MPI4PY
AFTER = REPORT + "hvd.init()\nfrom mpi4py import MPI\n" + WITH_MPI4PY


@pytest.mark.parametrize("script", [BEFORE, AFTER], ids=["before", "after"])
def test_mpi4py_may_be_imported_before_or_after_init(script: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    finish(start(tmp_path, script, *mpirun(2), **MPI))
    for seen in reports(tmp_path, 2):
        assert seen["ours"] == seen["theirs"] == [2 * n for n in range(200)]


# The same training over each plane in turn, in the same processes: they import torch once.
TRAINING = (
    REPORT
    + """
import torch
import horovodlite.torch as hvd

def train():
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    data = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for step in range(20):
        x = torch.randn(16, 8, generator=data).double()
        optimizer.zero_grad()
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    return losses

seen = {}
for plane, reproducible in (("local", "1"), ("mpi", "1"), ("mpi", "0")):
    os.environ.update(HVL_CPU_OPERATIONS=plane, HVL_REPRODUCIBLE=reproducible)
    hvd.init()
    assert hvd.mpi_enabled() == (plane == "mpi")
    seen[plane + reproducible] = train()
    place = hvd.rank()
    hvd.shutdown()
with open(f"losses.{place}", "w") as file:
    json.dump(seen, file)
"""
)


def test_training_over_mpi_is_training_over_shared_memory(tmp_path: Path) -> None:
    finish(start(tmp_path, TRAINING, *mpirun(3)))
    losses = json.loads((tmp_path / "losses.0").read_text())
    assert losses["mpi1"] == losses["local1"]
    assert losses["mpi0"] == pytest.approx(losses["local1"], rel=1e-12)  # in MPI's order
    assert losses["mpi1"][-1] < losses["mpi1"][0] / 2


KEEP_ALL = "-disable-auto-cleanup"  # of MPICH


# Rank 1 dies at any time, most likely while the others are inside MPI.
DEATH = (
    REPORT
    + """
import signal, threading, time
hvd.init()
big = hvd.ones(1 << 22)
hvd.allreduce(big, name="x")
hvd.barrier()
if hvd.rank() == 1:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        begin = time.time()
        hvd.allreduce(big, name="x")
except hvd.HorovodInternalError as error:
    report(message=str(error), seconds=time.time() - begin)
"""
)


def test_a_rank_that_is_killed_ends_what_the_others_do_in_mpi(tmp_path: Path) -> None:
    command = mpirun(3)
    # Or mpirun kills the others before they can tell.
    command.insert(1, "--enable-recovery" if "--oversubscribe" in command else KEEP_ALL)
    job = start(tmp_path, DEATH, *command, **MPI)
    try:
        files = [tmp_path / "rank.0", tmp_path / "rank.2"]
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end and not all(f.exists() and f.read_text() for f in files):
            time.sleep(0.05)
    finally:
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=DEADLINE_SECONDS)
    assert all(file.exists() for file in files), output
    (tmp_path / "rank.1").write_text("null")
    for seen in (report for report in reports(tmp_path, 3) if report):
        assert "rank 1 (pid " in seen["message"]
        assert "was killed by signal 9" in seen["message"]
        assert seen["seconds"] < 20.0


# Failures that the control plane is not asked about: the others are in no operation.
FAILURE = (
    REPORT
    + """
import time
hvd.init()
hvd.barrier()
report()
if hvd.rank() == 1:
    LEAVE
time.sleep(600)
"""
)


@pytest.mark.parametrize(
    "leave", ["sys.exit(3)", "raise ValueError('bad batch')", "os.kill(os.getpid(), 9)"]
)
def test_a_rank_that_fails_ends_the_job_and_waits_for_nobody(leave: str, tmp_path: Path) -> None:
    job = start(tmp_path, FAILURE.replace("LEAVE", leave), *mpirun(3), **MPI)
    output, _ = job.communicate(timeout=DEADLINE_SECONDS)
    assert job.returncode not in (0, None), output
    assert len(reports(tmp_path, 3)) == 3


FORK = (
    REPORT
    + """
hvd.init()
hvd.shutdown()
child = os.fork()
if child == 0:
    try:
        hvd.init()
    except NotImplementedError as error:
        open(f"child.{PLACE}", "w").write(str(error))
    os._exit(0)
os.waitpid(child, 0)
hvd.init()
report(total=hvd.allreduce(hvd.ones(1), op=hvd.SUM)[0])
"""
).replace("PLACE", PLACE)


def test_a_forked_child_is_told_that_mpi_is_not_for_it(tmp_path: Path) -> None:
    finish(start(tmp_path, FORK, *mpirun(2), **MPI))
    for rank, seen in enumerate(reports(tmp_path, 2)):
        assert seen["total"] == 2.0
        assert "made by fork from one that has MPI" in (tmp_path / f"child.{rank}").read_text()


# Who began MPI ends it, in either order, whether by its own words or as the process ends.
ENDS = {
    "theirs, by its words": "from mpi4py import MPI\nUSE\nhvd.shutdown()\nMPI.Finalize()\n",
    "theirs, at exit": "from mpi4py import MPI\nUSE\nhvd.shutdown()\n",
    "theirs, without shutdown": "from mpi4py import MPI\nUSE\n",
    "ours, with theirs": "USE\nfrom mpi4py import MPI\nassert MPI.Is_initialized()\n",
}


@pytest.mark.parametrize("order", ENDS.values(), ids=ENDS.keys())
def test_whoever_began_mpi_ends_it(order: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    use = "hvd.init()\nreport(total=hvd.allreduce(hvd.ones(1), op=hvd.SUM)[0])"
    script = REPORT + order.replace("USE", use)
    output = finish(start(tmp_path, script, *mpirun(2), **MPI))[0]
    assert [seen["total"] for seen in reports(tmp_path, 2)] == [2.0, 2.0]
    assert "without calling" not in output  # "... finalize"


def error_of(folder: Path, script: str, *command: str, **variables: str) -> str:
    job = start(folder, script, *command, **{**MPI, **variables})
    output, _ = job.communicate(timeout=DEADLINE_SECONDS)
    assert job.returncode != 0, output
    return output


def test_ranks_that_mpi_has_not_started_are_told_so(tmp_path: Path) -> None:
    hvlrun = [str(Path(hvd.__file__).parents[1] / "bin" / "hvlrun"), "-np", "2", sys.executable]
    output = error_of(tmp_path, REPORT + "hvd.init()", *hvlrun)
    assert "has 1 of 2 processes; start all of them with one mpirun" in output


def test_an_mpi_with_too_little_support_for_threads_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    script = "import mpi4py\nmpi4py.rc.thread_level = 'funneled'\nfrom mpi4py import MPI\n"
    output = error_of(tmp_path, script + REPORT + "hvd.init()", *mpirun(2))
    assert "initialised MPI with MPI_THREAD_FUNNELED" in output
    assert "ask MPI_Init_thread for that" in output


def test_a_finalised_mpi_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    script = "from mpi4py import MPI\nMPI.Finalize()\n" + REPORT + "hvd.init()"
    assert "MPI has been finalised" in error_of(tmp_path, script, *mpirun(2))


def test_a_missing_plug_in_or_library_says_what_to_do(tmp_path: Path) -> None:
    script = REPORT + "hvd.init()"
    alone = [sys.executable]
    output = error_of(tmp_path, script, *alone, HVL_PLUGIN_FOLDER=str(tmp_path))
    assert f"no plug-in for MPI (none in {tmp_path})" in output
    assert "NotImplementedError" in output
    output = error_of(tmp_path, script, *alone, HVL_MPI_LIBRARY="/nowhere/libmpi.so")
    assert "/nowhere/libmpi.so cannot be loaded" in output


# As with Horovod: each process names the ranks of its own world.
PARTS = (
    REPORT
    + """
place = PLACE
hvd.init(comm=[0, 2] if place != 1 else [1])
total = hvd.allreduce(hvd.values(place), op=hvd.SUM)[0]
with open(f"sum.{place}", "w") as file:
    file.write(f"{hvd.rank()} {hvd.size()} {total}")
"""
).replace("PLACE", PLACE)


def test_worlds_of_some_ranks_work_over_mpi(tmp_path: Path) -> None:
    finish(start(tmp_path, PARTS, *mpirun(3), **MPI))
    seen = [(tmp_path / f"sum.{place}").read_text() for place in range(3)]
    assert seen == ["0 2 2.0", "0 1 1.0", "1 2 2.0"]


SETS = (
    REPORT
    + """
pair = hvd.ProcessSet([0, 2])
hvd.init(process_sets=[pair])
seen = []
for n in range(10):
    seen.append(hvd.allreduce(hvd.values(n), op=hvd.SUM, name="all")[0])
    if pair.included():
        mine = hvd.values(hvd.rank())
        seen.append(hvd.allreduce(mine, op=hvd.SUM, name="two", process_set=pair)[0])
hvd.barrier()
report(seen=seen)
"""
)


def test_process_sets_over_mpi(tmp_path: Path) -> None:
    finish(start(tmp_path, SETS, *mpirun(3), **MPI))
    for rank, seen in enumerate(reports(tmp_path, 3)):
        both = [[3 * n, 2] if rank != 1 else [3 * n] for n in range(10)]
        assert seen["seen"] == [value for values in both for value in values]


def test_nothing_of_mpi_is_loaded_without_need(tmp_path: Path) -> None:
    script = REPORT + "hvd.init()\nreport(mpi='libmpi' in open('/proc/self/maps').read())"
    finish(start(tmp_path, script, *mpirun(2)))
    assert [seen["mpi"] for seen in reports(tmp_path, 2)] == [False, False]
    assert "libmpi" not in Path(f"/proc/{os.getpid()}/maps").read_text()
    assert "HVL_CPU_OPERATIONS" not in environment()

"""Jobs that hvlrun did not start: whoever did says who is who, and the ranks find each other.

Every rank is a process of its own, which writes what it has seen into a file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 150.0  # torchrun and mpirun are slow on a machine that does other things too
# Whatever tells a process its place, so that these tests may run in a job themselves.
PLACE_PREFIXES = ("HVL_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_")
PLACE_PREFIXES += ("TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")

# Without torch, whose import takes each rank longer than all the rest.
REPORT = """
import json, os, sys
from tests.support import plain as hvd

def report(**seen):
    place = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    place += (hvd.cross_rank(), hvd.cross_size())
    with open(f"rank.{hvd.rank()}", "w") as file:
        json.dump({"place": place, **seen}, file)
"""


def again_and_again(rounds: int, questions: str = "None") -> str:
    """A script of so many sessions; the last one goes on when it reports and asks."""
    return (
        REPORT
        + f"""
sums = []
for round in range({rounds}):
    hvd.init()
    mine = hvd.values(*[hvd.rank() + round] * 3)
    sums.append(hvd.allreduce(mine, op=hvd.SUM)[0])
    if round < {rounds - 1}:
        hvd.shutdown()
report(sums=sums, questions={questions})
"""
    )


AGAIN_AND_AGAIN = again_and_again(10)


def environment(**variables: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(PLACE_PREFIXES)}
    # Open MPI refuses root, which containers are.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**inherited, **root, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


def start(folder: Path, script: str, *command: str, **variables: str) -> subprocess.Popen[str]:
    """The command, followed by the script, in `folder`."""
    file = folder / "script.py"
    file.write_text(script)
    return subprocess.Popen(
        [*command, str(file)],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """What each has written. All of them must end well and in time."""
    outputs = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=DEADLINE_SECONDS)
            assert process.returncode == 0, output
            outputs.append(output)
    finally:
        for process in processes:
            process.kill()
    return outputs


def plain(rank: int, size: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": str(port)}


def job_port(folder: Path) -> int:
    """Tells this test's job from others on this machine; nobody listens there."""
    return 10000 + zlib.crc32(str(folder).encode()) % 50000


def start_plain(folder: Path, script: str, size: int, port: int) -> list[subprocess.Popen[str]]:
    return [
        start(folder, script, sys.executable, **plain(rank, size, port)) for rank in range(size)
    ]


def reports(folder: Path, size: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank.{rank}").read_text()) for rank in range(size)]


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def mpirun(size: int) -> list[str]:
    path = needed("mpirun")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in said:
        return [path, "--oversubscribe", "-np", str(size), sys.executable]
    if "HYDRA" in said:
        return [path, "-np", str(size), sys.executable]
    pytest.skip("mpirun is neither Open MPI's nor MPICH's")


def hydra(size: int) -> list[str]:
    return [needed("mpiexec.hydra"), "-n", str(size), sys.executable]


def torchrun(size: int) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, "--nproc_per_node", str(size)]


@pytest.mark.parametrize(("command", "size"), [(mpirun, 3), (hydra, 2), (torchrun, 2)])
def test_a_launcher_s_ranks_meet_again_and_again(command, size: int, tmp_path: Path) -> None:
    finish(start(tmp_path, AGAIN_AND_AGAIN, *command(size)))
    sums = [float(size * (size - 1) // 2 + size * n) for n in range(10)]
    for rank, seen in enumerate(reports(tmp_path, size)):
        assert seen["place"] == [rank, size, rank, size, 0, 1]
        assert seen["sums"] == sums


def slurm(rank: int, size: int, folder: Path) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_JOB_ID": str(job_port(folder)),
        "SLURM_STEP_ID": "0",
    }


def our_own(rank: int, size: int, folder: Path) -> dict[str, str]:
    return {"HVL_RANK": str(rank), "HVL_SIZE": str(size), "HVL_JOB_ID": str(folder)[-64:]}


def from_environment(rank: int, size: int, folder: Path) -> dict[str, str]:
    return plain(rank, size, job_port(folder))


@pytest.mark.parametrize("variables", [slurm, our_own, from_environment])
def test_variables_alone_are_enough_and_nothing_is_left(variables, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ranks = [
        start(
            tmp_path,
            AGAIN_AND_AGAIN,
            sys.executable,
            TMPDIR=str(temporary),
            **variables(rank, 2, tmp_path),
        )
        for rank in range(2)
    ]
    finish(*ranks)
    for rank, seen in enumerate(reports(tmp_path, 2)):
        assert seen["place"] == [rank, 2, rank, 2, 0, 1]
    assert list(temporary.iterdir()) == []


def test_torchrun_s_port_stays_torch_s(tmp_path: Path) -> None:
    script = (
        REPORT
        + """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
hvd.init()
theirs = torch.ones(2) * (dist.get_rank() + 1)
dist.all_reduce(theirs)
ours = hvd.allreduce(hvd.values(*[hvd.rank() + 1] * 2), op=hvd.SUM)
report(same=theirs.tolist() == ours.tolist(), rank_of_torch=dist.get_rank())
hvd.shutdown()
dist.destroy_process_group()
"""
    )
    finish(start(tmp_path, script, *torchrun(2)))
    for rank, seen in enumerate(reports(tmp_path, 2)):
        assert seen["same"]
        assert seen["rank_of_torch"] == rank


def test_two_jobs_at_once_do_not_mix(tmp_path: Path) -> None:
    script = (
        REPORT
        + """
hvd.init()
job = float(os.environ["MASTER_PORT"])
report(sum=hvd.allreduce(hvd.values(job), op=hvd.SUM)[0], job=job)
"""
    )
    folders = [tmp_path / "a", tmp_path / "b"]
    ranks = []
    for folder in folders:
        folder.mkdir()
        ranks += start_plain(folder, script, 2, job_port(folder))
    finish(*ranks)
    for folder in folders:
        assert [seen["sum"] for seen in reports(folder, 2)] == [2.0 * job_port(folder)] * 2


def test_some_of_the_ranks_make_a_world(tmp_path: Path) -> None:
    script = (
        REPORT
        + """
mine = [0, 2] if os.environ["RANK"] != "1" else [1]
hvd.init(comm=mine)
total = hvd.allreduce(hvd.values(float(os.environ["RANK"])), op=hvd.SUM)[0]
with open("sum." + os.environ["RANK"], "w") as file:
    file.write(f"{hvd.rank()} {hvd.size()} {total}")
"""
    )
    finish(*start_plain(tmp_path, script, 3, job_port(tmp_path)))
    seen = [(tmp_path / f"sum.{rank}").read_text() for rank in range(3)]
    assert seen == ["0 2 2.0", "0 1 1.0", "1 2 2.0"]


def test_a_rank_that_is_killed_is_an_error_on_the_other(tmp_path: Path) -> None:
    script = (
        REPORT
        + """
hvd.init()
hvd.allreduce(hvd.ones(1), name="x")
report(pid=os.getpid())
try:
    while True:
        hvd.allreduce(hvd.ones(1), name="y")
except hvd.HorovodInternalError as error:
    print(f"lost {error.culprit_rank}")
"""
    )
    survivor, victim = start_plain(tmp_path, script, 2, job_port(tmp_path))
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not all((tmp_path / f"rank.{rank}").exists() for rank in range(2)):
        assert time.monotonic() < give_up
        assert survivor.poll() is None
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert finish(survivor)[0].endswith("lost 1\n")
    assert victim.wait() == -signal.SIGKILL
    victim.communicate()


def refused(tmp_path: Path, **variables: str) -> str:
    script = "from tests.support import plain as hvd\nhvd.init()\n"
    process = start(tmp_path, script, sys.executable, **variables)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    return output.splitlines()[-1]


def test_launchers_that_disagree_are_both_named(tmp_path: Path) -> None:
    ompi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    said = refused(tmp_path, **ompi, **plain(1, 2, 1))
    assert "rank 0 of 2 for Open MPI (OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=2)" in said
    assert "rank 1 of 2 for the environment (RANK=1 and WORLD_SIZE=2)" in said
    assert "HVL_LAUNCHER=openmpi" in said


def test_a_rank_that_does_not_come_is_named_with_the_place(tmp_path: Path) -> None:
    port = job_port(tmp_path)
    said = refused(tmp_path, HVL_START_TIMEOUT="0.5", **plain(1, 3, port))
    assert "missing: 0, 2." in said
    assert f"MASTER_PORT={port}" in said


def test_ranks_that_could_not_find_each_other_are_told_at_once(tmp_path: Path) -> None:
    assert "set HVL_JOB_ID" in refused(tmp_path, RANK="0", WORLD_SIZE="2")
    several_hosts = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert "1 of 2 ranks are on this host" in refused(tmp_path, **plain(0, 2, 1), **several_hosts)

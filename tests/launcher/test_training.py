"""Ranks that reduce tensors with horovodlite under hvlrun, and what happens when one of them dies.

HVL_TEST_ROUNDS  how often the deaths are repeated, each time on another data path (50 before a
                 release)
HVL_TEST_STRICT  1 = also hold the promised times, which a busy machine may miss
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, ROOT, Launcher, Running, wait_until

HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
HAS_TORCH = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.skipif(
    not (HAS_PACKAGE and HAS_TORCH),
    reason="needs torch and the built package (`tests/dev build` makes both)",
)
ROUNDS = int(os.environ.get("HVL_TEST_ROUNDS", "4"))
STRICT = os.environ.get("HVL_TEST_STRICT") == "1"
RAISE_LIMIT_S, END_LIMIT_S = (1.0, 3.0) if STRICT else (10.0, 20.0)
# Every way in which data travels between ranks of one host; tests that start jobs take turns.
DATA_PATHS = [
    {"HVL_CPU_OPERATIONS": plane, "HVL_FUSION_THRESHOLD": threshold}
    for plane in ("local", "tcp")
    for threshold in ("67108864", "0")
]
DEADLINE_S = 120.0  # importing torch takes seconds, on a busy machine many

# Importing torch is most of the time of such a test, so only some do.
PLAIN = "from tests.support import plain as hvd; ones = hvd.ones"
TORCH = "import torch, horovodlite.torch as hvd; ones = torch.ones"

# Allreduces of 64 MiB for ever; when that fails, each rank notes when and why.
REDUCE = """
    import json, os, sys, time
    IMPORT
    hvd.init()
    tensor = ones(16 << 20)
    try:
        for number in range(1_000_000):
            hvd.allreduce(tensor, name="gradient")
            if number == 2:
                open(f"up{hvd.rank()}", "w").close()
            MORE
    except hvd.HorovodInternalError as error:
        with open(f"raised{os.environ['RANK']}", "w") as file:
            json.dump({"at": time.monotonic(), "text": str(error)}, file)
        raise
"""


def start(
    hvlrun: Launcher, ranks: int, *words: str, more: str = "pass", door: str = PLAIN, **options: Any
) -> Running:
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    command = hvlrun.script(REDUCE.replace("IMPORT", door).replace("MORE", more))
    return hvlrun.start("-np", str(ranks), *words, *command, env=env, **options)


def wait_for_training(hvlrun: Launcher, running: Running, ranks: int) -> list[int]:
    """The pids of the ranks, once they reduce."""
    pids = running.ranks(ranks)

    def training() -> bool:
        if running.process.poll() is not None:
            raise AssertionError(running.wait().error_text)
        return len(list(hvlrun.folder.glob("up*"))) == ranks

    wait_until("all ranks reduce", training, DEADLINE_S)
    by_rank = {rank_of(pid): pid for pid in pids}
    return [by_rank[rank] for rank in range(ranks)]


def rank_of(pid: int) -> int:
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"HVL_RANK="):
            return int(entry.partition(b"=")[2])
    raise AssertionError(f"process {pid} is no rank")


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def stop_then_kill(pid: int) -> float:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)  # the others wait for it meanwhile; the length does not matter
    return kill(pid)


def shared_files() -> set[str]:
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir()}


def check_death(
    hvlrun: Launcher, die: Callable[[int], float], ranks: int, seed: int, **options: Any
) -> None:
    """One rank dies in the middle of an allreduce; the others say so, and nothing is left."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    before = shared_files()
    running = start(hvlrun, ranks, **options)
    pids = wait_for_training(hvlrun, running, ranks)
    victim = chance.randrange(ranks)
    time.sleep(chance.uniform(0, 0.1))  # the moment is the point
    death = die(pids[victim])
    ended = running.wait(DEADLINE_S)
    end = time.monotonic()
    hvlrun.expect_nothing_left(0.2)
    assert ended.code == 137, ended.error_text
    assert f"first to fail: rank {victim} of {ranks}" in ended.error_text
    assert "SIGKILL (signal 9), not sent by hvlrun" in ended.error_text
    delays = []
    for rank in range(ranks):
        note = hvlrun.folder / f"raised{rank}"
        assert note.exists() == (rank != victim), ended.error_text
        if rank != victim:
            raised = json.loads(note.read_text())
            assert f"rank {victim}" in raised["text"]
            delays.append(raised["at"] - death)
    print(f"survivors raised after {max(delays):.3f} s, hvlrun ended after {end - death:.3f} s")
    assert max(delays) < RAISE_LIMIT_S
    assert end - death < END_LIMIT_S
    left = {path for path in shared_files() - before if "hvl" in path.lower()}
    assert not left


@pytest.mark.trial("B63")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_rank_that_is_killed_in_an_allreduce_is_named_by_all(
    hvlrun: Launcher, number: int
) -> None:
    path = DATA_PATHS[number % len(DATA_PATHS)]
    door = PLAIN if number else TORCH
    check_death(hvlrun, kill, ranks=2 + number % 2, seed=1000 + number, env=path, door=door)


@pytest.mark.parametrize("number", range(max(1, ROUNDS // 2)))
def test_a_rank_that_is_stopped_and_killed_is_named_by_all(hvlrun: Launcher, number: int) -> None:
    path = DATA_PATHS[-1 - number % len(DATA_PATHS)]
    check_death(hvlrun, stop_then_kill, ranks=2 + number % 2, seed=2000 + number, env=path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting another /dev/shm needs root")
@pytest.mark.parametrize("mount_options", ["size=64m", "size=1m", "ro"])
def test_the_size_of_dev_shm_makes_no_difference(hvlrun: Launcher, mount_options: str) -> None:
    line = f'mount -t tmpfs -o {mount_options} tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "-m", "sh", "-c", line, "sh"]
    probe = subprocess.run([*prefix, "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"cannot mount here: {probe.stderr.decode()}")
    check_death(hvlrun, kill, ranks=2, seed=3000, command_prefix=prefix)


def test_a_rank_that_raises_is_the_cause_and_the_others_follow(hvlrun: Launcher) -> None:
    more = "if number == 5 and hvd.rank() == 1: raise ValueError('bad batch')"
    ended = start(hvlrun, 3, more=more).wait(DEADLINE_S)
    assert ended.code == 1
    assert "first to fail: rank 1 of 3" in ended.error_text
    assert "hvlrun:   | ValueError: bad batch" in ended.error_text
    for rank in (0, 2):
        assert "rank 1" in json.loads((hvlrun.folder / f"raised{rank}").read_text())["text"]
    assert "lost rank 1" in ended.error_text.partition("hvlrun: then ")[2]


def test_a_rank_that_raises_and_is_slow_in_ending_is_the_cause(hvlrun: Launcher) -> None:
    more = """
            if number == 5 and hvd.rank() == 1:
                import atexit
                atexit.register(time.sleep, 3)
                hvd.shutdown()
                raise ValueError('bad batch')
    """
    ended = start(hvlrun, 3, more=more.strip()).wait(DEADLINE_S)
    assert ended.code == 1
    assert "first to fail: rank 1 of 3" in ended.error_text
    assert "hvlrun:   | ValueError: bad batch" in ended.error_text
    assert "ranks 0 and 2: exit code 1, lost rank 1" in ended.error_text


def test_a_script_that_catches_the_error_is_still_a_consequence(hvlrun: Launcher) -> None:
    more = """
            if number == 5 and hvd.rank() == 0: os._exit(7)
            if number == 0:
                sys.excepthook = lambda kind, error, trace: os._exit(3)
    """
    ended = start(hvlrun, 2, more=more.strip()).wait(DEADLINE_S)
    assert ended.code == 7
    assert "first to fail: rank 0 of 2" in ended.error_text
    assert "rank 1: exit code 3, lost rank 0" in ended.error_text


def test_a_kill_of_the_launcher_ends_training(hvlrun: Launcher) -> None:
    running = start(hvlrun, 2)
    wait_for_training(hvlrun, running, 2)
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


def test_sigterm_lets_ranks_finish_their_step_and_save(hvlrun: Launcher) -> None:
    more = """
            if number == 0:
                import signal
                asked = []
                signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
            # All ranks stop after the same step: the one in which all know of the signal.
            if hvd.allreduce(hvd.values(bool(asked)), name="asked", op=hvd.SUM)[0] == 2:
                open(f"saved{hvd.rank()}", "w").write(str(number))
                sys.exit(0)
    """
    running = start(hvlrun, 2, more=more.strip())
    wait_for_training(hvlrun, running, 2)
    running.signal(signal.SIGTERM)
    assert running.wait(DEADLINE_S).code == 143
    steps = [(hvlrun.folder / f"saved{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1]


@pytest.mark.trial("B61", "B62")
def test_a_rank_that_exits_does_not_wait_for_those_who_do_something_else(
    hvlrun: Launcher,
) -> None:
    """Others sleep outside of any operation; the job ends, and says who was first."""
    code = """
        import os, sys, time
        from tests.support import plain as hvd
        hvd.init()
        hvd.allreduce(hvd.ones(1))
        open(f"at{hvd.rank()}", "w").write(str(time.monotonic()))
        if hvd.rank() == 2:
            LEAVE
        time.sleep(120)
    """
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for leave, status, said, path in (
        ("sys.exit(3)", 3, "exit code 3", DATA_PATHS[0]),
        ("raise ValueError('bad batch')", 1, "hvlrun:   | ValueError: bad batch", DATA_PATHS[-1]),
    ):
        command = hvlrun.script(code.replace("LEAVE", leave))
        ended = hvlrun("-np", "4", *command, env={**env, **path}, deadline_s=DEADLINE_S)
        seconds = time.monotonic() - float((hvlrun.folder / "at2").read_text())
        assert ended.code == status, ended.error_text
        assert "first to fail: rank 2 of 4" in ended.error_text
        assert said in ended.error_text
        assert seconds < END_LIMIT_S


@pytest.mark.trial("B56")
@pytest.mark.parametrize("path", [DATA_PATHS[0], DATA_PATHS[-1]], ids=["local", "tcp"])
def test_a_rank_that_runs_out_of_data_is_named_and_the_job_fails(
    hvlrun: Launcher, path: dict[str, str]
) -> None:
    """Uneven numbers of steps, and nobody caught the error."""
    code = """
        from tests.support import plain as hvd
        hvd.init()
        for _ in range(5 + hvd.rank()):
            hvd.allreduce(hvd.ones(1), name="step")
    """
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **path}
    ended = hvlrun("-np", "2", *hvlrun.script(code), env=env, deadline_s=DEADLINE_S)
    assert ended.code == 1, ended.error_text
    assert "rank 0 has left" in ended.error_text
    assert "it lost rank 0, which had ended with exit code 0" in ended.error_text


@pytest.mark.trial("B82")
@pytest.mark.parametrize("plane", ["local", "tcp"])
@pytest.mark.parametrize("host", ["x-nope", "123"])
def test_ranks_meet_without_a_network_or_a_host_name_that_resolves(
    hvlrun: Launcher, host: str, plane: str
) -> None:
    """Only the loopback is up, without IPv6."""
    set_up = (
        "{ ip link set lo up; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; } 2>/dev/null; "
        f'hostname {host} && exec "$@"'
    )
    prefix = ["unshare", "-r", "-u", "-n", "sh", "-c", set_up, "sh"]
    probe = subprocess.run([*prefix, "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"no user namespaces here: {probe.stderr.decode()}")
    code = """
        from tests.support import plain as hvd
        hvd.init()
        print(hvd.allreduce(hvd.values(hvd.rank()), op=hvd.SUM).tolist())
    """
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HVL_CPU_OPERATIONS": plane}
    command = hvlrun.script(code)
    ended = hvlrun("-np", "2", *command, env=env, command_prefix=prefix, deadline_s=DEADLINE_S)
    assert (ended.code, ended.error_text) == (0, "")
    assert sorted(ended.lines) == ["[0]<stdout>:[1.0]", "[1]<stdout>:[1.0]"]


@pytest.mark.parametrize("name", ["HOROVOD_THREAD_AFFINITY", "HVL_THREAD_AFFINITY"])
def test_the_runtimes_own_threads_keep_to_the_processor_that_they_are_given(
    hvlrun: Launcher, name: str
) -> None:
    code = """
        import os
        from pathlib import Path
        from tests.support import plain as hvd
        hvd.init()
        hvd.allreduce(hvd.ones(1))
        where = {}
        for task in Path("/proc/self/task").iterdir():
            where[(task / "comm").read_text().strip()] = os.sched_getaffinity(int(task.name))
        print(where["hvl-coord"], where["hvl-exec"], where["python"] == os.sched_getaffinity(0))
    """
    allowed = sorted(os.sched_getaffinity(0))
    first, last = allowed[0], allowed[-1]
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", name: f"{last},{first}"}
    ended = hvlrun("-np", "2", *hvlrun.script(code), env=env, deadline_s=DEADLINE_S)
    assert (ended.code, ended.error_text) == (0, "")
    assert sorted(ended.lines) == [
        f"[0]<stdout>:{{{last}}} {{{last}}} True",
        f"[1]<stdout>:{{{first}}} {{{first}}} True",
    ]


@pytest.mark.trial("B96")
def test_a_processor_that_does_not_exist_is_a_warning(hvlrun: Launcher) -> None:
    code = "from tests.support import plain as hvd; hvd.init(); print(hvd.size())"
    env = {"PYTHONPATH": str(ROOT)}
    for affinity, said in (
        ("99999,99999", "processor 99999 of HVL_THREAD_AFFINITY cannot be used"),
        ("0", "HVL_THREAD_AFFINITY='0' has no effect: expected 2 processors"),
    ):
        words = ["-np", "2", "--thread-affinity", affinity]
        ended = hvlrun(*words, *hvlrun.script(code), env=env, deadline_s=DEADLINE_S)
        assert ended.code == 0
        assert said in ended.error_text


@pytest.mark.trial("B83")
def test_4_jobs_at_once_get_their_own_sums(hvlrun: Launcher) -> None:
    code = """
        import os
        from tests.support import plain as hvd
        hvd.init()
        for _ in range(100):
            mine = hvd.values(float(os.environ["JOB"]), hvd.rank())
            total = hvd.allreduce(mine, op=hvd.SUM)
        assert total.tolist() == [2 * float(os.environ["JOB"]), 1.0], total
        print("right")
    """
    command = hvlrun.script(code)
    jobs = [
        hvlrun.start(
            "-np", "2", *command, env={"PYTHONPATH": str(ROOT), "JOB": str(10 + job), **path}
        )
        for job, path in enumerate(DATA_PATHS)
    ]
    for running in jobs:
        ended = running.wait(DEADLINE_S)
        assert ended.code == 0, ended.error_text
        assert ended.out.count(b"right") == 2


def test_a_script_without_the_launcher_is_a_world_of_one(hvlrun: Launcher) -> None:
    code = "import horovodlite.torch as hvd; hvd.init(); print(hvd.rank(), hvd.size())"
    env = hvlrun.env({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env=env, timeout=DEADLINE_S
    )
    assert done.stdout == b"0 1\n"


def test_an_unchanged_script_for_horovod_trains_in_drop_in_mode(hvlrun: Launcher) -> None:
    # As installed: hvlrun inside the package, with the drop-in folder beside it.
    package = hvlrun.folder / "site-packages" / "horovodlite"
    package.mkdir(parents=True)
    for path in (ROOT / "horovodlite").iterdir():
        if path.name != "bin":
            (package / path.name).symlink_to(path)
    (package / "bin").mkdir()
    shutil.copy(HVLRUN, package / "bin" / "hvlrun")
    script = hvlrun.script("""
        import torch
        import horovod.torch as hvd
        hvd.init()
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        model(torch.full((4, 2), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        weights = hvd.allgather(model.weight.detach())
        assert torch.equal(weights[0], weights[1]), weights
        print(hvd.__name__, hvd.size())
    """)
    done = subprocess.run(
        [str(package / "bin" / "hvlrun"), "--drop-in", "-np", "2", *script],
        check=False,
        capture_output=True,
        env=hvlrun.env({"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}),
        cwd=hvlrun.folder,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = sorted(done.stdout.decode().splitlines())
    assert [line.rpartition(" ")[2] for line in lines] == ["2", "2"], lines

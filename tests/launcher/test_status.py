"""What the summary of a failed or stopped job tells of its ranks' runtimes."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, ROOT, Launcher, Running, wait_until
from test_hosts import Hosts

HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
pytestmark = pytest.mark.skipif(
    not HAS_PACKAGE, reason="needs the built package (`tests/dev build` makes it)"
)

# The runtime without torch, which takes seconds to import.
PRELUDE = """
    import atexit, os, resource, signal, sys, time
    from horovodlite import HorovodInternalError, _core
    session = _core.Session.create()
    atexit.register(session.shutdown)
    rank = session.rank
    memory = session.allocate(4 << 20)

    def tensor(elements=1 << 20, output=True):
        address = memory.address
        return [(address, address if output else 0, _core.DTYPES["float32"], (elements,), 0)]

    def allreduce(name):
        session.run(_core.ALLREDUCE, name, tensor(), reduce_op=_core.SUM)

    def tell(what):
        open(f"{what}{rank}", "w").close()

"""


@pytest.fixture
def hosts(hvlrun: Launcher, tmp_path: Path) -> Hosts:
    return Hosts(hvlrun, tmp_path)


def script(hvlrun: Launcher, text: str) -> list[str]:
    lines = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    return hvlrun.script(PRELUDE + lines)


def start(hvlrun: Launcher, ranks: int, *words: str, text: str, **options: Any) -> Running:
    env = {"PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return hvlrun.start("-np", str(ranks), *words, *script(hvlrun, text), env=env, **options)


def told(hvlrun: Launcher, running: Running, what: str, ranks: int) -> None:
    def all_told() -> bool:
        if running.process.poll() is not None:
            raise AssertionError(running.wait().error_text)
        return len(list(hvlrun.folder.glob(f"{what}[0-9]*"))) == ranks

    wait_until(f"{ranks} ranks tell '{what}'", all_told, 60)


def rank_pid(hvlrun: Launcher, rank: int) -> int:
    for pid, line in hvlrun.left().items():
        if "rank.py" not in line:
            continue
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"HVL_RANK={rank}".encode() in entries:
            return pid
    raise AssertionError(f"rank {rank} does not run: {hvlrun.left()}")


REDUCE_FOR_EVER = """
for number in range(1_000_000_000):
    allreduce("gradient.7")
    if number == 20:
        tell("up")
"""


def check_killed_in_a_loop(error_text: str, rank: int, ranks: int) -> None:
    assert f"first to fail: rank {rank} of {ranks}" in error_text
    assert re.search(
        r"last op: (allreduce|none).*'gradient\.7'.* heartbeat \d+\.\d s before", error_text
    ), error_text


def test_the_operation_that_a_killed_rank_was_in_is_named(hvlrun: Launcher) -> None:
    running = start(hvlrun, 3, text=REDUCE_FOR_EVER)
    told(hvlrun, running, "up", 3)
    os.kill(rank_pid(hvlrun, 1), signal.SIGKILL)
    ended = running.wait()
    assert ended.code == 137
    check_killed_in_a_loop(ended.error_text, 1, 3)


def test_a_frozen_plan_is_told_by_step_and_bucket(hvlrun: Launcher) -> None:
    running = start(hvlrun, 2, text=REDUCE_FOR_EVER, env={"HVL_FREEZE_AFTER": "2"})
    told(hvlrun, running, "up", 2)
    os.kill(rank_pid(hvlrun, 1), signal.SIGKILL)
    ended = running.wait()
    check_killed_in_a_loop(ended.error_text, 1, 2)
    assert re.search(r"plan \d+, step \d+, bucket 1 of 1", ended.error_text), ended.error_text


@pytest.mark.parametrize("where", ["n1:2,n2:2"])
def test_a_rank_that_is_killed_on_another_host_is_told_as_well(
    hosts: Hosts, hvlrun: Launcher, where: str
) -> None:
    command = script(hvlrun, REDUCE_FOR_EVER)
    running = hosts.start(4, where, *command, env={"PYTHONPATH": str(ROOT)})
    told(hvlrun, running, "up", 4)
    os.kill(rank_pid(hvlrun, 2), signal.SIGKILL)
    ended = running.wait()
    check_killed_in_a_loop(ended.error_text, 2, 4)
    assert re.search(r"then rank.*, lost rank 2", ended.error_text), ended.error_text


def test_an_operation_that_one_rank_never_submitted_is_named(hvlrun: Launcher) -> None:
    text = """
allreduce("both")
if rank == 0:
    tell("up")
    allreduce("mine")
time.sleep(1000)
"""
    running = start(hvlrun, 2, text=text)
    told(hvlrun, running, "up", 1)
    time.sleep(0.3)  # so that it waits; how long does not matter
    os.kill(rank_pid(hvlrun, 0), signal.SIGKILL)
    ended = running.wait()
    assert "first to fail: rank 0 of 2" in ended.error_text
    assert re.search(
        r"last op: allreduce 'both' \(batch 1, 4\.0 MiB\), done; allreduce 'mine' submitted, not "
        r"started; heartbeat \d+\.\d s before",
        ended.error_text,
    ), ended.error_text


def test_an_error_of_one_rank_is_the_cause_although_it_is_the_last_to_end(
    hvlrun: Launcher,
) -> None:
    """Rank 1 has no memory for a result. It ends long after rank 0, which tells nothing."""
    text = """
allreduce("first")
if rank == 1:
    pages = int(open("/proc/self/statm").read().split()[0]) + (16 << 20) // 4096
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096, pages * 4096))
try:
    for number in range(32):
        session.run(_core.ALLGATHER, f"all.{number}", tensor(output=False), keep=memory)
        kept = globals().setdefault("kept", [])
        kept.append(session.run(_core.ALLGATHER, f"kept.{number}", tensor(output=False)))
except HorovodInternalError:
    time.sleep(1.5 * rank)
    os._exit(5 + rank)
"""
    ended = start(hvlrun, 2, text=text).wait()
    assert ended.code == 6, ended.error_text
    assert "first to fail: rank 1 of 2" in ended.error_text
    assert "its runtime failed: ResourceExhausted: allgather" in ended.error_text
    assert "then rank 0: exit code 5, lost rank 1" in ended.error_text


def test_an_exception_of_the_script_is_told_with_the_last_operation(hvlrun: Launcher) -> None:
    text = """
allreduce("loss")
if rank == 1:
    raise ValueError("no such file")
allreduce("more")
"""
    ended = start(hvlrun, 2, text=text).wait()
    assert ended.code == 1
    assert "first to fail: rank 1 of 2" in ended.error_text
    assert "ValueError: no such file" in ended.error_text
    assert "last op: allreduce 'loss' (batch 1, 4.0 MiB), done" in ended.error_text
    assert "its runtime failed" not in ended.error_text


def test_the_error_of_another_rank_that_a_script_prints_misleads_nobody(hvlrun: Launcher) -> None:
    text = """
allreduce("first")
if rank == 1:
    print("HorovodInternalError: rank 0 was killed by signal 9", file=sys.stderr)
    os._exit(4)
try:
    allreduce("second")
except HorovodInternalError:
    print("HorovodInternalError: rank 1 has gone", file=sys.stderr)
    os._exit(3)
"""
    ended = start(hvlrun, 2, text=text).wait()
    assert "first to fail: rank 1 of 2" in ended.error_text
    assert ended.code == 4


def test_a_consequence_is_known_without_words(hvlrun: Launcher) -> None:
    """Rank 0 says nothing at all and is gone first; rank 1 takes its time to crash."""
    text = """
allreduce("first")
if rank == 1:
    session.shutdown()
    time.sleep(0.7)
    os._exit(9)
try:
    allreduce("second")
except HorovodInternalError:
    os._exit(3)
"""
    ended = start(hvlrun, 2, "--output", "none", text=text, env={"HVL_LOG_LEVEL": "fatal"}).wait()
    assert "first to fail: rank 1 of 2" in ended.error_text, ended.error_text
    assert ended.code == 9
    assert "then rank 0: exit code 3, lost rank 1" in ended.error_text


def test_a_stalled_job_tells_what_each_rank_was_doing(hvlrun: Launcher) -> None:
    text = """
allreduce("both")
tell("up")
if rank != 1:
    allreduce("not of rank 1")
time.sleep(1000)
"""
    running = start(hvlrun, 3, "--timeout", "8", text=text)
    ended = running.wait()
    assert ended.code == 124
    assert "the time of --timeout was over" in ended.error_text
    assert len(list(hvlrun.folder.glob("up*"))) == 3, "the machine is too slow for this test"
    assert "what the ranks were doing then:" in ended.error_text
    assert re.search(
        r"  ranks 0 and 2: allreduce 'not of rank 1' submitted, not started, for \d+\.\d s\n",
        ended.error_text,
    ), ended.error_text
    assert re.search(r"  rank 1: no operation in flight, for \d+\.\d s", ended.error_text)


def test_a_stalled_job_on_several_hosts_tells_it_too(hosts: Hosts, hvlrun: Launcher) -> None:
    text = """
allreduce("both")
tell("up")
if rank != 1:
    allreduce("not of rank 1")
time.sleep(1000)
"""
    words = script(hvlrun, text)
    ended = hosts(3, "n1:1,n2:2", "--timeout", "10", *words, env={"PYTHONPATH": str(ROOT)})
    assert ended.code == 124
    assert len(list(hvlrun.folder.glob("up*"))) == 3, "the machine is too slow for this test"
    assert "ranks 0 and 2: allreduce 'not of rank 1' submitted, not started" in ended.error_text
    assert "rank 1: no operation in flight" in ended.error_text


def test_a_job_that_is_interrupted_while_it_works_says_nothing_more(hvlrun: Launcher) -> None:
    running = start(hvlrun, 2, "--grace", "2", text=REDUCE_FOR_EVER)
    told(hvlrun, running, "up", 2)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert "what the ranks were doing" not in ended.error_text


def scribble(fill: str) -> str:
    return f"""
import mmap
fd = int(os.environ["HVL_STATUS_FD"])
page = mmap.mmap(fd, 4096)
page[:] = {fill}
try:
    os.ftruncate(fd, 0)
except OSError:
    os.kill(os.getpid(), 9)
os._exit(1)
"""


@pytest.mark.parametrize(
    "fill",
    [
        "b'\\xff' * 4096",
        "b'\\x02\\0\\0\\0\\0\\0\\0\\0' * 512",
        "b'\\x1b[2J' * 1024",
        "os.urandom(4096)",
    ],
)
def test_a_page_full_of_rubbish_does_no_harm(hvlrun: Launcher, fill: str) -> None:
    command = hvlrun.script("import os\n" + scribble(fill))
    ended = hvlrun("-np", "1", *command)
    assert ended.code == 137, ended.error_text
    assert "first to fail: rank 0 of 1" in ended.error_text
    assert "\x1b" not in ended.error_text


def test_the_page_of_a_rank_is_its_own(hvlrun: Launcher) -> None:
    """No rank has another one's page, nor does a program that a rank starts after init()."""
    text = """
import subprocess
def pages(folder):
    links = [os.path.join(folder, name) for name in os.listdir(folder)]
    return sum("hvl-status" in os.readlink(link) for link in links if os.path.islink(link))
assert pages("/proc/self/fd") == 1, pages("/proc/self/fd")
child = subprocess.Popen(["sleep", "100"], close_fds=False)
assert pages(f"/proc/{child.pid}/fd") == 0
child.kill()
child.wait()
"""
    ended = start(hvlrun, 3, text=text).wait()
    assert ended.code == 0, ended.error_text


def test_a_job_within_a_job_has_pages_of_its_own(hvlrun: Launcher) -> None:
    inner = script(hvlrun, "allreduce('inner')\nif rank == 1: os._exit(7)\ntime.sleep(1000)")
    words = ["-np", "1", "sh", "-c", f"{HVLRUN} -np 2 {' '.join(inner)}"]
    ended = hvlrun(*words, env={"PYTHONPATH": str(ROOT)})
    assert ended.code == 7
    summaries = [line for line in ended.error_text.splitlines() if "last op: " in line]
    assert summaries[0].startswith("[0]<stderr>:hvlrun:   last op: allreduce 'inner' (batch 1, ")
    assert not [line for line in summaries if line.startswith("hvlrun:   last op: ")]


def test_a_restart_begins_with_new_pages(hvlrun: Launcher) -> None:
    text = """
allreduce("attempt." + os.environ["HVL_RUN_RESTART_COUNT"])
time.sleep(0.2 * rank)
os._exit(3)
"""
    ended = start(hvlrun, 2, "--max-restarts", "1", text=text).wait()
    assert ended.code == 3
    assert "last op: allreduce 'attempt.0'" in ended.error_text
    assert "last op: allreduce 'attempt.1'" in ended.error_text


def test_the_runtime_does_without_a_page(hvlrun: Launcher) -> None:
    text = "allreduce('a')\n"
    command = script(hvlrun, text)
    ended = hvlrun("-np", "2", "env", "HVL_STATUS_FD=9999", *command, env={"PYTHONPATH": str(ROOT)})
    assert ended.code == 0, ended.error_text

"""Jobs over ssh: each host is a network namespace with an sshd of its own.

A file system and a process table are shared, which real hosts do not; networks are not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HVLRUN, ROOT, Launcher, wait_until
from ssh_jobs import NO_SSH, Jobs, SshNetwork

HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
HAS_TORCH = importlib.util.find_spec("torch") is not None
computes = pytest.mark.skipif(
    not (HAS_PACKAGE and HAS_TORCH),
    reason="needs torch and the built package (`tests/dev build` makes both)",
)
pytestmark = pytest.mark.skipif(bool(NO_SSH), reason=NO_SSH)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshNetwork]:
    with SshNetwork(tmp_path_factory.mktemp("cluster"), 2) as made:
        yield made


@pytest.fixture
def jobs(hvlrun: Launcher, cluster: SshNetwork) -> Iterator[Jobs]:
    """Jobs that have left nothing on any host when the test ends."""
    yield Jobs(hvlrun, cluster)
    cluster.expect_empty()


READY = """
    import time
    print("ready", flush=True)
    time.sleep(600)
"""


def test_words_and_variables_arrive_byte_for_byte(jobs: Jobs, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, sys
        print(*(os.fsencode(word).hex() for word in sys.argv[1:]), os.environb[b"ODD"].hex(),
              os.environ["SSH_CONNECTION"].split()[2])
    """)
    words = ["a b", "'\"$HOME`ls`\\", "new\nline", os.fsdecode(b"\xff\xfe"), "", "*"]
    odd = bytes(range(1, 256))
    ended = jobs(4, *script, *words, env={"ODD": os.fsdecode(odd)})
    assert (ended.code, ended.error_text) == (0, "")
    hexed = " ".join(os.fsencode(word).hex() for word in words)
    expected = [
        f"[{rank}]<stdout>:{hexed} {odd.hex()} {jobs.cluster.hosts[rank // 2]}" for rank in range(4)
    ]
    assert sorted(ended.lines) == expected


def test_one_log_in_per_host_and_no_secret_in_sight(jobs: Jobs, hvlrun: Launcher) -> None:
    running = jobs.start(4, "-v", *hvlrun.script(READY), "argument", env={"TOKEN": "verysecret"})
    running.read_lines(4)
    rank = next(pid for pid, line in jobs.cluster.processes(1).items() if "rank.py" in line)
    entries = Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    descriptor = next(e.split(b"=")[1] for e in entries if e.startswith(b"HVL_SECRET_FD="))
    secret = Path(f"/proc/{rank}/fd/{descriptor.decode()}").read_bytes()
    assert len(secret) == 32
    clients = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            assert secret not in line
            assert secret.hex().encode() not in line
            assert secret not in (folder / "environ").read_bytes()
            if line.startswith(b"/usr/bin/ssh\0"):
                clients.append(line)
                assert b"verysecret" not in line
                assert b"argument" not in line
                assert line.endswith(f"\0exec {HVLRUN} --agent\0".encode())
    assert len(clients) == 2
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert secret.hex() not in ended.error_text


@pytest.mark.parametrize("victim", ["ssh", "sshd", "rank", "agent"])
def test_a_death_on_the_way_ends_the_job_everywhere(
    jobs: Jobs, hvlrun: Launcher, victim: str
) -> None:
    running = jobs.start(4, *hvlrun.script(READY))
    running.read_lines(4)
    patterns = {
        "ssh": (0, r"/usr/bin/ssh .*10\.77\.0\.3"),
        "rank": (2, r"rank\.py"),
        "agent": (2, r"hvl-agent"),
    }
    if victim == "sshd":  # of the session; the server itself lives on
        agent = next(p for p, line in jobs.cluster.processes(2).items() if "hvlrun" in line)
        stat = Path(f"/proc/{agent}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    else:
        host, pattern = patterns[victim]
        found = jobs.cluster.processes(host).items()
        pid = next(p for p, line in found if re.search(pattern, line))
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    ended = running.wait()
    assert time.monotonic() - started < 6
    assert ended.code == (137 if victim == "rank" else 125)
    assert " on 10.77.0.3)" in ended.error_text
    if victim == "ssh":
        assert "ssh ended with SIGKILL (signal 9)" in ended.error_text


def test_nothing_is_left_on_any_host_when_hvlrun_is_killed(jobs: Jobs, hvlrun: Launcher) -> None:
    running = jobs.start(4, *hvlrun.script(READY))
    running.read_lines(4)
    head = [p for p, line in jobs.cluster.processes(0).items() if "ssh" not in line]
    for pid in head:
        os.kill(pid, signal.SIGKILL)
    running.wait()
    jobs.cluster.expect_empty()


def test_a_link_that_breaks_is_noticed_on_both_sides(jobs: Jobs, hvlrun: Launcher) -> None:
    running = jobs.start(4, *hvlrun.script(READY))
    running.read_lines(4)
    try:
        jobs.cluster.cut(2)
        started = time.monotonic()
        wait_until("the host has ended its ranks", lambda: not jobs.cluster.processes(2))
        alone = time.monotonic() - started
        ended = running.wait()
        seconds = time.monotonic() - started
    finally:
        jobs.cluster.heal(2)
    assert alone < 4
    assert seconds < 7
    assert ended.code == 125
    assert "lost with its host 10.77.0.3: nothing was heard of it for 2.5 s" in ended.error_text


def test_a_host_that_stands_still_is_noticed(jobs: Jobs, hvlrun: Launcher) -> None:
    running = jobs.start(4, *hvlrun.script(READY))
    running.read_lines(4)
    frozen = jobs.cluster.pids(2)
    started = time.monotonic()
    jobs.cluster.signal(frozen, signal.SIGSTOP)
    try:
        ended = running.wait()
        assert time.monotonic() - started < 7
    finally:
        jobs.cluster.signal(frozen, signal.SIGCONT)
    assert ended.code == 125
    assert "nothing was heard of it for 2.5 s" in ended.error_text


def test_what_ssh_says_of_a_host_that_it_cannot_reach_is_told(jobs: Jobs, hvlrun: Launcher) -> None:
    ended = hvlrun(
        *["-np", "2", "-H", "10.77.0.2:1,10.77.0.99:1", "--ssh-accept-new", "true"],
        command_prefix=jobs.cluster.inside(0),
        env={"PATH": f"{jobs.cluster.folder}/bin:{os.environ['PATH']}"},
    )
    assert ended.code == 125
    assert "host 10.77.0.99: the connection to it was closed; ssh ended with exit code 255" in (
        ended.error_text
    )
    assert "connect to host 10.77.0.99 port 22" in ended.error_text


def test_an_unknown_host_key_is_not_accepted_by_itself(jobs: Jobs, hvlrun: Launcher) -> None:
    (jobs.cluster.folder / "known").unlink(missing_ok=True)
    ended = hvlrun(
        *["-np", "1", "-H", "10.77.0.2:1", "true"],
        command_prefix=jobs.cluster.inside(0),
        env={"PATH": f"{jobs.cluster.folder}/bin:{os.environ['PATH']}"},
    )
    assert ended.code == 125
    assert "Host key verification failed." in ended.error_text


def python_path() -> dict[str, str]:
    """The environment in which scripts import this tree's package."""
    return {"PYTHONPATH": str(ROOT)}


@computes
def test_ranks_of_all_hosts_compute_together(jobs: Jobs, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        from tests.support import plain as hvd
        hvd.init()
        sums = hvd.allreduce(hvd.values(*(n + hvd.rank() for n in range(1000))), op=hvd.SUM)
        assert sums == hvd.values(*(4 * n + 6 for n in range(1000)))
        places = hvd.values(*[0] * 8)
        places[2 * hvd.rank()] = hvd.local_rank()
        places[2 * hvd.rank() + 1] = hvd.cross_rank()
        print([int(x) for x in hvd.allreduce(places, op=hvd.SUM)])
        hvd.shutdown()
    """)
    ended = jobs(4, *script, env=python_path())
    assert ended.code == 0, ended.error_text
    places = [0, 0, 1, 0, 0, 1, 1, 1]
    assert sorted(ended.lines) == [f"[{rank}]<stdout>:{places}" for rank in range(4)]


@computes
def test_a_link_that_breaks_ends_a_training_with_the_named_error(
    jobs: Jobs, hvlrun: Launcher
) -> None:
    script = hvlrun.script("""
        import time
        from tests.support import plain as hvd
        hvd.init()
        hvd.allreduce(hvd.ones(10))
        print("ready", flush=True)
        while True:
            hvd.allreduce(hvd.ones(10))
            time.sleep(0.01)
    """)
    running = jobs.start(4, *script, env=python_path())
    running.read_lines(4)
    try:
        jobs.cluster.cut(2)
        started = time.monotonic()
        ended = running.wait()
        seconds = time.monotonic() - started
    finally:
        jobs.cluster.heal(2)
    assert seconds < 10
    assert ended.code == 125
    assert "lost with its host 10.77.0.3" in ended.error_text
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\]<stderr>:.*HorovodInternalError", ended.error_text)

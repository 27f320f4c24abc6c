"""The control group of a job: everything in it ends with the job, and it is not left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Launcher, wait_until
from test_hosts import Hosts


def own_group() -> Path | None:
    """The folder of this process's group, where processes can be put into groups below it."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2"]
    paths = [
        line[3:]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::/")
    ]
    if not roots or not paths:
        return None
    folder = Path(roots[0] + paths[0].rstrip("/"))
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.mkdir()
        usable = os.access(probe / "cgroup.kill", os.W_OK)
        probe.rmdir()
    except OSError:
        return None
    return folder if usable else None


GROUP = own_group()
needs_groups = pytest.mark.skipif(
    GROUP is None, reason="this user cannot make control groups (of the second generation) here"
)

# Nothing of the job is to be seen of it: not its parent, session, environment, name or files.
DAEMON = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 100)
            os.execve("/bin/sleep", ["sleep", "54321.MARK"], {})
        os._exit(0)
    os.wait()
    open("up" + os.environ["RANK"], "w").close()
    WHAT
"""


@pytest.fixture
def hosts(hvlrun: Launcher, tmp_path: Path) -> Hosts:
    return Hosts(hvlrun, tmp_path)


def command_line(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:  # it has just gone
        return b""


def daemons(number: str) -> list[int]:
    wanted = f"sleep\0{number}\0".encode()
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [int(folder.name) for folder in folders if command_line(folder) == wanted]


class Daemons:
    """Jobs whose ranks each leave a daemon, told from others by the time that it sleeps."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.number = f"54321.{os.getpid()}{time.monotonic_ns()}"

    def command(self, then: str) -> list[str]:
        text = DAEMON.replace("54321.MARK", self.number).replace("WHAT", then)
        return self.launcher.script(text)

    def await_up(self, ranks: int) -> None:
        folder = self.launcher.folder
        wait_until("all ranks are up", lambda: len(list(folder.glob("up*"))) == ranks)
        wait_until("the daemons run", lambda: len(self.alive()) == ranks)

    def alive(self) -> list[int]:
        return daemons(self.number)

    def expect_gone(self) -> None:
        wait_until("the daemons are gone", lambda: not self.alive(), 3)


@pytest.fixture
def daemon(hvlrun: Launcher) -> Daemons:
    return Daemons(hvlrun)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def groups() -> set[str]:
    assert GROUP is not None
    return {path.name for path in GROUP.glob("hvl-*")}


def groups_of(pid: int) -> set[str]:
    """Groups that this supervisor has made."""
    return {name for name in groups() if name.split("-")[2] == str(pid)}


@needs_groups
def test_ranks_run_in_a_group_of_their_job_and_hvlrun_does_not(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "1000")
    pids = running.ranks(2)
    (name,) = wait_until("there is a group", lambda: groups_of(running.supervisor()))
    for pid in pids:
        assert f"/{name}\n" in Path(f"/proc/{pid}/cgroup").read_text()
    for pid in (running.pid, running.supervisor()):
        assert Path(f"/proc/{pid}/cgroup").read_text() == Path("/proc/self/cgroup").read_text()
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    assert name not in groups()


@needs_groups
@pytest.mark.parametrize(
    ("then", "code"), [("pass", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)]
)
def test_a_daemon_without_traces_dies_with_its_job(
    hvlrun: Launcher, daemon: Daemons, then: str, code: int
) -> None:
    running = hvlrun.start("-np", "2", *daemon.command(then))
    supervisor = running.supervisor()
    assert running.wait().code == code
    assert not daemon.alive()
    assert not groups_of(supervisor)


@needs_groups
def test_a_daemon_and_the_group_go_when_the_front_process_is_killed(
    hvlrun: Launcher, daemon: Daemons
) -> None:
    running = hvlrun.start("-np", "2", *daemon.command("time.sleep(1000)"))
    daemon.await_up(2)
    supervisor = running.supervisor()
    assert groups_of(supervisor)
    running.process.kill()
    daemon.expect_gone()
    wait_until("the group is gone", lambda: not groups_of(supervisor), 5)
    running.wait()


@needs_groups
def test_a_daemon_and_the_group_go_when_the_supervisor_is_killed(
    hvlrun: Launcher, daemon: Daemons
) -> None:
    running = hvlrun.start("-np", "2", *daemon.command("time.sleep(1000)"))
    daemon.await_up(2)
    supervisor = running.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    assert running.wait(20).code == 125
    assert not daemon.alive()
    assert not groups_of(supervisor)


@needs_groups
@pytest.mark.parametrize("killed", ["hvlrun", "hvl-agent"])
def test_agents_have_groups_of_their_own_and_leave_none(
    hosts: Hosts, daemon: Daemons, killed: str
) -> None:
    before = groups()
    running = hosts.start(4, "n1:2,n2:2", *daemon.command("time.sleep(1000)"))
    daemon.await_up(4)
    assert len(groups() - before) >= 2
    victim = running.pid if killed == "hvlrun" else hosts.processes("^hvl-agent")[0]
    os.kill(victim, signal.SIGKILL)
    running.wait(30)
    daemon.expect_gone()
    own = [name for name in groups() - before if hvlrun_of(name) is None]
    wait_until("no group is left", lambda: not (groups() & set(own)), 5)


def hvlrun_of(name: str) -> int | None:
    """The supervisor of a group, while it lives."""
    pid = int(name.split("-")[2])
    return pid if lives(pid) else None


@needs_groups
def test_jobs_at_the_same_time_do_not_end_each_other(hvlrun: Launcher, daemon: Daemons) -> None:
    first = hvlrun.start("-np", "1", *daemon.command("time.sleep(1000)"))
    daemon.await_up(1)
    for _ in range(3):
        assert hvlrun("-np", "2", "true").code == 0
    assert len(daemon.alive()) == 1
    os.kill(hvlrun.start("-np", "1", "sleep", "1000").supervisor(), signal.SIGKILL)
    assert hvlrun.running[-1].wait(20).code == 125
    assert len(daemon.alive()) == 1
    assert first.process.poll() is None
    first.signal(signal.SIGINT)
    first.signal(signal.SIGINT)
    assert first.wait().code == 130


@needs_groups
def test_the_next_job_removes_empty_groups_of_jobs_that_were_killed_altogether(
    hvlrun: Launcher,
) -> None:
    running = hvlrun.start("-np", "1", "sleep", "1000")
    (pid,) = running.ranks(1)
    supervisor = running.supervisor()
    (name,) = groups_of(supervisor)
    both = (running.pid, supervisor)
    for number in both:
        os.kill(number, signal.SIGSTOP)
    for number in both:
        os.kill(number, signal.SIGKILL)
    running.wait()
    wait_until("both are gone", lambda: not (lives(pid) or lives(supervisor)))
    assert name in groups()
    other = hvlrun.start("-np", "1", "sleep", "1000")
    other.ranks(1)
    assert name not in groups()
    assert hvlrun("-np", "1", "true").code == 0
    assert groups_of(other.supervisor())
    other.signal(signal.SIGTERM)
    other.wait()


@needs_groups
def test_a_group_that_a_rank_has_made_is_removed_too(hvlrun: Launcher) -> None:
    assert GROUP is not None
    inner = f"""
import os, time
path = open("/proc/self/cgroup").read().split("0::/")[1].splitlines()[0].split("/")[-1]
os.mkdir("{GROUP}/" + path + "/inner")
"""
    running = hvlrun.start("-np", "1", *hvlrun.script(inner))
    supervisor = running.supervisor()
    ended = running.wait()
    assert ended.code == 0, ended.error_text
    assert not groups_of(supervisor)


@needs_groups
def test_who_may_not_make_groups_gets_none_and_only_hears_of_it_when_asked(
    hvlrun: Launcher, tmp_path: Path
) -> None:
    shadow = tmp_path / "empty"
    shadow.mkdir()
    hide = ["unshare", "-m", "sh", "-c", f'mount --bind {shadow} {GROUP} && exec "$0" "$@"']
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mount namespaces")
    ended = hvlrun("-v", "-np", "2", "true", command_prefix=hide)
    assert ended.code == 0
    assert "the job has no control group: control groups in" in ended.error_text
    ended = hvlrun("-np", "2", "true", command_prefix=hide)
    assert ended.code == 0
    assert "control group" not in ended.error_text


def test_without_groups_daemons_die_all_the_same(hvlrun: Launcher, daemon: Daemons) -> None:
    """Where there is no hierarchy to be seen, as for most users."""
    hide = ["unshare", "-m", "sh", "-c", 'umount -l -a -t cgroup2 && exec "$0" "$@"']
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mount namespaces")
    ended = hvlrun("-v", "-np", "2", *daemon.command("sys.exit(3)"), command_prefix=hide)
    assert ended.code == 3
    assert "the job has no control group: " in ended.error_text
    assert not daemon.alive()

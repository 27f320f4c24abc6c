"""No process of a job outlives it, whatever dies."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import HVLRUN, Launcher, marked_processes, wait_until

# What real jobs leave behind: workers in the background, in sessions of their own, orphaned twice.
FAMILY = """
    import os, subprocess, sys, time
    subprocess.Popen(["sh", "-c", "sleep 1000 & exec sleep 1001"])
    subprocess.Popen(["setsid", "sleep", "1002"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            os.execvp("sleep", ["sleep", "1003"])
        os._exit(0)
    os.wait()
    subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1004)"])
    time.sleep(0.2)
    open("up" + os.environ["RANK"], "w").close()
    WHAT
"""
ROUNDS = int(os.environ.get("HVL_TEST_ROUNDS", "5"))
unshare_works = subprocess.run(["unshare", "-r", "-n", "true"], capture_output=True, check=False)
needs_namespaces = pytest.mark.skipif(
    unshare_works.returncode != 0, reason="this machine does not allow user namespaces"
)


def family(hvlrun: Launcher, then: str) -> list[str]:
    return hvlrun.script(FAMILY.replace("WHAT", then))


def wait_for_family(hvlrun: Launcher, count: int) -> None:
    wait_until("all ranks are up", lambda: len(list(hvlrun.folder.glob("up*"))) == count)
    sleepers = [line for line in hvlrun.left().values() if "sleep" in line]
    assert len(sleepers) >= 4 * count, sleepers


def test_grandchildren_go_with_a_job_that_ends_well(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", *family(hvlrun, "pass"))
    assert ended.code == 0
    assert "stopped what the ranks had left running: " in ended.error_text
    assert ended.seconds < 15
    hvlrun.expect_nothing_left(0.2)


def test_grandchildren_go_with_a_job_that_fails(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", *family(hvlrun, "os.kill(os.getpid(), 9)"))
    assert ended.code == 137
    hvlrun.expect_nothing_left(0.2)


def test_grandchildren_go_when_the_job_is_interrupted(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "--grace", "1", *family(hvlrun, "time.sleep(1000)"))
    wait_for_family(hvlrun, 2)
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    hvlrun.expect_nothing_left(0.2)


def test_nothing_survives_a_kill_of_the_launcher(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", *family(hvlrun, "time.sleep(1000)"))
    wait_for_family(hvlrun, 2)
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


def test_nothing_survives_a_kill_of_the_supervisor(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", *family(hvlrun, "time.sleep(1000)"))
    wait_for_family(hvlrun, 2)
    supervisor = running.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    ended = running.wait(20)
    assert ended.code == 125
    assert f"supervisor of this job (pid {supervisor}) was ended by SIGKILL" in ended.error_text
    hvlrun.expect_nothing_left(0.2)


def test_no_rank_survives_a_kill_of_both_at_once(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "1000")
    running.ranks(2)
    both = (running.pid, running.supervisor())
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    hvlrun.expect_nothing_left()
    running.wait()


def test_a_kill_of_the_launcher_by_name_or_group_meets_the_front_process_only(
    hvlrun: Launcher,
) -> None:
    running = hvlrun.start("-np", "1", "sleep", "1000", start_new_session=True)
    running.ranks(1)
    supervisor = running.supervisor()
    assert os.getpgid(supervisor) != os.getpgid(running.pid)
    command_line = Path(f"/proc/{supervisor}/cmdline").read_bytes().rstrip(b"\0")
    assert b"hvlrun" not in command_line
    assert Path(f"/proc/{supervisor}/comm").read_text() == "hvl-supervisor\n"
    os.killpg(running.pid, signal.SIGKILL)
    hvlrun.expect_nothing_left()
    running.wait()


@pytest.mark.parametrize("round_number", range(2 * ROUNDS))
def test_a_kill_at_any_moment_leaves_nothing(hvlrun: Launcher, round_number: int) -> None:
    seed = int(os.environ.get("HVL_TEST_SEED", "0")) or random.randrange(1 << 30)
    print(f"HVL_TEST_SEED={seed}")
    chance = random.Random(seed)
    command = "sleep 1000 & setsid sleep 1001 & sleep 0.05; sleep 1002"
    running = hvlrun.start("-np", str(chance.randint(1, 4)), "sh", "-c", command)
    time.sleep(chance.uniform(0, 0.15))  # the moment is the point
    if round_number % 2 == 0:
        running.process.kill()
    else:
        os.kill(running.supervisor(), signal.SIGKILL)
    running.wait(20)
    hvlrun.expect_nothing_left()


def test_a_stopped_rank_dies_with_the_launcher(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "1000")
    os.kill(running.ranks(2)[0], signal.SIGSTOP)
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


def test_a_suspended_job_dies_with_the_launcher(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "1000")
    running.ranks(2)
    running.signal(signal.SIGTSTP)
    stat = Path(f"/proc/{running.pid}/stat")
    wait_until("it is stopped", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


def test_processes_that_are_born_while_the_job_is_killed_go_too(hvlrun: Launcher) -> None:
    command = "while :; do (sleep 0.02; sleep 1000) & sleep 0.005; done"
    running = hvlrun.start("-np", "2", "sh", "-c", f"trap '' TERM; {command}")
    running.ranks(2)
    time.sleep(0.3)
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


def test_orphans_of_ranks_are_reaped_while_the_job_runs(hvlrun: Launcher) -> None:
    code = """
        import os, time
        for _ in range(50):
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            os.wait()
        time.sleep(0.5)
        parent = os.getppid()
        kids = open(f"/proc/{parent}/task/{parent}/children").read().split()
        print(len(kids))
    """
    assert hvlrun("-np", "1", *hvlrun.script(code)).out == b"[0]<stdout>:1\n"


def test_children_that_were_there_before_are_spared(hvlrun: Launcher) -> None:
    line = f"sleep 300 & echo $!; exec {HVLRUN} -np 1 sleep 1000"
    running = subprocess.Popen(
        ["sh", "-c", line], stdout=subprocess.PIPE, env=hvlrun.env(), start_new_session=True
    )
    assert running.stdout is not None
    stranger = int(running.stdout.readline())
    try:
        found = wait_until(
            "the supervisor runs",
            lambda: [pid for pid, line in hvlrun.left().items() if "hvl-supervisor" in line],
        )
        os.kill(found[0], signal.SIGKILL)
        assert running.wait(20) == 125
        assert list(hvlrun.left()) == [stranger]
    finally:
        os.kill(stranger, signal.SIGKILL)
        running.stdout.close()


@pytest.mark.trial("B83")
def test_4_launchers_at_once_do_not_meet(hvlrun: Launcher) -> None:
    code = """
        import os, socket
        port = int(os.environ["MASTER_PORT"])
        job = os.environ["HVL_JOB_ID"].encode()
        size = int(os.environ["WORLD_SIZE"])
        if os.environ["RANK"] == "0":
            with socket.create_server(("127.0.0.1", port)) as server:
                for _ in range(size - 1):
                    with server.accept()[0] as peer:
                        assert peer.recv(100) == job
        else:
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port)) as peer:
                        peer.sendall(job)
                    break
                except ConnectionRefusedError:
                    continue
        print("done")
    """
    command = hvlrun.script(code)
    for _ in range(5):
        launchers = [hvlrun.start("-np", "2", *command) for _ in range(4)]
        for running in launchers:
            ended = running.wait()
            assert ended.code == 0, ended.error_text
            assert ended.out.count(b"done") == 2


def test_the_launcher_leaves_no_file_behind(hvlrun: Launcher) -> None:
    def files() -> set[str]:
        return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir()}

    before = files()
    assert hvlrun("-np", "2", "true").code == 0
    assert hvlrun("-np", "2", "sh", "-c", "kill -9 $$").code == 137
    new = {path for path in files() - before if "hvl" in path.lower()}
    assert not new


def test_an_idle_job_costs_the_launcher_no_time(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "100")
    running.ranks(2)
    pids = (running.pid, running.supervisor())

    def switches(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    time.sleep(0.5)
    before = [switches(pid) for pid in pids]
    time.sleep(2)
    assert [switches(pid) for pid in pids] == before
    running.signal(signal.SIGTERM)
    running.wait()


def test_more_ranks_than_the_soft_limit_of_descriptors_allows(hvlrun: Launcher) -> None:

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ended = hvlrun(
        "-np",
        "40",
        "sh",
        "-c",
        "ulimit -S -n",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)),
    )
    assert ended.code == 0, ended.error_text
    assert [line.split(":")[1] for line in ended.lines] == ["64"] * 40


def test_too_few_descriptors_are_a_clear_error_and_nothing_stays(hvlrun: Launcher) -> None:
    ended = hvlrun(
        "-np",
        "40",
        "sleep",
        "1000",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)),
    )
    assert ended.code == 125
    assert "ulimit -n" in ended.error_text
    hvlrun.expect_nothing_left(0.2)


def test_more_ranks_than_descriptors_are_refused_before_any_is_started(hvlrun: Launcher) -> None:
    started = hvlrun.folder / "started"
    ended = hvlrun(
        "-np",
        "200",
        "touch",
        str(started),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500)),
    )
    assert ended.code == 125
    assert "200 ranks need 600 open files, and 500 are allowed here; see ulimit -n" in (
        ended.error_text
    )
    assert not started.exists()


# --- unusual places -------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_user_without_rights_leaves_nothing_either(hvlrun: Launcher) -> None:
    hvlrun.folder.chmod(0o777)
    for parent in hvlrun.folder.parents:
        if parent != Path("/") and parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ended = hvlrun("-np", "2", "sh", "-c", "setsid sleep 1000 & id -u", command_prefix=prefix)
    assert ended.code == 0, ended.error_text
    assert sorted(ended.lines) == ["[0]<stdout>:65534", "[1]<stdout>:65534"]
    running = hvlrun.start(
        "-np", "2", "sh", "-c", "setsid sleep 1000 & sleep 1001", command_prefix=prefix
    )
    wait_until("all run", lambda: sum("sleep 100" in line for line in hvlrun.left().values()) >= 4)
    running.process.kill()
    hvlrun.expect_nothing_left()
    running.wait()


@needs_namespaces
def test_as_process_1_of_a_container(hvlrun: Launcher) -> None:
    prefix = ["unshare", "-r", "-p", "-f", "--mount-proc"]
    ended = hvlrun("-np", "2", "sh", "-c", "setsid sleep 1000 & echo $PPID", command_prefix=prefix)
    assert ended.code == 0, ended.error_text
    assert len(set(ended.lines)) == 2
    running = hvlrun.start(
        "-np",
        "2",
        *hvlrun.script("""
        import os, signal, sys
        def save(signo, frame):
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        open("up" + os.environ["RANK"], "w").close()
        while True:
            signal.pause()
    """),
        command_prefix=prefix,
    )
    wait_until("both are up", lambda: len(list(hvlrun.folder.glob("up*"))) == 2)
    front = [
        pid
        for pid, line in hvlrun.left().items()
        if line.startswith(str(HVLRUN)) and "unshare" not in line
    ]
    os.kill(min(front), signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143, ended.error_text
    assert sorted(ended.lines) == ["[0]<stdout>:saved", "[1]<stdout>:saved"]


@needs_namespaces
@pytest.mark.parametrize("host", ["x-nope", "123"])
def test_without_a_network_or_a_host_name_that_resolves(hvlrun: Launcher, host: str) -> None:
    set_up = f'ip link set lo up 2>/dev/null; hostname {host}; exec "$@"'
    prefix = ["unshare", "-r", "-u", "-n", "sh", "-c", set_up, "sh"]
    ended = hvlrun("-np", "2", "hostname", command_prefix=prefix)
    assert ended.code == 0, ended.error_text
    assert sorted(ended.lines) == [f"[0]<stdout>:{host}", f"[1]<stdout>:{host}"]
    assert ended.seconds < 10


@needs_namespaces
def test_without_any_interface_that_is_up(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "true", command_prefix=["unshare", "-r", "-n"])
    assert ended.code == 0, ended.error_text


def test_the_mark_finds_processes(hvlrun: Launcher) -> None:
    """The check that all tests here rest on."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=hvlrun.env()
    )
    wait_until("it is found", lambda: process.pid in marked_processes(hvlrun.mark))
    process.kill()
    process.wait()
    assert not hvlrun.left()


def test_the_work_of_ending_a_job_grows_with_the_ranks_and_no_faster(hvlrun: Launcher) -> None:
    """Counts reading system calls; 45,000 if each rank that ends makes it look at all others."""
    ranks = 150
    last = "trap '' TERM; until test -e go; do sleep 0.05; done"
    command = f"case $RANK in 0) exit 3;; 1) {last};; *) exec sleep 1000;; esac"
    running = hvlrun.start("-np", str(ranks), "--grace", "40", "sh", "-c", command)
    supervisor = running.supervisor()
    left = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    wait_until("all run", lambda: len(left.read_text().split()) >= ranks - 1)
    wait_until("all but one have ended", lambda: len(left.read_text().split()) == 1)
    counters = Path(f"/proc/{supervisor}/io").read_text().splitlines()
    reads = next(int(line.split()[1]) for line in counters if line.startswith("syscr:"))
    (hvlrun.folder / "go").touch()
    assert running.wait().code == 3
    assert reads < 40 * ranks

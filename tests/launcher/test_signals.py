"""Signals on their way through hvlrun."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import HVLRUN, Launcher, Running, wait_until

RECORD = """
    import os, signal, sys, time
    rank = os.environ["RANK"]
    def note(text):
        with open(f"log{rank}", "a") as file:
            file.write(text + "\\n")
    def handler(signo, frame):
        note(signal.Signals(signo).name)
        if signo in (signal.SIGTERM, signal.SIGINT):
            time.sleep(float(os.environ.get("SAVE_S", "0")))
            note("saved")
            sys.exit(0)
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(signo, handler)
    note("up")
    while True:
        time.sleep(0.05)
"""


def log(hvlrun: Launcher, rank: int) -> list[str]:
    path = hvlrun.folder / f"log{rank}"
    return path.read_text().split() if path.exists() else []


def start_recorders(hvlrun: Launcher, *words: str, count: int = 2, **options: object) -> Running:
    running = hvlrun.start("-np", str(count), *words, *hvlrun.script(RECORD), **options)
    for rank in range(count):
        wait_until(f"rank {rank} is up", lambda rank=rank: log(hvlrun, rank))
    return running


@pytest.mark.trial("B65", "B66")
@pytest.mark.parametrize(("signo", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_signal_reaches_each_rank_once_and_they_get_time_to_save(
    hvlrun: Launcher, signo: signal.Signals, code: int
) -> None:
    running = start_recorders(hvlrun, env={"SAVE_S": "4"})
    running.signal(signo)
    ended = running.wait()
    assert ended.code == code
    for rank in range(2):
        assert log(hvlrun, rank) == ["up", signo.name, "saved"]
    assert f"stopped by {signo.name}; all ranks ended when asked" in ended.error_text


@pytest.mark.trial("B66")
def test_a_small_grace_time_cuts_it_short(hvlrun: Launcher) -> None:
    running = start_recorders(hvlrun, "--signal-grace", "0.3", env={"SAVE_S": "30"})
    running.signal(signal.SIGTERM)
    ended = running.wait(20)
    assert ended.code == 143
    assert log(hvlrun, 0) == ["up", "SIGTERM"]
    assert "ranks 0 and 1 did not end when asked and were killed" in ended.error_text


@pytest.mark.trial("B65")
def test_a_second_interrupt_kills(hvlrun: Launcher) -> None:
    running = start_recorders(hvlrun, env={"SAVE_S": "30"})
    running.signal(signal.SIGINT)
    wait_until("the first has arrived", lambda: "SIGINT" in log(hvlrun, 1))
    running.signal(signal.SIGINT)
    ended = running.wait(20)
    assert ended.code == 130
    assert log(hvlrun, 1) == ["up", "SIGINT"]


def test_a_second_sigterm_does_not_hurry(hvlrun: Launcher) -> None:
    running = start_recorders(hvlrun, env={"SAVE_S": "2"})
    running.signal(signal.SIGTERM)
    wait_until("the first has arrived", lambda: "SIGTERM" in log(hvlrun, 0))
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    assert log(hvlrun, 0) == ["up", "SIGTERM", "saved"]


@pytest.mark.trial("B65")
def test_a_keyboard_interrupt_can_be_caught_to_save(hvlrun: Launcher) -> None:
    code = """
        import os, time
        open(f"up{os.environ['RANK']}", "w").close()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            with open(f"saved{os.environ['RANK']}", "w") as file:
                for _ in range(20):
                    file.write("x" * 100)
                    time.sleep(0.1)
    """
    running = hvlrun.start("-np", "2", *hvlrun.script(code))
    wait_until("both are up", lambda: len(list(hvlrun.folder.glob("up*"))) == 2)
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    for rank in range(2):
        assert len((hvlrun.folder / f"saved{rank}").read_text()) == 2000


@pytest.mark.trial("B66")
@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT])
def test_user_signals_are_passed_on_and_the_job_goes_on(
    hvlrun: Launcher, signo: signal.Signals
) -> None:
    running = start_recorders(hvlrun)
    running.signal(signo)
    for rank in range(2):
        wait_until("it arrives", lambda rank=rank: log(hvlrun, rank) == ["up", signo.name])
    assert running.process.poll() is None
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143


def process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def test_stop_and_continue_reach_launcher_and_ranks(hvlrun: Launcher) -> None:
    code = "import time\nwhile True: time.sleep(0.05)"
    running = hvlrun.start("-np", "2", *hvlrun.script(code))
    ranks = running.ranks(2)
    running.signal(signal.SIGTSTP)
    for pid in (running.pid, *ranks):
        wait_until(f"{pid} is stopped", lambda pid=pid: process_state(pid) == "T")
    running.signal(signal.SIGCONT)
    for pid in (running.pid, *ranks):
        wait_until(f"{pid} goes on", lambda pid=pid: process_state(pid) in "SR")
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143


def test_a_suspended_job_can_be_ended(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "100")
    ranks = running.ranks(2)
    running.signal(signal.SIGTSTP)
    wait_until("the rank is stopped", lambda: process_state(ranks[0]) == "T")
    wait_until("the launcher is stopped", lambda: process_state(running.pid) == "T")
    running.signal(signal.SIGTERM)
    running.signal(signal.SIGCONT)
    assert running.wait(20).code == 143


def test_a_hang_up_asks_to_save_like_sigterm(hvlrun: Launcher) -> None:
    running = start_recorders(hvlrun)
    running.signal(signal.SIGHUP)
    assert running.wait().code == 129
    assert log(hvlrun, 0) == ["up", "SIGTERM", "saved"]


@pytest.mark.trial("B65")
def test_a_job_under_nohup_survives_a_hang_up(hvlrun: Launcher) -> None:
    running = start_recorders(hvlrun, command_prefix=["nohup"])
    running.signal(signal.SIGHUP)
    running.signal(signal.SIGUSR1)
    wait_until("the next signal arrives", lambda: log(hvlrun, 0) == ["up", "SIGUSR1"])
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143


def test_a_background_job_of_a_script_obeys_kill_although_sigint_is_ignored(
    hvlrun: Launcher,
) -> None:
    script = " ".join(hvlrun.script(RECORD))
    line = f"{HVLRUN} -np 1 {script} & echo $!; wait $!; echo $?"
    shell = subprocess.Popen(
        ["sh", "-c", line], stdout=subprocess.PIPE, env=hvlrun.env(), cwd=hvlrun.folder
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    wait_until("it is up", lambda: log(hvlrun, 0))
    os.kill(pid, signal.SIGINT)
    assert shell.stdout.read() == b"130\n"
    assert shell.wait(20) == 0
    assert log(hvlrun, 0) == ["up", "SIGINT", "saved"]


def start_in_a_terminal(hvlrun: Launcher) -> tuple[int, int]:
    """Two recorders as the foreground job of a terminal: hvlrun's pid, the terminal's other end."""
    import pty

    command = [str(HVLRUN), "-np", "2", *hvlrun.script(RECORD)]
    pid, ours = pty.fork()
    if pid == 0:
        os.chdir(hvlrun.folder)
        os.execve(command[0], command, hvlrun.env())
    for rank in range(2):
        wait_until(f"rank {rank} is up", lambda rank=rank: log(hvlrun, rank))
    return pid, ours


def exit_code_of(pid: int) -> int:
    def ended() -> list[int]:
        done, status = os.waitpid(pid, os.WNOHANG)
        return [os.waitstatus_to_exitcode(status)] if done == pid else []

    return int(wait_until("hvlrun ends", ended)[0])


@pytest.mark.trial("B65")
def test_ctrl_c_reaches_each_rank_exactly_once(hvlrun: Launcher) -> None:
    pid, ours = start_in_a_terminal(hvlrun)
    os.write(ours, b"\x03")
    assert exit_code_of(pid) == 130
    os.close(ours)
    for rank in range(2):
        assert log(hvlrun, rank) == ["up", "SIGINT", "saved"]


def test_a_terminal_that_goes_away_ends_the_job(hvlrun: Launcher) -> None:
    pid, ours = start_in_a_terminal(hvlrun)
    os.close(ours)
    assert exit_code_of(pid) == 129
    # The kernel sends SIGCONT along with SIGHUP.
    assert [word for word in log(hvlrun, 0) if word != "SIGCONT"] == ["up", "SIGTERM", "saved"]


def test_sigterm_spares_the_helpers_of_a_rank_until_it_has_saved(hvlrun: Launcher) -> None:
    code = """
        import os, signal, subprocess, sys
        helper = subprocess.Popen(["sh", "-c", "read line; echo helper says $line"],
                                  stdin=subprocess.PIPE)
        def save(signo, frame):
            helper.stdin.write(b"hello\\n")
            helper.stdin.close()
            sys.exit(helper.wait())
        signal.signal(signal.SIGTERM, save)
        open("up", "w").close()
        while True:
            signal.pause()
    """
    running = hvlrun.start("-np", "1", *hvlrun.script(code))
    wait_until("it is up", (hvlrun.folder / "up").exists)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.out) == (143, b"[0]<stdout>:helper says hello\n")


def test_a_script_behind_a_shell_gets_sigterm_once_and_its_time(hvlrun: Launcher) -> None:
    path = hvlrun.folder / "job.sh"
    path.write_text(f"{' '.join(hvlrun.script(RECORD))}\necho not reached\n")
    running = hvlrun.start("-np", "1", "sh", str(path), env={"SAVE_S": "2"})
    wait_until("it is up", lambda: log(hvlrun, 0))
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    assert log(hvlrun, 0) == ["up", "SIGTERM", "saved"]


def test_a_rank_that_is_stopped_is_ended_all_the_same(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "sleep", "100")
    ranks = running.ranks(2)
    os.kill(ranks[1], signal.SIGSTOP)
    wait_until("it is stopped", lambda: process_state(ranks[1]) == "T")
    os.kill(ranks[0], signal.SIGKILL)
    started = time.monotonic()
    assert running.wait().code == 137
    assert time.monotonic() - started < 3

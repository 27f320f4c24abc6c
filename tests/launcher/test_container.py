"""hvlrun as process 1 of a PID namespace, as in a container without an init of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Launcher, Running, wait_until

AS_PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
pytestmark = pytest.mark.skipif(
    subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine does not allow PID namespaces",
)


def process_1(running: Running) -> int:
    """The pid of hvlrun as it is seen from here: the child of unshare."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")

    def there() -> list[int]:
        pids = [int(word) for word in children.read_text().split()]
        return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "hvlrun\n"]

    return int(wait_until("hvlrun runs", there)[0])


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit $((3 * RANK))", 3)])
def test_process_1_ends_as_the_job_does(hvlrun: Launcher, command: str, code: int) -> None:
    ended = hvlrun("-np", "2", "sh", "-c", command, command_prefix=AS_PROCESS_1)
    assert ended.code == code


def test_process_1_reaps_orphans_while_the_job_runs(hvlrun: Launcher) -> None:
    text = "for i in 1 2 3; do (sleep 0.1 &) ; done; sleep 1; grep -h State /proc/[0-9]*/status"
    ended = hvlrun("-np", "1", "sh", "-c", text, command_prefix=AS_PROCESS_1)
    assert ended.code == 0
    assert ended.lines
    assert not [line for line in ended.lines if "zombie" in line]


def test_daemons_end_before_process_1_does(hvlrun: Launcher) -> None:
    text = "setsid sh -c 'sleep 1000 & sleep 1001' & sleep 0.2"
    ended = hvlrun("-np", "2", "sh", "-c", text, command_prefix=AS_PROCESS_1)
    assert ended.code == 0
    assert "stopped what the ranks had left running: " in ended.error_text


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_process_1_obeys_signals(hvlrun: Launcher, signo: signal.Signals) -> None:
    """The kernel drops those for which process 1 has no handler."""
    text = "trap 'touch saved; exit 0' TERM INT QUIT; touch up$RANK; while :; do sleep 0.1; done"
    running = hvlrun.start("-np", "2", "sh", "-c", text, command_prefix=AS_PROCESS_1)
    wait_until("both ranks run", lambda: len(list(hvlrun.folder.glob("up*"))) == 2)
    subprocess.run(["kill", f"-{signo.value}", str(process_1(running))], check=True)
    ended = running.wait()
    assert ended.code == 128 + signo
    assert (hvlrun.folder / "saved").exists()

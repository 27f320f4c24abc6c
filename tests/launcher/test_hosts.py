"""Jobs on several hosts.

Here they are this machine under other names: `--rsh` is a script that runs the agent right here,
so each host has an agent, a stream and processes of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, Launcher, Running, marked_processes, wait_until

HERE = "#!/bin/sh\nhost=$1\nshift\n"


class Hosts:
    """Starts jobs on hosts that a script reaches."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher = launcher
        self.folder = folder
        self.rsh = folder / "rsh.sh"
        self.reach('exec "$@"')

    def reach(self, text: str) -> None:
        """What the script does after $host is set and $@ is the agent's command."""
        self.rsh.write_text(f"{HERE}{text}\n")
        self.rsh.chmod(0o755)

    def words(self, ranks: int, hosts: str, *words: str) -> list[str]:
        return ["-np", str(ranks), "-H", hosts, "--rsh", str(self.rsh), *words]

    def start(self, ranks: int, hosts: str, *words: str, **options: Any) -> Running:
        return self.launcher.start(*self.words(ranks, hosts, *words), **options)

    def __call__(self, ranks: int, hosts: str, *words: str, **options: Any) -> Any:
        return self.launcher(*self.words(ranks, hosts, *words), **options)

    def processes(self, pattern: str) -> list[int]:
        """Processes of this test's jobs by their command line."""
        found = marked_processes(self.launcher.mark).items()
        return sorted(pid for pid, line in found if re.search(pattern, line))

    def ranks(self, count: int) -> list[int]:
        """Pids of the ranks by rank, which must run a script of this test."""

        def all_there() -> dict[int, int] | None:
            found = {}
            for pid in self.processes(r"rank\.py"):
                entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                numbers = [e.split(b"=")[1] for e in entries if e.startswith(b"HVL_RANK=")]
                if numbers:
                    found[int(numbers[0])] = pid
            return found if len(found) == count else None

        pids = wait_until(f"{count} ranks run", all_there)
        return [pids[rank] for rank in range(count)]


@pytest.fixture
def hosts(hvlrun: Launcher, tmp_path: Path) -> Hosts:
    return Hosts(hvlrun, tmp_path)


SLEEP = """
    import os, signal, sys, time
    print("ready", flush=True)
    time.sleep(600)
"""

# Stands between hvlrun and an agent, as ssh does.
RELAY = """
    import os, subprocess, sys, threading
    agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    def copy(source, target):
        while data := os.read(source, 65536):
            os.write(target, data)
        os.close(target)
    threading.Thread(target=copy, args=(0, agent.stdin.fileno()), daemon=True).start()
    copy(agent.stdout.fileno(), 1)
    sys.exit(255)
"""

TELL = """
    import json, os, sys
    facts = dict(argv=[os.fsencode(word).hex() for word in sys.argv[1:]],
                 cwd=os.getcwd(),
                 env={k.hex(): v.hex() for k, v in os.environb.items()})
    with open(f"told.{os.environ['HVL_RANK']}", "w") as file:
        json.dump(facts, file)
"""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def told(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"told.{rank}").read_text())


def env_of(facts: Any) -> dict[str, str]:
    return {
        bytes.fromhex(k).decode(errors="replace"): bytes.fromhex(v).decode(errors="replace")
        for k, v in facts["env"].items()
    }


def test_ranks_of_all_hosts_find_their_places(hosts: Hosts, hvlrun: Launcher) -> None:
    ended = hosts(5, "n1:2,n2:2,me@n3:2", *hvlrun.script(TELL))
    assert (ended.code, ended.error_text) == (0, "")
    envs = [env_of(told(hvlrun.folder, rank)) for rank in range(5)]
    assert [e["HOROVOD_HOSTNAME"] for e in envs] == ["n1", "n1", "n2", "n2", "n3"]
    assert [e["HVL_LOCAL_RANK"] for e in envs] == ["0", "1", "0", "1", "0"]
    assert [e["HVL_CROSS_SIZE"] for e in envs] == ["3", "2", "3", "2", "3"]
    for name in ("HVL_JOB_ID", "HVL_STORE", "MASTER_ADDR", "MASTER_PORT"):
        assert len({e[name] for e in envs}) == 1, name


def test_interfaces_are_for_horovodlite_too(hosts: Hosts, hvlrun: Launcher) -> None:
    env = {"HVL_NETWORK": "10.0.0.0/8"}  # the option wins
    words = ["--network-interfaces", "lo,eth7", *hvlrun.script(TELL)]
    assert hosts(2, "n1:1,n2:1", *words, env=env).code == 0
    for rank in range(2):
        assert env_of(told(hvlrun.folder, rank))["HVL_NETWORK"] == "lo,eth7"
    words = ["--network-interfaces", "lo", "-x", "HVL_NETWORK=eth9", *hvlrun.script(TELL)]
    assert hosts(1, "n1:1", *words).code == 0
    assert env_of(told(hvlrun.folder, 0))["HVL_NETWORK"] == "eth9"


def test_output_of_all_hosts_is_merged_and_tagged(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, sys
        rank = os.environ["HVL_RANK"]
        for i in range(200):
            print("out", rank, i)
            print("err", rank, i, file=sys.stderr)
        sys.stdout.write("no newline")
    """)
    ended = hosts(4, "n1:2,n2:2", "--log-dir", "logs", *script)
    assert ended.code == 0
    for rank in range(4):
        out = [line for line in ended.lines if line.startswith(f"[{rank}]<stdout>:")]
        wanted = [f"[{rank}]<stdout>:out {rank} {i}" for i in range(200)]
        assert out == [*wanted, f"[{rank}]<stdout>:no newline"]
        log = (hvlrun.folder / f"logs/rank.{rank}/stdout").read_text()
        assert log == "".join(f"out {rank} {i}\n" for i in range(200)) + "no newline"
        errors = (hvlrun.folder / f"logs/rank.{rank}/stderr").read_text()
        assert errors.count("\n") == 200


def test_arguments_environment_and_folder_arrive_byte_for_byte(
    hosts: Hosts, hvlrun: Launcher
) -> None:
    words = [b"", b"a b", b"'\"$HOME`ls`\\", b"new\nline", b"\xff\xfe", b"-np", b"--", b"*"]
    values = {b"QUOTES": b"'\"", b"LINES3": b"a\nb\n", b"RAW": bytes(range(1, 256)), b"EMPTY": b""}
    folder = hvlrun.folder / "a folder with 'quotes'"
    folder.mkdir()
    command = [*hvlrun.script(TELL), *map(os.fsdecode, words)]
    env = {os.fsdecode(k): os.fsdecode(v) for k, v in values.items()}
    ended = hosts(2, "n1:1,n2:1", *command, env=env, cwd=folder)
    assert (ended.code, ended.error_text) == (0, "")
    for rank in range(2):
        facts = told(folder, rank)
        assert [bytes.fromhex(word) for word in facts["argv"]] == words
        assert facts["cwd"] == str(folder)
        arrived = {bytes.fromhex(k): bytes.fromhex(v) for k, v in facts["env"].items()}
        assert {k: arrived.get(k) for k in values} == values


def test_variables_of_a_host_are_its_own(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('HOME=/home/of/$host SSH_CONNECTION= exec env -u MARKER "$@"')
    env = {"HOME": "/home/of/head", "MARKER": "of head", "SLURM_PROCID": "7"}
    assert hosts(2, "n1:1,n2:1", *hvlrun.script(TELL), env=env).code == 0
    for rank, host in enumerate(("n1", "n2")):
        arrived = env_of(told(hvlrun.folder, rank))
        assert arrived["HOME"] == f"/home/of/{host}"
        assert arrived["MARKER"] == "of head"
    ended = hosts(1, "n1:1", "-x", "HOME=/shared", *hvlrun.script(TELL), env=env)
    assert ended.code == 0
    assert env_of(told(hvlrun.folder, 0))["HOME"] == "/shared"


def test_nothing_of_the_job_is_on_a_command_line(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('printf "%s\\n" "$host" "$@" >> calls; exec "$@"')
    running = hosts.start(2, "n1:1,n2:1", "-x", "TOKEN=verysecret", *hvlrun.script(SLEEP), "word")
    ranks = hosts.ranks(2)
    secret_fd = next(
        entry.split(b"=")[1].decode()
        for entry in Path(f"/proc/{ranks[0]}/environ").read_bytes().split(b"\0")
        if entry.startswith(b"HVL_SECRET_FD=")
    )
    secret = Path(f"/proc/{ranks[0]}/fd/{secret_fd}").read_bytes()
    assert len(secret) == 32
    for pid in marked_processes(hvlrun.mark):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        for form in (secret, secret.hex().encode()):
            assert form not in line
            assert form not in environ
        if b"--agent" in line or b"hvl-agent" in line:
            assert b"verysecret" not in line
            assert b"word" not in line
    calls = (hvlrun.folder / "calls").read_text().splitlines()
    assert sorted(calls) == sorted(["n1", "n2", *[str(HVLRUN), "--agent"] * 2])
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert secret.hex() not in ended.error_text


def test_a_failure_names_rank_and_host(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, sys, time
        if os.environ["HVL_RANK"] == "2":
            print("out of luck", file=sys.stderr)
            sys.exit(7)
        time.sleep(600)
    """)
    ended = hosts(4, "n1:2,n2:2", *script)
    assert ended.code == 7
    assert "first to fail: rank 2 of 4" in ended.error_text
    assert " on n2)" in ended.error_text
    assert "  | out of luck" in ended.error_text
    assert "then ranks 0, 1 and 3: stopped by hvlrun" in ended.error_text


def test_a_rank_that_is_killed_is_named(hosts: Hosts, hvlrun: Launcher) -> None:
    running = hosts.start(4, "n1:2,n2:2", *hvlrun.script(SLEEP))
    os.kill(hosts.ranks(4)[3], signal.SIGKILL)
    ended = running.wait()
    assert ended.code == 137
    assert "rank 3 of 4" in ended.error_text
    assert "SIGKILL (signal 9), not sent by hvlrun; peak memory" in ended.error_text


@pytest.mark.parametrize("victim", ["hvl-agent", "hvlrun --agent", "relay"])
def test_death_of_an_agent_ends_the_job_and_is_told(
    hosts: Hosts, hvlrun: Launcher, victim: str
) -> None:
    if victim == "relay":
        relay = hvlrun.script(RELAY, "relay.py")
        hosts.reach(f'exec {" ".join(relay)} "$@"')
    running = hosts.start(4, "n1:2,n2:2", *hvlrun.script(SLEEP))
    running.read_lines(4)
    started = time.monotonic()
    os.kill(hosts.processes(victim)[-1], signal.SIGKILL)
    ended = running.wait()
    assert time.monotonic() - started < 6
    assert ended.code == 125
    assert re.search(r"first to fail: rank \d of 4 \(pid \d+ on n[12]\)", ended.error_text)
    assert "lost with its host" in ended.error_text
    assert "the connection to it was closed" in ended.error_text
    hvlrun.expect_nothing_left()


def test_an_agent_that_stands_still_is_noticed(hosts: Hosts, hvlrun: Launcher) -> None:
    running = hosts.start(4, "n1:2,n2:2", *hvlrun.script(SLEEP))
    ranks = hosts.ranks(4)
    agent = parent(ranks[2])
    keeper = parent(agent)
    started = time.monotonic()
    for pid in (keeper, agent, *ranks[2:]):
        os.kill(pid, signal.SIGSTOP)
    ended = running.wait()
    assert time.monotonic() - started < 8
    assert ended.code == 125
    assert "nothing was heard of it for 2.5 s" in ended.error_text
    hvlrun.expect_nothing_left()


def test_nothing_is_left_when_hvlrun_is_killed(hosts: Hosts, hvlrun: Launcher) -> None:
    for who in ("front", "supervisor"):
        running = hosts.start(4, "n1:2,n2:2", *hvlrun.script(SLEEP))
        hosts.ranks(4)
        os.kill(running.pid if who == "front" else running.supervisor(), signal.SIGKILL)
        running.wait()
        hvlrun.expect_nothing_left()


def test_a_host_that_cannot_be_reached_stops_the_start(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach(
        'if [ "$host" = n2 ]; then echo "ssh: connect to host n2 port 22: No route" >&2; exit 255;'
        ' fi; exec "$@"'
    )
    ended = hosts(3, "n1:1,n2:1,n3:1", *hvlrun.script("open('ran', 'w')"))
    assert ended.code == 125
    assert ended.error_text == (
        "hvlrun: host n2: the connection to it was closed; rsh.sh ended with exit code 255: "
        "ssh: connect to host n2 port 22: No route\n"
        "hvlrun: the job was not started\n"
    )
    assert not (hvlrun.folder / "ran").exists()


def test_a_host_without_hvlrun_stops_the_start(hosts: Hosts) -> None:
    ended = hosts(2, "n1:1,n2:1", "--remote-hvlrun", "/nowhere/hvlrun", "true")
    assert ended.code == 125
    assert "host n1: the connection to it was closed; rsh.sh ended with exit code 12" in (
        ended.error_text
    )
    assert "/nowhere/hvlrun" in ended.error_text


def test_what_cannot_be_executed_is_told_with_its_host(hosts: Hosts, hvlrun: Launcher) -> None:
    ended = hosts(2, "n1:1,n2:1", "no-such-program")
    assert ended.code == 127
    assert "host n1: command not found: no 'no-such-program' in PATH" in ended.error_text
    plain = hvlrun.folder / "plain"
    plain.write_text("text")
    ended = hosts(2, "n1:1,n2:1", str(plain))
    assert ended.code == 126
    assert f"host n1: cannot execute '{plain}': Permission denied" in ended.error_text
    hosts.reach('[ $host = n2 ] && rmdir "$FOLDER"; exec "$@"')
    folder = hvlrun.folder / "gone"
    folder.mkdir()
    ended = hosts(2, "n1:1,n2:1", "true", cwd=folder, env={"FOLDER": str(folder)})
    assert ended.code == 126
    assert "cannot change to the working directory" in ended.error_text
    assert "it has to exist on every host" in ended.error_text


def test_text_of_log_in_scripts_does_no_harm(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('echo "Welcome to $host"; echo "last login: today" >&2; exec "$@"')
    ended = hosts(2, "n1:1,n2:1", *hvlrun.script("print('hi')"))
    assert (ended.code, ended.error_text) == (0, "")
    assert sorted(ended.lines) == ["[0]<stdout>:hi", "[1]<stdout>:hi"]


def test_somebody_else_who_answers_is_quoted(hosts: Hosts) -> None:
    hosts.reach('yes "login: "')
    ended = hosts(1, "n1:1", "true")
    assert ended.code == 125
    assert "host n1: something else than hvlrun answers: 'login: ?login: " in ended.error_text


def test_signals_reach_the_ranks_of_all_hosts(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, signal, sys
        def save(signo, frame):
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
        open("up." + os.environ["HVL_RANK"], "w").close()
        while True:
            signal.pause()
    """)
    running = hosts.start(2, "n1:1,n2:1", *script)
    wait_until("both are up", lambda: len(list(hvlrun.folder.glob("up.*"))) == 2)
    assert running.process.stdout is not None
    running.signal(signal.SIGUSR1)
    first = sorted(running.process.stdout.readline() for _ in range(2))
    assert first == [b"[0]<stdout>:usr1\n", b"[1]<stdout>:usr1\n"]
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert sorted(ended.lines) == ["[0]<stdout>:saved", "[1]<stdout>:saved"]
    assert "all ranks ended when asked" in ended.error_text


def test_an_interrupt_during_the_start_ends_it(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('[ "$host" = n2 ] && touch waiting && exec sleep 600; exec "$@"')
    running = hosts.start(2, "n1:1,n2:1", *hvlrun.script("open('ran', 'w')"))
    wait_until("one host is slow", (hvlrun.folder / "waiting").exists)
    running.signal(signal.SIGINT)
    ended = running.wait(10)
    assert ended.code == 130
    assert "stopped by SIGINT; its ranks had not been started" in ended.error_text
    assert not (hvlrun.folder / "ran").exists()


def test_a_time_limit_counts_while_hosts_are_called(hosts: Hosts) -> None:
    hosts.reach("exec sleep 600")
    ended = hosts(1, "n1:1", "--timeout", "1", "true")
    assert ended.code == 124


def test_a_signal_to_an_agent_stops_the_whole_job(hosts: Hosts, hvlrun: Launcher) -> None:
    running = hosts.start(2, "n1:1,n2:1", *hvlrun.script(SLEEP))
    ranks = hosts.ranks(2)
    keeper = parent(parent(ranks[1]))
    os.kill(keeper, signal.SIGTERM)  # a pod that is deleted
    ended = running.wait()
    assert ended.code == 143
    assert "stopped by SIGTERM" in ended.error_text


def test_much_output_through_a_slow_screen_is_all_there(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os
        line = os.environ["HVL_RANK"] * 99
        for _ in range(60000):
            print(line)
    """)
    running = hosts.start(2, "n1:1,n2:1", *script)
    assert running.process.stdout is not None
    time.sleep(1.0)  # nobody reads: hvlrun, the agents and the ranks have to wait
    supervisor = running.supervisor()
    status = Path(f"/proc/{supervisor}/status").read_text()
    kept_kib = int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]
    assert kept_kib < 64 * 1024
    ended = running.wait()
    assert ended.code == 0
    counts = [sum(line.startswith(f"[{rank}]") for line in ended.lines) for rank in range(2)]
    assert counts == [60000, 60000]
    assert {len(line) for line in ended.lines} == {len("[0]<stdout>:") + 99}


def test_what_ranks_leave_running_is_ended_and_named(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, subprocess
        if os.environ["HVL_RANK"] == "1":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
    """)
    ended = hosts(2, "n1:1,n2:1", *script)
    assert ended.code == 0
    assert "stopped what the ranks had left running: sleep (pid " in ended.error_text


def test_a_restart_calls_the_agents_again(hosts: Hosts, hvlrun: Launcher) -> None:
    script = hvlrun.script("""
        import os, sys
        if os.environ["HVL_RUN_RESTART_COUNT"] == "0" and os.environ["HVL_RANK"] == "1":
            sys.exit(3)
    """)
    ended = hosts(2, "n1:1,n2:1", "--max-restarts", "1", *script)
    assert ended.code == 0
    assert "starting all ranks again: restart 1 of 1" in ended.error_text


def test_this_machine_may_be_one_of_the_hosts(hosts: Hosts, hvlrun: Launcher) -> None:
    ended = hosts(3, "localhost:1,n1:2", *hvlrun.script(TELL))
    assert (ended.code, ended.error_text) == (0, "")
    assert env_of(told(hvlrun.folder, 0))["HOROVOD_HOSTNAME"] == "localhost"


def test_many_hosts_are_called_a_number_at_a_time(hosts: Hosts) -> None:
    ended = hosts(70, "n[1-70]:1", "--output", "none", "sh", "-c", "echo $HVL_RANK")
    assert (ended.code, ended.error_text) == (0, "")
    assert sorted(map(int, ended.lines)) == list(range(70))


def test_standard_input_is_for_jobs_on_this_machine(hosts: Hosts) -> None:
    ended = hosts(1, "n1:1", "--stdin", "0", "cat")
    assert ended.code == 125
    assert "--stdin goes with jobs on this machine only" in ended.error_text


def test_an_agent_that_is_started_by_hand_explains_itself(hvlrun: Launcher) -> None:
    ended = subprocess.run(
        [HVLRUN, "--agent"],
        input=b"ls\n",
        capture_output=True,
        timeout=20,
        check=False,
        env=hvlrun.env(),
    )
    assert ended.returncode == 125
    assert b"the connection to the head of the job was closed" in ended.stderr


def test_a_dry_run_shows_the_command_for_each_host(hosts: Hosts, hvlrun: Launcher) -> None:
    ended = hosts(3, "n1:1,me@n2:1,localhost:1", "--dry-run", "python", "train.py")
    assert (ended.code, ended.error_text) == (0, "")
    assert f"n1: {hosts.rsh} n1 {HVLRUN} --agent" in ended.lines
    assert f"n2: {hosts.rsh} me@n2 {HVLRUN} --agent" in ended.lines
    assert f"localhost: {HVLRUN} --agent" in ended.lines
    ended = hvlrun("-np", "1", "-H", "n1:1", "--dry-run", "true")
    command = next(line for line in ended.lines if line.startswith("n1: "))
    assert command.startswith("n1: ssh -T -x -o BatchMode=yes -o ConnectTimeout=10 ")
    assert command.endswith(f" -- n1 'exec {HVLRUN} --agent'")


def test_the_doctor_examines_all_hosts(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('[ "$host" = n3 ] && echo "ssh: no route" >&2 && exit 255; exec "$@"')
    words = ["-H", "n1:2,n2,n3:2", "--rsh", str(hosts.rsh)]
    ended = hvlrun("--doctor", *words, "no-such-program")
    assert ended.code == 1
    table = ended.lines
    assert table[0].split() == ["host", "version", "cores", "clock", "result"]
    assert re.match(r"n1 +\d+\.\d+\.\d+ +\d+ +[+-]0\.\d+ s  cannot run the job", table[1])
    assert re.match(r"n3 +- +- +- +does not answer", table[3])
    text = "\n".join(table)
    assert "[fail] command          command not found: no 'no-such-program' in PATH" in text
    assert "rsh.sh ended with exit code 255: ssh: no route" in text
    assert text.endswith("Not all of these hosts can run such a job.")


def test_the_doctor_tells_programs_about_hosts(hosts: Hosts, hvlrun: Launcher) -> None:
    ended = hvlrun("--doctor", "--json", "-H", "n1:1,n2:1", "--rsh", str(hosts.rsh))
    assert ended.code == 0, ended.error_text
    report = json.loads(ended.out)
    assert report["fit"] is True
    assert [host["host"] for host in report["hosts"]] == ["n1", "n2"]
    assert all(host["answered"] for host in report["hosts"])
    topics = {finding["topic"] for finding in report["hosts"][0]["findings"]}
    assert {"system", "open files", "clock", "python"} <= topics


def test_preflight_refuses_a_job_that_a_host_cannot_run(hosts: Hosts, hvlrun: Launcher) -> None:
    hosts.reach('[ "$host" = n2 ] && rmdir "$FOLDER"; exec "$@"')
    folder = hvlrun.folder / "gone"
    folder.mkdir()
    ended = hosts(2, "n1:1,n2:1", "--preflight", "true", cwd=folder, env={"FOLDER": str(folder)})
    assert ended.code == 125
    assert re.search(r"hvlrun: preflight: host n\d: folder: no '.*/gone'", ended.error_text)
    assert "preflight: not all hosts can run the job" in ended.error_text
    hosts.reach('exec "$@"')
    ended = hosts(2, "n1:1,n2:1", "--preflight", "echo", "x")
    assert ended.code == 0
    assert sorted(ended.lines) == ["[0]<stdout>:x", "[1]<stdout>:x"]


def fake(folder: Path, name: str, text: str) -> str:
    """A program in front of PATH."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / name).write_text(f"#!/bin/sh\n{text}\n")
    (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


SRUN = """
echo "$@" >> srun.calls
while [ "${1#--}" != "$1" ]; do
  case $1 in --nodelist=*) SLURMD_NODENAME=${1#--nodelist=} ;; esac
  shift
done
export SLURMD_NODENAME
exec "$@"
"""


def test_in_a_slurm_job_its_nodes_are_the_hosts(hvlrun: Launcher) -> None:
    env = {
        "PATH": fake(hvlrun.folder, "srun", SRUN),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "SLURM_NTASKS": "4",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURMD_NODENAME": "of the head",
    }
    command = ["sh", "-c", "echo $HVL_RANK $HOROVOD_HOSTNAME $SLURMD_NODENAME"]
    ended = hvlrun("-np", "4", "--output", "none", *command, env=env)
    assert (ended.code, ended.error_text) == (0, "")
    assert sorted(ended.lines) == [f"{r} gpu0{7 + r // 2} gpu0{7 + r // 2}" for r in range(4)]
    calls = (hvlrun.folder / "srun.calls").read_text().splitlines()
    assert len(calls) == 2
    assert all(call.startswith("--nodes=1 --ntasks=1 --overlap ") for call in calls)
    assert hvlrun("-np", "5", "true", env=env).code == 125  # more than the allocation has
    # Whoever names hosts means them.
    ended = hvlrun("-np", "3", "-H", "localhost", "--output", "none", *command, env=env)
    assert sorted(ended.lines) == [f"{r} localhost of the head" for r in range(3)]


def test_a_slurm_job_on_this_machine_alone_needs_no_srun(hvlrun: Launcher) -> None:
    env = {
        "PATH": fake(hvlrun.folder, "srun", "exit 1"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": "1",
    }
    ended = hvlrun("-np", "2", "echo", "x", env=env)
    assert (ended.code, len(ended.lines)) == (0, 2)


@pytest.fixture
def secret(hvlrun: Launcher) -> str:
    """A file with a secret that head and agents share."""
    path = hvlrun.folder / "secret"
    path.write_text("correct horse battery staple\n")
    return str(path)


def await_address(running: Running) -> str:
    """Where a head waits for agents."""
    assert running.process.stderr is not None
    line = running.process.stderr.readline().decode()
    match = re.fullmatch(r"hvlrun: waiting for \d+ agents \(hvlrun --join\) at (\S+)\n", line)
    assert match, line
    return match[1]


def test_agents_that_come_by_themselves_run_the_job(hvlrun: Launcher, secret: str) -> None:
    env = {"HVL_SECRET_FILE": secret}
    words = ["--wait-for", "2", "--listen", "127.0.0.1:0"]
    script = hvlrun.script("""
        import os, sys
        print(os.environ["HVL_RANK"], os.environ["HVL_LOCAL_SIZE"], os.environ["TOKEN"])
        secret = os.pread(int(os.environ["HVL_SECRET_FD"]), 64, 0)
        open("secret." + os.environ["HVL_RANK"], "wb").write(secret)
    """)
    head = hvlrun.start("-np", "3", *words, *script, env={**env, "TOKEN": "of head"})
    where = await_address(head)
    agents = [hvlrun.start("--join", where, env=env) for _ in range(2)]
    ended = head.wait()
    assert ended.code == 0, ended.error_text
    assert sorted(ended.lines) == [
        "[0]<stdout>:0 2 of head",
        "[1]<stdout>:1 2 of head",
        "[2]<stdout>:2 1 of head",
    ]
    secrets = {(hvlrun.folder / f"secret.{rank}").read_bytes() for rank in range(3)}
    assert len(secrets) == 1
    assert b"horse" not in secrets.pop()
    assert [agent.wait().code for agent in agents] == [0, 0]


def test_an_agent_may_come_before_its_head(hvlrun: Launcher, secret: str) -> None:
    env = {"HVL_SECRET_FILE": secret}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    agent = hvlrun.start("--join", where, env=env)
    time.sleep(0.2)  # it has tried
    ended = hvlrun("-np", "1", "--wait-for", "1", "--listen", where, "echo", "x", env=env)
    assert (ended.code, ended.lines) == (0, ["[0]<stdout>:x"])
    assert agent.wait().code == 0


def test_who_does_not_know_the_secret_stays_outside(hvlrun: Launcher, secret: str) -> None:
    env = {"HVL_SECRET_FILE": secret}
    wrong = hvlrun.folder / "wrong"
    wrong.write_text("another secret of some length")
    head = hvlrun.start("-np", "1", "--wait-for", "1", "--listen", "127.0.0.1:0", "true", env=env)
    where = await_address(head)
    stranger = hvlrun("--join", where, "--timeout", "1", env={"HVL_SECRET_FILE": str(wrong)})
    assert stranger.code == 125
    assert "--join: no head of a job at 127.0.0.1:" in stranger.error_text
    host, port = where.split(":")
    noise = [socket.create_connection((host, int(port))) for _ in range(80)]
    noise[0].sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
    agent = hvlrun.start("--join", where, env=env)
    ended = head.wait()
    assert ended.code == 0, ended.error_text
    assert agent.wait().code == 0
    for connection in noise:
        connection.close()


def test_the_death_of_an_agent_that_came_is_told(hvlrun: Launcher, secret: str) -> None:
    env = {"HVL_SECRET_FILE": secret}
    words = ["--wait-for", "2", "--listen", "127.0.0.1:0"]
    head = hvlrun.start("-np", "2", *words, *hvlrun.script(SLEEP), env=env)
    where = await_address(head)
    agents = [hvlrun.start("--join", where, env=env) for _ in range(2)]
    head.read_lines(2)
    os.kill(agents[0].pid, signal.SIGKILL)
    ended = head.wait()
    assert ended.code == 125
    assert "lost with its host" in ended.error_text
    assert [agent.wait().code for agent in agents] == [-signal.SIGKILL, 0]


def test_a_signal_ends_who_waits_for_others(hvlrun: Launcher, secret: str) -> None:
    env = {"HVL_SECRET_FILE": secret}
    words = ["--wait-for", "2", "--listen", "127.0.0.1:0"]
    head = hvlrun.start("-np", "2", *words, "true", env=env)
    where = await_address(head)
    agent = hvlrun.start("--join", where, env=env)
    lonely = hvlrun.start("--join", "127.0.0.1:1", env=env)
    time.sleep(0.2)
    lonely.signal(signal.SIGTERM)
    assert lonely.wait().code == 125
    head.signal(signal.SIGINT)
    assert head.wait().code == 130
    assert agent.wait().code == 125


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-np", "1", "--wait-for", "1", "true"], "HVL_SECRET_FILE is not set"),
        (["--join", "localhost:1"], "HVL_SECRET_FILE is not set"),
        (["--join", "localhost"], "--join 'localhost' is not valid: expected host:port"),
        (["--join", "localhost:1", "true"], "--join takes no command"),
        (["-np", "1", "--wait-for", "2", "true"], "--wait-for 2 is more hosts than the 1 ranks"),
        (["-np", "1", "--listen", "1", "true"], "--listen goes with --wait-for only"),
        (["-np", "2", "--wait-for", "1", "-H", "n1:1", "true"], "do not go with it"),
    ],
)
def test_how_agents_come_is_checked_before_anything_starts(
    hvlrun: Launcher, words: list[str], expected: str
) -> None:
    ended = hvlrun(*words)
    assert ended.code == 125
    assert expected in ended.error_text
    assert ended.error_text.count("\n") == 1

"""Jobs over ssh: each host is a network namespace with an sshd of its own.

A file system and a process table are shared, which real hosts do not; networks are not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, ROOT, Ended, Launcher, Running, wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def why_not() -> str:
    """What is missing for these tests; empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "ssh", "ssh-keygen", SSHD):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install iproute2 openssh-server)"
    made = subprocess.run(["ip", "netns", "add", "hvl-probe"], capture_output=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", "hvl-probe"], check=True)
    return ""


REASON = why_not()
HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
HAS_TORCH = importlib.util.find_spec("torch") is not None
computes = pytest.mark.skipif(
    not (HAS_PACKAGE and HAS_TORCH),
    reason="needs torch and the built package (`tests/dev build` makes both)",
)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=30)


class Cluster:
    """A head and some hosts on one switch; host i has the address 10.77.0.<i + 1>."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"hvl{os.getpid()}-{i}" for i in range(count + 1)]  # the head is the first
        self.switch = f"hvl{os.getpid()}-sw"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count + 1)]
        self.servers: list[subprocess.Popen[bytes]] = []

    @property
    def hosts(self) -> list[str]:
        return self.addresses[1:]

    def build(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            peer = ["peer", "name", f"port{i}", "netns", self.switch]
            run("ip", "-n", name, "link", "add", "eth0", "type", "veth", *peer)
            run("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "br0", "up")
            run("ip", "-n", name, "address", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
        self._log_in()

    def _log_in(self) -> None:
        """Keys, a configuration for ssh, and a server on each host."""
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/authorized\n"
            "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n"
        )
        (self.folder / "ssh_config").write_text(
            f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known\nGlobalKnownHostsFile /dev/null\n"
        )
        # The user's configuration, wherever the tests' user has one.
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        for i in range(1, len(self.names)):
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.servers.append(
                subprocess.Popen(self.inside(i, *command), stderr=subprocess.DEVNULL)
            )
        for i in range(1, len(self.names)):
            wait_until(f"host {i} listens", partial(self._listens, i))

    def _listens(self, host: int) -> bool:
        listed = subprocess.run(
            self.inside(host, "ss", "-Hltn", "sport", "=", ":22"), capture_output=True, check=True
        )
        return bool(listed.stdout)

    def inside(self, host: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[host], *words]

    def cut(self, host: int) -> None:
        """The cable is pulled at the switch: the host itself sees nothing but silence."""
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "nomaster")

    def heal(self, host: int) -> None:
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "master", "br0")

    def processes(self, host: int) -> dict[int, str]:
        """What runs on a host besides its sshd: pid -> command line."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.names[host]], capture_output=True, check=True
        )
        found = {}
        for pid in map(int, listed.stdout.split()):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[pid] = line.decode(errors="replace")
        return {pid: line for pid, line in found.items() if line and "sshd" not in line}

    def expect_empty(self, seconds: float = 3.0) -> None:
        give_up = time.monotonic() + seconds
        while left := [self.processes(i) for i in range(len(self.names)) if self.processes(i)]:
            assert time.monotonic() < give_up, f"left behind: {left}"
            time.sleep(0.02)

    def destroy(self) -> None:
        for name in self.names:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
            for pid in map(int, listed.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for server in self.servers:
            server.wait()
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Jobs:
    """Starts jobs from the head of a cluster."""

    def __init__(self, launcher: Launcher, cluster: Cluster) -> None:
        self.launcher = launcher
        self.cluster = cluster

    def start(self, ranks: int, *words: str, **options: Any) -> Running:
        slots = -(-ranks // len(self.cluster.hosts))
        hosts = ",".join(f"{host}:{slots}" for host in self.cluster.hosts)
        env = {
            "PATH": f"{self.cluster.folder}/bin:{os.environ['PATH']}",
            **options.pop("env", {}),
        }
        return self.launcher.start(
            *["-np", str(ranks), "-H", hosts, "--ssh-accept-new", *words],
            command_prefix=self.cluster.inside(0),
            env=env,
            **options,
        )

    def __call__(self, ranks: int, *words: str, **options: Any) -> Ended:
        return self.start(ranks, *words, **options).wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    try:
        made.build()
        yield made
    finally:
        made.destroy()


@pytest.fixture
def jobs(hvlrun: Launcher, cluster: Cluster) -> Iterator[Jobs]:
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
    listed = subprocess.run(
        ["ip", "netns", "pids", jobs.cluster.names[2]], capture_output=True, check=True
    )
    frozen = [int(pid) for pid in listed.stdout.split()]
    started = time.monotonic()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        ended = running.wait()
        assert time.monotonic() - started < 7
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
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
        import glob, time, torch, horovodlite.torch as hvd
        hvd.init()
        sums = hvd.allreduce(torch.arange(1000.0) + hvd.rank(), op=hvd.Sum)
        assert torch.equal(sums, 4 * torch.arange(1000.0) + 6)
        largest = hvd.allgather(torch.tensor([hvd.local_rank(), hvd.cross_rank()]))
        print(largest.tolist())
        open(f"done.{hvd.rank()}", "w").close()
        while len(glob.glob("done.*")) < 4:  # who leads a host stays until its others have theirs
            time.sleep(0.01)
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
        import time, torch, horovodlite.torch as hvd
        hvd.init()
        hvd.allreduce(torch.ones(10))
        print("ready", flush=True)
        while True:
            hvd.allreduce(torch.ones(10))
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

"""Hosts on one machine: network namespaces on a switch, each behind a link of its own.

They share processors, file system and process table, which real hosts do not; networks they do not
share. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

_numbers = itertools.count()


class MissingError(RuntimeError):
    """What keeps namespaces from being made, and the cure."""


def run(*words: str | Path) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise MissingError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def why_not(programs: Sequence[str] = ()) -> str:
    """What is missing for such hosts and for `programs`; empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", *programs):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install iproute2 openssh-server"
    probe = f"hvl{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "netns", "del", probe)
    except MissingError as error:
        return f"no network namespaces: {error}"
    return ""


class Network:
    """`count` hosts, numbered from 1, and the head, 0, that jobs are started from.

    Host i has the address 10.77.0.<i + 1>. With `megabits` both directions of each host's link are
    shaped (token bucket) to so many per second.
    """

    def __init__(self, count: int, megabits: int | None = None) -> None:
        self.prefix = f"hvl{os.getpid()}-{next(_numbers)}"
        self.switch = f"{self.prefix}-switch"
        self.namespaces = [f"{self.prefix}-{i}" for i in range(count + 1)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count + 1)]
        self.megabits = megabits

    @property
    def hosts(self) -> list[str]:
        return self.addresses[1:]

    def __enter__(self) -> Network:
        reason = why_not(("tc",) if self.megabits is not None else ())
        if reason:
            raise MissingError(reason)
        try:
            self._build()
        except BaseException:
            self._destroy()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._destroy()

    def inside(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host or the head."""
        return ["ip", "netns", "exec", self.namespaces[host], *words]

    def rsh(self, folder: Path) -> Path:
        """A program for hvlrun's --rsh: called with a host's address and a command."""
        script = folder / "rsh.sh"
        enter = f"exec ip netns exec {self.prefix}-$((${{host##*.}} - 1))"
        script.write_text(f'#!/bin/sh\nhost=$1; shift\n{enter} "$@"\n')
        script.chmod(0o755)
        return script

    def cut(self, host: int) -> None:
        """The cable is pulled at the switch: the host itself sees nothing but silence."""
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "nomaster")

    def heal(self, host: int) -> None:
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "master", "br0")

    def set_link(self, host: int, state: str) -> None:
        """The host's own interface goes "down" or "up"."""
        run("ip", "-n", self.namespaces[host], "link", "set", "eth0", state)

    def pids(self, host: int) -> list[int]:
        return [int(pid) for pid in run("ip", "netns", "pids", self.namespaces[host]).split()]

    def processes(self, host: int, besides: str = "sshd") -> dict[int, str]:
        """What runs on a host: pid -> command line."""
        found = {}
        for pid in self.pids(host):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[pid] = line.decode(errors="replace")
        return {pid: line for pid, line in found.items() if line and besides not in line}

    def signal(self, pids: Iterable[int], signo: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signo)

    def expect_empty(self, seconds: float = 3.0) -> None:
        give_up = time.monotonic() + seconds
        count = len(self.namespaces)
        while left := [self.processes(i) for i in range(count) if self.processes(i)]:
            assert time.monotonic() < give_up, f"left behind: {left}"
            time.sleep(0.02)  # polls outside processes, which have no event to wait for

    def _build(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.namespaces):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            port = f"port{i}"
            peer = ("peer", "name", port, "netns", self.switch)
            run("ip", "-n", name, "link", "add", "eth0", "type", "veth", *peer)
            run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
            run("ip", "-n", name, "address", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            if i > 0:
                self._shape(name, "eth0")
                self._shape(self.switch, port)

    def _shape(self, namespace: str, device: str) -> None:
        if self.megabits is None:
            return
        bucket = ("rate", f"{self.megabits}mbit", "burst", "256kb", "latency", "20ms")
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket)

    def _destroy(self) -> None:
        for i, name in enumerate(self.namespaces):
            with contextlib.suppress(MissingError):  # it was not made
                self.signal(self.pids(i), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.switch], capture_output=True, check=False)

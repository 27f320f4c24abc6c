"""Hosts on one machine: network namespaces on a switch, each behind a link of a given rate.

They share processors, file system and process table, which real hosts do not; networks they do not
share. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from types import TracebackType


class MissingError(RuntimeError):
    """What keeps namespaces from being made, and the cure."""


def require() -> None:
    """Raises MissingError where there can be no such hosts."""
    if os.geteuid() != 0:
        raise MissingError("network namespaces need root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed: apt-get install iproute2")


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise MissingError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """`count` hosts, and the head that jobs are started from, which has no part in them.

    Host i has the address 10.78.0.<i + 2>, and the head 10.78.0.1. Of each host's link both
    directions are shaped (token bucket) to `megabits` per second.
    """

    def __init__(self, count: int, megabits: int | None) -> None:
        require()
        self.prefix = f"hvl{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.namespaces = [f"{self.prefix}-{i}" for i in range(count + 1)]  # the head is the first
        self.addresses = [f"10.78.0.{i + 1}" for i in range(count + 1)]
        self.megabits = megabits

    @property
    def hosts(self) -> list[str]:
        return self.addresses[1:]

    def __enter__(self) -> Network:
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

    def inside(self, address: str, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on a host or the head."""
        return ["ip", "netns", "exec", self.namespaces[self.addresses.index(address)], *words]

    def rsh(self) -> str:
        """A script for hvlrun's --rsh: called with a host's address and a command."""
        enter = f"exec ip netns exec {self.prefix}-$((${{host##*.}} - 1))"
        return f'#!/bin/sh\nhost=$1; shift\n{enter} "$@"\n'

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
        for name in self.namespaces:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
            for pid in map(int, listed.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for name in (*self.namespaces, self.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

"""Lists of hosts, who gets which rank on them, and a name for this host.

Source: ``horovod.runner.common.util.hosts`` and ``.host_hash``.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "host_hash",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]


@dataclass
class HostInfo:
    """A host and how many ranks it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Reads ``name:slots``; an IPv6 address stands in brackets.

        Raises:
            ValueError: It is something else.
        """
        found = re.fullmatch(r"\s*(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):(\d+)\s*", host_string)
        if found is None:
            raise ValueError(
                f"Invalid host input '{host_string}', please make sure it has format as : "
                "worker-0:2,worker-1:2."
            )
        return HostInfo(found[1], int(found[2]))


@dataclass
class SlotInfo:
    """The place of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """The numbers, separated by commas."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*numbers, self.cross_rank, self.cross_size)))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Reads ``name:slots,name:slots``.

    Raises:
        ValueError: An entry is something else; the message names it.

    Example:
        >>> parse_hosts("worker-0:2,worker-1:4")[1]
        HostInfo(hostname='worker-1', slots=4)
    """
    return [HostInfo.from_string(entry) for entry in hosts_string.split(",")]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Returns the names in order, and the slots by name.

    Raises:
        ValueError: As parse_hosts.
    """
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def parse_host_files(filename: str | os.PathLike[str]) -> str:
    """Returns the hosts of a file as ``name:slots,name:slots``.

    A line is ``name slots=N`` or ``name:N``; blank ones and what follows a ``#`` are left out.

    Raises:
        ValueError: A line is something else; the message has its number.
    """
    entries = []
    for number, line in enumerate(Path(filename).read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if words:
            entry = re.sub(r"\s+slots\s*=\s*(?=\d+$)", ":", words)
            try:
                host = HostInfo.from_string(entry)
            except ValueError as error:
                raise ValueError(f"{os.fspath(filename)}, line {number}: {error}") from None
            entries.append(f"{host.hostname}:{host.slots}")
    return ",".join(entries)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Returns the places of all ranks: host by host, as many as fit.

    Args:
        hosts: Filled in this order.
        min_num_proc: Fewer ranks are an error.
        max_num_proc: No more ranks than this.

    Raises:
        ValueError: There are not enough slots.
    """
    room = sum(host.slots for host in hosts)
    size = room if max_num_proc is None else min(room, max_num_proc)
    if size < min_num_proc:
        raise ValueError(
            f"Requested more processes ({min_num_proc}) than there are available slots ({size})"
        )
    taken: list[int] = []  # ranks on each host
    for host in hosts:
        taken.append(min(host.slots, size - sum(taken)))
    places = []
    for index, host in enumerate(hosts):
        for local_rank in range(taken[index]):
            across = [count > local_rank for count in taken]
            places.append(
                SlotInfo(
                    hostname=host.hostname,
                    rank=sum(taken[:index]) + local_rank,
                    local_rank=local_rank,
                    cross_rank=sum(across[:index]),
                    size=size,
                    local_size=taken[index],
                    cross_size=sum(across),
                )
            )
    return places


def _hash(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def host_hash(salt: object = None) -> str:
    """Returns a name for what shares memory with this process: the host, or this container of it.

    Args:
        salt: Makes another name of it; what is false does not.
    """
    hostname = socket.gethostname()
    folder = Path("/proc/self/ns")
    spaces = " ".join(str(link.readlink()) for link in sorted(folder.glob("*")))
    salted = f"{hostname}-{spaces}" + (f"-{salt}" if salt else "")
    return f"{hostname.split('.')[0]}-{_hash(salted)}"

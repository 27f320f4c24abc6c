"""What is measured: cases, and which contestant carries out which command for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    group: str  # "allreduce", "tcp", "fresh", "many", "grouped" or "step"
    name: str
    payload_bytes: int  # what each rank contributes
    command: str  # `{}` is what the contestant says


@dataclass(frozen=True)
class Contestant:
    """One column: a team, and what it is told in each group of cases it takes part in."""

    name: str
    team: str
    says: dict[str, str]


OPERATIONS = {"allreduce": "allreduce", "fresh": "fresh", "many": "many"}
GROUPED = {**OPERATIONS, "grouped": "grouped"}
PACKED = {**OPERATIONS, "grouped": "packed"}  # they have no groups: the same bytes as one tensor
CONTESTANTS = (
    Contestant("ours C++", "cpp", GROUPED),
    Contestant("ours C++ arena", "cpp", {"allreduce": "allreduce_arena", "fresh": "fresh_arena"}),
    Contestant("ours Python", "hvd", {**GROUPED, "step": "hvd"}),
    Contestant("Open MPI", "openmpi", PACKED),
    Contestant("Gloo", "gloo", {**PACKED, "step": "ddp", "tcp": "allreduce"}),
    Contestant("ours tcp C++", "cpp_tcp", {"tcp": "allreduce"}),
    Contestant("ours tcp", "hvd_tcp", {"tcp": "allreduce"}),
    Contestant("Open MPI tcp", "openmpi_tcp", {"tcp": "allreduce"}),
    Contestant("limit", "limit", {**OPERATIONS, "grouped": "many"}),
    Contestant("no communication", "gloo", {"step": "alone"}),
)

# Bytes, warm-up iterations, timed iterations: enough of them for a few milliseconds at least, and
# few enough that a repetition fits between two changes of the processors' distance.
SIZES = (
    (4, 50, 1000),
    (32 * KIB, 20, 300),
    (MIB, 5, 40),
    (16 * MIB, 2, 5),
    (64 * MIB, 1, 3),
    (256 * MIB, 1, 1),
)
QUICK_SIZES = (SIZES[0], SIZES[2], SIZES[4])


def size_text(size_bytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def operation(group: str, size_bytes: int, warm: int, timed: int) -> Case:
    command = f"{{}} {size_bytes} 1 {warm} {timed}"
    return Case(group, f"{group} {size_text(size_bytes)}", size_bytes, command)


# Over TCP on loopback: what Gloo uses anyway, and Open MPI and we are made to use.
TCP_SIZES = (
    (4 * KIB, 20, 200),
    (32 * KIB, 20, 100),
    (256 * KIB, 10, 60),
    (MIB, 5, 40),
    (4 * MIB, 3, 15),
    (16 * MIB, 2, 5),
    (64 * MIB, 1, 3),
)
QUICK_TCP_SIZES = (TCP_SIZES[0], TCP_SIZES[3], TCP_SIZES[6])

# As in training: before each allreduce every rank writes its whole buffer (not timed), so that the
# peers' data have to come from another processor's cache or from memory.
FRESH = (operation("fresh", MIB, 2, 20), operation("fresh", 64 * MIB, 1, 3))
MANY = Case("many", "1000 x 1 KiB", 1000 * KIB, f"{{}} {KIB} 1000 2 5")
GROUP = Case("grouped", "1000 x 1 KiB grouped", 1000 * KIB, f"{{}} {KIB} 1000 5 40")
STEPS = (
    Case("step", "step wide", 25_557_032 * 4, "step wide {} 1 3"),
    Case("step", "step resnet50", 25_557_032 * 4, "step resnet50 {} 1 3"),
    Case("step", "step small", 4_000_000 * 4, "step small {} 1 10"),
    Case("step", "step convnet", 914_602 * 4, "step convnet {} 1 5"),
)


def all_cases(*, quick: bool) -> list[Case]:
    sizes = QUICK_SIZES if quick else SIZES
    tcp_sizes = QUICK_TCP_SIZES if quick else TCP_SIZES
    return [
        *(operation("allreduce", *size) for size in sizes),
        *(operation("tcp", *size) for size in tcp_sizes),
        *(*FRESH, MANY, GROUP, *STEPS),
    ]


def choose(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The cases whose name contains one of the words (spaces do not matter); all without words."""
    words = [re.sub(r"\s", "", word).lower() for word in only]

    def wanted(case: Case) -> bool:
        name = re.sub(r"\s", "", case.name).lower()
        return not words or any(word in name for word in words)

    chosen = [case for case in cases if wanted(case)]
    if not chosen and only:
        names = ", ".join(f"'{case.name}'" for case in cases)
        raise ValueError(f"no case is named like {' or '.join(only)}; there are {names}")
    return chosen

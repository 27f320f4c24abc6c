"""How each team is started, and why it cannot be where something is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .team import Process, Team, free_port

ROOT = Path(__file__).resolve().parents[2]
WORKER = [sys.executable, "-m", "tests.bench.torch_worker"]
# One thread per rank: with as many ranks as processors, more would only get in each other's way.
TORCH_ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


class MissingError(Exception):
    """Something that a team needs is not there."""


@dataclass(frozen=True)
class Setup:
    """What all teams share."""

    ranks: int
    processors: Sequence[int]  # one per rank
    build: Path  # CMake's build directory
    folder: Path  # for sockets and logs

    def program(self, name: str) -> str:
        for folder in ("tests/bench/native", "launcher"):
            path = self.build / folder / name
            if path.exists():
                return str(path)
        raise MissingError(f"{name} is not in {self.build}; build it with tests/dev build")

    def per_rank(self, make: Callable[[int], Process]) -> list[Process]:
        return [make(rank) for rank in range(self.ranks)]


def start_probe(setup: Setup) -> Team:
    first, second = setup.processors[:2]
    command = [setup.program("bench_probe"), str(first), str(second)]
    return Team("probe", 1, [Process(command)], setup.folder)


def start_limit(setup: Setup) -> Team:
    program = setup.program("bench_limit")
    memory = os.memfd_create("hvl-bench-limit")
    try:

        def process(rank: int) -> Process:
            words = [memory, rank, setup.ranks, setup.processors[rank]]
            return Process([program, *map(str, words)], descriptors=[memory])

        return Team("limit", setup.ranks, setup.per_rank(process), setup.folder)
    finally:
        os.close(memory)


def start_openmpi(setup: Setup, name: str = "openmpi", extra: Sequence[str] = ()) -> Team:
    launcher = shutil.which("mpirun")
    if launcher is None:
        raise MissingError("mpirun is not installed (package openmpi-bin)")
    options = ["--bind-to", "core", "-np", str(setup.ranks), *extra]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if setup.ranks > len(os.sched_getaffinity(0)):
        options.append("--oversubscribe")
    command = [launcher, *options, setup.program("bench_mpi")]
    return Team(name, setup.ranks, [Process(command)], setup.folder)


def start_openmpi_tcp(setup: Setup) -> Team:
    loopback = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}
    options = [word for name, value in loopback.items() for word in ("--mca", name, value)]
    return start_openmpi(setup, "openmpi_tcp", options)


def start_gloo(setup: Setup) -> Team:
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def process(rank: int) -> Process:
        identity = {"RANK": str(rank), "WORLD_SIZE": str(setup.ranks)}
        env = {**TORCH_ENV, **rendezvous, **identity, "GLOO_SOCKET_IFNAME": "lo"}
        return Process([*WORKER, "gloo"], env)

    return Team("gloo", setup.ranks, setup.per_rank(process), setup.folder)


def start_cpp(setup: Setup, name: str = "cpp", operations: str = "auto") -> Team:
    command = [setup.program("hvlrun"), "-np", str(setup.ranks), setup.program("bench_session")]
    env = {"HVL_CPU_OPERATIONS": operations}
    return Team(name, setup.ranks, [Process(command, env)], setup.folder)


def start_hvd(setup: Setup, name: str = "hvd", operations: str = "auto") -> Team:
    command = [setup.program("hvlrun"), "-np", str(setup.ranks), *WORKER, "hvd"]
    env = {**TORCH_ENV, "HVL_CPU_OPERATIONS": operations}
    return Team(name, setup.ranks, [Process(command, env)], setup.folder)


def start_cpp_tcp(setup: Setup) -> Team:
    return start_cpp(setup, "cpp_tcp", "tcp")


def start_hvd_tcp(setup: Setup) -> Team:
    return start_hvd(setup, "hvd_tcp", "tcp")


STARTERS: dict[str, Callable[[Setup], Team]] = {
    "limit": start_limit,
    "openmpi": start_openmpi,
    "openmpi_tcp": start_openmpi_tcp,
    "gloo": start_gloo,
    "cpp": start_cpp,
    "cpp_tcp": start_cpp_tcp,
    "hvd": start_hvd,
    "hvd_tcp": start_hvd_tcp,
}

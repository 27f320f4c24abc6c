"""A rank of `python -m tests.bench.hosts`: every contestant in turn, in one process.

Writes one line of JSON per measured round on rank 0.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import horovodlite.torch as hvd

DATA_PLANES = {
    "two levels": {"HVL_CPU_OPERATIONS": "auto"},
    "flat": {"HVL_CPU_OPERATIONS": "tcp"},
    "flat ring": {"HVL_CPU_OPERATIONS": "tcp", "HVL_REPRODUCIBLE": "0"},
}


def sent_bytes() -> int:
    """Of this host's network so far: all that has left by any interface but loopback."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    fields = {name.strip(): rest.split() for name, _, rest in (x.partition(":") for x in lines)}
    return sum(int(values[8]) for name, values in fields.items() if name != "lo")


def own_address() -> str:
    """By which this host reaches rank 0's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])


class Ours:
    def __init__(self, settings: dict[str, str]) -> None:
        os.environ.update({"HVL_REPRODUCIBLE": "1", **settings})
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def allreduce(self, tensor: torch.Tensor) -> None:
        hvd.allreduce_(tensor, op=hvd.Sum, name="bench")

    def barrier(self) -> None:
        hvd.barrier()

    def close(self) -> None:
        hvd.shutdown()


class Gloo:
    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allreduce(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        pass  # it is made once: its rendezvous takes seconds


def measure(contestant: Ours | Gloo, elements: int, iterations: int) -> dict[str, Any]:
    tensor = torch.ones(elements)
    contestant.allreduce(tensor)
    if not bool((tensor == contestant.size).all()):
        raise AssertionError(f"the sum is wrong: {tensor[:4]} on {contestant.size} ranks")
    tensor.fill_(1 / 1024)
    contestant.allreduce(tensor)
    contestant.barrier()
    before, start = sent_bytes(), time.perf_counter()
    for _ in range(iterations):
        contestant.allreduce(tensor)
    seconds = time.perf_counter() - start
    slowest = torch.tensor([seconds], dtype=torch.float64)
    after = sent_bytes()
    contestant.barrier()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {"seconds": float(slowest) / iterations, "sent": (after - before) / iterations}


def main() -> None:
    sizes, rounds = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2])
    names = sys.argv[3].split(",")
    interface = own_address()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(interface))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for number in range(rounds):
        turn = names[number % len(names) :] + names[: number % len(names)]
        for name in turn:
            contestant = Ours(DATA_PLANES[name]) if name in DATA_PLANES else Gloo()
            for size in sizes:
                iterations = max(1, min(200, (8 << 20) // size))
                found = measure(contestant, size // 4, iterations)
                if rank == 0:
                    print(json.dumps({"name": name, "bytes": size, **found}), flush=True)
            contestant.close()
    dist.destroy_process_group()


def interface_of(address: str) -> str:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise RuntimeError(f"no interface has the address {address}")


if __name__ == "__main__":
    main()

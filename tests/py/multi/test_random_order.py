"""Fifty named operations in a random order that differs on every rank, from three threads each.

Threads submit without blocking and wait when they have submitted everything. Blocking calls, mixed
in, are made by one thread of each rank only, in one order on all ranks: otherwise two ranks whose
threads all block in different operations would wait for each other for ever, by their own fault.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any, Callable

import pytest
import torch

import horovodlite.torch as hvd

OPERATIONS = 50
THREADS = 3
SEEDS = int(os.environ.get("HVL_TEST_SEEDS", "30"))


def _claim(taken: set[Any], work: Work) -> bool:
    """False when the name is in use, which it may be once for each kind in each process set."""
    key = work.kind.rstrip("_"), work.process_set.process_set_id, work.name
    is_free = key not in taken
    taken.add(key)
    return is_free


def _sum_of(inputs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(inputs).sum(0)


class Work:
    """One operation, as every rank of its process set knows it. Sums are of small integers."""

    def __init__(self, index: int, number: random.Random, sets: list[Any], taken: set[Any]) -> None:
        self.kind = number.choice(
            [
                "allreduce",
                "allreduce_",
                "grouped_allreduce",
                "broadcast",
                "allgather",
                "alltoall",
                "reducescatter",
            ]
        )
        self.process_set = sets[0 if number.random() < 0.5 else number.randrange(len(sets))]
        self.ranks = self.process_set.ranks
        self.name = f"work.{number.randrange(20)}"  # the same in several sets and for several kinds
        if not _claim(taken, self):
            self.name = f"other.{index}"
        self.dtype = number.choice([torch.float32, torch.int64, torch.bfloat16, torch.uint8])
        self.rows = {rank: number.choice([0, 1, 3, 17, 257]) for rank in self.ranks}
        if self.kind != "allgather":
            self.rows = dict.fromkeys(self.ranks, number.choice([0, 1, 3, 17, 257, 5000]))
        if self.kind == "alltoall":
            self.rows = {rank: rows * len(self.ranks) for rank, rows in self.rows.items()}
        self.seed = number.randrange(1 << 30)
        self.root = number.choice(self.ranks)
        self.blocks = number.random() < 0.15

    def input_of(self, rank: int, part: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 10 * rank + part)
        shape = (self.rows[rank], 1 + self.seed % 3)
        return torch.randint(0, 8, shape, generator=generator).to(self.dtype)

    def start(self) -> Any:
        """A handle, or the result of a blocking call."""
        tensor = self.input_of(hvd.rank())
        options = {"name": self.name, "process_set": self.process_set}
        sums = {**options, "op": hvd.Sum}
        calls: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple, dict]] = {
            "allreduce": (hvd.allreduce, hvd.allreduce_async, (tensor,), sums),
            "allreduce_": (hvd.allreduce_, hvd.allreduce_async_, (tensor,), sums),
            "grouped_allreduce": (
                hvd.grouped_allreduce,
                hvd.grouped_allreduce_async,
                ([tensor, self.input_of(hvd.rank(), 1)],),
                sums,
            ),
            "broadcast": (hvd.broadcast, hvd.broadcast_async, (tensor, self.root), options),
            "allgather": (hvd.allgather, hvd.allgather_async, (tensor,), options),
            "alltoall": (hvd.alltoall, hvd.alltoall_async, (tensor,), options),
            "reducescatter": (hvd.reducescatter, hvd.reducescatter_async, (tensor,), sums),
        }
        blocking, starting, arguments, keywords = calls[self.kind]
        return (blocking if self.blocks else starting)(*arguments, **keywords)

    def expected(self) -> list[torch.Tensor]:
        inputs = [self.input_of(rank) for rank in self.ranks]
        position, count = self.ranks.index(hvd.rank()), len(self.ranks)
        if self.kind == "broadcast":
            return [self.input_of(self.root)]
        if self.kind == "allgather":
            return [torch.cat(inputs)]
        if self.kind == "alltoall":
            return [
                torch.cat(
                    [tensor.chunk(count)[position] if len(tensor) else tensor for tensor in inputs]
                )
            ]
        if self.kind == "reducescatter":
            return [torch.tensor_split(_sum_of(inputs), count)[position]]
        if self.kind == "grouped_allreduce":
            return [_sum_of(inputs), _sum_of([self.input_of(rank, 1) for rank in self.ranks])]
        return [_sum_of(inputs)]

    def check(self, result: Any) -> None:
        if isinstance(result, tuple):  # alltoall_async tells the received splits as well
            result = result[0]
        results = result if isinstance(result, list) else [result]
        for mine, wanted in zip(results, self.expected(), strict=True):
            assert torch.equal(mine, wanted), (self.kind, self.name, self.ranks)


def run_seed(seed: int, sets: list[Any]) -> None:
    number = random.Random(seed)
    taken: set[Any] = set()
    works = [Work(index, number, sets, taken) for index in range(OPERATIONS)]
    own = [work for work in works if hvd.rank() in work.ranks]
    order = random.Random(seed * 8 + hvd.rank())
    free = [work for work in own if not work.blocks]
    order.shuffle(free)
    lists = [free[index::THREADS] for index in range(THREADS)]
    at = 0
    for work in (work for work in own if work.blocks):
        at = order.randint(at, len(lists[0]))
        lists[0].insert(at, work)
        at += 1
    failures: list[BaseException] = []

    def body(mine: list[Work]) -> None:
        try:
            started = [(work, work.start()) for work in mine]
            for work, result in started:
                work.check(result if work.blocks else hvd.synchronize(result))
        except BaseException as error:
            failures.append(error)
            hvd.shutdown()  # lets nobody wait for what is left out

    threads = [threading.Thread(target=body, args=(mine,)) for mine in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError(f"HVL_TEST_SEED={seed}: {failures[0]!r}") from failures[0]


@pytest.mark.parametrize("size", [2, 3])
def test_fifty_operations_in_any_order_from_three_threads(run, plane, fusion, size: int) -> None:
    first = int(os.environ.get("HVL_TEST_SEED", random.randrange(1 << 30)))
    print(f"HVL_TEST_SEED={first}")

    def body(first: int) -> None:
        some = ([0], [1]) if hvd.size() == 2 else ([0, 1], [1, 2], [2])
        sets = [hvd.global_process_set, *map(hvd.add_process_set, some)]
        for seed in range(first, first + SEEDS):
            run_seed(seed, sets)
        hvd.barrier()  # who leaves ends the sets of the others as well

    run(body, first, size=size, env={**plane, **fusion}, deadline=max(120, 4 * SEEDS))

"""Send and receive: any order, tags, any source, and barriers that tell who is missing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import horovodlite.torch.c10d as c10d
from horovodlite import HorovodInternalError


def _both_send_first(count: int) -> None:
    peer = 1 - dist.get_rank()
    mine = torch.full((count,), float(dist.get_rank()))
    for _ in range(3):
        dist.send(mine, peer)
    for _ in range(3):
        received = torch.empty(count)
        assert dist.recv(received, peer) == peer
        assert torch.equal(received, torch.full((count,), float(peer)))


@pytest.mark.parametrize("count", [0, 1, 1 << 20])
def test_both_sides_may_send_first(run_world: Any, count: int) -> None:
    run_world(_both_send_first, count, size=2)


def _sent_tensors_may_change() -> None:
    tensor = torch.zeros(1000)
    if dist.get_rank() == 0:
        for step in range(10):
            tensor.fill_(step)
            dist.isend(tensor, 1).wait()
        dist.barrier()
    else:
        dist.barrier()
        for step in range(10):
            dist.recv(tensor, 0)
            assert torch.equal(tensor, torch.full((1000,), float(step)))


def test_what_is_sent_may_change_at_once(run_world: Any) -> None:
    run_world(_sent_tensors_may_change, size=2)


def _tags() -> None:
    if dist.get_rank() == 0:
        for tag in range(4):
            for number in range(2):
                dist.send(torch.tensor([tag, number]), 1, tag=tag)
        return
    for number in range(2):
        for tag in (3, 1, 0, 2):
            received = torch.zeros(2, dtype=torch.int64)
            dist.recv(received, 0, tag=tag)
            assert received.tolist() == [tag, number]


def test_tags_are_told_apart(run_world: Any) -> None:
    run_world(_tags, size=2)


def _any_source() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        for number in range(5):
            dist.send(torch.full((rank + 1,), 10.0 * rank + number), 0)
        dist.send(torch.arange(7), 0)
        return
    time.sleep(0.05)
    seen: dict[int, list[float]] = {i: [] for i in range(1, size)}
    first = dist.recv(torch.zeros(3), 2)  # from one, before all others
    assert first == 2
    seen[2].append(20.0)
    two = torch.zeros(2)
    assert dist.recv(two, 1) == 1
    seen[1].append(two[0].item())
    for _ in range(4):
        dist.recv(two, 1)
        seen[1].append(two[0].item())
        three = torch.zeros(3)
        dist.recv(three, 2)
        seen[2].append(three[0].item())
    sources = set()
    for _ in range(size - 1):
        last = torch.zeros(7, dtype=torch.int64)
        sources.add(dist.recv(last))
        assert last.tolist() == list(range(7))
    assert sources == {1, 2}
    assert seen == {i: [10.0 * i + number for number in range(5)] for i in (1, 2)}


def test_receiving_from_any_source(run_world: Any) -> None:
    run_world(_any_source, size=3)


def _any_source_then_others() -> None:
    """What has been begun for any source serves later receives, of any shape."""
    rank = dist.get_rank()
    if rank == 1:
        dist.send(torch.tensor([1.0]), 0)
        dist.barrier()
        dist.send(torch.ones(3, 3), 0)
    elif rank == 2:
        dist.barrier()
        dist.send(torch.arange(4), 0)
    else:
        one = torch.zeros(1)
        works = dist.irecv(one)
        works.wait()
        assert works.source_rank() == 1
        assert one.item() == 1.0
        dist.barrier()
        square, four = torch.zeros(3, 3), torch.zeros(4, dtype=torch.int64)
        assert dist.recv(four, 2) == 2
        assert four.tolist() == [0, 1, 2, 3]
        assert dist.recv(square) == 1
        assert square.sum() == 9


def test_other_receives_follow_those_from_any_source(run_world: Any) -> None:
    run_world(_any_source_then_others, size=3)


def _batch() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    outs = [torch.zeros(5) for _ in range(size)]
    ops = []
    for peer in range(size):
        if peer != rank:
            ops.append(dist.P2POp(dist.irecv, outs[peer], peer))
            ops.append(dist.P2POp(dist.isend, torch.full((5,), float(rank)), peer))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for peer in range(size):
        assert outs[peer].tolist() == [float(peer) if peer != rank else 0.0] * 5


def test_batches(run_world: Any) -> None:
    run_world(_batch, size=4)


def _to_itself() -> None:
    rank = dist.get_rank()
    received = torch.zeros(2)
    work = dist.irecv(received, rank)
    assert not work.is_completed()
    dist.isend(torch.tensor([1.0, 2.0]), rank)
    work.wait()
    assert received.tolist() == [1.0, 2.0]
    dist.isend(torch.tensor([3.0]), rank)
    dist.irecv(received[:1], rank).wait()
    assert received.tolist() == [3.0, 2.0]


def test_a_rank_may_send_to_itself(run_world: Any) -> None:
    run_world(_to_itself, size=1)


def _other_types() -> None:
    kinds = [torch.float8_e4m3fn, torch.uint16, torch.complex128, torch.bool, torch.bfloat16]
    for kind in kinds:
        wanted = (torch.arange(6) % 2).to(kind).view(2, 3)
        if dist.get_rank() == 0:
            dist.send(wanted, 1)
        else:
            received = torch.zeros(3, 2).to(kind).t()
            dist.recv(received, 0)
            assert torch.equal(received.contiguous().view(-1).view(torch.uint8),
                               wanted.contiguous().view(-1).view(torch.uint8))  # fmt: skip


def test_all_types_travel(run_world: Any) -> None:
    run_world(_other_types, size=2)


def _does_not_fit() -> str:
    if dist.get_rank() == 0:
        dist.send(torch.zeros(3), 1)
        return ""
    with pytest.raises(ValueError, match="recv expects") as caught:
        dist.recv(torch.zeros(2, dtype=torch.int64), 0)
    return str(caught.value)


def test_what_does_not_fit_is_told(run_world: Any) -> None:
    message = run_world(_does_not_fit, size=2)[1]
    assert "2 elements of int64" in message
    assert "3 of float32" in message


def _monitored() -> list[str]:
    c10d.monitored_barrier()
    c10d.monitored_barrier(timeout=timedelta(seconds=30))
    messages = []
    if dist.get_rank() != 1:
        with pytest.raises(HorovodInternalError) as caught:
            c10d.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
        messages.append(str(caught.value))
    return messages


def test_a_monitored_barrier_names_who_is_missing(run_world: Any) -> None:
    messages = run_world(_monitored, size=3)
    assert "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 500 ms" in messages[0][0]
    assert "Rank 2 waited in vain for rank 0" in messages[2][0]

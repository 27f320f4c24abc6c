"""What goes wrong is an error on every rank that can have one, and nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from support.groups import free_port

from horovodlite import HorovodInternalError


def _caught(call: Callable[[], Any]) -> HorovodInternalError:
    with pytest.raises(HorovodInternalError) as caught:
        call()
    return caught.value


def _disagree() -> list[tuple[str, str]]:
    rank = dist.get_rank()
    group = dist.group.WORLD
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(3 + rank)),
        lambda: dist.all_reduce(torch.ones(3, dtype=[torch.float32, torch.int64][rank])),
        lambda: dist.all_reduce(torch.ones(3), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]),
        lambda: dist.broadcast(torch.ones(3), src=rank),
        lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(3)),
        lambda: dist.reduce_scatter_tensor(torch.ones(1 + rank), torch.ones(2 + 2 * rank)),
    ]
    errors = [_caught(call) for call in calls]
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2.0, 2.0]  # the group goes on
    return [(error.code, str(error)) for error in errors]


def test_ranks_that_disagree_are_told_in_what(run_world: Any) -> None:
    mine, theirs = run_world(_disagree, size=2)
    assert mine == theirs
    assert all(code == "Mismatch" and "c10d.0." in text for code, text in mine)
    shape, dtype, op, root, kind, part = (text for _, text in mine)
    assert "[3]" in shape
    assert "[4]" in shape
    assert "float32" in dtype
    assert "int64" in dtype
    assert "sum" in op.lower()
    assert "max" in op.lower()
    assert "root" in root
    assert "barrier" in kind
    assert "allreduce" in kind
    assert "[2]" in part
    assert "[4]" in part


def _wrong_use() -> None:
    size = dist.get_world_size()
    three = [torch.zeros(2) for _ in range(size + 1)]
    wrong: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(2).bool(), op=dist.ReduceOp.AVG),
        lambda: dist.group.WORLD.allreduce([torch.ones(2, dtype=torch.cfloat)], dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.all_gather(three, torch.ones(2)),
        lambda: dist.all_gather([torch.zeros(2)] * size, torch.ones(2).long()),
        lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(3)),
        lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3)),
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2], [5, -1]),
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2, 0], [2, 2, 0]),
        lambda: dist.group.WORLD.send([torch.zeros(1)], 7, 0),
        lambda: dist.group.WORLD.recv([torch.zeros(1)], -1, 0),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e4m3fn)),
        lambda: dist.all_reduce("no tensor"),
    ]
    for call in wrong:
        with pytest.raises((ValueError, TypeError)):
            call()
    with pytest.raises((NotImplementedError, RuntimeError)):
        dist.all_reduce(torch.ones(2, device="meta"))
    dist.barrier()


def test_wrong_use_raises_on_its_rank(run_world: Any) -> None:
    run_world(_wrong_use, size=2)


def _too_large(rank_with: int) -> None:
    rank = dist.get_rank()
    out = [torch.zeros(2), torch.zeros(2)]
    if rank == rank_with:
        out[1 - rank] = torch.zeros(5)
    if rank != rank_with:
        dist.all_gather(out, torch.ones(2))
        return
    with pytest.raises(ValueError, match=r"2 elements .* shape \(5,\)"):
        dist.all_gather(out, torch.ones(2))


def test_an_output_of_another_size_is_an_error(run_world: Any) -> None:
    run_world(_too_large, 0, size=2)


def _late() -> float:
    begin = time.monotonic()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        error = _caught(lambda: work.wait(timedelta(seconds=0.2)))
        assert error.code == "Timeout"
        assert "allreduce 'c10d.0.0'" in str(error)
        group = dist.group.WORLD
        group.set_timeout(timedelta(seconds=0.2))
        assert _caught(dist.barrier).code == "Timeout"
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        with pytest.raises(RuntimeError, match=r"timed out after 0\.2 s"):
            future.wait()
        return time.monotonic() - begin
    time.sleep(1.5)
    return 0.0


def test_time_limits_hold(run_world: Any) -> None:
    assert 0.5 < run_world(_late, size=2)[0] < 20


def _survivors(port: int, victim: int) -> tuple[str, int | None, float]:
    from support.groups import world

    with world(port):
        pair = dist.new_group([0, 1])
        dist.barrier()
        if dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        pending = dist.irecv(torch.zeros(3), victim)
        error = _caught(lambda: dist.all_reduce(torch.ones(100)))
        assert _caught(pending.wait).culprit_rank == victim
        assert _caught(dist.barrier).culprit_rank == victim
        if dist.get_rank() < 2:
            assert _caught(lambda: dist.all_reduce(torch.ones(1), group=pair))
        return error.code, error.culprit_rank, time.monotonic() - begin


@pytest.mark.parametrize("victim", [0, 2])
def test_a_dead_rank_is_an_error_on_all_others(pool: Any, victim: int) -> None:
    outcomes = pool.outcomes(_survivors, free_port(), victim, size=3, initialize=False)
    for rank, (kind, value) in enumerate(outcomes):
        if rank == victim:
            assert kind == "died"
        else:
            assert kind == "value", value
            code, culprit, seconds = value
            assert (code, culprit) == ("Unavailable", victim)
            assert seconds < 10


def _leaves_early(port: int) -> str:
    from support.groups import world

    with world(port):
        tensor = torch.full((1000,), float(dist.get_rank()))
        dist.all_reduce(tensor)
        if dist.get_rank() == 0:
            dist.send(torch.arange(5), 1)
            return "left"
        time.sleep(0.3)
        received = torch.zeros(5, dtype=torch.int64)
        dist.recv(received, 0)
        assert received.tolist() == [0, 1, 2, 3, 4]
        return str(_caught(lambda: dist.all_reduce(tensor)))


def test_a_rank_that_leaves_early_has_sent_everything(run: Any) -> None:
    left, told = run(_leaves_early, free_port(), size=2, initialize=False)
    assert left == "left"
    assert "allreduce on rank 1" in told
    assert "barrier on rank 0" in told  # the one at its end


def _others_go_on(port: int) -> float:
    from support.groups import world

    begin = time.monotonic()
    with world(port):
        group = dist.new_group([1, 2, 3])
        if dist.get_rank():
            for _ in range(10):
                time.sleep(0.05)
                dist.all_reduce(torch.ones(10), group=group)
    return time.monotonic() - begin


def test_groups_without_a_rank_go_on_when_it_is_through(run: Any) -> None:
    assert run(_others_go_on, free_port(), size=4, initialize=False)[0] > 0.5  # it has waited


def _another_world() -> str:
    with pytest.raises(ValueError, match="horovodlite") as caught:
        dist.init_process_group("horovodlite", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()
    dist.distributed_c10d._world.group_count = 0  # torch has counted it; other ranks have not
    return str(caught.value)


def test_another_world_is_an_error(run: Any) -> None:
    texts = run(_another_world, size=2)
    assert all("rank 0 of 1 for torch.distributed" in text for text in texts)

"""Many operations at once: order, names, life of tensors and handles, memory, stalls."""

from __future__ import annotations

import gc
import random
import re
import time
import weakref

import psutil
import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


@pytest.mark.trial("B51")
def test_ranks_may_submit_named_operations_in_any_order(run) -> None:
    def body() -> None:
        order = list(range(50))
        for round_ in range(3):
            random.Random(100 * round_ + hvd.rank()).shuffle(order)
            handles = {
                i: hvd.allreduce_async(torch.full((i,), float(i + hvd.rank())), name=str(i))
                for i in order
            }
            for i, handle in handles.items():
                assert hvd.synchronize(handle).tolist() == [i + 1.0] * i

    run(body, size=3)


@pytest.mark.trial("B51")
def test_unnamed_operations_are_paired_by_their_order(run) -> None:
    """So another order is a disagreement, and an error on every rank."""

    def body() -> None:
        sizes = [3, 4] if hvd.rank() == 0 else [4, 3]
        handles = [hvd.allreduce_async(torch.ones(size)) for size in sizes]
        for handle in handles:
            with pytest.raises(hvd.HorovodInternalError, match="noname"):
                hvd.synchronize(handle)
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    run(body)


@pytest.mark.trial("B49")
def test_a_name_in_flight_cannot_be_used_again_until_it_is_done(run) -> None:
    """The second call is refused, the first completes, on whichever rank it was."""

    def body() -> None:
        first = hvd.allreduce_async(torch.ones(2), name="x") if hvd.rank() == 1 else None
        if first is not None:
            with pytest.raises(ValueError, match="x"):
                hvd.allreduce_async(torch.ones(2), name="x")
        hvd.barrier()
        result = hvd.synchronize(first or hvd.allreduce_async(torch.ones(2), name="x"))
        assert result.tolist() == [1.0, 1.0]
        for _ in range(3):
            assert hvd.allreduce(torch.ones(2), name="x").tolist() == [1.0, 1.0]

    run(body)


@pytest.mark.trial("B47")
def test_the_runtime_holds_the_tensors_of_operations_in_flight(run) -> None:
    """The caller drops its tensor at once and fills memory with other things."""

    def body() -> None:
        for attempt in range(3):
            value = float(hvd.rank() + attempt)
            handles = [
                hvd.allreduce_async(torch.full((1000000,), value), op=hvd.Sum),
                hvd.allreduce_async_(torch.full((1000001,), value), op=hvd.Sum),
                hvd.allgather_async(torch.full((1000,), value)),
                hvd.broadcast_async(torch.full((1000,), value), 1),
            ]
            gc.collect()
            junk = [torch.full((1000000,), -1.0) for _ in range(4)]
            results = [hvd.synchronize(handle) for handle in handles]
            total = 2 * attempt + 1.0
            assert torch.equal(results[0], torch.full((1000000,), total))
            assert torch.equal(results[1], torch.full((1000001,), total))
            assert results[2][0] == attempt
            assert results[2][-1] == attempt + 1
            assert results[3][0] == attempt + 1
            del junk

    run(body)


def test_tensors_are_let_go_when_their_operation_is_done(run, plane) -> None:
    def body() -> None:
        for submit in (hvd.allreduce_async, hvd.allreduce_async_, hvd.allgather_async):
            tensor = torch.ones(1000)
            watch = weakref.ref(tensor)
            result = hvd.synchronize(submit(tensor))
            del tensor, result
            assert watch() is None

    run(body, env=plane)


@pytest.mark.trial("B47")
def test_changing_a_tensor_in_flight_gives_no_crash(run) -> None:
    """Its values are undefined then."""

    def body() -> None:
        tensor = torch.full((1000000,), 1.0)
        handle = hvd.allreduce_async_(tensor)
        tensor.zero_()
        assert hvd.synchronize(handle) is tensor
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    run(body)


@pytest.mark.trial("B48")
def test_handles_that_nobody_waits_for_cost_no_memory(run) -> None:
    """5000 operations of 100 kB whose handles are dropped."""

    def body() -> None:
        process = psutil.Process()
        for _ in range(200):
            hvd.allreduce_async(torch.ones(25000))
        hvd.barrier()
        before = process.memory_info().rss
        for index in range(4800):
            hvd.allreduce_async(torch.ones(25000))
            if index % 100 == 99:
                hvd.allreduce(torch.ones(1))  # lets the ranks keep pace
        hvd.barrier()
        assert session().counters()["objects_kept_alive"] < 1000
        assert process.memory_info().rss - before < 150 << 20

    run(body)


@pytest.mark.trial("B48")
def test_a_handle_that_is_kept_keeps_its_result_and_no_more(run) -> None:
    def body() -> None:
        handles = [hvd.allreduce_async(torch.full((100,), float(i))) for i in range(500)]
        hvd.barrier()
        assert all(hvd.poll(handle) for handle in handles)
        for index, handle in enumerate(handles):
            assert hvd.synchronize(handle)[0] == index
            with pytest.raises(ValueError, match="has been cleared"):
                hvd.poll(handle)

    run(body)


@pytest.mark.trial("B52")
def test_names_that_differ_are_reported_and_then_fail_when_so_configured(run, pool) -> None:
    """Warnings list each tensor and who is missing; then an error on both ranks."""

    def body() -> float:
        hvd.barrier()  # so that both have waited long enough to be told of
        begin = time.monotonic()
        mine = "ab"[hvd.rank()]
        message = f"'allreduce.{mine}' has waited .* for rank {1 - hvd.rank()} "
        with pytest.raises(hvd.HorovodInternalError, match=message):
            hvd.allreduce(torch.ones(1), name=mine)
        seconds = time.monotonic() - begin
        hvd.barrier()  # or the other may hear that this rank has left
        return seconds

    env = {"HVL_STALL_CHECK_TIME_SECONDS": "0.5", "HVL_STALL_SHUTDOWN_TIME_SECONDS": "1.5"}
    seconds = run(body, env=env)
    assert all(1.0 < value < 20.0 for value in seconds)
    log = pool.stderr(0)
    for rank, name in enumerate("ab"):
        told = rf"'allreduce.{name}' for .*: missing on rank {1 - rank}; ready on rank {rank}"
        assert re.search(told, log)


@pytest.mark.trial("B53")
def test_one_name_with_another_kind_on_some_rank_is_an_error_that_names_both(run) -> None:
    """Horovod stalls."""

    def body() -> None:
        rank = hvd.rank()
        both = (
            r"'t' differs between ranks: operation: allreduce \('.*allreduce.t'\) on rank 0, "
            r"broadcast \('broadcast.t'\) on ranks 1, 2"
        )
        one = torch.ones(1)
        for reduce in (
            lambda: hvd.allreduce(one, name="t"),
            lambda: hvd.grouped_allreduce([one], name="t"),
        ):
            submit = (lambda: hvd.broadcast(one, 0, name="t")) if rank else reduce
            with pytest.raises(hvd.HorovodInternalError, match=both):
                submit()

    run(body, size=3, env={"HVL_STALL_CHECK_TIME_SECONDS": "0.5"})


@pytest.mark.trial("B53")
def test_one_name_may_serve_several_kinds_at_once_in_another_order_on_each_rank(run) -> None:
    def body() -> None:
        rank = hvd.rank()
        kinds = [
            lambda: hvd.allreduce_async(torch.ones(1), name="u", op=hvd.Sum),
            lambda: hvd.broadcast_async(torch.ones(1), 0, name="u"),
            lambda: hvd.allgather_async(torch.ones(1), name="u"),
        ]
        handles = [kind() for kind in kinds[rank:] + kinds[:rank]]
        assert sorted(hvd.synchronize(handle).sum().item() for handle in handles) == [1, 3, 3]

    run(body, size=3)


@pytest.mark.trial("B58")
def test_barriers_do_not_mix_with_what_is_pending(run) -> None:
    def body() -> None:
        handles = []
        for index in range(500):
            if index % 10 == 0:
                handles.append(hvd.allreduce_async(torch.full((3,), float(index))))
            hvd.barrier()
        for index, handle in enumerate(handles):
            assert hvd.synchronize(handle).tolist() == [10.0 * index] * 3
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.barrier()

    run(body, size=4, deadline=120.0)


def test_a_barrier_waits_for_the_last_rank(run) -> None:
    def body() -> tuple[float, float]:
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.3)
        arrived = time.clock_gettime(time.CLOCK_MONOTONIC)
        hvd.barrier()
        return arrived, time.clock_gettime(time.CLOCK_MONOTONIC)

    times = run(body, size=3)
    assert min(left for _, left in times) >= max(arrived for arrived, _ in times)


@pytest.mark.trial("B94")
def test_small_operations_do_not_wait_for_a_cycle(run) -> None:
    """One after the other and all at once; generous limits, since machines may be busy."""

    def body() -> tuple[float, float]:
        tensor = torch.ones(1)
        for _ in range(20):
            hvd.allreduce(tensor, name="x")
        times = []
        for _ in range(500):
            begin = time.perf_counter()
            hvd.allreduce(tensor, name="x")
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        handles = [hvd.allreduce_async(tensor) for _ in range(10000)]
        for handle in handles:
            hvd.synchronize(handle)
        return sorted(times)[len(times) // 4], time.perf_counter() - begin

    for quick, batch in run(body, deadline=120.0):
        assert quick < 1e-3  # with a cycle to wait for, none would be
        assert batch < 60.0


@pytest.mark.trial("B95")
def test_fresh_names_do_not_make_memory_grow(run) -> None:
    """20000 operations, each with a name of its own."""

    def body() -> None:
        process = psutil.Process()
        tensor = torch.ones(256)

        def reduce(count: int) -> None:
            handles = [hvd.allreduce_async(tensor) for _ in range(count)]
            for handle in handles:
                hvd.synchronize(handle)

        for _ in range(10):
            reduce(200)
        before = process.memory_info().rss
        for _ in range(90):
            reduce(200)
        assert process.memory_info().rss - before < 20 << 20

    run(body, deadline=180.0)

"""Process sets: static, dynamic, overlapping, in every operation, from several threads at once."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest


def test_static_sets_are_registered_by_init_and_gone_after_shutdown(run) -> None:
    def body() -> None:
        import horovodlite.torch as hvd

        pair, all_again, twice = hvd.ProcessSet([2, 0]), hvd.ProcessSet([0, 1, 2]), None
        twice = hvd.ProcessSet([0, 2])
        assert (pair.process_set_id, pair.size(), pair.rank()) == (None, None, None)
        hvd.init(process_sets=[pair, all_again, twice])
        rank = hvd.rank()
        assert str(pair) == "ProcessSet(process_set_id=1, ranks=[0, 2], mpi_comm=None)"
        assert all_again.process_set_id is None
        assert twice.process_set_id is None
        assert pair.size() == 2
        assert pair.included() == (rank != 1)
        if rank != 1:
            assert pair.rank() == rank // 2
        assert hvd.global_process_set.ranks == [0, 1, 2]
        assert hvd.global_process_set.rank() == rank
        hvd.shutdown()
        assert pair.process_set_id is None
        hvd.init(process_sets=[pair])
        assert pair.process_set_id == 1

    run(body, size=3, initialize=False)


def test_sets_come_and_go_while_others_work(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for turn in range(3):
            pair = hvd.add_process_set([1, 2])
            assert pair.process_set_id == turn + 1
            with pytest.raises(ValueError, match="exists already"):
                hvd.add_process_set([2, 1])
            if pair.included():
                total = hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum, process_set=pair)
                assert total == 3.0
            assert hvd.remove_process_set(pair)
            assert pair.process_set_id is None
            assert not hvd.remove_process_set(pair)
            with pytest.raises(ValueError, match="does not exist, or has not been registered"):
                hvd.allreduce(torch.ones(1), process_set=pair)
        assert not hvd.remove_process_set(hvd.global_process_set)
        with pytest.raises(ValueError, match="from 0 to 2"):
            hvd.add_process_set([0, 3])
        with pytest.raises(ValueError, match="process ranks"):
            hvd.ProcessSet(["0"])

    run(body, size=3, env=plane)


def test_ranks_that_disagree_about_a_set_get_an_error_with_both_lists(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        with pytest.raises(hvd.HorovodInternalError, match=r"0.*1.*2|2.*1.*0"):
            hvd.add_process_set([0, 1 + hvd.rank() % 2])
        good = hvd.add_process_set([0, 1])
        if good.included():
            assert hvd.allreduce(torch.ones(1), process_set=good) == 1.0
        hvd.barrier()

    run(body, size=3)


def test_adding_on_one_rank_and_removing_on_another_is_an_error_for_both(run) -> None:
    def body() -> None:
        import pytest

        import horovodlite.torch as hvd

        old = hvd.add_process_set([0])
        change, what = (
            (hvd.add_process_set, [1]) if hvd.rank() == 0 else (hvd.remove_process_set, old)
        )
        with pytest.raises(hvd.HorovodInternalError, match="differs between ranks"):
            change(what)
        new = hvd.add_process_set([1])
        assert hvd.remove_process_set(old)
        assert hvd.remove_process_set(new)

    run(body)


def test_strangers_are_refused(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        pair = hvd.add_process_set([0, 2])
        if hvd.rank() == 1:
            text = r"rank 1 is not a member of process set 1 \[0, 2\]"
            with pytest.raises(ValueError, match=text):
                hvd.allreduce(torch.ones(1), process_set=pair)
            with pytest.raises(ValueError, match=text):
                hvd.barrier(pair)
        else:
            with pytest.raises(ValueError, match="invalid root rank 1 for provided process set"):
                hvd.broadcast(torch.ones(1), 1, process_set=pair)
            hvd.barrier(pair)
        with pytest.raises(TypeError, match="ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=[0, 2])
        hvd.barrier()

    run(body, size=3)


def test_every_operation_works_in_overlapping_sets(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        sets = [hvd.add_process_set(ranks) for ranks in ([0, 1, 3], [1, 2, 3], [3], [0, 2])]
        for chosen in sets:
            if not chosen.included():
                continue
            ranks, place, n = chosen.ranks, chosen.rank(), chosen.size()
            mine = torch.full((n, 2), float(rank))
            mean = sum(ranks) / n
            how = {"process_set": chosen}
            assert hvd.allreduce(mine, name="a", **how)[0, 0] == torch.tensor(mean)
            assert hvd.grouped_allreduce([mine, mine], op=hvd.Sum, **how)[1][0, 0] == sum(ranks)
            assert hvd.allgather(mine[:1], **how)[:, 0].tolist() == ranks
            assert [t.shape[0] for t in hvd.grouped_allgather([mine[:1]], **how)] == [n]
            assert hvd.broadcast(mine, ranks[-1], **how)[0, 0] == ranks[-1]
            assert hvd.alltoall(mine, **how)[:, 0].tolist() == ranks
            assert hvd.reducescatter(mine, op=hvd.Sum, **how).tolist() == [[sum(ranks)] * 2]
            assert hvd.broadcast_object({"from": rank}, ranks[0], **how) == {"from": ranks[0]}
            assert hvd.allgather_object(rank, **how) == ranks
            sparse = torch.eye(2).to_sparse()
            wait = hvd.sparse_allreduce_async(sparse, "s", hvd.Sum, **how)
            assert wait().to_dense()[0, 0] == n
            hvd.barrier(chosen)
            leaf = mine.clone().requires_grad_()
            (hvd.allreduce(leaf, op=hvd.Sum, **how) * (place + 1)).sum().backward()
            assert leaf.grad[0, 0] == n * (n + 1) / 2
            leaf = mine[:1].clone().requires_grad_()
            hvd.allgather(leaf, **how).sum().backward()
            assert leaf.grad.tolist() == [[1.0, 1.0]]
            leaf = mine.clone().requires_grad_()
            hvd.broadcast(leaf, ranks[0], **how).sum().backward()
            assert leaf.grad[0, 0] == (1.0 if rank == ranks[0] else 0.0)
        assert hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum) == 6.0

    run(body, size=4, env={**plane, **fusion})


def test_operations_with_a_root_work_in_overlapping_sets(run, plane, fusion) -> None:
    """Roots are ranks of the world; operations of all sets are in flight at once."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        sets = [hvd.add_process_set(ranks) for ranks in ([0, 1, 3], [1, 2, 3], [3], [0, 2])]
        mine = [chosen for chosen in sets if chosen.included()]
        results = []
        for chosen in mine:
            n, root, how = chosen.size(), chosen.ranks[-1], {"process_set": chosen}
            own = torch.full((n + 1, 2), float(rank))
            rows = torch.arange(2.0 * n).view(n, 2) if rank == root else torch.zeros(0, 2)
            results.append(
                (
                    hvd.reduce_async(own, root, op=hvd.Sum, name="r", **how),
                    hvd.gather_async(own[: rank % 2 + 1], root, name="g", **how),
                    hvd.scatter_async(rows, root, name="s", **how),
                    hvd.grouped_reducescatter_async([own, own.int()], "p", hvd.Sum, **how),
                )
            )
        for chosen, handles in zip(mine, results):
            ranks, place, n = chosen.ranks, chosen.rank(), chosen.size()
            reduced, gathered, row, (part, integers) = map(hvd.synchronize, handles)
            if rank == ranks[-1]:
                assert reduced.tolist() == [[sum(ranks)] * 2] * (n + 1)
                assert gathered[:, 0].tolist() == [r for r in ranks for _ in range(r % 2 + 1)]
            else:
                assert (reduced, gathered) == (None, None)
            assert row.tolist() == [[2.0 * place, 2.0 * place + 1]]
            assert part.tolist() == [[float(sum(ranks))] * 2] * (2 if place == 0 else 1)
            assert torch.equal(integers, part.int())
        hvd.barrier()

    run(body, size=4, env={**plane, **fusion})


def test_members_send_to_each_other_around_each_set_while_it_works(run, plane, fusion) -> None:
    """send and recv concern two ranks and no set: its operations may have the same names."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for ranks in ([0, 1, 3], [1, 2, 3], [0, 2]):
            chosen = hvd.add_process_set(ranks)
            if not chosen.included():
                continue
            behind, ahead = (ranks[(chosen.rank() + by) % len(ranks)] for by in (-1, 1))
            own = torch.full((3,), float(rank))
            total = hvd.allreduce_async(own, name="x", op=hvd.Sum, process_set=chosen)
            named = hvd.send_async(own + 10, ahead, name="x")
            first, second = hvd.send_async(own, ahead), hvd.send_async(own + 1, ahead)
            got = [hvd.recv(torch.empty(3), behind)[0].item() for _ in range(2)]
            assert got == [behind, behind + 1.0]
            assert hvd.recv(torch.empty(3), behind, name="x").tolist() == [behind + 10.0] * 3
            assert hvd.synchronize(total).tolist() == [float(sum(ranks))] * 3
            for handle in (named, first, second):
                hvd.synchronize(handle)
        hvd.barrier()

    run(body, size=4, env={**plane, **fusion})


def test_strangers_are_refused_as_roots(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        pair = hvd.add_process_set([0, 2])
        for operation in (hvd.reduce, hvd.gather, hvd.scatter):
            with pytest.raises(ValueError, match="rank 1"):
                operation(torch.ones(2), 1, process_set=pair)
        if pair.included():
            assert hvd.allreduce(torch.ones(1), process_set=pair) == 1.0
        hvd.barrier()

    run(body, size=3)


def test_adasum_of_a_set_is_that_of_its_ranks_alone(run, plane, fusion) -> None:
    """Two ranks, then three: the same bits as in a world that has no other ranks."""

    def body(ranks: list[int] | None) -> list[list[float]]:
        import torch

        import horovodlite.torch as hvd

        chosen = hvd.add_process_set(ranks) if ranks else hvd.global_process_set
        if not chosen.included():
            hvd.barrier()
            return []
        torch.manual_seed(chosen.rank())
        one, two = torch.randn(17), torch.randn(3, 5)
        how = {"op": hvd.Adasum, "process_set": chosen}
        results = [hvd.allreduce(one, name="one", **how)]
        results += hvd.grouped_allreduce([one, two], name="group", **how)
        weight = torch.nn.Parameter(one.clone())
        sgd = torch.optim.SGD([weight], lr=0.5)
        optimizer = hvd.DistributedOptimizer(sgd, [("w", weight)], **how)
        weight.square().sum().backward()
        optimizer.step()
        results.append(weight.detach())
        if ranks:
            hvd.barrier()
        return [result.flatten().tolist() for result in results]

    env = {**plane, **fusion}
    for ranks in ([0, 2], [0, 1, 3]):
        inside = run(body, ranks, size=4, env=env)
        alone = run(body, None, size=len(ranks), env=env)
        assert [inside[rank] for rank in ranks] == alone
        assert alone[0][0] != [0.0] * 17
        assert [inside[rank] for rank in range(4) if rank not in ranks] == [[]] * (4 - len(ranks))


def test_an_optimizer_trains_within_its_set(run, plane) -> None:
    def body() -> list[float]:
        import torch

        import horovodlite.torch as hvd

        pair = hvd.add_process_set([0, 2])
        rank = hvd.rank()
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=pair)
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        optimizer.step()
        hvd.barrier()  # who leaves ends the session of all
        return model.weight.tolist()[0]

    assert run(body, size=3, env=plane) == [[-2.0, -2.0], [-2.0, -2.0], [-2.0, -2.0]]


@pytest.mark.trial("B34")
def test_averages_within_a_set_are_divided_by_its_size(run) -> None:
    """Alone, in groups, sparse, divided before adding; those outside notice nothing."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        pair = hvd.add_process_set([0, 2])
        rank = hvd.rank()
        own = torch.tensor([float(rank)])
        if pair.included():
            how = {"process_set": pair}
            assert hvd.allreduce(own, **how).tolist() == [1.0]
            both = hvd.grouped_allreduce([own, own.double()], **how)
            assert [tensor.tolist() for tensor in both] == [[1.0], [1.0]]
            handle = hvd.grouped_allreduce_async([own, own.int()], name="g", **how)
            assert [tensor.tolist() for tensor in hvd.synchronize(handle)] == [[1.0], [1]]
            sparse = torch.sparse_coo_tensor([[rank // 2]], own + 1.0, (2,), check_invariants=True)
            merged = hvd.sparse_allreduce_async(sparse, name="s", **how)()
            assert merged.to_dense().tolist() == [0.5, 1.5]
        for options in ({}, {"gradient_predivide_factor": 2.0}, {"groups": 1}):
            weight = torch.nn.Parameter(torch.zeros(1))
            sgd = torch.optim.SGD([weight], lr=1.0)
            optimizer = hvd.DistributedOptimizer(sgd, [("w", weight)], process_set=pair, **options)
            (weight * rank).backward()
            optimizer.step()
            assert weight.grad.tolist() == [1.0 if pair.included() else float(rank)]
        layer = torch.nn.Embedding(4, 2, sparse=True)
        sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(sgd, layer.named_parameters(), process_set=pair)
        layer(torch.tensor([rank])).sum().backward()
        optimizer.synchronize()
        mine = torch.zeros(4)
        mine[[0, 2] if pair.included() else [rank]] = 0.5 if pair.included() else 1.0
        assert torch.equal(layer.weight.grad.to_dense()[:, 0], mine)
        assert hvd.allreduce(own).tolist() == [1.5]

    run(body, size=4)


@pytest.mark.trial("B58")
def test_barriers_of_sets_and_of_all_ranks_do_not_mix(run) -> None:
    """Also not with operations that are in flight, and a rank outside is refused."""

    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        half = hvd.add_process_set([0, 1, 3])
        handles = []
        for number in range(100):
            if half.included():
                value = torch.full((3,), float(number))
                handles.append(hvd.allreduce_async(value, name=f"a.{number}", process_set=half))
                hvd.barrier(half)
            else:
                with pytest.raises(ValueError, match=r"rank 2 is not a member of process set 1"):
                    hvd.barrier(half)
            hvd.barrier()
        for number, handle in enumerate(handles):
            assert hvd.synchronize(handle).tolist() == [float(number)] * 3
        hvd.shutdown()
        for process_set in (hvd.global_process_set, half):
            with pytest.raises(ValueError, match="has not been initialized"):
                hvd.barrier(process_set)

    run(body, size=4)


@pytest.mark.trial("B59")
def test_sets_that_are_misused_are_refused_and_all_ranks_go_on(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for ranks, found in (
            ([], r"\[\]"),
            ([0, 0], r"\[0, 0\]"),
            ([9], r"\[9\]"),
            ([-1, 0], "-1"),
        ):
            with pytest.raises(ValueError, match=rf"different ranks from 0 to 3, and .*{found}"):
                hvd.add_process_set(ranks)
        order = [[0, 1], [2, 3]] if rank % 2 else [[2, 3], [0, 1]]
        for ranks in order:
            with pytest.raises(hvd.HorovodInternalError, match="list of ranks") as caught:
                hvd.add_process_set(ranks)
            assert "[0, 1]" in str(caught.value)
            assert "[2, 3]" in str(caught.value)
        pair = hvd.add_process_set([1, 3])
        if pair.included():
            assert hvd.allreduce(torch.tensor([float(rank)]), process_set=pair).tolist() == [2.0]
        else:
            with pytest.raises(ValueError, match=rf"rank {rank} is not a member of process set"):
                hvd.allreduce(torch.ones(1), process_set=pair)
        handle = (
            hvd.allreduce_async(torch.ones(1), name="x", process_set=pair) if rank == 1 else None
        )
        if handle is not None:
            hvd.send(torch.zeros(1), 3)
        if rank == 3:
            hvd.recv(torch.zeros(1), 1)  # so that the operation is in flight
        text = r"'allreduce\.x' of .* is still waiting for rank 3"
        with pytest.raises(hvd.HorovodInternalError, match=text):
            hvd.remove_process_set(pair)
        if rank == 3:
            handle = hvd.allreduce_async(torch.ones(1), name="x", process_set=pair)
        if handle is not None:
            assert hvd.synchronize(handle).tolist() == [1.0]
        hvd.barrier()
        assert hvd.remove_process_set(pair)
        assert hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum).tolist() == [6.0]

    run(body, size=4)


@pytest.mark.trial("B92")
def test_after_a_rank_is_lost_sets_are_made_anew_in_the_next_session(pool, data_path) -> None:
    """None outlives its session; those that name a rank which is gone are refused."""

    def body() -> float:
        import os
        import signal

        import pytest
        import torch

        import horovodlite.torch as hvd

        alone, ends, rest = hvd.ProcessSet([1]), hvd.ProcessSet([0, 2]), hvd.ProcessSet([0, 1])
        hvd.init(process_sets=[alone, ends, rest])
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1), process_set=ends if hvd.rank() == 0 else rest)
        assert caught.value.culprit_rank == 2
        hvd.shutdown()
        assert [each.process_set_id for each in (alone, ends, rest)] == [None] * 3
        os.environ.update({"HVL_SIZE": "2", "HVL_LOCAL_SIZE": "2"})
        with pytest.raises(ValueError, match=r"ranks from 0 to 1, and \[0, 2\] is not"):
            hvd.init(process_sets=[alone, ends])
        hvd.init(process_sets=[alone])
        with pytest.raises(ValueError, match="has not been registered"):
            hvd.allreduce(torch.ones(1), process_set=ends)
        if hvd.rank() == 1:
            assert hvd.allreduce(torch.ones(1), process_set=alone).item() == 1.0
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    outcomes = pool.outcomes(body, size=3, env=data_path, initialize=False)
    assert outcomes[:2] == [("value", 2.0)] * 2


class _Jobs:
    """50 named operations in each of several sets, and what comes out of them."""

    def __init__(self, sets: list[Any], rank: int, seed: int) -> None:
        self.sets = [chosen for chosen in sets if chosen.included()]
        self.rank = rank
        self.order = [(number, chosen) for number in range(50) for chosen in self.sets]
        random.Random(seed * 100 + rank).shuffle(self.order)
        self.wrong: list[str] = []

    def start(self, number: int, chosen: Any) -> int:
        import torch

        import horovodlite.torch as hvd

        tensor = torch.full((number % 7 + 1, 3), float(self.rank + number))
        name, kind = f"job.{number}", number % 4
        if kind == 0:
            return hvd.allreduce_async(tensor, name=name, op=hvd.Sum, process_set=chosen)
        if kind == 1:
            return hvd.allgather_async(tensor[:1], name, chosen)
        if kind == 2:
            root = chosen.ranks[number % len(chosen.ranks)]
            return hvd.broadcast_async(tensor, root, name, chosen)
        column = torch.full((len(chosen.ranks),), float(self.rank + number))
        return hvd.alltoall_async(column, name=name, process_set=chosen)

    def is_right(self, number: int, chosen: Any, result: Any) -> bool:
        kind, each = number % 4, [float(rank + number) for rank in chosen.ranks]
        if kind == 0:
            return bool((result == sum(each)).all())
        if kind == 1:
            return result[:, 0].tolist() == each
        if kind == 2:
            return bool((result == each[number % len(each)]).all())
        return result[0].tolist() == each

    def work(self, first: int) -> None:
        """Every third job: starts all, then waits for all."""
        import horovodlite.torch as hvd

        try:
            mine = self.order[first::3]
            handles = [self.start(*job) for job in mine]
            for job, handle in zip(mine, handles):
                if not self.is_right(*job, hvd.synchronize(handle)):
                    self.wrong.append(f"job {job[0]} of {job[1]}")
        except Exception as error:
            self.wrong.append(repr(error))


def test_named_operations_of_several_threads_and_sets_in_any_order(run, plane, fusion) -> None:
    seed = int(os.environ.get("HVL_TEST_SEED", random.randrange(1 << 30)))
    print(f"HVL_TEST_SEED={seed}")

    def body(seed: int) -> None:
        import threading

        import horovodlite.torch as hvd

        sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
        jobs = _Jobs([hvd.global_process_set, *sets], hvd.rank(), seed)
        threads = [threading.Thread(target=jobs.work, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert jobs.wrong == []

    run(body, seed, size=3, env={**plane, **fusion})


def test_a_world_of_some_ranks(run, plane) -> None:
    """init(comm=...): two worlds side by side."""

    def body() -> tuple[int, int, float]:
        import os

        import pytest
        import torch

        import horovodlite.torch as hvd

        started_as = int(os.environ["HVL_RANK"])
        with pytest.raises(ValueError, match="not one of"):
            hvd.init(comm=[(started_as + 1) % 3])
        hvd.init(comm=[0, 2] if started_as != 1 else [1])
        total = hvd.allreduce(torch.tensor(float(started_as)), op=hvd.Sum)
        return hvd.rank(), hvd.size(), float(total)

    results = run(body, size=3, env=plane, initialize=False)
    assert results == [(0, 2, 2.0), (0, 1, 1.0), (1, 2, 2.0)]


def test_wrong_worlds_of_some_ranks_are_refused(run) -> None:
    def body() -> None:
        import pytest

        import horovodlite.torch as hvd

        for ranks, text in (([0, 5], "from 0 to 0"), ([0.5], "list of ranks")):
            with pytest.raises(ValueError, match=text):
                hvd.init(comm=ranks)
        with pytest.raises(NotImplementedError, match="MPI"):
            hvd.init(comm=object())
        with pytest.raises(ValueError, match="process_sets"):
            hvd.init(process_sets=[[0]])
        assert not hvd.is_initialized()
        hvd.init(comm=[0], process_sets="dynamic")
        assert hvd.size() == 1

    run(body, size=1, initialize=False)


@pytest.mark.parametrize("cycles", [115])
def test_many_sessions_with_sets_cost_the_same_each_and_leave_nothing(run, cycles) -> None:
    """What is compared is processor time, of the same process: it bears a busy machine."""

    def body(cycles: int) -> list[float]:
        import time
        from pathlib import Path

        import torch

        import horovodlite.torch as hvd

        def held() -> list[int]:
            this = Path("/proc/self")
            return [len(list((this / what).iterdir())) for what in ("fd", "task")]

        costs, after = [], []
        for _ in range(cycles):
            begin = time.process_time()
            hvd.init(process_sets=[hvd.ProcessSet([0])])
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == 2.0
            hvd.shutdown()
            costs.append(time.process_time() - begin)
            after.append(held())
        assert after[-1] == after[5]
        return costs

    for costs in run(body, cycles, env={"HVL_SPIN": "0"}, initialize=False):
        first, last = sorted(costs[5:25])[10], sorted(costs[-20:])[10]
        print(f"processor seconds per cycle: {first:.4f} at first, {last:.4f} at last")
        assert last < 3 * first + 0.01


def test_a_pickled_set_is_the_registered_one_or_none(run) -> None:
    """The number means another set in the next session."""

    def body() -> None:
        import pickle

        import pytest
        import torch

        import horovodlite.torch as hvd

        first = hvd.add_process_set([0])
        data = pickle.dumps(first)
        assert pickle.loads(data) is first
        assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set
        hvd.shutdown()
        hvd.init()
        hvd.add_process_set([1])
        loaded = pickle.loads(data)
        assert (loaded.process_set_id, loaded.ranks) == (None, [0])
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match="has not been registered"):
                hvd.allreduce(torch.ones(1), process_set=loaded)
        hvd.add_process_set(loaded)
        assert pickle.loads(data) is loaded

    run(body)


def test_a_set_with_an_operation_in_flight_cannot_be_removed(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        both = hvd.add_process_set([0, 1])
        mine = hvd.rank() == 0
        if hvd.rank() == 2:
            with pytest.raises(hvd.HorovodInternalError, match="is still waiting for rank 1"):
                hvd.remove_process_set(both)
            assert hvd.remove_process_set(both)
            return
        if mine:
            handle = hvd.allreduce_async(torch.ones(1), name="early", process_set=both)
        with pytest.raises(hvd.HorovodInternalError, match="is still waiting for rank 1") as caught:
            hvd.remove_process_set(both)
        assert caught.value.code == "Mismatch"
        if not mine:
            handle = hvd.allreduce_async(torch.ones(1), name="early", process_set=both)
        assert hvd.synchronize(handle) == 1.0
        assert hvd.remove_process_set(both)

    run(body, size=3)


def test_ranks_may_be_integers_of_any_kind() -> None:
    import numpy as np
    import pytest

    import horovodlite.torch as hvd

    assert hvd.ProcessSet(np.array([2, 0])).ranks == [0, 2]
    for wrong in ([True, False], [0.0], 3, None, [None]):
        with pytest.raises(ValueError, match="list of process ranks"):
            hvd.ProcessSet(wrong)

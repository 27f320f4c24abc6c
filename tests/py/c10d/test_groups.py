"""Groups of some ranks, meshes, and hvd in the same program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.groups import free_port
from torch.distributed.device_mesh import init_device_mesh

import horovodlite.torch as hvd


def _operations(group: Any, reference: Any) -> None:
    """What all ranks of a group do, and what Gloo gives for it."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    kinds = dist.ReduceOp
    for dtype in (torch.float32, torch.float16, torch.int64):
        for op in (kinds.SUM, kinds.MAX, kinds.MIN, kinds.PRODUCT):
            mine = torch.arange(1, 7).to(dtype) + rank
            theirs = mine.clone()
            dist.all_reduce(mine, op=op, group=group)
            dist.all_reduce(theirs, op=op, group=reference)
            assert torch.equal(mine, theirs)
    results = []
    for where in (group, reference):
        out = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(out, torch.full((3,), 1.0 + rank), group=where)
        whole = torch.zeros(2 * size)
        dist.all_gather_into_tensor(whole, torch.tensor([rank, -rank]).float(), group=where)
        part = torch.zeros(2)
        dist.reduce_scatter_tensor(part, torch.arange(2.0 * size) + rank, group=where)
        sent = torch.arange(float(size)) + 10 * rank
        exchanged = torch.zeros(size)
        dist.all_to_all_single(exchanged, sent, group=where)
        told = torch.full((2, 2), float(rank))
        dist.broadcast(told, group=where, group_src=size - 1)
        at_root = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
        dist.gather(torch.full((1,), float(rank)), at_root, group=where, group_dst=0)
        lists = [torch.full((1,), 5.0 + i) for i in range(size)] if rank == size - 1 else None
        given = torch.zeros(1)
        dist.scatter(given, lists, group=where, group_src=size - 1)
        summed = torch.full((3,), float(rank))
        dist.reduce(summed, group=where, group_dst=0)
        dist.barrier(group=where)
        tensors = [*out, whole, part, exchanged, told, *(at_root or []), given]
        results.append(torch.cat([one.flatten() for one in tensors]))
        if rank == 0:
            assert summed.tolist() == [size * (size - 1) / 2] * 3
    assert torch.equal(*results)
    average = torch.full((4,), float(rank))
    dist.all_reduce(average, op=kinds.AVG, group=group)
    assert average.tolist() == [(size - 1) / 2] * 4
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=kinds.BOR, group=group)
    assert bits.item() == (1 << size) - 1
    if size > 1:
        received = torch.zeros(1)
        sending = dist.isend(torch.tensor([float(rank)]), group=group, group_dst=(rank + 1) % size)
        dist.recv(received, group=group, group_src=(rank - 1) % size)
        sending.wait()
        assert received.item() == (rank - 1) % size
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, ("rank", rank), group=group)
    assert objects == [("rank", i) for i in range(size)]


def _subgroups(local: bool) -> int:
    done = 0
    for ranks in ([0, 1], [1, 2, 3], [0], [2], [0, 3], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3]):
        group = dist.new_group(ranks, use_local_synchronization=local)
        reference = dist.new_group(ranks, backend="gloo")
        if dist.get_rank() in ranks:
            assert dist.get_backend(reference) == "gloo"
            assert dist.get_process_group_ranks(group) == ranks
            _operations(group, reference)
            done += 1
    return done


@pytest.mark.parametrize("local", [False, True])
def test_subgroups(run_world: Any, local: bool) -> None:
    assert run_world(_subgroups, local, size=4) == [5, 5, 5, 4]


def _unsorted(local: bool) -> None:
    ranks = [3, 0, 2]
    group = dist.new_group(ranks, sort_ranks=False, use_local_synchronization=local)
    reference = dist.new_group(ranks, backend="gloo", sort_ranks=False)
    if dist.get_rank() in ranks:
        assert dist.get_rank(group) == ranks.index(dist.get_rank())
        _operations(group, reference)
    everybody = [2, 0, 3, 1]
    _operations(
        dist.new_group(everybody, sort_ranks=False),
        dist.new_group(everybody, backend="gloo", sort_ranks=False),
    )


@pytest.mark.parametrize("local", [False, True])
def test_the_order_of_ranks_in_a_group_is_the_programs(run_world: Any, local: bool) -> None:
    run_world(_unsorted, local, size=4)


def _overlapping() -> None:
    rank = dist.get_rank()
    left, right, world = dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3]), dist.group.WORLD
    works, tensors = [], []
    for step in range(20):
        for ranks, group in (([0, 1, 2], left), ([1, 2, 3], right), (list(range(4)), world)):
            if rank in ranks:
                tensor = torch.full((100,), float(step))
                works.append(dist.all_reduce(tensor, group=group, async_op=True))
                tensors.append((tensor, step * len(ranks)))
    for work in reversed(works):
        work.wait()
    for tensor, wanted in tensors:
        assert torch.equal(tensor, torch.full((100,), float(wanted)))
    for group in (right, left):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    again = dist.new_group([0, 1, 2])
    if rank < 3:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=again)
        assert tensor.item() == 3


def test_groups_overlap_and_end_in_any_order(run_world: Any) -> None:
    run_world(_overlapping, size=4)


def _mesh() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    along_row, along_column = torch.tensor([float(rank)]), torch.tensor([float(rank)])
    dist.all_reduce(along_row, group=mesh.get_group("column"))
    dist.all_reduce(along_column, group=mesh.get_group("row"))
    assert along_row.item() == (1 if rank < 2 else 5)
    assert along_column.item() == (2 if rank % 2 == 0 else 4)
    assert mesh["row"].get_local_rank() == rank // 2


def test_a_mesh_has_two_dimensions(run_world: Any) -> None:
    run_world(_mesh, size=4)


def _both_doors() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    handles = [hvd.allreduce_async(torch.full((8,), float(rank)), op=hvd.Sum) for _ in range(5)]
    works = []
    for _ in range(5):
        tensor = torch.full((8,), float(rank))
        works.append((dist.all_reduce(tensor, async_op=True), tensor))
        handles.append(hvd.allreduce_async(torch.full((8,), float(rank)), op=hvd.Sum))
    wanted = torch.full((8,), size * (size - 1) / 2)
    for handle in handles:
        assert torch.equal(hvd.synchronize(handle), wanted)
    for work, tensor in works:
        work.wait()
        assert torch.equal(tensor, wanted)
    hvd.barrier()
    dist.barrier()


def test_both_apis_work_in_one_program(run_world: Any) -> None:
    run_world(_both_doors, size=3)


def _inside_hvd(ports: list[int]) -> bool:
    from support.groups import world

    for port in ports:
        with world(port):
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == hvd.size()
        assert hvd.is_initialized()  # it was there before
    return bool(hvd.allreduce(torch.ones(1)).item() == 1)


def test_a_world_uses_the_session_that_runs(run: Any) -> None:
    assert run(_inside_hvd, [free_port() for _ in range(3)], size=2) == [True, True]


def _again(ports: list[int]) -> list[bool]:
    from support.groups import world

    states = []
    for port in ports:
        with world(port):
            states.append(hvd.is_initialized())
            dist.barrier()
        states.append(hvd.is_initialized())
    return states


def test_a_world_may_begin_again(run: Any) -> None:
    outcome = run(_again, [free_port() for _ in range(3)], size=2, initialize=False)
    assert outcome == [[True, False] * 3] * 2


def _below_gloo() -> None:
    group = dist.new_group([0, 1, 2], backend="horovodlite")
    if dist.get_rank() < 3:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [3.0, 3.0]
    assert dist.get_backend() == "gloo"
    dist.barrier()  # nobody leaves while others use the session


def test_a_group_of_ours_may_live_in_a_world_of_gloo(run_world: Any) -> None:
    run_world(_below_gloo, size=4, backend="gloo")

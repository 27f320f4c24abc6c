"""Every operation gives what Gloo gives: types, sizes, strides, groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [(), (0,), (1,), (7, 0, 2), (129, 65)]
SIZES = [1, 2, 3]


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers: sums and products are exact in all types."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    numbers = torch.randint(0, 3, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(numbers.double(), 1.0 - numbers.double()).to(dtype)
    return numbers.to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory with holes."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def tensors(dtypes: list[torch.dtype]) -> Iterator[torch.Tensor]:
    """Of all types and shapes, dense and with holes."""
    for number, dtype in enumerate(dtypes):
        for shape in SHAPES:
            yield values(shape, dtype, number)
        yield strided(values((3, 5), dtype, number))
    yield values((1 << 20,), dtypes[0], 77)


class Both:
    """Runs an operation over our backend and over Gloo and compares what has changed."""

    def __init__(self) -> None:
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")
        assert dist.get_backend(self.gloo) == "gloo"
        assert dist.get_backend(self.ours) == "horovodlite"
        self.compared = 0

    def compare(self, operate: Callable[..., Any], *arguments: Any) -> None:
        """`operate(group, *arguments)` changes the tensors in its arguments."""
        mine, theirs = _copies(arguments, False), _copies(arguments, True)
        operate(self.ours, *mine)
        if all(leaf.numel() for leaf in _leaves(theirs)):  # else Gloo crashes, or refuses
            operate(self.gloo, *theirs)
        for got, wanted in zip(_leaves(mine), _leaves(theirs)):
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted), (got, wanted)
            self.compared += 1


def _copies(nested: Any, contiguous: bool) -> Any:
    """The same tensors in memory of their own; Gloo gets them without holes."""
    if isinstance(nested, torch.Tensor):
        if contiguous or nested.is_contiguous():
            return nested.clone(memory_format=torch.contiguous_format)
        return strided(nested)
    if isinstance(nested, (list, tuple)):
        return [_copies(one, contiguous) for one in nested]
    return nested


def _leaves(nested: Any) -> list[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [leaf for one in nested for leaf in _leaves(one)] if isinstance(nested, list) else []


def _reductions(operate: Callable[..., Any], *make: Callable[[torch.Tensor], Any]) -> int:
    both = Both()
    kinds = dist.ReduceOp
    for op, dtypes in (
        (kinds.SUM, FLOATS + INTEGERS),
        (kinds.MIN, FLOATS + INTEGERS),
        (kinds.MAX, FLOATS + INTEGERS),
        (kinds.PRODUCT, FLOATS + INTEGERS),
        (kinds.BAND, INTEGERS),
        (kinds.BOR, INTEGERS),
        (kinds.BXOR, INTEGERS),
    ):
        for tensor in tensors(dtypes):
            both.compare(lambda group, *more, op=op: operate(group, op, *more),
                         *(one(tensor) for one in make))  # fmt: skip
    return both.compared


def _allreduce() -> int:
    return _reductions(
        lambda group, op, tensor: dist.all_reduce(tensor, op=op, group=group), lambda one: one
    )


@pytest.mark.parametrize("size", SIZES)
def test_allreduce(run_world: Any, size: int) -> None:
    assert all(count > 200 for count in run_world(_allreduce, size=size))


def _reduce() -> int:
    def to_last(group: Any, op: Any, tensor: torch.Tensor) -> None:
        last = dist.get_world_size() - 1
        before = tensor.clone()
        dist.reduce(tensor, last, op=op, group=group)
        if dist.get_rank() != last:  # Gloo leaves what it likes there
            tensor.copy_(before)

    return _reductions(to_last, lambda one: one)


def _reduce_scatter() -> int:
    size = dist.get_world_size()

    def lists(group: Any, op: Any, output: torch.Tensor, parts: list[torch.Tensor]) -> None:
        dist.reduce_scatter(output, parts, op=op, group=group)

    return _reductions(lists, torch.zeros_like, lambda one: [one + i for i in range(size)])


def _reduce_scatter_tensor() -> int:
    size = dist.get_world_size()

    def single(group: Any, op: Any, output: torch.Tensor, whole: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(output, whole, op=op, group=group)

    def rows(one: torch.Tensor) -> torch.Tensor:
        return one if one.dim() else one.view(1)  # Gloo crashes with scalars

    return _reductions(
        single,
        lambda one: torch.zeros_like(rows(one)),
        lambda one: torch.cat([rows(one)] * size),
    )


MOVED = [*FLOATS, *INTEGERS, torch.bool]  # of others Gloo moves only some


def _moves() -> int:
    both, rank, size = Both(), dist.get_rank(), dist.get_world_size()
    last = size - 1
    for made in tensors(MOVED):
        tensor = made if made.dim() else made.view(1)  # Gloo refuses some scalars
        wide = torch.cat([tensor] * size)
        empty, empties = torch.zeros_like(tensor), [torch.zeros_like(tensor) for _ in range(size)]
        parts = [tensor.clone() for _ in range(size)]
        both.compare(lambda g, one: dist.broadcast(one, last, group=g), tensor)
        both.compare(lambda g, out, one: dist.all_gather(out, one, group=g), empties, tensor)
        both.compare(
            lambda g, out, one: dist.all_gather_into_tensor(out, one, group=g),
            torch.zeros_like(wide), tensor,
        )  # fmt: skip
        both.compare(
            lambda g, out, one: dist.gather(one, out if rank == last else None, last, group=g),
            empties, tensor,
        )  # fmt: skip
        both.compare(
            lambda g, out, one: dist.scatter(out, one if rank == 0 else None, 0, group=g),
            empty, parts,
        )  # fmt: skip
        both.compare(
            lambda g, out, one: dist.all_to_all_single(out, one, group=g),
            torch.zeros_like(wide), wide,
        )  # fmt: skip
        if size > 1:
            both.compare(_ring, empty, tensor)
    return both.compared


def _ring(group: Any, received: torch.Tensor, sent: torch.Tensor) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(sent, (rank + 1) % size, group=group)
    dist.recv(received, (rank - 1) % size, group=group)
    sending.wait()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", [_reduce, _reduce_scatter, _reduce_scatter_tensor, _moves])
def test_operation(run_world: Any, what: Any, size: int) -> None:
    assert all(count > 200 for count in run_world(what, size=size))


def _average() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in FLOATS:
        tensor = torch.full((3,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.equal(tensor, torch.full((3,), (size - 1) / 2, dtype=dtype))
    scaled = torch.full((3,), 1.0 + rank)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, torch.full((3,), 0.25 * size * (size + 1)))
    numbers = torch.tensor([1 + 2j, 3 - 1j]) * (1 + rank)
    dist.all_reduce(numbers)
    assert torch.equal(numbers, torch.tensor([1 + 2j, 3 - 1j]) * (size * (size + 1) // 2))
    truth = torch.tensor([rank == 0, True, False])
    dist.all_reduce(truth)
    assert truth.tolist() == [True, True, False]
    dist.all_reduce(truth, op=dist.ReduceOp.PRODUCT)
    assert truth.tolist() == [True, True, False]


def test_averages_and_scaled_sums(run_world: Any) -> None:
    run_world(_average, size=3)


def _uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    out = [torch.zeros(i, dtype=torch.int64) for i in range(size)]
    dist.all_gather(out, torch.full((rank,), rank))
    assert [one.tolist() for one in out] == [[i] * i for i in range(size)]
    # Rank r sends r + i rows to rank i.
    splits = [rank + i for i in range(size)]
    sent = torch.cat([torch.full((n, 2), 10 * rank + i) for i, n in enumerate(splits)])
    received = torch.zeros(sum(i + rank for i in range(size)), 2, dtype=torch.int64)
    dist.all_to_all_single(received, sent, [i + rank for i in range(size)], splits)
    assert received[:, 1].tolist() == [10 * i + rank for i in range(size) for _ in range(i + rank)]
    lists = [torch.full((rank + i,), 10 * rank + i) for i in range(size)]
    outs = [torch.zeros(i + rank, dtype=torch.int64) for i in range(size)]
    dist.all_to_all(outs, lists)
    assert [one.tolist() for one in outs] == [[10 * i + rank] * (i + rank) for i in range(size)]
    mine = torch.zeros(rank + 1)
    dist.reduce_scatter(mine, [torch.full((i + 1,), float(i)) for i in range(size)])
    assert mine.tolist() == [float(rank * size)] * (rank + 1)


def test_sizes_may_differ_between_ranks(run_world: Any) -> None:
    run_world(_uneven, size=3)


def _coalesced() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    tensors = [torch.full((3,), float(rank)), torch.full((2, 2), 1.0)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[0].tolist() == [size * (size - 1) / 2] * 3
    assert tensors[1].tolist() == [[size] * 2] * 2
    wide = [torch.zeros(size * 2), torch.zeros(size, dtype=torch.int64)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(wide[0], torch.full((2,), float(rank)))
        dist.all_gather_into_tensor(wide[1], torch.full((1,), rank))
    assert wide[1].tolist() == list(range(size))
    parts = [torch.zeros(2), torch.zeros(1)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(parts[0], torch.ones(2 * size))
        dist.reduce_scatter_tensor(parts[1], torch.arange(float(size)))
    assert parts[0].tolist() == [size, size]
    assert parts[1].tolist() == [rank * size]
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        outs = [torch.zeros(1), torch.zeros(1)]
        for peer in range(size):
            if peer != rank:
                dist.isend(torch.tensor([float(rank)]), peer)
        dist.broadcast(outs[0], 0)
    manager.wait()
    got = []
    for peer in range(size):
        if peer != rank:
            dist.recv(outs[1], peer)
            got.append(outs[1].item())
    assert got == [peer for peer in range(size) if peer != rank]
    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.ones(1)])
    assert [one[0].tolist() for one in lists] == [[i, i] for i in range(size)]


@pytest.mark.parametrize("size", [1, 3])
def test_coalesced_operations(run_world: Any, size: int) -> None:
    run_world(_coalesced, size=size)


def _objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "data": "x" * (10 * rank)}
    everybody = [{"rank": i, "data": "x" * (10 * i)} for i in range(size)]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert gathered == everybody
    at_root: list[Any] = [None] * size
    dist.gather_object(mine, at_root if rank == 1 else None, dst=1)
    assert rank != 1 or at_root == everybody
    sent = [{"a": 1}, None] if rank == 0 else [None, None]
    dist.broadcast_object_list(sent, src=0)
    assert sent == [{"a": 1}, None]
    got: list[Any] = [None]
    dist.scatter_object_list(got, everybody if rank == 0 else None, src=0)
    assert got == [mine]
    if rank == 0:
        dist.send_object_list([mine, 7], dst=1)
    elif rank == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [everybody[0], 7]


def test_objects(run_world: Any) -> None:
    run_world(_objects, size=3)


def _sparse() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dense = torch.zeros(6, 2)
    dense[rank] = 1.0 + rank
    dense[5] = 1.0
    tensor = dense.to_sparse(1)
    dist.all_reduce(tensor)
    wanted = torch.zeros(6, 2)
    for i in range(size):
        wanted[i] += 1.0 + i
    wanted[5] += size
    assert torch.equal(tensor.to_dense(), wanted)


def test_sparse_tensors_are_added_up(run_world: Any) -> None:
    run_world(_sparse, size=3)


def _futures() -> None:
    size = dist.get_world_size()
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((3,), 2.0 * size))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait()
    assert torch.equal(work.result()[0], tensor)


def _waiting_callbacks() -> None:
    """As in the hook of PowerSGD: a callback starts operations, and waits for them."""
    size = dist.get_world_size()

    def nested(depth: int) -> torch.Tensor:
        def again(future: Any) -> torch.Tensor:
            return nested(depth - 1) if depth else future.value()[0]

        work = dist.all_reduce(torch.ones(2), async_op=True)
        return work.get_future().then(again).wait()

    later = [dist.all_reduce(torch.ones(1), async_op=True).get_future() for _ in range(3)]
    assert nested(4).tolist() == [size] * 2
    assert all(future.wait()[0].item() == size for future in later)


def test_callbacks_may_wait(run_world: Any) -> None:
    run_world(_waiting_callbacks, size=2)


def _barrier_future() -> None:
    size = dist.get_world_size()
    tensor = torch.full((3,), float(size))
    later = dist.barrier(async_op=True)
    assert later.get_future().wait() == []
    polled = dist.all_reduce(tensor, async_op=True)
    while not polled.is_completed():
        pass
    assert torch.equal(tensor, torch.full((3,), float(size * size)))


def test_futures_complete_by_themselves(run_world: Any) -> None:
    run_world(_futures, size=2)
    run_world(_barrier_future, size=2)

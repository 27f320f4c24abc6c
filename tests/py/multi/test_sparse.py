"""Sparse tensors and the gradients of embeddings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def test_sparse_tensors_are_merged_on_every_rank(run, plane, fusion) -> None:
    def body() -> None:
        rank = hvd.rank()
        indices = [[[1, 1, 3]], [[3, 7]], [[]]][rank]
        values = torch.arange(1.0, 1 + len(indices[0])).unsqueeze(1).expand(-1, 2) * (rank + 1)
        tensor = torch.sparse_coo_tensor(
            torch.tensor(indices, dtype=torch.int64), values, (10, 2), check_invariants=True
        )
        expected = torch.zeros(10, 2)
        expected[1], expected[3], expected[7] = 3.0, 3.0 + 2.0, 4.0
        for op, divisor in ((hvd.Sum, 1.0), (hvd.Average, 3.0)):
            result = hvd.sparse_allreduce_async(tensor, name=f"s{op}", op=op)()
            assert result.is_sparse
            assert result.is_coalesced()
            assert torch.allclose(result.to_dense(), expected / divisor)
        with pytest.raises(ValueError, match=r"hvd.Average or hvd.Sum only"):
            hvd.sparse_allreduce_async(tensor, op=hvd.Max)
        with pytest.raises(ValueError, match=r"sparse COO"):
            hvd.sparse_allreduce_async(tensor.to_dense())

    run(body, size=3, env={**plane, **fusion})


def embedding_gradient(rank: int, empty: bool, how: dict[str, Any]) -> torch.Tensor:
    layer = torch.nn.Embedding(10, 4, sparse=True)
    hvd.broadcast_parameters(layer.state_dict(), 0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters(), **how)
    before = layer.weight.detach().clone()
    chosen = [[1, 1, 3], [] if empty else [3, 7]][rank]
    layer(torch.tensor(chosen, dtype=torch.int64)).sum().backward()
    optimizer.step()
    assert layer.weight.grad.is_sparse
    assert layer.weight.grad.sparse_dim() == 1
    return before - layer.weight.detach()


@pytest.mark.trial("B28")
@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_the_gradient_of_an_embedding_is_averaged_per_row(
    run, sparse_as_dense: bool, empty: bool
) -> None:
    """Row 1 = 1, row 3 = 1 (or 0.5), row 7 = 0.5; an empty rank works."""

    def body(how: dict[str, Any], empty: bool) -> None:
        moved = embedding_gradient(hvd.rank(), empty, how)
        expected = torch.zeros(10, 4)
        expected[1], expected[3] = 1.0, 0.5 if empty else 1.0
        expected[7] = 0.0 if empty else 0.5
        assert torch.allclose(moved, expected, atol=1e-6)

    run(body, {"sparse_as_dense": sparse_as_dense}, empty)


@pytest.mark.trial("B28")
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_adam_steps_alike_on_every_rank(run, sparse_as_dense: bool) -> None:
    def body(how: dict[str, Any]) -> None:
        torch.manual_seed(0)
        layer = torch.nn.Embedding(10, 4, sparse=True)
        twin = copy.deepcopy(layer)
        optimizer = torch.optim.SparseAdam(list(layer.parameters()), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters(), **how)
        plain = torch.optim.SparseAdam(list(twin.parameters()), lr=0.1)
        for step in range(3):
            ranks = [torch.tensor([1, 1, 3 + step]), torch.tensor([3, 7])]
            optimizer.zero_grad()
            layer(ranks[hvd.rank()]).square().sum().backward()
            optimizer.step()
            plain.zero_grad()
            sum(twin(chosen).square().sum() / 2 for chosen in ranks).backward()
            plain.step()
        assert torch.allclose(layer.weight, twin.weight, atol=1e-6)

    run(body, {"sparse_as_dense": sparse_as_dense})


def test_a_rank_that_does_not_use_the_embedding_in_a_later_step_takes_part(run) -> None:
    def body() -> None:
        layer = torch.nn.Embedding(10, 4, sparse=True)
        other = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([layer.weight, other], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer)
        for users in ([0, 1], [0], [1], []):
            optimizer.zero_grad()
            loss = other.sum()
            if hvd.rank() in users:
                loss = loss + layer(torch.tensor([2])).sum()
            loss.backward()
            optimizer.step()
            if users:
                assert layer.weight.grad.to_dense()[2].tolist() == [len(users) / 2] * 4
            else:
                assert layer.weight.grad is None

    run(body)


def test_a_gradient_that_is_sparse_on_one_rank_only_is_an_error_and_no_stall(run) -> None:
    """A rank that has never seen the embedding's gradient cannot know that it is sparse."""

    def body() -> None:
        layer = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters())
        if hvd.rank() == 0:
            layer(torch.tensor([2])).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match=r"weight") as caught:
            optimizer.step()
        assert caught.value.code == "Mismatch"

    run(body)


@pytest.mark.trial("B29")
def test_sparse_and_dense_operations_in_any_order_complete(run) -> None:
    """20 dense and 5 sparse in flight, submitted in opposite orders."""

    def body() -> None:
        rank = hvd.rank()
        dense = [("dense", i) for i in range(20)]
        jobs = dense + [("sparse", i) for i in range(5)]
        waits: dict[tuple[str, int], Callable[[], torch.Tensor]] = {}
        for kind, index in jobs if rank == 0 else jobs[::-1]:
            value = torch.eye(3) * (index + rank)
            if kind == "dense":
                handle = hvd.allreduce_async(value, name=f"d{index}")
                waits[kind, index] = lambda handle=handle: hvd.synchronize(handle)
            else:
                waits[kind, index] = hvd.sparse_allreduce_async(value.to_sparse(), f"s{index}")
        for (_, index), wait in waits.items():
            result = wait()
            dense_result = result.to_dense() if result.is_sparse else result
            assert torch.equal(dense_result, torch.eye(3) * (index + 0.5))

    run(body)


@pytest.mark.trial("B30")
def test_an_embedding_shared_with_the_output_is_reduced_once(run) -> None:
    """Sparse plus dense is dense; one reduction of the size of the weight, and its memory."""

    def body() -> None:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(20000, 64))
        twin = weight.detach().clone().requires_grad_()

        def loss(of: torch.Tensor, rank: int) -> torch.Tensor:
            rows = torch.nn.functional.embedding(torch.tensor([1, 5, rank]), of, sparse=True)
            return (rows @ of.t()).square().mean()

        for _ in range(3):
            for rank in range(hvd.size()):
                (gradient,) = torch.autograd.grad(loss(twin, rank), twin)
                twin.grad = gradient if rank == 0 else twin.grad + gradient
            twin.data.sub_(twin.grad, alpha=0.1 / hvd.size())

        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)])

        def peak() -> int:
            text = Path("/proc/self/status").read_text()
            return int(text.partition("VmHWM:")[2].split()[0]) << 10

        weight_bytes = weight.numel() * weight.element_size()
        twin.grad = None
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, peak_before = session().counters()["bytes_reduced"], peak()
        for _ in range(3):
            optimizer.zero_grad()
            loss(weight, hvd.rank()).backward()
            optimizer.step()
        assert peak() - peak_before < 8 * weight_bytes  # backward alone takes several
        assert torch.allclose(weight, twin, atol=1e-5)
        flag_bytes = 4 * 4  # used, left out, weighted, and whether anything is left out
        reduced = session().counters()["bytes_reduced"] - before
        assert reduced == 3 * (weight_bytes + flag_bytes)

    run(body, size=4)


def test_a_sparse_gradient_in_a_group_is_refused(run) -> None:
    def body() -> None:
        layer = torch.nn.Embedding(4, 2, sparse=True)
        other = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([layer.weight, other], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, groups=1)
        with pytest.raises(ValueError, match=r"'noname.0.0' is sparse, which a group cannot hold"):
            (layer(torch.tensor([1])).sum() + other.sum()).backward()

    run(body)


def test_sparse_tensors_of_different_shapes_are_an_error_on_every_rank(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        tensor = torch.eye(2 + hvd.rank()).to_sparse()
        with pytest.raises(
            hvd.HorovodInternalError, match=r"\[2, 2\] on rank 0, \[3, 3\] on rank 1"
        ):
            hvd.sparse_allreduce_async(tensor, name="s")()
        assert hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name="s")().sum() == 2

    run(body, env=plane)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_averages_of_other_types_are_those_of_dense_tensors(run, dtype: torch.dtype) -> None:
    def body(dtype: torch.dtype) -> None:
        dense = torch.tensor([[1, -1], [0, 5 * hvd.rank()], [-3, 0]]).to(dtype)
        merged = hvd.sparse_allreduce_async(dense.to_sparse(1), name="s")()
        assert torch.equal(merged.to_dense(), hvd.allreduce(dense, name="d"))

    run(body, dtype)

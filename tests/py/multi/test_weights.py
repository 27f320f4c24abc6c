"""no_sync(), and weights: averages over samples where ranks have different numbers of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def submitted() -> int:
    return session().counters()["operations_submitted"]


def model_of(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).to(
        dtype
    )


def batches_of(counts: list[int], step: int, dtype: torch.dtype = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(count, 3, generator=generator, dtype=dtype) for count in counts]


def check_equal(model: torch.nn.Module, twin: torch.nn.Module, tolerance: float = 1e-12) -> None:
    for mine, wanted in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)
        everybody = hvd.allgather(mine.detach().unsqueeze(0))
        assert all(torch.equal(row, mine) for row in everybody)


def test_passes_inside_no_sync_stay_local_until_one_outside(run, plane, fusion) -> None:
    """Any number inside, another one on each rank, as with DistributedDataParallel."""

    def body() -> None:
        model = model_of()
        twin = copy.deepcopy(model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        for step in range(3):
            inside = [step + rank for rank in range(hvd.size())]
            ranks = [batches_of([4] * (n + 1), 10 * step + r) for r, n in enumerate(inside)]
            before = submitted()
            with optimizer.no_sync():
                for batch in ranks[hvd.rank()][:-1]:
                    model(batch).square().mean().backward()
            assert submitted() == before
            model(ranks[hvd.rank()][-1]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            gradients = 1 if step else 4  # which share an operation from the second step on
            assert submitted() - before == gradients + 1  # and the flags
            for batches in ranks:
                for batch in batches:
                    (twin(batch).square().mean() / hvd.size()).backward()
            plain.step()
            plain.zero_grad()
            check_equal(model, twin)

    run(body, size=3, env={**plane, **fusion})


def test_step_reduces_what_no_sync_has_added_up(run) -> None:
    def body() -> None:
        a, b = (torch.nn.Parameter(torch.tensor(0.0)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
        with optimizer.no_sync():
            (a * (1 + hvd.rank())).backward()
        optimizer.step()
        assert (a.item(), b.item(), b.grad) == (-1.5, 0.0, None)
        with optimizer.no_sync():
            b.backward()
        optimizer.zero_grad()
        a.backward()
        optimizer.step()
        assert (a.item(), b.item()) == (-2.5, 0.0)

    run(body)


def test_passes_inside_no_sync_do_not_count(run) -> None:
    def body() -> None:
        a = torch.nn.Parameter(torch.tensor(0.0))
        sgd = torch.optim.SGD([a], lr=1.0)
        optimizer = hvd.DistributedOptimizer(sgd, [("a", a)], backward_passes_per_step=2)
        for inside in (3, 0):
            for _ in range(2):
                with optimizer.no_sync():
                    for _ in range(inside):
                        a.backward()
                a.backward()
            optimizer.step()
            assert a.grad.item() == 2 + 2 * inside
            optimizer.zero_grad()
        a.backward()
        a.backward()
        refused = pytest.raises(AssertionError, match=r"inside no_sync\(\) have to come first")
        with refused, optimizer.no_sync():
            a.backward()
        optimizer.step()

    run(body)


@pytest.mark.trial("B36")
@pytest.mark.parametrize("how", ["alone", "grouped", "two passes", "user's compressor"])
def test_uneven_batches_give_the_mean_over_all_samples(run, how: str) -> None:
    """The last batch is smaller on one rank, and empty on another."""

    def body(how: str) -> None:
        class Halved(hvd.Compressor):
            @staticmethod
            def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
                return tensor / 2, None

            @staticmethod
            def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004
                return tensor * 2

        options: dict[str, Any] = {
            "alone": {},
            "grouped": {"groups": 2},
            "two passes": {"backward_passes_per_step": 2},
            "user's compressor": {"compression": Halved},
        }[how]
        model = model_of()
        twin = copy.deepcopy(model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        for step, counts in enumerate([[4, 4, 4], [4, 2, 0], [0, 6, 1], [4, 4, 4]]):
            batches = batches_of(counts, step)
            batch = batches[hvd.rank()]
            optimizer.set_weight(len(batch))
            if len(batch):
                for part in batch.split(-(-len(batch) // 2)) if how == "two passes" else [batch]:
                    (model(part).square().sum() / len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            twin(torch.cat(batches)).square().mean().backward()
            plain.step()
            plain.zero_grad()
            check_equal(model, twin)

    run(body, how, size=3)


def test_weights_work_with_clipping_scaling_and_narrow_types(run) -> None:
    def body() -> None:
        model = model_of(torch.float32)
        twin = copy.deepcopy(model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        bf16 = hvd.Compression.bf16
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=bf16)
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step, counts in enumerate([[8, 8], [8, 3]]):
            batches = batches_of(counts, step, torch.float32)
            optimizer.set_weight(counts[hvd.rank()] / 8)
            scaler.scale(model(batches[hvd.rank()]).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            twin(torch.cat(batches)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            plain.step()
            plain.zero_grad()
            check_equal(model, twin, 2e-3)

    run(body)


def test_sparse_gradients_are_weighted_too(run) -> None:
    def body() -> None:
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(6, 2, sparse=True, dtype=torch.float64)
        twin = copy.deepcopy(embedding)
        optimizer: Any = torch.optim.SGD(embedding.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, embedding.named_parameters())
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        tokens = [torch.tensor([1, 2, 2, 5]), torch.tensor([2])]
        optimizer.set_weight(len(tokens[hvd.rank()]))
        embedding(tokens[hvd.rank()]).square().sum(1).mean().backward()
        optimizer.step()
        twin(torch.cat(tokens)).square().sum(1).mean().backward()
        plain.step()
        check_equal(embedding, twin)

    run(body)


def test_a_weight_stays_and_costs_one_operation_where_ranks_need_it(run) -> None:
    def body() -> None:
        a = torch.nn.Parameter(torch.tensor(0.0))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), [("a", a)])
        costs = []
        for weights in ([1, 1], [3, None], [None, None], [1, None]):
            before = submitted()
            weight = weights[hvd.rank()]
            if weight is not None:
                optimizer.set_weight(weight)
            (a * (1.0 if hvd.rank() == 0 else 5.0)).backward()
            optimizer.step()
            costs.append((submitted() - before, a.grad.item()))
            optimizer.zero_grad()
        assert costs == [(2, 3.0), (3, 2.0), (3, 2.0), (2, 3.0)]

    run(body)


def test_if_nobody_has_samples_gradients_are_zeros(run) -> None:
    def body() -> None:
        a = torch.nn.Parameter(torch.tensor(1.0))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0))
        optimizer.set_weight(0)
        a.backward()
        optimizer.step()
        assert (a.item(), a.grad.item()) == (1.0, 0.0)

    run(body)


def test_weights_that_make_no_sense_are_refused(run) -> None:
    def body() -> None:
        a = torch.nn.Parameter(torch.tensor(1.0))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0))
        for weight in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="a weight is a finite number >= 0"):
                optimizer.set_weight(weight)
        a.backward()
        with pytest.raises(RuntimeError, match=r"call it before the backward\(\)"):
            optimizer.set_weight(2)
        optimizer.step()
        sums = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), op=hvd.Sum)
        with pytest.raises(ValueError, match="for averages"):
            sums.set_weight(2)

    run(body)


def test_allreduce_takes_a_weight(run, plane, fusion) -> None:
    """Metrics over batches of 5, 3 and 0 samples; the result is that of one process."""

    def body() -> None:
        rank = hvd.rank()
        batches = batches_of([5, 3, 0], 1)
        everything = torch.cat(batches)
        own, count = batches[rank], len(batches[rank])
        mean = own.mean(0) if count else torch.zeros(3, dtype=torch.float64)
        torch.testing.assert_close(hvd.allreduce(mean, weight=count), everything.mean(0))
        pair = hvd.grouped_allreduce([mean, mean[0].float()], name="pair", weight=count)
        torch.testing.assert_close(pair[0], everything.mean(0))
        torch.testing.assert_close(pair[1], everything[:, 0].mean().float())
        scaled = hvd.allreduce(mean, weight=count, prescale_factor=2.0, postscale_factor=3.0)
        torch.testing.assert_close(scaled, 6 * everything.mean(0))
        narrow = hvd.allreduce(mean.float(), weight=count, compression=hvd.Compression.bf16)
        torch.testing.assert_close(narrow, everything.mean(0).float(), rtol=2e-2, atol=2e-2)
        assert narrow.dtype == torch.float32
        assert hvd.allreduce(mean, weight=0).tolist() == [0.0] * 3

    run(body, size=3, env={**plane, **fusion})


def test_a_weighted_allreduce_is_differentiable(run) -> None:
    def body() -> None:
        own = torch.tensor([1.0 + hvd.rank()], requires_grad=True)
        (hvd.allreduce(own, weight=3 - 2 * hvd.rank()) * (1 + hvd.rank())).sum().backward()
        assert own.grad.item() == [3 * 3 / 4, 1 * 3 / 4][hvd.rank()]

    run(body)


def test_weights_of_an_allreduce_that_make_no_sense_are_refused(run) -> None:
    def body() -> None:
        tensor = torch.ones(2)
        with pytest.raises(ValueError, match="weight is for averages"):
            hvd.allreduce(tensor, op=hvd.Sum, weight=1)
        with pytest.raises(ValueError, match="finite number >= 0"):
            hvd.allreduce(tensor, weight=-1)
        with pytest.raises(ValueError, match="floating-point"):
            hvd.grouped_allreduce([tensor, tensor.int()], weight=1)

    run(body)


@pytest.mark.parametrize("name", ["metric", None])
def test_a_weight_on_some_ranks_only_is_a_mismatch_on_all(run, plane, name: str | None) -> None:
    def body() -> None:
        weight = {"weight": 2.0} if hvd.rank() else {}
        tensor = torch.ones(3, dtype=torch.float64)
        told = "number of tensors: {} on rank 0, {} on rank 1.* Cure: .*weight= all ranks or none"
        for requires_grad in (False, True):
            tensor.requires_grad_(requires_grad)
            with pytest.raises(hvd.HorovodInternalError, match=told.format(1, 2)):
                hvd.allreduce(tensor, name=name, **weight)
            with pytest.raises(hvd.HorovodInternalError, match=told.format(2, 3)):
                hvd.grouped_allreduce([tensor, tensor], name=name, **weight)
            assert hvd.allreduce(tensor, name=name, weight=1.0).tolist() == [1.0] * 3

    run(body, env=plane)


def test_lbfgs_decides_by_the_loss_over_all_samples(run) -> None:
    def body() -> None:
        model = model_of()
        twin = copy.deepcopy(model)
        optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        plain = torch.optim.LBFGS(twin.parameters(), max_iter=5)
        batches = batches_of([6, 2], 4)
        optimizer.set_weight(len(batches[hvd.rank()]))

        def closure_of(network: Any, opt: Any, batch: torch.Tensor) -> Any:
            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = network(batch).square().mean()
                loss.backward()
                return loss

            return closure

        for _ in range(2):
            optimizer.step(closure_of(model, optimizer, batches[hvd.rank()]))
            plain.step(closure_of(twin, plain, torch.cat(batches)))
        check_equal(model, twin, 1e-8)

    run(body)


def test_weights_count_within_a_process_set(run) -> None:
    def body() -> None:
        pair = hvd.add_process_set([0, 2])
        a = torch.nn.Parameter(torch.tensor(0.0))
        sgd = torch.optim.SGD([a], lr=1.0)
        optimizer = hvd.DistributedOptimizer(sgd, [("a", a)], process_set=pair)
        optimizer.set_weight(1 + hvd.rank())
        (a * (1.0 + hvd.rank())).backward()
        optimizer.step()
        assert a.grad.item() == [2.5, 2.0, 2.5][hvd.rank()]
        hvd.barrier()  # who leaves ends the agreements of all sets

    run(body, size=3)


def test_an_adasum_optimizer_has_the_same_methods(run) -> None:
    def body() -> None:
        a = torch.nn.Parameter(torch.tensor([1.0]))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), op=hvd.Adasum)
        with optimizer.no_sync():
            a.sum().backward()
        with pytest.raises(ValueError, match="for averages"):
            optimizer.set_weight(2)
        optimizer.step()

    run(body)

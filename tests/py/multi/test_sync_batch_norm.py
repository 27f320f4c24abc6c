"""SyncBatchNorm is BatchNorm over the batches of all ranks joined together."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd

Tensors = dict[str, torch.Tensor]


def made(layer: torch.nn.Module, seed: int = 3) -> torch.nn.Module:
    """The layer with weights of its own, in float64."""
    torch.manual_seed(seed)
    layer.double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def inputs_of(shapes: list[tuple[int, ...]], offset: float = 100.0) -> list[torch.Tensor]:
    """Inputs of all ranks, far from zero, so that cancellation would show."""
    torch.manual_seed(int(offset))
    return [offset + torch.randn(shape, dtype=torch.float64) for shape in shapes]


def factors_of(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """How much each element counts in the loss."""
    return inputs_of(shapes, offset=0.0)


def outcome(layer: torch.nn.Module, values: torch.Tensor, weights: torch.Tensor) -> Tensors:
    """Result, gradients and statistics of a loss that weighs every element differently."""
    values = values.clone(memory_format=torch.preserve_format).requires_grad_()
    result = layer(values)
    (result * weights).sum().backward()
    assert values.grad is not None
    found = {"result": result.detach(), "input": values.grad}
    found |= {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return found | {name: buffer.clone() for name, buffer in layer.named_buffers()}


SHAPES = {
    "2d": [(3, 4), (5, 4)],
    "3d": [(2, 4, 5), (3, 4, 5)],
    "4d": [(3, 4, 2, 3), (1, 4, 2, 3)],
    "5d": [(1, 4, 2, 1, 2), (2, 4, 2, 1, 2)],
    "an empty rank": [(0, 4, 3), (5, 4, 3)],
    "one sample each": [(1, 4), (1, 4)],
    "four ranks": [(1, 4), (0, 4), (6, 4), (2, 4)],
}


@pytest.mark.trial("B39")
@pytest.mark.parametrize("which", SHAPES)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}])
def test_results_gradients_and_statistics_are_those_of_the_joined_batch(
    run, which: str, options: dict[str, Any]
) -> None:
    shapes = SHAPES[which]

    def work() -> list[Tensors]:
        layer = made(hvd.SyncBatchNorm(4, **options))
        inputs, factors = inputs_of(shapes), factors_of(shapes)
        found = []
        for _ in range(2):
            layer.zero_grad()
            rank = hvd.rank()
            found.append(outcome(layer, inputs[rank], factors[rank]))
        return found

    class Plain(torch.nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002
            pass

    results = run(work, size=len(shapes))
    reference = made(Plain(4, **options))
    for step in range(2):
        reference.zero_grad()
        values, factors = torch.cat(inputs_of(shapes)), torch.cat(factors_of(shapes))
        expected = outcome(reference, values, factors)
        ranks = [result[step] for result in results]
        for name in ("result", "input"):
            close(torch.cat([rank[name] for rank in ranks]), expected[name])
        for name in set(expected) & {"weight", "bias"}:
            close(sum(rank[name] for rank in ranks), expected[name])
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            for rank in ranks:
                close(rank[name], expected[name])


def close(found: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.trial("B39")
def test_permuted_and_channels_last_inputs_give_the_same(run) -> None:
    shapes = [(3, 4, 2, 5), (2, 4, 2, 5)]

    def work() -> list[bool]:
        layer = made(hvd.SyncBatchNorm(4))
        values, factors = inputs_of(shapes)[hvd.rank()], factors_of(shapes)[hvd.rank()]
        expected = outcome(copy.deepcopy(layer), values, factors)
        forms = [
            values.contiguous(memory_format=torch.channels_last),
            values.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        ]
        same = []
        for form in forms:
            found = outcome(copy.deepcopy(layer), form, factors)
            same += [torch.allclose(found[name], expected[name], 1e-10) for name in expected]
        return same

    assert all(all(same) for same in run(work))


@pytest.mark.trial("B39")
def test_several_layers_train_like_one_process_with_all_samples(run) -> None:
    def model(norm: Any) -> torch.nn.Module:
        layers = [torch.nn.Conv2d(2, 3, 3), norm(3), torch.nn.ReLU(), torch.nn.Conv2d(3, 4, 2)]
        return made(
            torch.nn.Sequential(*layers, norm(4), torch.nn.Flatten(), torch.nn.Linear(16, 1))
        )

    def batch(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        inputs, targets = torch.randn(6, 2, 5, 5).double(), torch.randn(6, 1).double()
        return inputs[rows], targets[rows]

    def work() -> list[torch.Tensor]:
        network = model(hvd.SyncBatchNorm)
        optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, network.named_parameters())
        inputs, targets = batch(slice(hvd.rank(), None, hvd.size()))
        for _ in range(4):
            torch.nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        network.eval()
        return [*network.state_dict().values(), network(batch(slice(None))[0]).detach()]

    network = model(torch.nn.BatchNorm2d)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = batch(slice(None))
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(inputs), targets).backward()
        optimizer.step()
    network.eval()
    expected = [*network.state_dict().values(), network(inputs).detach()]
    for found in run(work):
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.trial("B39")
def test_eval_mode_asks_nobody(run) -> None:
    def work() -> float:
        layer = hvd.SyncBatchNorm(2).eval()
        if hvd.rank() == 1:
            return 0.0
        return float(layer(torch.ones(1, 2)).sum())

    assert run(work)[0] == pytest.approx(2.0, rel=1e-4)


def norm_and_optimizer() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(5)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), hvd.SyncBatchNorm(2)).double()
    sgd = torch.optim.SGD(network.parameters(), lr=0.1)
    return network, hvd.DistributedOptimizer(sgd, network.named_parameters())


def train_step(network: torch.nn.Module, optimizer: Any, rank: int) -> None:
    torch.manual_seed(rank)
    network(torch.randn(4, 3, dtype=torch.float64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.trial("B39")
@pytest.mark.parametrize("in_eval", [0, 1])
def test_training_in_eval_mode_on_one_rank_is_an_error_on_all(run, in_eval: int) -> None:
    def work(in_eval: int) -> None:
        network, optimizer = norm_and_optimizer()
        train_step(network, optimizer, hvd.rank())
        network.train(hvd.rank() != in_eval)
        message = rf"{DIFFERENT}.*'1' with 2 channels, made at .*, in eval mode on rank {in_eval}"
        with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
            train_step(network, optimizer, hvd.rank())
        assert caught.value.code == "Mismatch"

    run(work, in_eval)


@pytest.mark.trial("B39")
def test_training_in_eval_mode_on_all_ranks_uses_what_was_learnt_before(run) -> None:
    def work() -> list[torch.Tensor]:
        network, optimizer = norm_and_optimizer()
        train_step(network, optimizer, hvd.rank())
        network[1].eval()
        kept = network[1].running_mean.clone()
        for _ in range(2):
            train_step(network, optimizer, hvd.rank())
        assert torch.equal(network[1].running_mean, kept)
        network[1].train()
        train_step(network, optimizer, hvd.rank())
        assert not torch.equal(network[1].running_mean, kept)
        return list(network.state_dict().values())

    first, second = run(work)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.trial("B39")
def test_one_rank_may_evaluate_with_gradients_between_steps(run) -> None:
    def work() -> None:
        network, optimizer = norm_and_optimizer()
        for _ in range(2):
            train_step(network, optimizer, hvd.rank())
            if hvd.rank() == 0:
                network.eval()
                attacked = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
                torch.autograd.grad(network(attacked).sum(), attacked)
                network.train()
            hvd.barrier()

    run(work)


def test_without_running_statistics_eval_mode_joins_batches_too(run) -> None:
    def work() -> torch.Tensor:
        layer = hvd.SyncBatchNorm(1, track_running_stats=False, eps=0.0).eval()
        return layer(torch.tensor([[float(hvd.rank())]])).detach()

    assert [value.item() for value in run(work)] == [-1.0, 1.0]


def test_copies_and_layers_made_on_one_rank_only_do_not_matter(run) -> None:
    def layers_of(norm: Any) -> torch.nn.Sequential:
        first, second = made(norm(2), seed=1), made(norm(2), seed=2)
        return torch.nn.Sequential(first, torch.nn.Sigmoid(), second)

    def work() -> torch.Tensor:
        for _ in range(3 * hvd.rank()):
            hvd.SyncBatchNorm(2)
        layers = layers_of(hvd.SyncBatchNorm)
        if hvd.rank() == 0:
            layers = copy.deepcopy(layers)
        if hvd.rank() == 1:
            layers = pickle.loads(pickle.dumps(layers))
        return layers(inputs_of([(3, 2), (3, 2)])[hvd.rank()]).detach()

    expected = layers_of(torch.nn.BatchNorm1d)(torch.cat(inputs_of([(3, 2), (3, 2)])))
    close(torch.cat(run(work)), expected.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_normalised_in_float32(run, dtype: torch.dtype) -> None:
    def work() -> tuple[torch.Tensor, torch.Tensor]:
        layer = hvd.SyncBatchNorm(3)
        torch.manual_seed(hvd.rank())
        values = torch.randn(4, 3).to(dtype).requires_grad_()
        result = layer(values)
        result.float().square().sum().backward()
        return values.detach(), result.detach()

    results = run(work)
    values = torch.cat([values for values, _ in results]).float()
    expected = torch.nn.BatchNorm1d(3)(values).detach()
    found = torch.cat([result for _, result in results])
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4,), "expected at least 2D input"),
        ((2, 5), r"expected 4 channels \(got 5\)"),
        ((1, 4), "more than 1 value per channel"),
    ],
)
def test_inputs_that_cannot_be_normalised_are_refused(
    run, shape: tuple[int, ...], words: str
) -> None:
    def work() -> None:
        rows = 0 if len(shape) == 2 and shape[0] == 1 and hvd.rank() == 1 else shape[0]
        with pytest.raises(ValueError, match=words):
            hvd.SyncBatchNorm(4)(torch.ones(rows, *shape[1:]))

    run(work)


def test_empty_batches_on_all_ranks_change_nothing(run) -> None:
    def work() -> tuple[int, int]:
        layer = hvd.SyncBatchNorm(2)
        return layer(torch.empty(0, 2)).shape[0], int(layer.num_batches_tracked)

    assert run(work) == [(0, 0)] * 2


def test_alone_it_is_batch_norm(run) -> None:
    def work() -> bool:
        values = torch.randn(5, 3)
        ours = hvd.SyncBatchNorm(3)(values)
        return torch.equal(ours, torch.nn.BatchNorm1d(3)(values))

    assert run(work, size=1) == [True]


def test_batches_of_a_process_set_are_joined(run) -> None:
    def work() -> float:
        sets = [hvd.add_process_set([0, 2]), hvd.add_process_set([1])]
        layer = hvd.SyncBatchNorm(1, eps=1e-12, affine=False, process_set=sets[hvd.rank() % 2])
        values = torch.tensor([[float(hvd.rank())], [hvd.rank() + 4.0]])
        first = float(layer(values)[0])
        hvd.barrier()  # who leaves ends the agreements of all sets
        return first

    results = run(work, size=3)
    joined = torch.tensor([[0.0], [4.0], [2.0], [6.0]])
    expected = torch.nn.BatchNorm1d(1, eps=1e-12, affine=False)(joined)
    assert results == pytest.approx([float(expected[0]), -1.0, float(expected[2])])


DIFFERENT = "Ranks have come to different SyncBatchNorm layers: "


def complaint(layer: Any) -> str:
    """What the layer says of its use; nothing if all is well."""
    try:
        layer(torch.randn(3, layer.num_features))
    except hvd.HorovodInternalError as error:
        return f"{error.code}: {error}"
    return ""


@pytest.mark.parametrize("how", ["in one line", "one each", "named", "channels", "later"])
def test_layers_in_other_orders_are_an_error_that_names_both(run, plane, how: str) -> None:
    """Nothing mispairs in silence, and the session goes on."""

    def work(how: str) -> list[str]:
        first, second = (hvd.SyncBatchNorm(2 + (how == "channels" and i)) for i in range(2))
        if how == "one each":
            first = hvd.SyncBatchNorm(2)
            second = hvd.SyncBatchNorm(2)
        if how == "named":
            layers = torch.nn.ModuleDict({"a": first, "b": second})
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
            hvd.DistributedOptimizer(optimizer, layers.named_parameters())
        if how == "later":
            assert [complaint(layer) for layer in (first, second, first)] == [""] * 3
        order = [first, second] if hvd.rank() == 0 else [second, first]
        used = order[:1] if how in ("one each", "named") else order
        texts = []
        for _ in range(2):
            told = [text for text in map(complaint, used) if text]
            assert told
            texts += told
        assert hvd.allreduce(torch.ones(1)) == 1.0
        return texts

    ours, theirs = run(work, how, env=plane)
    assert ours == theirs
    for text in ours:
        assert text.startswith(f"Mismatch: {DIFFERENT}")
        layer = r"number \d, .*layer.* channels, made at .*:\d+.*"
        assert re.search(rf"{layer} on rank 0; {layer} on rank 1\. Cure", text)
    if how == "named":
        assert re.search(
            r"number 0, layer 'a' .* on rank 0; number 0, layer 'b' .* on rank 1", ours[0]
        )


def test_gradients_of_different_layers_do_not_meet(run) -> None:
    """One rank's loss leaves out a layer that it has used forward."""

    def work() -> str:
        layers = [hvd.SyncBatchNorm(2) for _ in range(3)]
        inputs = [torch.randn(3, 2, requires_grad=True) for _ in layers]
        results = [layer(values) for layer, values in zip(layers, inputs)]
        chosen = results[:2] if hvd.rank() == 0 else [results[0], results[2]]
        with pytest.raises(hvd.HorovodInternalError, match=DIFFERENT) as caught:
            sum(result.sum() for result in chosen).backward()
        assert hvd.allreduce(torch.ones(1)) == 1.0
        return str(caught.value)

    for text in run(work):
        assert re.search(r"number 1, .* on rank 0; number 2, .* on rank 1", text)


def test_a_layer_in_eval_mode_on_one_rank_is_told_when_another_layer_follows(run) -> None:
    """B39."""

    def work() -> None:
        layers = torch.nn.Sequential(hvd.SyncBatchNorm(2), hvd.SyncBatchNorm(2))
        layers(torch.randn(3, 2))
        layers[0].train(hvd.rank() == 0)
        with pytest.raises(hvd.HorovodInternalError, match="each in the same mode"):
            layers(torch.randn(3, 2))

    run(work)


def test_layers_that_are_all_in_eval_mode_on_one_rank_are_in_the_stall_warning(run, pool) -> None:
    """B39: eval mode asks nobody, so nobody can be told."""

    def work() -> None:
        layer = hvd.SyncBatchNorm(2)
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match="sync_batch_norm"):
                layer(torch.randn(3, 2))
        else:
            layer.eval()(torch.randn(3, 2))
            with pytest.raises(hvd.HorovodInternalError, match=r"has left|has waited"):
                hvd.allreduce(torch.ones(1), name="next")

    limits = {"HVL_STALL_CHECK_TIME_SECONDS": "1", "HVL_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    run(work, env=limits)
    assert "'allgather.sync_batch_norm.statistics'" in pool.stderr(0)


def test_a_session_that_has_ended_is_let_go(run) -> None:
    def work() -> bool:
        import gc
        import weakref

        from horovodlite._session import session

        layer = hvd.SyncBatchNorm(2)
        layer(torch.randn(3, 2))
        ended = weakref.ref(session())
        hvd.shutdown()
        gc.collect()
        return ended() is None

    assert run(work) == [True, True]

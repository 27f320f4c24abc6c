"""DistributedOptimizer in training loops: passes, clipping, scaling, closures, unused layers."""

from __future__ import annotations

import copy
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def data(rank: int, count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return [torch.randn(4, 3, generator=generator) for _ in range(count)]


class Pair:
    """A distributed model, and a plain twin that sees the data of all ranks."""

    def __init__(
        self, make: Callable[..., Any] = torch.optim.SGD, seed: int = 3, **how: Any
    ) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
        self.twin = copy.deepcopy(self.model)
        self.twin_optimizer = make(self.twin.parameters(), lr=0.1)
        optimizer = make(self.model.parameters(), lr=0.1)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters(), **how)

    def step_twin(self, batches_by_rank: Sequence[Sequence[torch.Tensor]]) -> None:
        """The mean over the ranks of the sums over their micro-batches."""
        self.twin_optimizer.zero_grad()
        for batches in batches_by_rank:
            for batch in batches:
                (loss_of(self.twin, batch) / len(batches_by_rank)).backward()
        self.twin_optimizer.step()

    def check(self) -> None:
        mine = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        wanted = torch.cat([p.detach().flatten() for p in self.twin.parameters()])
        assert torch.allclose(mine, wanted, atol=1e-6)
        everybody = hvd.allgather(mine.unsqueeze(0))
        assert all(torch.equal(row, mine) for row in everybody)


def submitted() -> int:
    return session().counters()["operations_submitted"]


@pytest.mark.trial("B01", "B20")
@pytest.mark.parametrize(
    ("passes", "steps_after"),
    [(4, [4, 6]), (2, [1, 2, 3, 4]), (3, [3, 6]), (1, [1, 2, 3]), (100, [2, 5])],
)
def test_step_takes_the_passes_there_are_and_the_next_epoch_runs(
    run, passes: int, steps_after: list[int]
) -> None:
    """A short last group of an epoch, and step() more often than it need be."""

    def body(passes: int, steps_after: list[int]) -> None:
        pair = Pair(backward_passes_per_step=passes)
        for epoch in range(2):
            ranks = [data(rank, 6, epoch) for rank in range(hvd.size())]
            done = 0
            for until in steps_after:
                pair.optimizer.zero_grad()
                for batch in ranks[hvd.rank()][done:until]:
                    loss_of(pair.model, batch).backward()
                pair.optimizer.step()
                pair.step_twin([batches[done:until] for batches in ranks])
                pair.check()
                done = until

    run(body, passes, steps_after)


@pytest.mark.trial("B01", "B08")
def test_too_many_passes_are_an_error_that_names_parameter_and_counts(run) -> None:
    """On every rank alike, and the job can go on."""

    def body() -> None:
        for passes in (1, 4):
            pair = Pair(backward_passes_per_step=passes)
            batch = data(0, 1)[0]
            for _ in range(passes):
                loss_of(pair.model, batch).backward()
            message = rf"1.bias' was computed {passes + 1} times.*per_step is {passes}\. Increase"
            with pytest.raises(AssertionError, match=message):
                loss_of(pair.model, batch).backward()
            pair.optimizer.step()
            pair.optimizer.zero_grad()
            for _ in range(passes):
                loss_of(pair.model, batch).backward()
            pair.optimizer.step()

    run(body)


@pytest.mark.trial("B01")
def test_passes_left_over_from_an_epoch_count_in_the_next_one(run) -> None:
    """Six of them with a step after four: the last two of each epoch are never stepped on."""

    def body() -> None:
        pair = Pair(backward_passes_per_step=4)
        ranks = [data(rank, 6) for rank in range(hvd.size())]

        def epoch() -> None:
            for number, batch in enumerate(ranks[hvd.rank()]):
                loss_of(pair.model, batch).backward()
                if number == 3:
                    pair.optimizer.step()
                    pair.step_twin([batches[:4] for batches in ranks])

        epoch()
        with pytest.raises(AssertionError, match=r"was computed 5 times .*per_step is 4"):
            epoch()
        pair.optimizer.step()  # what was reduced is still there, and nobody hangs

    run(body)


@pytest.mark.trial("B01")
def test_passes_that_zero_grad_has_thrown_away_do_not_count(run) -> None:
    """No step at the end of the epoch, zero_grad() at the beginning of the next."""

    def body() -> None:
        pair = Pair(backward_passes_per_step=4)
        for epoch in range(3):
            ranks = [data(rank, 6, epoch) for rank in range(hvd.size())]
            pair.optimizer.zero_grad()
            for index, batch in enumerate(ranks[hvd.rank()]):
                loss_of(pair.model, batch).backward()
                if index == 3:
                    pair.optimizer.step()
                    pair.optimizer.zero_grad()
            pair.step_twin([batches[:4] for batches in ranks])
            pair.check()

    run(body)


@pytest.mark.trial("B08")
def test_several_losses_on_one_graph_are_added_up(run) -> None:
    def body() -> None:
        pair = Pair(backward_passes_per_step=3)
        ranks = [data(rank, 1) for rank in range(hvd.size())]
        output = pair.model(ranks[hvd.rank()][0])
        for index in range(3):
            output.square().mean().backward(retain_graph=index < 2)
        pair.optimizer.step()
        pair.step_twin([batches * 3 for batches in ranks])
        pair.check()

    run(body)


def test_no_op_is_an_average(run) -> None:
    def body() -> None:
        pair = Pair(op=None)
        for step in range(3):
            pair.optimizer.zero_grad()
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            pair.optimizer.step()
            pair.step_twin(ranks)
        pair.check()

    run(body)


@pytest.mark.trial("B02")
def test_clipping_between_synchronize_and_step_sees_reduced_gradients(run) -> None:
    """The weight moves by exactly -1; one operation per parameter; a warning without skip."""

    def body() -> None:
        for skip in (True, False):
            weight = torch.nn.Parameter(torch.tensor(0.0))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)])
            before = submitted()
            ((3.0 if hvd.rank() == 0 else 5.0) * weight).backward()
            optimizer.synchronize()
            assert weight.grad.item() == 4.0
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if skip:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
            expected = [] if skip else ["optimizer.step() called without optimizer.skip_synchron"]
            assert [str(w.message)[: len(expected[0])] for w in caught] == expected
            assert abs(weight.item() + 1.0) < 1e-6
            assert submitted() - before == 2  # the gradient, and the flags

    run(body)


def test_gradients_that_are_changed_while_they_are_reduced_are_an_error(run) -> None:
    """As users of DDP do it, who have them when backward() returns. The next step is right."""

    def body() -> None:
        for size in (3, 300_000):  # copied into its bucket, and reduced from where it is
            weight = torch.nn.Parameter(torch.zeros(size))
            other = torch.nn.Parameter(torch.zeros(2))
            optimizer = torch.optim.SGD([weight, other], lr=1.0)
            optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight), ("o", other)])
            for step in range(4):
                optimizer.zero_grad()
                ((hvd.rank() + 1.0) * (weight.sum() + other.sum())).backward()
                if step == 2:
                    torch.nn.utils.clip_grad_norm_([weight, other], 0.1)
                    with pytest.raises(RuntimeError, match=r"was changed between .* Cure:"):
                        optimizer.step()
                    continue
                optimizer.step()
            assert torch.equal(weight, torch.full((size,), -4.5))
            assert torch.equal(other, torch.full((2,), -4.5))

    run(body)


def test_step_inside_skip_synchronize_needs_synchronize_first(run) -> None:
    def body() -> None:
        pair = Pair()
        loss_of(pair.model, data(0, 1)[0]).backward()
        refused = pytest.raises(RuntimeError, match=r"call synchronize\(\) first")
        with refused, pair.optimizer.skip_synchronize():
            pair.optimizer.step()
        pair.optimizer.step()

    run(body)


@pytest.mark.trial("B03")
@pytest.mark.parametrize("order", ["documented", "naive", "unscale and clip"])
def test_a_step_that_the_scaler_skips_is_skipped_on_every_rank(run, order: str) -> None:
    """An infinite loss on one rank only; the naive order reduces before it unscales."""

    def body(order: str) -> None:
        pair = Pair()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            broken = step == 2
            loss = loss_of(pair.model, ranks[hvd.rank()][0])
            if broken and hvd.rank() == 1:
                loss = loss * float("inf")
            before = submitted()
            scaler.scale(loss).backward()
            if order == "documented":
                pair.optimizer.synchronize()
                scaler.unscale_(pair.optimizer)
                with pair.optimizer.skip_synchronize():
                    scaler.step(pair.optimizer)
            elif order == "naive":
                scaler.step(pair.optimizer)
            else:
                scaler.unscale_(pair.optimizer)
                torch.nn.utils.clip_grad_norm_(pair.model.parameters(), 1e6)
                scaler.step(pair.optimizer)
            scaler.update()
            pair.optimizer.zero_grad()
            gradients = 1 if step else 4  # which share an operation from the second step on
            assert submitted() - before == gradients + 1  # and the flags
            if not broken:
                pair.step_twin(ranks)
            pair.check()
            assert scaler.get_scale() == (512.0 if step >= 2 else 1024.0)

    with_warnings = "error" if order != "naive" else "default"
    run(body, order, env={"PYTHONWARNINGS": with_warnings})


class OtherHelper(torch.amp.GradScaler):
    """Reads the gradients in a function of its own, as some libraries' scalers do."""

    def _unscale_grads_(self, optimizer: Any, inverse: Any, found: Any, _: bool) -> Any:
        return self._read(optimizer.param_groups, inverse, found)

    def _read(self, groups: Any, inverse: Any, found: Any) -> Any:
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return {found.device: found}


class OtherUnscale(OtherHelper):
    """Shares nothing with torch's but the public names."""

    def unscale_(self, optimizer: Any) -> None:
        found = torch.zeros(())
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = self._look(optimizer, found)

    def _look(self, optimizer: Any, found: Any) -> Any:
        return self._read(optimizer.param_groups, 1 / self._scale, found)


@pytest.mark.parametrize("kind", [OtherHelper, OtherUnscale], ids=["helper", "unscale"])
def test_scalers_are_known_by_their_class_not_by_how_they_read(run, kind: Any) -> None:
    def body(kind: Any) -> None:
        pair = Pair()
        scaler = kind("cpu", init_scale=1024.0)
        for step in range(3):
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss = loss_of(pair.model, ranks[hvd.rank()][0])
            if step == 1 and hvd.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(pair.optimizer)
            scaler.update()
            pair.optimizer.zero_grad()
            if step != 1:
                pair.step_twin(ranks)
            pair.check()
            assert scaler.get_scale() == (512.0 if step >= 1 else 1024.0)

    run(body, kind)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_scaler_that_has_not_seen_reduced_gradients_is_refused(run, op: int) -> None:
    """It would unscale gradients that are being reduced, and skip steps on one rank only."""

    def body(op: int) -> None:
        class Unaware(torch.amp.GradScaler):
            """Knows the parameters from somewhere else."""

            def _unscale_grads_(self, _: Any, __: Any, found: Any, ___: bool) -> Any:
                return {found.device: found}

        pair = Pair(op=op)
        scaler = Unaware("cpu", init_scale=1024.0)
        scaler.scale(loss_of(pair.model, data(0, 1)[0])).backward()
        with pytest.raises(RuntimeError, match=r"has not read the gradients .* Cure"):
            scaler.step(pair.optimizer)
        pair.optimizer.synchronize()
        pair.optimizer.zero_grad()
        disabled = torch.amp.GradScaler("cpu", enabled=False)
        loss_of(pair.model, data(0, 1)[0]).backward()
        disabled.step(pair.optimizer)
        pair.step_twin([data(0, 1)])
        pair.check()

    run(body, op)


@pytest.mark.trial("B03")
def test_gradients_may_be_thrown_away_after_synchronize(run) -> None:
    def body() -> None:
        pair = Pair()
        for step in range(3):
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            if step == 1:
                pair.optimizer.synchronize()
            else:
                pair.optimizer.step()
                pair.step_twin(ranks)
            pair.optimizer.zero_grad()
            pair.check()

    run(body)


def test_zeroing_gradients_in_flight_is_an_error(run) -> None:
    def body() -> None:
        pair = Pair()
        loss_of(pair.model, data(0, 1)[0]).backward()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward"):
            pair.optimizer.zero_grad()
        pair.optimizer.step()
        pair.optimizer.zero_grad()

    run(body)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_takes_the_arguments_of_the_optimizer(run, set_to_none: bool) -> None:
    def body(set_to_none: bool) -> None:
        pair = Pair()
        loss_of(pair.model, data(0, 1)[0]).backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad(set_to_none=set_to_none)
        for parameter in pair.model.parameters():
            assert (parameter.grad is None) == set_to_none
            assert set_to_none or not parameter.grad.any()

    run(body, set_to_none)


@pytest.mark.trial("B03")
def test_after_a_failure_in_backward_its_gradients_can_be_thrown_away(run) -> None:
    """Some gradients are in flight by then, and some have never been computed."""

    def body() -> None:
        pair = Pair()

        def fail(_: torch.Tensor) -> None:
            raise ArithmeticError("in the middle")

        for step in range(4):
            pair.optimizer.zero_grad()
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            batch = ranks[hvd.rank()][0]
            broken = pair.model[0].weight.register_hook(fail)
            with pytest.raises(ArithmeticError, match="in the middle"):
                loss_of(pair.model, batch).backward()
            broken.remove()
            pair.optimizer.synchronize()
            pair.optimizer.zero_grad()
            loss_of(pair.model, batch).backward()
            pair.optimizer.step()
            pair.step_twin(ranks)
        pair.check()

    run(body)


def test_an_interrupt_in_step_loses_nothing(run, plane) -> None:
    """The step can be taken once more, and is the same as on the other ranks."""

    def step_interrupted(pair: Pair) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        pair.optimizer.step()

    def body() -> None:
        pair = Pair()
        for step in range(4):
            pair.optimizer.zero_grad()
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            if hvd.rank() == 0:
                loss_of(pair.model, ranks[0][0]).backward()
                with pytest.raises(KeyboardInterrupt):
                    step_interrupted(pair)
                hvd.allreduce(torch.ones(1), name="interrupted")
            else:
                hvd.allreduce(torch.ones(1), name="interrupted")
                loss_of(pair.model, ranks[1][0]).backward()
            pair.optimizer.step()
            pair.step_twin(ranks)
        pair.check()

    run(body, env=plane)


@pytest.mark.trial("B05")
def test_two_optimizers_over_one_backward(run) -> None:
    """The gradients of the idle one are thrown away; without synchronize() it is an error."""

    def body() -> None:
        a, b = (torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2))
        first = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=0.1), [("a", a)])
        second = hvd.DistributedOptimizer(torch.optim.SGD([b], lr=0.1), [("b", b)])
        for step in range(5):
            (a * (hvd.rank() + 1) + b).backward()
            first.step()
            second.synchronize()
            second.zero_grad()
            first.zero_grad()
            assert abs(a.item() - (1.0 - 0.15 * (step + 1))) < 1e-6
            assert b.item() == 1.0
        (a * (hvd.rank() + 1) + b).backward()
        first.step()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward"):
            second.zero_grad()
        second.step()
        assert (abs(a.item() - 0.1) < 1e-6, b.item()) == (True, torch.tensor(0.9).item())

    run(body)


@pytest.mark.trial("B05")
def test_two_optimizers_may_step_in_another_order_on_each_rank(run) -> None:
    """As in adversarial training. Both have gradients from one backward."""

    def body() -> None:
        torch.manual_seed(5)
        parts = [torch.nn.Linear(3, 2) for _ in range(2)]
        twins = copy.deepcopy(parts)
        plain = [torch.optim.SGD(twin.parameters(), lr=0.1) for twin in twins]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.1)) for part in parts
        ]

        def loss(pair: list[torch.nn.Linear], batch: torch.Tensor) -> torch.Tensor:
            return (pair[0](batch) - pair[1](batch + 1)).square().mean()

        for step in range(6):
            for optimizer in [*optimizers, *plain]:
                optimizer.zero_grad()
            batches = [data(rank, 1, step)[0] for rank in range(hvd.size())]
            loss(parts, batches[hvd.rank()]).backward()
            for optimizer in optimizers if (step + hvd.rank()) % 2 else optimizers[::-1]:
                optimizer.step()
            torch.stack([loss(twins, batch) for batch in batches]).mean().backward()
            for optimizer in plain:
                optimizer.step()
        for part, twin in zip(parts, twins):
            assert torch.allclose(part.weight, twin.weight, atol=1e-6)

    run(body)


@pytest.mark.trial("B06", "B07")
@pytest.mark.parametrize("named", [True, False])
def test_optimizers_whose_parameters_have_the_same_names_do_not_collide(run, named: bool) -> None:
    """Two networks of the same kind, in flight together, as in a GAN."""

    def body(named: bool) -> None:
        torch.manual_seed(0)
        models = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
        twins = copy.deepcopy(models)
        optimizers = []
        for model in models:
            names = model.named_parameters() if named else None
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizers.append(hvd.DistributedOptimizer(sgd, names))
        twin_optimizers = [torch.optim.SGD(twin.parameters(), lr=0.1) for twin in twins]
        for step in range(3):
            ranks = [data(rank, 1, step)[0] for rank in range(hvd.size())]
            models[1](models[0](ranks[hvd.rank()])).square().mean().backward()
            for batch in ranks:
                (twins[1](twins[0](batch)).square().mean() / len(ranks)).backward()
            for optimizer in [*optimizers[::-1], *twin_optimizers]:
                optimizer.step()
                optimizer.zero_grad()
            for model, twin in zip(models, twins):
                assert torch.allclose(model.weight, twin.weight, atol=1e-6)

    run(body, named)


@pytest.mark.trial("B11")
def test_a_branch_that_one_rank_does_not_take_counts_as_zero_there(run) -> None:
    """No stall; half of the using rank's gradient on both; the branch flips each step."""

    def body() -> None:
        a, b = (torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2))
        optimizer = torch.optim.SGD([a, b], lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, [("a", a), ("b", b)])
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = a * 1.0
            if (hvd.rank() + step) % 2 == 0:
                loss = loss + 3.0 * b
            loss.backward()
            hvd.allreduce(loss.detach())  # other operations in between do not deadlock
            optimizer.step()
            assert (a.grad.item(), b.grad.item()) == (1.0, 1.5)
            assert hvd.allgather_object(b.item())[1 - hvd.rank()] == b.item()

    run(body)


@pytest.mark.trial("B12")
def test_a_parameter_that_no_rank_uses_is_left_alone_as_in_a_single_process(run) -> None:
    """No zeros for weight decay and momentum to work on."""

    def body() -> None:
        for set_to_none in (True, False):
            used, unused = (torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2))
            optimizer = torch.optim.SGD([used, unused], lr=0.1, momentum=0.9, weight_decay=0.1)
            optimizer = hvd.DistributedOptimizer(optimizer)
            for _ in range(3):
                optimizer.zero_grad(set_to_none=set_to_none)
                used.backward()
                optimizer.step()
            assert unused.item() == 1.0
            assert unused.grad is None
            assert used.item() < 0.8

    run(body)


def test_gradients_that_are_kept_are_not_counted_twice(run) -> None:
    """Without zero_grad() gradients add up; stepping again without backward changes nothing."""

    def body() -> None:
        for op in (hvd.Average, hvd.Sum):
            a, b = (torch.nn.Parameter(torch.tensor(0.0)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), op=op)
            (a + 2 * b).backward()
            optimizer.step()
            share = 2.0 if op == hvd.Sum else 1.0
            assert (a.grad.item(), b.grad.item()) == (share, 2 * share)
            optimizer.step()
            assert (a.grad.item(), b.grad.item()) == (share, 2 * share)
            assert (a.item(), b.item()) == (-2 * share, -4 * share)
            if op == hvd.Average:
                a.backward()
                optimizer.step()
                assert (a.grad.item(), b.grad.item()) == (2.0, 2.0)

    run(body)


@pytest.mark.trial("B35")
def test_sums_are_not_divided(run) -> None:
    """Loss = sum / number of all tokens."""

    def body() -> None:
        for passes in (1, 2):
            torch.manual_seed(0)
            tokens = [torch.randn(10, 3), torch.randn(2, 3)]
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(
                optimizer, op=hvd.Sum, backward_passes_per_step=passes
            )
            for part in tokens[hvd.rank()].chunk(passes):
                (model(part).square().sum() / 12).backward()
            optimizer.synchronize()
            reduced = model.weight.grad.clone()
            model.zero_grad()
            expected = torch.autograd.grad(
                model(torch.cat(tokens)).square().sum() / 12, model.weight
            )
            assert torch.allclose(reduced, expected[0], atol=1e-6)

    run(body)


@pytest.mark.trial("B21")
def test_dividing_before_adding_keeps_narrow_types_from_overflowing(run) -> None:
    """With 4 ranks."""

    def body() -> None:
        for groups in (None, 1):
            weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(weights, lr=1.0),
                compression=hvd.Compression.fp16,
                gradient_predivide_factor=4,
                groups=groups,
            )
            sum((weight * 3e4).sum() for weight in weights).backward()
            optimizer.synchronize()
            for weight in weights:
                assert weight.grad.dtype == torch.float32
                assert torch.allclose(weight.grad, torch.full((3,), 3e4), rtol=1e-3)
            optimizer.step()
            optimizer.zero_grad()
            sum((weight * 1e-7).sum() for weight in weights).backward()
            optimizer.synchronize()
            nearest = torch.tensor(1e-7).half().float()  # dividing first loses nothing more
            for weight in weights:
                assert torch.equal(weight.grad, nearest.expand(3))

    run(body, size=4)


@pytest.mark.trial("B36")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_types_train(run, dtype: torch.dtype) -> None:
    def body(dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            model(data(hvd.rank(), 1, step)[0].to(dtype)).square().mean().backward()
            optimizer.step()
            assert model.weight.grad.dtype == dtype
        assert len({str(w) for w in hvd.allgather_object(model.weight.tolist())}) == 1

    run(body, dtype, size=3)


class Halving(hvd.Compressor):
    """A compressor of a user, whose memory and types are its own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.double().flatten() / 2, tensor.shape

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return (tensor * 2).float().view(ctx)


class Foreign:
    """As scripts for Horovod have them: of no class of ours, and not told that it is a cast."""

    compress = staticmethod(hvd.Compression.bf16.compress)
    decompress = staticmethod(hvd.Compression.bf16.decompress)


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize(
    "compression",
    [hvd.Compression.bf16, hvd.Compression.fp16, Halving, Foreign],
    ids=lambda c: c.__name__,
)
def test_compressed_gradients_are_close_to_uncompressed_ones(
    run, plane, compression: type, groups: int | None
) -> None:
    def body(compression: type, groups: int | None) -> None:
        pair = Pair(compression=compression, groups=groups)
        for step in range(3):
            pair.optimizer.zero_grad()
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            pair.optimizer.step()
            pair.step_twin(ranks)
        mine = torch.cat([p.detach().flatten() for p in pair.model.parameters()])
        wanted = torch.cat([p.detach().flatten() for p in pair.twin.parameters()])
        assert torch.allclose(mine, wanted, atol=2e-2)
        everybody = hvd.allgather(mine.unsqueeze(0))
        assert all(torch.equal(row, mine) for row in everybody)

    run(body, compression, groups, env=plane)


@pytest.mark.trial("B38")
def test_channels_last_models_train_and_keep_their_format(run) -> None:
    """Converted before and after wrapping."""

    def body() -> None:
        for convert_late in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Conv2d(3, 4, 3)
            twin = copy.deepcopy(model)
            if not convert_late:
                model = model.to(memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            if convert_late:
                model = model.to(memory_format=torch.channels_last)
            hvd.broadcast_parameters(model.state_dict(), 0)
            twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
            for step in range(3):
                inputs = torch.randn(2, 1, 3, 5, 5, generator=torch.Generator().manual_seed(step))
                optimizer.zero_grad(set_to_none=step == 1)
                model(inputs[hvd.rank()]).square().mean().backward()
                optimizer.step()
                twin_optimizer.zero_grad()
                twin(inputs.flatten(0, 1)).square().mean().backward()
                twin_optimizer.step()
                assert model.weight.grad.stride() == model.weight.stride()
            assert model.weight.is_contiguous(memory_format=torch.channels_last)
            assert torch.allclose(model.weight, twin.weight, atol=1e-6)

    run(body)


def test_gradients_that_the_user_replaces_are_reduced_all_the_same(run) -> None:
    """p.grad = other, p.grad.data = other, p.grad *= 2: in any step, with and without zeroing."""

    def body() -> None:
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], backward_passes_per_step=2
        )
        share = float(hvd.rank() + 1)
        for change in ("none", "grad", "data", "in place", "none", "delete", "data", "none"):
            optimizer.zero_grad(set_to_none=False)
            (weight * share).sum().backward()
            if change == "grad":
                weight.grad = weight.grad.clone() * 1.0
            elif change == "data":
                weight.grad.data = weight.grad.clone()
            elif change == "in place":
                weight.grad.mul_(1.0)
            elif change == "delete":
                kept = weight.grad.clone()
                del weight.grad
                weight.grad = kept
            (weight * share).sum().backward()
            optimizer.step()
            assert weight.grad.tolist() == [3.0, 3.0, 3.0], change

    run(body)


def test_gradients_computed_with_create_graph_are_reduced(run) -> None:
    def body() -> None:
        weight = torch.nn.Parameter(torch.tensor([2.0]))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
        for _ in range(2):
            optimizer.zero_grad()
            (weight**2 * (hvd.rank() + 1)).sum().backward(create_graph=True)
            value = weight.item()
            optimizer.step()
            assert weight.grad.item() == 1.5 * 2 * value

    with_warnings = {"PYTHONWARNINGS": "ignore"}
    run(body, env=with_warnings)


def test_frozen_parameters_take_no_part_until_they_are_thawed(run, plane) -> None:
    def body() -> None:
        pair = Pair()
        first = pair.model[0]
        plans = [(False, 3), (True, 4), (False, 2), (True, 4)]  # two share from the second step on
        for step, (trains, operations) in enumerate(plans):
            first.requires_grad_(trains)
            pair.twin[0].requires_grad_(trains)
            pair.optimizer.zero_grad()
            before = submitted()
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            pair.optimizer.step()
            assert submitted() - before == operations
            pair.step_twin(ranks)
            pair.check()

    run(body, env=plane)


def test_parameters_frozen_at_first_are_reduced_during_backward_later(run) -> None:
    def body() -> None:
        model = torch.nn.Linear(3, 1)
        model.requires_grad_(False)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model.requires_grad_(True)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, data(hvd.rank(), 1)[0]).backward()
            optimizer.step()
        optimizer.zero_grad()
        before = submitted()
        loss_of(model, data(hvd.rank(), 1)[0]).backward()
        assert submitted() - before == 2
        optimizer.step()
        weights = hvd.allgather_object(model.weight.tolist())
        assert weights[0] == weights[1]

    run(body)


@pytest.mark.trial("B15")
def test_shared_weights_are_reduced_once(run) -> None:
    def body() -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight
        twin = copy.deepcopy(model)
        names = list(model.named_parameters(remove_duplicate=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, names)
        before = submitted()
        model(data(hvd.rank(), 1)[0]).square().mean().backward()
        optimizer.step()
        assert submitted() - before == 4
        for rank in range(hvd.size()):
            (twin(data(rank, 1)[0]).square().mean() / hvd.size()).backward()
        torch.optim.SGD(twin.parameters(), lr=0.1).step()
        assert torch.allclose(model[0].weight, twin[0].weight, atol=1e-6)
        assert model[0].weight is model[1].weight

    run(body)


@pytest.mark.trial("B10")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_layer_used_in_two_checkpointed_segments_gets_its_whole_gradient(
    run, use_reentrant: bool
) -> None:
    """Reentrant checkpoints run backward once per segment: two passes per step."""

    def body(use_reentrant: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        twin = copy.deepcopy(layer)
        passes = 2 if use_reentrant else 1
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1),
            layer.named_parameters(),
            backward_passes_per_step=passes,
        )

        def forward(module: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(module, batch.requires_grad_(), use_reentrant=use_reentrant)
            return checkpoint(module, hidden, use_reentrant=use_reentrant).square().mean()

        for operations in (3, 2):
            before = submitted()
            forward(layer, data(hvd.rank(), 1)[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert submitted() - before == operations
        sgd = torch.optim.SGD(twin.parameters(), lr=0.1)
        for _ in range(2):
            for rank in range(hvd.size()):
                (twin(twin(data(rank, 1)[0])).square().mean() / hvd.size()).backward()
            sgd.step()
            sgd.zero_grad()
        assert torch.allclose(layer.weight, twin.weight, atol=1e-6)
        if use_reentrant:
            optimizer.set_backward_passes_per_step(1)
            with pytest.raises(AssertionError, match="Increase backward_passes_per_step"):
                forward(layer, data(hvd.rank(), 1)[0]).backward()
            optimizer.step()

    run(body, use_reentrant)


def test_a_closure_gets_its_gradients_reduced(run) -> None:
    def body() -> None:
        pair = Pair()
        for step in range(3):
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]

            mine = ranks[hvd.rank()][0]

            def closure(mine: torch.Tensor = mine) -> torch.Tensor:
                pair.optimizer.zero_grad()
                loss = loss_of(pair.model, mine)
                loss.backward()
                return loss

            returned = pair.optimizer.step(closure)
            assert returned.requires_grad
            pair.step_twin(ranks)
            pair.check()

    run(body)


@pytest.mark.trial("B27")
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_decides_alike_on_every_rank(run, line_search: str | None) -> None:
    """How often it calls the closure depends on the loss; so the loss is reduced too."""

    def body(line_search: str | None) -> None:
        def train(parts: list[torch.Tensor], distributed: bool) -> tuple[torch.Tensor, int]:
            weight = torch.nn.Parameter(torch.tensor([5.0, -3.0], dtype=torch.float64))
            optimizer = torch.optim.LBFGS([weight], max_iter=10, line_search_fn=line_search)
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)])
            calls = 0

            def closure() -> torch.Tensor:
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                losses = [((weight - p) ** 2 * p.abs()).sum() for p in parts]
                loss = sum(losses) / len(losses)
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            return weight.detach(), calls

        parts = [torch.tensor([1.0, 20.0]).double(), torch.tensor([-4.0, 0.5]).double()]
        weight, calls = train([parts[hvd.rank()]], distributed=True)
        expected, expected_calls = train(parts, distributed=False)
        assert torch.allclose(weight, expected, atol=1e-9)
        assert calls == expected_calls
        assert hvd.allgather_object(weight.tolist())[0] == weight.tolist()

    run(body, line_search)


def test_a_closure_inside_skip_synchronize_has_to_synchronize(run) -> None:
    """Else the step would use gradients while peers write them, and other ones on each rank."""

    def body() -> None:
        pair = Pair()
        synchronizes = False
        ranks = [data(rank, 1) for rank in range(hvd.size())]

        def closure() -> torch.Tensor:
            pair.optimizer.zero_grad()
            loss = loss_of(pair.model, ranks[hvd.rank()][0])
            loss.backward()
            if synchronizes:
                pair.optimizer.synchronize()
            return loss

        before = [p.tolist() for p in pair.model.parameters()]
        refused = pytest.raises(RuntimeError, match=r"call synchronize\(\) first")
        with refused, pair.optimizer.skip_synchronize():
            pair.optimizer.step(closure)
        assert [p.tolist() for p in pair.model.parameters()] == before
        pair.optimizer.synchronize()
        synchronizes = True
        with pair.optimizer.skip_synchronize():
            pair.optimizer.step(closure)
        pair.step_twin(ranks)
        pair.check()

    run(body)


@pytest.mark.trial("B70")
def test_gradients_outlive_the_session_and_move_into_the_next(run) -> None:
    """Shutdown and init between two steps; views of the old memory stay readable."""

    def body() -> None:
        pair = Pair()
        for step in range(4):
            pair.optimizer.zero_grad(set_to_none=step % 2 == 0)
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            pair.optimizer.step()
            pair.step_twin(ranks)
            pair.check()
            before = [p.grad.clone() for p in pair.model.parameters()]
            hvd.shutdown()
            assert all(torch.equal(p.grad, g) for p, g in zip(pair.model.parameters(), before))
            with pytest.raises(ValueError, match="has not been initialized"):
                loss_of(pair.model, ranks[0][0]).backward()
            pair.optimizer.zero_grad()
            hvd.init()

    run(body)


def test_gradients_that_were_in_flight_when_the_session_ended_are_an_error(run) -> None:
    def body() -> None:
        pair = Pair()
        loss_of(pair.model, data(0, 1)[0]).backward()
        hvd.barrier()
        hvd.shutdown()
        hvd.init()
        with pytest.raises(hvd.HorovodInternalError, match=r"session .* has ended") as caught:
            loss_of(pair.model, data(0, 1)[0]).backward()
        assert caught.value.code == "Aborted"
        loss_of(pair.model, data(0, 1)[0]).backward()
        hvd.barrier()
        hvd.shutdown()
        pair.optimizer.zero_grad()  # of no session: nothing is in flight any more
        hvd.init()
        loss_of(pair.model, data(0, 1)[0]).backward()
        hvd.barrier()
        hvd.shutdown()
        hvd.init()
        with pytest.raises(hvd.HorovodInternalError, match=r"session .* has ended") as caught:
            pair.optimizer.step()
        assert caught.value.code == "Aborted"
        pair.optimizer.zero_grad()
        ranks = [data(rank, 1) for rank in range(hvd.size())]
        loss_of(pair.model, ranks[hvd.rank()][0]).backward()
        pair.optimizer.step()
        pair.step_twin(ranks)
        pair.check()

    run(body)


def test_gradients_that_backward_has_not_put_there_are_reduced(run, plane) -> None:
    """What autograd.grad() returns, and what is made by hand, also with other strides."""

    def body() -> None:
        half = hvd.Compression.fp16
        for how in ({}, {"compression": half}, {"groups": 1}, {"backward_passes_per_step": 2}):
            pair = Pair(**how)
            for step in range(3):
                ranks = [data(rank, 1, step) for rank in range(hvd.size())]
                pair.step_twin(ranks)
                parameters = list(pair.model.parameters())
                loss = loss_of(pair.model, ranks[hvd.rank()][0])
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                    parameter.grad = gradient
                pair.optimizer.step()
                if how.get("compression") is not half:
                    pair.check()
                everybody = hvd.allgather_object(parameters[0].tolist())
                assert everybody[0] == everybody[1]
            parameters[0].grad = torch.tensor(float(hvd.rank())).expand(parameters[0].shape)
            pair.optimizer.synchronize()
            assert (parameters[0].grad == 0.5).all()

    run(body, env=plane)


def test_gradients_whose_memory_moves_are_reduced_all_the_same(run, plane) -> None:
    """share_memory() of a model, as before handing it to another process, moves its gradients."""

    def body() -> None:
        for how in ({}, {"groups": 1}, {"backward_passes_per_step": 2}):
            pair = Pair(**how)
            for step in range(3):
                ranks = [data(rank, 1, step) for rank in range(hvd.size())]
                pair.step_twin(ranks)
                pair.optimizer.zero_grad(set_to_none=False)
                loss_of(pair.model, ranks[hvd.rank()][0]).backward()
                pair.optimizer.step()
                pair.check()
                pair.model.share_memory()
                for parameter in pair.model.parameters():
                    parameter.grad.share_memory_()

    run(body, env=plane)


def test_a_parameter_that_one_rank_has_frozen_is_an_error_everywhere(run, plane, fusion) -> None:
    """Nobody is left waiting for the rank that does not reduce it, and the next step is right."""

    def body() -> None:
        for op in (hvd.Average, hvd.Sum):
            pair = Pair(op=op)
            if op == hvd.Sum:
                pair.twin_optimizer.param_groups[0]["lr"] *= hvd.size()
            first = pair.model[0]
            for culprit, used in ((0, True), (1, True), (0, False)):
                pair.optimizer.zero_grad()
                first.requires_grad_(hvd.rank() != culprit)
                batch = data(hvd.rank(), 1)[0]
                loss = loss_of(pair.model, batch) if used else pair.model[1].weight.sum()
                loss.backward()
                before = [p.tolist() for p in pair.model.parameters()]
                message = r"not on others: '0\.bias', '0\.weight'\. Cure: set requires_grad alike"
                with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
                    pair.optimizer.step()
                assert caught.value.code == "Mismatch"
                assert [p.tolist() for p in pair.model.parameters()] == before
                first.requires_grad_(True)
                pair.optimizer.zero_grad()
                ranks = [data(rank, 1) for rank in range(hvd.size())]
                loss_of(pair.model, ranks[hvd.rank()][0]).backward()
                pair.optimizer.step()
                pair.step_twin(ranks)
                pair.check()

    run(body, env={**plane, **fusion})


def test_a_step_that_has_failed_leaves_the_optimizer_usable(run) -> None:
    """Whatever it was: here a compressor that fails, on every rank, once."""

    def body() -> None:
        class Failing(hvd.Compressor):
            fails = False

            @staticmethod
            def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
                return tensor, None

            @classmethod
            def decompress(cls, tensor: torch.Tensor, _: None) -> torch.Tensor:
                if cls.fails:
                    raise ArithmeticError("once")
                return tensor

        pair = Pair(compression=Failing)
        for step in range(4):
            Failing.fails = step == 1
            ranks = [data(rank, 1, step) for rank in range(hvd.size())]
            pair.optimizer.zero_grad()
            loss_of(pair.model, ranks[hvd.rank()][0]).backward()
            if step == 1:
                with pytest.raises(ArithmeticError, match="once"):
                    pair.optimizer.step()
            else:
                pair.optimizer.step()
                pair.step_twin(ranks)
            pair.check()

    run(body)

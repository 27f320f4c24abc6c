"""Small gradients share an operation from the second step on, and mean what they meant alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.torch import _units
from horovodlite.world import session

MIXED = [torch.float64, torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float64]


class Weights:
    """Parameters of some shapes and types; each step's gradients depend on their values."""

    def __init__(self, shapes: Sequence[Any], dtypes: Any = torch.float64, **how: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        kinds = dtypes if isinstance(dtypes, list) else [dtypes] * len(shapes)
        self.parameters = [
            torch.nn.Parameter(torch.randn(shape, generator=generator).to(kind))
            for shape, kind in zip(shapes, kinds)
        ]
        self.plain = [p.detach().clone().requires_grad_() for p in self.parameters]
        named = [(f"p{index}", p) for index, p in enumerate(self.parameters)]
        inner = torch.optim.SGD(self.parameters, lr=0.1, momentum=0.5)
        self.optimizer = hvd.DistributedOptimizer(inner, named, **how)
        self.plain_optimizer = torch.optim.SGD(self.plain, lr=0.1, momentum=0.5)
        self.steps = 0

    def loss(self, parameters: Sequence[torch.Tensor], rank: int, unused: Any = ()) -> Any:
        factor = math.sin(1.0 + rank + 7 * self.steps)
        return sum((p * p * factor).sum() for i, p in enumerate(parameters) if i not in unused)

    def step(self, unused: Any = None, set_to_none: bool = True) -> int:
        """One step, also of the plain twin; how many operations it took.

        Args:
            unused: The parameters that each rank does not use.
            set_to_none: What zero_grad() does.
        """
        unused = unused or [[]] * hvd.size()
        self.optimizer.zero_grad(set_to_none=set_to_none)
        before = submitted()
        self.loss(self.parameters, hvd.rank(), unused[hvd.rank()]).backward()
        self.optimizer.step()
        self.plain_optimizer.zero_grad(set_to_none=set_to_none)
        for rank in range(hvd.size()):
            (self.loss(self.plain, rank, unused[rank]) / hvd.size()).backward()
        self.plain_optimizer.step()
        self.steps += 1
        return submitted() - before

    def check(self) -> None:
        for mine, wanted in zip(self.parameters, self.plain):
            eps = torch.finfo(mine.dtype).eps
            assert torch.allclose(mine, wanted, rtol=20 * eps, atol=20 * eps)
            assert (mine.grad is None) == (wanted.grad is None)


def submitted() -> int:
    return session().counters()["operations_submitted"]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_training_is_that_of_one_process(
    run, plane, size: int, set_to_none: bool, passes: int
) -> None:
    """With a parameter of more than the limit between small ones, and others of odd sizes."""

    def body(set_to_none: bool, passes: int) -> list[torch.Tensor]:
        weights = Weights([3, (5, 7), (), 40000, 1, (2, 3, 4)], backward_passes_per_step=passes)
        for step in range(5):
            operations = weights.step(set_to_none=set_to_none)
            assert operations == (7 if step == 0 else 3)  # the large one, the others, the flags
            weights.check()
        return [p.detach().clone() for p in weights.parameters]

    first, *others = run(body, set_to_none, passes, size=size, env=plane)
    assert all(torch.equal(p, q) for other in others for p, q in zip(first, other))


def test_gradients_of_several_types_share_with_their_own(run, plane) -> None:
    def body() -> None:
        weights = Weights([3, 4, 5, 6, 7, 8], MIXED)
        for step in range(4):
            assert weights.step() == (7 if step == 0 else 4)
            weights.check()

    run(body, env=plane)


@pytest.mark.parametrize("how", [{}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}])
def test_no_bit_depends_on_sharing(run, how: dict[str, Any]) -> None:
    def body(how: dict[str, Any]) -> None:
        results = []
        for most in (_units._MOST_SHARED, 0):
            with mock.patch.object(_units, "_MOST_SHARED", most):
                weights = Weights([3, (5, 7), 2, 11], torch.float32, **how)
                operations = [weights.step() for _ in range(4)]
                results.append((operations, [p.detach() for p in weights.parameters]))
        (shared, ours), (alone, theirs) = results
        assert (shared, alone) == ([5, 2, 2, 2], [5, 5, 5, 5])
        assert all(torch.equal(p, q) for p, q in zip(ours, theirs))

    run(body, how, size=3, env={"HVL_CPU_OPERATIONS": "local"})


def test_units_hold_consecutive_small_slots_up_to_the_limit(run) -> None:
    def body() -> None:
        weights = Weights([100, 40000, 10000, 10000, 10000, 10000, 0, 5])
        for step in range(3):
            # 80 kB each: three and the small ones; what is large or empty is alone
            assert weights.step() == (9 if step == 0 else 5)
            weights.check()

    run(body)


def test_what_a_rank_does_not_use_counts_as_zero_and_travels_alone_from_then_on(run, plane) -> None:
    def body() -> None:
        weights = Weights([3, 4, 5, 6, 7])
        nobody: list[list[int]] = [[], []]
        plan = [(nobody, 6), (nobody, 2), ([[], [2]], 2), ([[2], []], 3), (nobody, 3)]
        plan += [([[2, 3], [2, 3]], 3), (nobody, 4)]
        for set_to_none in (True, False):
            for unused, operations in plan if set_to_none else plan[-1:]:
                assert weights.step(unused, set_to_none) == operations
                weights.check()

    run(body, env=plane)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_parameter_frozen_later_leaves_its_unit_and_keeps_its_gradient(
    run, plane, set_to_none: bool
) -> None:
    def body(set_to_none: bool) -> None:
        weights = Weights([3, 4, 5, 6])
        for _ in range(3):
            weights.step(set_to_none=set_to_none)
        mine, twin = weights.parameters[1], weights.plain[1]
        kept = mine.grad.clone()
        for parameter, optimizer in ((mine, weights.optimizer), (twin, weights.plain_optimizer)):
            parameter.requires_grad_(False)
            optimizer.zero_grad(set_to_none=set_to_none)
            if set_to_none:
                parameter.grad = kept.clone()
                parameter.grad.zero_()
        gradient = mine.grad
        gradient.fill_(0.25)
        for operations in (2, 2, 2):
            before = submitted()
            others = [p for p in weights.parameters if p is not mine]
            for p in others:
                p.grad = None
            weights.loss(others, hvd.rank()).backward()
            # Nobody waits for the frozen one: but in the first step, which finds it frozen.
            in_backward = submitted() - before
            weights.optimizer.synchronize()
            assert submitted() - before == operations
            assert mine.grad is gradient
            assert gradient.tolist() == [0.25] * 4
        assert in_backward == 1
        gradient.zero_()
        with weights.optimizer.skip_synchronize():
            weights.optimizer.step()
        mine.requires_grad_(True)
        twin.requires_grad_(True)
        weights.optimizer.zero_grad()
        before = submitted()
        weights.loss(weights.parameters, hvd.rank()).backward()
        weights.optimizer.step()
        assert submitted() - before == 3
        wanted = sum(math.sin(1.0 + rank + 7 * weights.steps) for rank in range(hvd.size()))
        momentum = weights.optimizer.state[mine]["momentum_buffer"]
        assert torch.isfinite(momentum).all()
        start = mine.detach() + 0.1 * momentum
        assert torch.allclose(mine.grad, start * wanted / hvd.size() * 2)

    run(body, set_to_none, env=plane)


def test_a_parameter_that_one_rank_has_frozen_later_is_an_error_everywhere(run, plane) -> None:
    def body() -> None:
        for frozen in ([1], [0, 1, 2, 3]):  # some of a unit, and a whole unit
            for culprit in (0, 1):
                weights = Weights([3, 4, 5, 6])
                for _ in range(3):
                    weights.step()
                names = ", ".join(rf"'p{index}'" for index in frozen)
                for index in frozen:
                    weights.parameters[index].requires_grad_(hvd.rank() != culprit)
                weights.optimizer.zero_grad()
                loss = weights.loss(weights.parameters, hvd.rank())
                if loss.requires_grad:
                    loss.backward()
                with pytest.raises(hvd.HorovodInternalError, match=f"on others: {names}. Cure"):
                    weights.optimizer.step()
                for index in frozen:
                    weights.parameters[index].requires_grad_(True)
                for _ in range(3):
                    weights.step()
                    weights.check()

    run(body, env=plane)


def test_a_gradient_that_becomes_sparse_is_reduced_and_leaves_its_unit(run) -> None:
    def body() -> None:
        table, other = torch.nn.Parameter(torch.ones(4, 2)), torch.nn.Parameter(torch.ones(3))
        named = [("table", table), ("other", other)]
        inner = torch.optim.SGD([table, other], lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, named, op=hvd.Sum)
        rows = torch.tensor([hvd.rank(), 3])
        for sparse in (False, False, True, True, False):
            optimizer.zero_grad()
            picked = torch.nn.functional.embedding(rows, table, sparse=sparse)
            (picked.sum() + other.sum()).backward()
            optimizer.synchronize()
            assert table.grad.is_sparse == sparse
            wanted = [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
            assert table.grad.to_dense().tolist() == wanted
            assert other.grad.tolist() == [2.0] * 3
            with optimizer.skip_synchronize():
                optimizer.step()

    run(body)


def test_different_models_are_found_in_the_first_step(run, plane, fusion) -> None:
    """An error that names the parameter, on all ranks; the session stays usable."""

    def body() -> None:
        weights = Weights([3, 4 + hvd.rank(), 5])
        message = r"p1.*\[4\].*\[5\]"
        weights.loss(weights.parameters, hvd.rank()).backward()
        with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
            weights.optimizer.step()
        assert caught.value.code == "Mismatch"
        again = Weights([3, 4, 5])
        for _ in range(3):
            again.step()
            again.check()

    run(body, env={**plane, **fusion})


CHANGE: dict[str, Callable[[torch.nn.Parameter], Any]] = {
    "dtype": lambda p: setattr(p, "data", p.data.float()),
    "shape": lambda p: setattr(p, "data", torch.zeros(700, dtype=torch.float64)),
    "size": lambda p: setattr(p, "data", torch.zeros(0, dtype=torch.float64)),
}


@pytest.mark.parametrize("what", CHANGE)
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_parameter_that_changes_later_is_reduced_or_an_error(
    run, plane, what: str, everywhere: bool
) -> None:
    def body(change: Callable[[torch.nn.Parameter], Any], everywhere: bool) -> None:
        weights = Weights([3, 4, 5])
        for _ in range(3):
            weights.step()
        weights.optimizer.zero_grad()
        if everywhere or hvd.rank() == 0:
            change(weights.parameters[1])
        before = [p.detach().clone() for p in weights.parameters]
        sum((p * (hvd.rank() + 1.0)).sum() for p in weights.parameters).backward()
        if everywhere:
            weights.optimizer.synchronize()
            for parameter in weights.parameters:
                assert torch.equal(parameter.grad, torch.full_like(parameter, 1.5))
        else:
            with pytest.raises(hvd.HorovodInternalError, match=r"'?shared_allreduce\.p2\+2") as e:
                weights.optimizer.step()
            assert e.value.code == "Mismatch"
            assert all(torch.equal(p, q) for p, q in zip(weights.parameters, before))
        again = Weights([3, 4, 5])
        for _ in range(3):
            again.step()
            again.check()

    run(body, CHANGE[what], everywhere, env=plane)


def test_after_a_join_ranks_agree_anew(run, plane) -> None:
    """One rank has no data in the first epoch, and another number of steps in each."""

    def body() -> None:
        weights = Weights([3, 4, 5])
        for steps in ([3, 0], [0, 2], [4, 1]):
            for _ in range(steps[hvd.rank()]):
                weights.optimizer.zero_grad()
                weights.loss(weights.parameters, hvd.rank()).backward()
                weights.optimizer.step()
            hvd.join()
        hvd.broadcast_parameters(list(enumerate(weights.parameters)), 0)
        weights.optimizer.zero_grad()
        for operations in (4, 2, 2):
            assert weights.step() == operations
        everybody = hvd.allgather(weights.parameters[0].grad.unsqueeze(0))
        assert torch.equal(everybody[0], everybody[1])

    run(body, env=plane)


def test_a_join_in_the_midst_of_an_accumulation_loses_nothing(run) -> None:
    def body() -> None:
        weights = Weights([3, 4, 5], backward_passes_per_step=2)
        for _ in range(3):
            weights.step()
        weights.optimizer.zero_grad()
        sum(p.sum() for p in weights.parameters).backward()
        sum(p.sum() for p in weights.parameters[:2]).backward()  # two are packed, and wait
        hvd.join()
        sum(p.sum() for p in weights.parameters[2:]).backward()
        weights.optimizer.synchronize()
        for parameter in weights.parameters:
            assert torch.equal(parameter.grad, torch.full_like(parameter, 2.0))

    run(body)


def test_a_new_session_begins_with_each_gradient_alone(run, plane) -> None:
    def body() -> None:
        weights = Weights([3, 4, 5])
        for _ in range(2):
            for operations in (4, 2, 2):
                assert weights.step() == operations
                weights.check()
            hvd.shutdown()
            hvd.init()

    run(body, env=plane)


def test_parameters_that_come_later_share_too(run) -> None:
    def body() -> None:
        weights = Weights([3, 4])
        for operations in (3, 2):
            assert weights.step() == operations
        more = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        weights.optimizer.add_param_group({"params": [more]})
        for operations in (4, 2, 2):
            weights.optimizer.zero_grad()
            before = submitted()
            loss = weights.loss([*weights.parameters, more], hvd.rank())
            loss.backward()
            weights.optimizer.step()
            assert submitted() - before == operations
        everybody = hvd.allgather(more.detach().unsqueeze(0))
        assert torch.equal(everybody[0], everybody[1])

    run(body)


@pytest.mark.parametrize(
    ("how", "operations"),
    [
        ({"op": hvd.Adasum}, 4),
        ({"sparse_as_dense": True}, 4),
        ({"groups": [[0, 1]]}, 3),
        ({"groups": 2}, 3),
    ],
)
def test_what_does_not_share(run, how: dict[str, Any], operations: int) -> None:
    def body(how: dict[str, Any], operations: int) -> None:
        weights = Weights([3, 4, 5])
        if isinstance(how.get("groups"), list):
            chosen = [[weights.parameters[i] for i in group] for group in how["groups"]]
            how = {"groups": chosen}
        named = [(f"q{index}", p) for index, p in enumerate(weights.parameters)]
        inner = torch.optim.SGD(weights.parameters, lr=0.1)
        optimizer = hvd.DistributedOptimizer(inner, named, **how)
        for _ in range(3):
            optimizer.zero_grad()
            before = submitted()
            weights.loss(weights.parameters, hvd.rank()).backward()
            optimizer.step()
            assert submitted() - before == operations

    run(body, how, operations)

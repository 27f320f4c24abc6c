"""DistributedOptimizer as an object: names, kinds, schedulers, copies, wrapping again."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def train(model: torch.nn.Module, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(hvd.rank(), step)).square().mean().backward()
        optimizer.step()


def train_plain(model: torch.nn.Module, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            (model(batch(rank, step)).square().mean() / hvd.size()).backward()
        optimizer.step()


def new_model() -> torch.nn.Sequential:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def close(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.allclose(p, q, atol=1e-6) for p, q in zip(a.parameters(), b.parameters()))


def submitted() -> int:
    return session().counters()["operations_submitted"]


@pytest.mark.trial("B15")
def test_names_have_to_cover_the_parameters_once_each() -> None:
    """Refused when the optimizer is wrapped, with the culprits. Needs no ranks."""
    model = new_model()

    def wrap(names: Any) -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names)

    with pytest.raises(ValueError, match=r"not named: noname.0.2 of shape \(2, 4\); noname.0.3"):
        wrap(model[0].named_parameters())
    twice = [("a", p) for p in model.parameters()]
    with pytest.raises(ValueError, match=r"must be unique: a$"):
        wrap(twice)
    for entries in (list(model.parameters()), [("a",)], ["ab"]):
        with pytest.raises(ValueError, match=r"sequence of tuples"):
            wrap(entries)
    wrap(list(model.named_parameters()))
    wrap([*model.named_parameters(), ("other", torch.nn.Parameter(torch.ones(1)))])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"op": hvd.Max}, ValueError, "op=hvd.Average, op=hvd.Sum and op=hvd.Adasum only"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, ValueError, "not supported with op"),
        ({"gradient_predivide_factor": 0.0}, ValueError, "must be > 0"),
        ({"backward_passes_per_step": 0}, ValueError, "must be an integer > 0, not 0"),
        ({"backward_passes_per_step": 1.5}, ValueError, "must be an integer > 0, not 1.5"),
        ({"groups": -1}, ValueError, "non-negative integer or a list of list"),
        ({"groups": "ab"}, ValueError, "non-negative integer or a list of list"),
        ({"groups": [[torch.ones(1)]]}, ValueError, "no parameter of the optimizer"),
        ({"process_set": 1}, TypeError, "must be a ProcessSet"),
    ],
)
def test_arguments_out_of_range_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    optimizer = torch.optim.SGD(new_model().parameters(), lr=0.1)
    with pytest.raises(error, match=message):
        hvd.DistributedOptimizer(optimizer, **arguments)
    assert type(optimizer) is torch.optim.SGD


def test_a_parameter_twice_in_groups_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"can only appear once in groups"):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), groups=[[weight], [weight]])


def test_what_is_no_optimizer_and_what_cannot_be_reduced_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs a torch.optim.Optimizer, not dict"):
        hvd.DistributedOptimizer({})
    for weight, error, message in (
        (torch.ones(2).to(torch.float8_e5m2), ValueError, "'noname.0.0': .*float8_e5m2"),
        (torch.ones(2, device="meta"), NotImplementedError, "'noname.0.0': .*device meta"),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(weight)], lr=0.1)
        with pytest.raises(error, match=message):
            hvd.DistributedOptimizer(optimizer)
    lazy = torch.nn.LazyLinear(2)
    optimizer = torch.optim.SGD(lazy.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"has no shape yet"):
        hvd.DistributedOptimizer(optimizer, lazy.named_parameters())


@pytest.mark.trial("B15")
@pytest.mark.parametrize("how", ["list", "a name too many"])
def test_names_may_be_a_list_and_more_than_there_are_parameters(run, how: str) -> None:
    def body(how: str) -> None:
        model, twin = new_model(), new_model()
        names = list(model.named_parameters())
        if how == "a name too many":
            names.append(("elsewhere", torch.nn.Parameter(torch.ones(1))))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names)
        before = submitted()
        train(model, optimizer)
        assert submitted() - before == 5 + 2 + 2  # then they share one operation
        train_plain(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        assert close(model, twin)

    run(body, how)


@pytest.mark.trial("B16")
def test_unnamed_groups_do_not_clash_and_keep_their_options(run) -> None:
    def body() -> None:
        model, twin = new_model(), new_model()

        def groups(of: torch.nn.Sequential) -> list[dict[str, Any]]:
            return [{"params": of[0].parameters()}, {"params": of[1].parameters(), "lr": 0.01}]

        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups(model), lr=0.1))
        plain = torch.optim.SGD(groups(twin), lr=0.1)
        train(model, optimizer)
        train_plain(twin, plain)
        assert close(model, twin)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]

    run(body)


class Custom(torch.optim.SGD):
    """Needs an argument that nobody but its user knows."""

    def __init__(self, params: Any, *, needed: float) -> None:
        super().__init__(params, lr=needed)
        self.needed = needed


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer, as many do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]
        self.count = 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = self.inner.step(closure)
        self.count += 1
        if self.count % 2 == 0:
            parameters = [p for group in self.param_groups for p in group["params"]]
            for parameter, slow in zip(parameters, self.slow):
                slow.add_(parameter.detach() - slow, alpha=0.5)
                parameter.data.copy_(slow)
        return loss


class NoClosure(torch.optim.Optimizer):
    """Its step() takes no argument."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.trial("B17")
@pytest.mark.parametrize(
    "make",
    [
        lambda p: Custom(p, needed=0.1),
        lambda p: Lookahead(torch.optim.SGD(p, lr=0.1)),
        NoClosure,
        lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    ],
    ids=["custom", "lookahead", "no closure", "foreach", "fused"],
)
def test_any_kind_of_optimizer_can_be_wrapped(run, make: Callable[..., Any]) -> None:
    """Wrapping never calls the constructor again."""

    def body(make: Callable[..., Any]) -> None:
        model, twin = new_model(), new_model()
        kind = type(make(new_model().parameters()))
        optimizer = make(model.parameters())
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        assert wrapped is optimizer
        assert isinstance(wrapped, kind)
        assert isinstance(wrapped, torch.optim.Optimizer)
        assert type(wrapped).__name__ == kind.__name__
        train(model, wrapped, steps=4)
        train_plain(twin, make(twin.parameters()), steps=4)
        assert close(model, twin)

    run(body, make)


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=12),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.ConstantLR(o, 0.1, 3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        milestones=[3],
    ),
}


@pytest.mark.trial("B18")
@pytest.mark.parametrize("wrap_first", [True, False])
@pytest.mark.parametrize("kind", sorted(SCHEDULERS))
def test_schedulers_made_before_or_after_wrapping_set_the_rate(
    run, kind: str, wrap_first: bool
) -> None:
    """Same sequence as in plain torch, no warning, and gradients are still reduced."""

    def body(make: Callable[..., Any], wrap_first: bool) -> None:
        model, twin = new_model(), new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*epoch parameter in.*")
            if wrap_first:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
                scheduler = make(optimizer)
            else:
                scheduler = make(optimizer)
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            plain_scheduler = make(plain)
            for _ in range(10):
                train(model, optimizer, steps=1)
                train_plain(twin, plain, steps=1)
                scheduler.step()
                plain_scheduler.step()
                assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert close(model, twin)

    run(body, SCHEDULERS[kind], wrap_first)


@pytest.mark.trial("B18")
def test_a_plateau_scheduler_made_before_wrapping_lowers_the_rate(run) -> None:
    def body() -> None:
        model = new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for _ in range(3):
            train(model, wrapped, steps=1)
            scheduler.step(1.0)
        assert wrapped.param_groups[0]["lr"] == 0.025

    run(body)


@pytest.mark.trial("B19")
def test_state_is_saved_and_loaded_both_ways(run) -> None:
    def body() -> None:
        model = new_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters()
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=12)
        train(model, optimizer)
        file = io.BytesIO()
        torch.save([optimizer.state_dict(), scheduler.state_dict()], file)
        file.seek(0)
        state, _ = torch.load(file, weights_only=True)
        plain = torch.optim.Adam(new_model().parameters(), lr=0.5)
        assert plain.state_dict().keys() == state.keys()
        plain.load_state_dict(state)
        optimizer.load_state_dict(plain.state_dict())
        train(model, optimizer)

    run(body)


@pytest.mark.trial("B19")
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_is_a_distributed_optimizer_of_the_copied_parameters(run, how: str) -> None:
    """Made with hooks, groups, names and settings of its own; the original goes on."""

    def body(how: str) -> None:
        model, twin = new_model(), new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.StepLR(optimizer, 100)
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=2, groups=2
        )
        plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        train(model, optimizer)
        train_plain(twin, plain)
        both = (model, optimizer)
        model_copy, copied = (
            copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
        )
        assert type(copied) is type(optimizer)
        assert copied.param_groups[0]["params"][0] is model_copy[0].weight
        train(model_copy, copied)
        train(model, optimizer)
        train_plain(twin, plain)
        assert close(model, twin)
        assert close(model_copy, twin)

    run(body, how)


@pytest.mark.trial("B46")
@pytest.mark.parametrize("keep_old", [False, True])
@pytest.mark.parametrize("same_optimizer", [False, True])
def test_wrapping_the_same_model_every_epoch(run, keep_old: bool, same_optimizer: bool) -> None:
    """One operation per parameter and step; weights as in one process."""

    def body(keep_old: bool, same_optimizer: bool) -> None:
        model, twin = new_model(), new_model()
        kept = []
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            if not same_optimizer:
                inner = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
            kept += [optimizer] if keep_old else []
            before = submitted()
            train(model, optimizer)
            assert submitted() - before == 5 + 2 + 2  # then they share one operation
            train_plain(twin, plain)
            assert close(model, twin)
        if keep_old and not same_optimizer:
            with pytest.raises(RuntimeError, match=r"handed to a newer one"):
                kept[0].step()

    run(body, keep_old, same_optimizer)


def test_an_optimizer_that_is_dropped_takes_its_hooks_along(run) -> None:
    """Afterwards backward is plain, although the other rank may still hold a reference."""

    def body() -> None:
        model = new_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer)
        del optimizer
        before = submitted()
        for _ in range(3):
            model(batch(hvd.rank())).sum().backward()
        assert submitted() == before

    run(body)


def test_wrapping_again_while_gradients_are_in_flight_starts_afresh(run) -> None:
    def body() -> None:
        model, twin = new_model(), new_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(batch(hvd.rank())).sum().backward()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer)
        train_plain(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        assert close(model, twin)

    run(body)


def test_a_group_that_is_added_later_is_reduced_too(run) -> None:
    def body() -> None:
        model, twin = new_model(), new_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model[0].parameters(), lr=0.1), model[0].named_parameters()
        )
        plain = torch.optim.SGD(twin[0].parameters(), lr=0.1)
        train(model, optimizer)
        train_plain(twin, plain)
        model[1].zero_grad()
        twin[1].zero_grad()
        optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.01})
        plain.add_param_group({"params": twin[1].parameters(), "lr": 0.01})
        train(model, optimizer)
        train_plain(twin, plain)
        assert close(model, twin)

    run(body)


@pytest.mark.parametrize("groups", [0, 1, 2, 3, 100, "lists", "num_groups"])
def test_groups_change_how_gradients_travel_and_nothing_else(
    run, plane, fusion, groups: Any
) -> None:
    def body(groups: Any) -> None:
        model, twin = new_model(), new_model()
        how: dict[str, Any] = {"groups": groups}
        later = {0: 2, 1: 2, 2: 3, 3: 4, 100: 5, "lists": 3, "num_groups": 3}[groups]
        first = {0: 5, "lists": 4}.get(groups, later)  # what is in no group shares from then on
        if groups == "lists":
            how = {"groups": [[model[0].weight, model[1].bias], []]}
        if groups == "num_groups":
            how = {"num_groups": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **how
            )
        before = submitted()
        train(model, optimizer)
        assert submitted() - before == first + 2 * later
        train_plain(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        assert close(model, twin)

    run(body, groups, env={**plane, **fusion})


def test_a_group_with_a_member_that_a_rank_does_not_use_still_travels(run, plane) -> None:
    def body() -> None:
        a, b = (torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2))
        frozen = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)
        optimizer = torch.optim.SGD([a, b, frozen], lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, groups=[[a, b, frozen]])
        for _ in range(2):
            optimizer.zero_grad()
            (a + (b if hvd.rank() == 0 else 0.0)).backward()
            optimizer.step()
            assert (a.grad.item(), b.grad.item()) == (1.0, 0.5)
            assert frozen.grad is None

    run(body, env=plane)


def test_a_world_of_one_behaves_as_plain_torch(run) -> None:
    def body() -> None:
        model, twin = new_model(), new_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        plain = torch.optim.Adam(twin.parameters(), lr=0.1, weight_decay=0.1)
        before = submitted()
        train(model, optimizer)
        train_plain(twin, plain)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))
        model(batch(0)).sum().backward()
        with pytest.raises(AssertionError, match=r"Increase backward_passes_per_step"):
            model(batch(0)).sum().backward()
        assert submitted() == before

    run(body, size=1)


def test_a_group_that_is_refused_while_gradients_are_in_flight_is_not_there_afterwards(run) -> None:
    def body() -> None:
        model, late = new_model(), torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(RuntimeError, match="cannot be added between backward"):
            optimizer.add_param_group({"params": [late]})
        assert len(optimizer.param_groups) == 1
        optimizer.step()
        optimizer.add_param_group({"params": [late]})
        (late * hvd.rank()).sum().backward()
        optimizer.step()
        assert late.grad.tolist() == [0.5, 0.5]

    run(body)


@pytest.mark.parametrize("names", [[0, 1], [b"a", b"b"], ["a", None]])
def test_names_that_are_no_text_are_refused(names: list[Any]) -> None:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in names]
    with pytest.raises(ValueError, match="sequence of tuples"):
        hvd.DistributedOptimizer(torch.optim.SGD(parameters), zip(names, parameters))


def test_groups_that_are_added_to_several_optimizers_do_not_clash(run, plane) -> None:
    """B07: the names of both are taken when the groups come, by the optimizers that have them."""

    def body() -> None:
        a, b, c, d = (torch.nn.Parameter(torch.tensor(0.0)) for _ in range(4))
        first = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), [("a", a)])
        second = hvd.DistributedOptimizer(torch.optim.SGD([b], lr=1.0), [("b", b)])
        first.add_param_group({"params": [c]})
        second.add_param_group({"params": [d]})
        for step in range(3):
            if step == 1:
                hvd.shutdown()
                hvd.init()
            first.zero_grad()
            second.zero_grad()
            ((a + 2 * b + 3 * c + 4 * d) * (hvd.rank() + 1)).backward()
            first.step()
            second.step()
            expected = [-1.5 * factor * (step + 1) for factor in (1, 2, 3, 4)]
            assert [p.item() for p in (a, b, c, d)] == expected

    run(body, env=plane)


def test_a_parameter_that_is_added_is_taken_from_the_optimizer_that_had_it(run) -> None:
    def body() -> None:
        for op in (hvd.Average, hvd.Adasum):
            w, v = (torch.nn.Parameter(torch.tensor(0.0)) for _ in range(2))
            older = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], op=op)
            newer = hvd.DistributedOptimizer(torch.optim.SGD([v], lr=1.0), [("v", v)])
            newer.add_param_group({"params": [w]})
            for _ in range(2):
                newer.zero_grad()
                (w * 2.0 * hvd.rank() + v).backward()
                newer.step()
            assert (w.item(), v.item()) == (-2.0, -2.0)
            with pytest.raises(RuntimeError, match="handed to a newer one"):
                older.step()
            late = torch.nn.Parameter(torch.tensor(0.0))
            with pytest.raises(RuntimeError, match="handed to a newer one"):
                older.add_param_group({"params": [late]})
            assert len(older.param_groups) == 1
            newer.zero_grad()
            (w + v + late).backward()
            newer.step()
            assert (w.item(), v.item()) == (-3.0, -3.0)

    run(body)


def test_a_group_that_cannot_be_reduced_is_not_there_afterwards(run) -> None:
    def body() -> None:
        weight = torch.nn.Parameter(torch.tensor(0.0))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
        bad = torch.nn.Parameter(torch.zeros(2, device="meta"))
        with pytest.raises(NotImplementedError, match=r"'noname\.1\.0': .*device meta"):
            optimizer.add_param_group({"params": [bad]})
        lazy = torch.nn.LazyLinear(2)
        with pytest.raises(ValueError, match="has no shape yet"):
            optimizer.add_param_group({"params": lazy.parameters()})
        assert len(optimizer.param_groups) == 1
        (weight * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert weight.item() == -1.5

    run(body)


def test_a_shallow_copy_is_refused_and_the_original_goes_on(run) -> None:
    def body() -> None:
        model, twin = new_model(), new_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(TypeError, match=r"Use copy\.deepcopy"):
            copy.copy(optimizer)
        train(model, optimizer)
        train_plain(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        assert close(model, twin)

    run(body)


def test_whether_an_older_optimizer_is_still_alive_does_not_matter(run) -> None:
    """Garbage is collected at different times on different ranks."""

    def body() -> None:
        model, twin = new_model(), new_model()
        kept = []
        plain = torch.optim.SGD(twin.parameters(), lr=0.1)
        for _ in range(3):
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            train(model, optimizer)
            train_plain(twin, plain)
            if hvd.rank() == 0:
                kept.append(optimizer)
            optimizer = None
            gc.collect()
        assert close(model, twin)

    run(body)


def test_an_optimizer_of_a_process_set_that_is_added_again_goes_on(run, plane) -> None:
    def body() -> None:
        pair = hvd.add_process_set([0, 1])
        weight = torch.nn.Parameter(torch.tensor(0.0))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)], process_set=pair)
        expected = 0.0
        for turn in range(4):
            optimizer.zero_grad()
            if turn == 2:
                hvd.remove_process_set(pair)
                if pair.ranks and hvd.rank() < 2:
                    with pytest.raises(ValueError, match="has not been registered"):
                        weight.backward()
                other = hvd.add_process_set([1, 2])
                hvd.add_process_set(pair)
                assert (other.process_set_id, pair.process_set_id) == (2, 3)
                optimizer.zero_grad()
            (weight * (hvd.rank() + 1)).backward()
            optimizer.step()
            expected -= 1.5 if hvd.rank() < 2 else 3.0
            assert weight.item() == expected
        hvd.barrier()

    run(body, size=3, env=plane)

"""Making ranks start alike: parameters, optimizer state, objects."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.trial("B38", "B40")
def test_parameters_of_every_kind_become_those_of_the_root(run) -> None:
    """Weights in channels_last, bool and integer buffers, shared weights, scalars."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(3, 3)
        ).to(memory_format=torch.channels_last)
        model.register_buffer("mask", torch.tensor([hvd.rank() == 1, True]))
        model.register_buffer("none", None)
        model[2].also = model[2].weight
        for root in (0, 1):
            torch.manual_seed(hvd.rank() + 10 * root)
            for value in model.state_dict().values():
                value.copy_(torch.randn(value.shape) > 0 if value.dtype == torch.bool else 5)
                if value.is_floating_point():
                    value.copy_(torch.randn(value.shape))
            hvd.broadcast_parameters(model.state_dict(), root_rank=root)
            states = hvd.allgather_object({k: v.clone() for k, v in model.state_dict().items()})
            assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
            assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        before = model[2].bias.detach().clone()
        with torch.no_grad():
            model[2].bias += hvd.rank()
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        assert torch.equal(model[2].bias, before)
        with torch.no_grad():
            model[2].bias += hvd.rank()
        hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
        assert torch.equal(model[2].bias, before)

    run(body)


def in_two_formats(rank: int) -> dict[str, torch.Tensor]:
    formats = (torch.channels_last, torch.contiguous_format)
    return {"a": torch.ones(2, 3, 4, 5).to(memory_format=formats[rank])}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda rank: {"a": torch.ones(2 + rank)},
            r"entry 0: 'a' .*\(2,\) on rank 0; 'a' .*\(3,\) on rank 1",
        ),
        (lambda rank: {"ab"[rank]: torch.ones(2)}, "entry 0: 'a' .* on rank 0; 'b' .* on rank 1"),
        (lambda rank: {str(i): torch.ones(2) for i in range(1 + rank)}, "nothing on rank 0"),
        (lambda rank: {"a": torch.ones(2).to((torch.int8, torch.int64)[rank])}, "int8.*int64"),
        (in_two_formats, r"memory order \[0, 2, 3, 1\] on rank 0"),
    ],
)
def test_different_parameters_are_an_error_on_every_rank_before_anything_changes(
    run, make: object, message: str
) -> None:
    def body(make: object, message: str) -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        params = make(hvd.rank())
        before = {name: value.clone() for name, value in params.items()}
        with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
            hvd.broadcast_parameters(params, 0)
        assert caught.value.code == "Mismatch"
        assert all(torch.equal(before[name], params[name]) for name in params)
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    run(body, make, message)


OPTIMIZERS = {
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True, betas=(0.8, 0.99)),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=True),
    "adamax": lambda p, lr: torch.optim.Adamax(p, lr=lr),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True, momentum=0.5),
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "plain": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr),
    "lbfgs": lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=3),
}


@pytest.mark.trial("B23", "B25")
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize("wrapped", [False, True])
def test_state_and_options_become_those_of_the_root_with_their_types(
    run, kind: str, wrapped: bool
) -> None:
    """Rank 0 has taken steps and has its own lr; nobody takes a step for it."""

    def body(make: object, wrapped: bool) -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(2))]
        optimizer = make(weights, lr=0.01 if rank == 0 else 0.5)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            total = sum((w**2).sum() for w in weights)
            total.backward()
            return total

        for _ in range(3 if rank == 0 else 0):
            optimizer.step(loss)
        optimizer.zero_grad()
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer)
        before = [w.detach().clone() for w in weights]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert all(torch.equal(a, b) for a, b in zip(weights, before))

        def plain(value: object) -> object:
            if isinstance(value, torch.Tensor):
                return ("tensor", value.dtype, value.tolist())
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value), [plain(item) for item in value]
            return type(value), value

        seen = hvd.allgather_object(plain(optimizer.state_dict()))
        assert seen[0] == seen[1]
        assert optimizer.param_groups[0]["lr"] == 0.01
        assert type(optimizer.param_groups[0]["lr"]) is float
        hvd.broadcast_parameters(weights, 0)
        optimizer.step(loss)
        after = hvd.allgather_object([w.tolist() for w in weights])
        assert after[0] == after[1]

    run(body, OPTIMIZERS[kind], wrapped)


@pytest.mark.trial("B24")
def test_every_option_of_every_group_becomes_that_of_the_root(run) -> None:
    """From root 1 of 3: what schedulers add, types, None and nested state."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1 * (rank + 1))
        if rank == 1:
            extra = {"initial_lr": 7.0, "tag": "x", "none": None, "flag": True, "list": [1, 2.5]}
            optimizer.param_groups[1].update(extra)
            optimizer.state[a] = {"momentum_buffer": None, "b": {"c": [torch.ones(2), 3]}, "d": ()}
        if rank == 2:
            optimizer.param_groups[0]["mine"] = 3
            optimizer.state[b] = {"momentum_buffer": torch.ones(2)}
        groups = [id(group) for group in optimizer.param_groups]
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert [id(group) for group in optimizer.param_groups] == groups
        assert optimizer.param_groups[0]["params"][0] is a
        assert "mine" not in optimizer.param_groups[0]
        second = optimizer.param_groups[1]
        assert second["lr"] == 0.2
        assert (second["initial_lr"], second["tag"], second["none"]) == (7.0, "x", None)
        assert (second["flag"], second["list"]) == (True, [1, 2.5])
        state = optimizer.state[a]
        assert state["momentum_buffer"] is None
        assert state["d"] == ()
        assert torch.equal(state["b"]["c"][0], torch.ones(2))
        assert state["b"]["c"][1] == 3
        assert b not in optimizer.state

    run(body, size=3)


@pytest.mark.trial("B24")
def test_different_groups_are_an_error_on_every_rank_and_nothing_changes(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        groups = [[a], [b]] if hvd.rank() else [[a, b]]
        optimizer = torch.optim.SGD([{"params": g} for g in groups], lr=0.1 * (hvd.rank() + 1))
        message = "parameter groups, entry 0: group of 2 parameters on rank 0; group of 1"
        with pytest.raises(hvd.HorovodInternalError, match=message):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (hvd.rank() + 1)

    run(body)


@pytest.mark.trial("B25")
def test_state_that_cannot_be_pickled_is_an_error_on_every_rank(run) -> None:
    """No partial broadcast, no hang."""

    def body() -> None:
        import threading

        import pytest
        import torch

        import horovodlite.torch as hvd

        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1 * (hvd.rank() + 1))
        if hvd.rank() == 0:
            optimizer.param_groups[0]["lock"] = threading.Lock()
        error = TypeError if hvd.rank() == 0 else hvd.HorovodInternalError
        with pytest.raises(error, match="pickle"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (hvd.rank() + 1)
        assert hvd.broadcast_object(hvd.rank(), 0) == 0

    run(body)


@pytest.mark.trial("B26")
def test_a_checkpoint_that_only_the_root_has_loaded_reaches_everybody(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 2)
        data = torch.randn(2, 8, 4)[rank]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(5 if rank == 0 else 0):
            optimizer.zero_grad()
            model(data).sum().backward()
            optimizer.step()
        checkpoint = optimizer.state_dict()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        if rank == 0:
            optimizer.load_state_dict(checkpoint)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        for _ in range(20):
            optimizer.zero_grad()
            model(data).square().sum().backward()
            optimizer.step()
        saved = hvd.broadcast_object(optimizer.state_dict(), root_rank=1)
        optimizer.set_backward_passes_per_step(2)
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.load_state_dict(saved)  # in the middle of an accumulation
        optimizer.zero_grad()
        for _ in range(2):
            model(data).square().sum().backward()
        optimizer.load_state_dict(saved)  # while gradients are in flight
        optimizer.zero_grad()
        for _ in range(2):
            model(data).square().sum().backward()
        optimizer.step()
        weights = hvd.allgather_object(model.weight.tolist())
        assert weights[0] == weights[1]

    run(body)


def test_any_object_reaches_every_rank(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()

        class Thing:
            value = 3

        tensor = torch.arange(6).reshape(2, 3).t()
        shared = {"t": tensor, "same": tensor, "half": torch.ones(2, dtype=torch.bfloat16)}
        objects = [None, 5, "text", [1, {"a": (2.5, True)}], lambda x: x + 1, Thing, shared, b""]
        for root in range(hvd.size()):
            for obj in objects:
                got = hvd.broadcast_object(obj if rank == root else "mine", root)
                if obj is Thing:
                    assert got.value == 3
                elif callable(obj):
                    assert got(2) == 3
                elif obj is shared:
                    assert torch.equal(got["t"], tensor)
                    assert got["t"] is got["same"]
                    assert got["half"].dtype == torch.bfloat16
                else:
                    assert got == obj
        assert hvd.broadcast_object(rank, 1, name="named") == 1
        assert hvd.allgather_object("x" * rank, name="named") == ["", "x", "xx"]
        assert hvd.allgather_object(lambda: rank)[2]() == 2
        parameter = torch.nn.Parameter(torch.ones(2))
        assert hvd.broadcast_object(parameter, 0).requires_grad

    run(body, size=3, env=plane)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_objects_may_hold_tensors_of_8_bit_floats(run, dtype: torch.dtype) -> None:
    """Which torch itself pickles only in torch.save."""

    def body(dtype: torch.dtype) -> None:
        import horovodlite.torch as hvd

        tensor = torch.tensor([[0.5, 1.0, 2.0], [4.0, 8.0, 16.0]]).to(dtype).t()
        weight = torch.ones(2).to(dtype).requires_grad_()
        held = {"tensor": tensor, "weight": weight}
        for got in (
            hvd.broadcast_object(held if hvd.rank() == 0 else None, 0),
            hvd.allgather_object(held)[1],
        ):
            assert got["tensor"].dtype == dtype
            assert got["tensor"].stride() == tensor.stride()
            assert got["tensor"].float().tolist() == tensor.float().tolist()
            assert got["weight"].requires_grad

    run(body, dtype)


def test_an_object_that_cannot_be_pickled_is_an_error_on_every_rank(run) -> None:
    def body() -> None:
        import threading

        import pytest

        import horovodlite.torch as hvd

        obj = threading.Lock() if hvd.rank() == 1 else 0
        error = TypeError if hvd.rank() == 1 else hvd.HorovodInternalError
        for call in (lambda: hvd.broadcast_object(obj, 1), lambda: hvd.allgather_object(obj)):
            with pytest.raises(error, match="pickle"):
                call()
            assert hvd.allgather_object(1) == [1, 1]

    run(body)


def test_an_error_of_pickling_that_cannot_be_sent_as_text_is_an_error_on_every_rank(run) -> None:
    """Names of files may hold bytes that UTF-8 has no characters for; str() may fail itself."""

    def body() -> None:
        import pytest

        import horovodlite.torch as hvd

        class SilentError(ValueError):
            def __str__(self) -> str:
                raise RuntimeError

        class Broken:
            def __init__(self, error: Exception) -> None:
                self.error = error

            def __reduce__(self) -> str:
                raise self.error

        for made in (ValueError("file \udcff"), SilentError()):
            obj = Broken(made) if hvd.rank() == 1 else 0
            error = ValueError if hvd.rank() == 1 else hvd.HorovodInternalError
            message = None if hvd.rank() == 1 else r"(file \\udcff|str\(\) failed)"
            with pytest.raises(error, match=message):
                hvd.broadcast_object(obj, 1)
            with pytest.raises(error, match=message):
                hvd.allgather_object(obj)
            assert hvd.allgather_object(1) == [1, 1]

    run(body)


def test_a_name_that_cannot_be_sent_as_text_is_an_error_on_every_rank(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        name = "a\udcff\nb" if hvd.rank() else "a"
        with pytest.raises(hvd.HorovodInternalError, match=r"'a' .*'a\\udcff\\nb' .*rank 1"):
            hvd.broadcast_parameters({name: torch.ones(1)}, root_rank=0)

    run(body)


def test_a_new_optimizer_has_gradients_of_zeros_after_the_broadcast(run) -> None:
    """Horovod's scripts read them; a gradient that is there already stays."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        model = torch.nn.Linear(3, 2)
        model.bias.requires_grad_(False)
        frozen, weight = model.bias, model.weight
        for brought in (None, torch.full_like(weight, 2.0)):
            weight.grad = brought
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            before = weight.detach().clone()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            assert torch.equal(weight, before)
            assert torch.equal(weight.grad, torch.zeros(2, 3) if brought is None else brought)
            assert frozen.grad is None
        sparse = torch.nn.Embedding(4, 2, sparse=True)
        hvd.broadcast_optimizer_state(torch.optim.SparseAdam(list(sparse.parameters())), 0)
        assert sparse.weight.grad is None  # SparseAdam takes no dense gradient

    run(body)

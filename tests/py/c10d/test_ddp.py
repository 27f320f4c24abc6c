"""DistributedDataParallel over our backend gives what it gives over Gloo."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import horovodlite.torch.c10d as c10d

STEPS = 4
TOLERANCE = 1e-10  # all in float64


class Net(nn.Module):
    """Layers of several sizes, one of which only odd steps use, and a buffer."""

    def __init__(self, optional: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 12, sparse=sparse)
        self.first = nn.Linear(12, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)
        self.extra = nn.Linear(64, 3) if optional else None

    def forward(self, x: torch.Tensor, use_extra: bool = False) -> torch.Tensor:
        x = self.norm(self.first(self.embedding(x).mean(1))).relu()
        x = self.second(x).relu()
        out: torch.Tensor = self.last(x)
        if self.extra is not None and use_extra:
            out = out + self.extra(x)
        return out


def batch(step: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return (
        torch.randint(0, 10, (rows, 4), generator=generator),
        torch.randint(0, 3, (rows,), generator=generator),
    )


def train(
    group: Any,
    hook: Callable[[Any, Any], None] | None = None,
    *,
    no_sync: bool = False,
    uneven: bool = False,
    net: dict[str, bool] | None = None,
    wrap: Callable[[Any], Any] = lambda model: model,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters after some steps, and the last gradients."""
    torch.manual_seed(3)
    model = DistributedDataParallel(Net(**(net or {})).double(), process_group=group, **options)
    if hook is not None:
        hook(model, group)
    forward = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = STEPS + (dist.get_rank() if uneven else 0)
    joining = Join([model]) if uneven else contextlib.nullcontext()
    with joining:
        for step in range(steps):
            x, y = batch(step)
            local = model.no_sync() if no_sync and step % 2 == 0 else contextlib.nullcontext()
            with local:
                arguments = (x, step % 2 == 1) if net and net.get("optional") else (x,)
                nn.functional.cross_entropy(forward(*arguments), y).backward()
            if not (no_sync and step % 2 == 0):
                optimizer.step()
                gradients = [p.grad.to_dense().flatten() for p in model.parameters()
                             if p.grad is not None]  # fmt: skip
                optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), torch.cat(gradients)


def _compare(tolerance: float, **options: Any) -> None:
    gloo = dist.new_group(backend="gloo")
    mine, my_gradients = train(dist.group.WORLD, **options)
    theirs, their_gradients = train(gloo, **options)
    assert torch.allclose(my_gradients, their_gradients, rtol=0, atol=tolerance)
    assert torch.allclose(mine, theirs, rtol=0, atol=tolerance)
    assert my_gradients.abs().max() > 0.001
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    assert all(torch.equal(one, mine) for one in everybody)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small_buckets": {"bucket_cap_mb": 0.001},
    "find_unused": {"find_unused_parameters": True, "net": {"optional": True}},
    "static_graph": {"static_graph": True},
    "bucket_views": {"gradient_as_bucket_view": True},
    "no_sync": {"no_sync": True},
    "uneven": {"uneven": True},
    "sparse": {"net": {"sparse": True}},
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(run_world: Any, variant: str, size: int) -> None:
    run_world(_with_options, TOLERANCE, VARIANTS[variant], size=size)


def _with_options(tolerance: float, options: dict[str, Any]) -> None:
    _compare(tolerance, **options)


def _power_sgd(model: Any, group: Any) -> None:
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS: dict[str, Callable[[Any, Any], None]] = {
    "allreduce": lambda model, group: model.register_comm_hook(group, default_hooks.allreduce_hook),
    "fp16": lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_hook),
    "power_sgd": _power_sgd,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks(run_world: Any, hook: str) -> None:
    run_world(_hooked, hook, size=2)


def _hooked(hook: str) -> None:
    # Gloo adds 16-bit floats up in 16 bits, we do in 32.
    _compare(2e-3 if hook == "fp16" else TOLERANCE, hook=HOOKS[hook])


def _bf16() -> None:
    plain, _ = train(dist.group.WORLD)
    small, _ = train(
        dist.group.WORLD,
        hook=lambda model, group: model.register_comm_hook(group, c10d.bfloat16_hook),
    )
    assert not torch.equal(plain, small)
    assert torch.allclose(plain, small, rtol=0, atol=0.02)


def test_gradients_may_travel_in_bfloat16(run_world: Any) -> None:
    run_world(_bf16, size=2)


def _compiled() -> None:
    import torch._dynamo as dynamo  # here, as what a function refers to is sent with it

    dynamo.reset()
    _compare(TOLERANCE, wrap=lambda model: torch.compile(model, backend="aot_eager"))
    dynamo.reset()
    with dynamo.config.patch(optimize_ddp=False):
        _compare(TOLERANCE, wrap=lambda model: torch.compile(model, backend="aot_eager"))


def test_compiled_models(run_world: Any) -> None:
    run_world(_compiled, size=2)


def _weight_shapes_differ() -> str:
    with pytest.raises(RuntimeError) as caught:
        DistributedDataParallel(nn.Linear(3 + dist.get_rank(), 2))
    return str(caught.value)


def test_models_that_differ_are_an_error(run_world: Any) -> None:
    first, other = run_world(_weight_shapes_differ, size=2)
    assert "sizes [2, 4] appears not to match" in other
    assert "differs between ranks" in first  # it has gone on; with Gloo it would wait

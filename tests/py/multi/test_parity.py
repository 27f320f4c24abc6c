"""Training on ranks is training in one process on the joined batch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def train(
    make: Callable[..., torch.optim.Optimizer],
    rank: int,
    size: int,
    distributed: bool,
    steps: int = 20,
) -> torch.Tensor:
    """Losses aside: parameters after every step, for rank `rank` of `size` or for all in one."""
    import torch

    import horovodlite.torch as hvd

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 9),
        torch.nn.Tanh(),
        torch.nn.Linear(9, 3),
    ).double()
    optimizer = make(model.parameters())
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
    history = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(12, 1, 6, 6, dtype=torch.float64, generator=generator)
        targets = torch.randn(12, 3, dtype=torch.float64, generator=generator)
        if distributed:
            share = slice(rank * 12 // size, (rank + 1) * 12 // size)
            inputs, targets = inputs[share], targets[share]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        history.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())
    return torch.stack(history)


@functools.cache
def in_one_process(kind: str) -> torch.Tensor:
    return train(OPTIMIZERS[kind], 0, 1, False)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_ranks_follow_one_process_and_stay_equal_to_the_bit(
    run, plane, fusion, size: int, kind: str
) -> None:
    """20 steps in float64: within 1e-10 of one process, replicas bitwise equal after every step."""

    def body(make: object, train: object) -> object:
        import horovodlite.torch as hvd

        return train(make, hvd.rank(), hvd.size(), True)

    histories = run(body, OPTIMIZERS[kind], train, size=size, env={**plane, **fusion})
    for history in histories:
        assert torch.equal(history, histories[0])
    assert (histories[0] - in_one_process(kind)).abs().max() < 1e-10

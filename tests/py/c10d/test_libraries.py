"""Libraries that stand on torch.distributed give over our backend what one process gives."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS, TOLERANCE = 4, 1e-10


def net() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)).double()


def data(step: int, ranks: int) -> torch.Tensor:
    return torch.randn(ranks, 5, 6, generator=torch.Generator().manual_seed(step)).double()


def alone(ranks: int) -> list[torch.Tensor]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(model(x).square().mean() for x in data(step, ranks)) / ranks).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _check(model: nn.Module, ranks: int) -> None:
    for mine, wanted in zip(model.parameters(), alone(ranks)):
        assert torch.allclose(mine, wanted, rtol=0, atol=TOLERANCE)


def _torchmetrics() -> None:
    from torchmetrics.classification import MulticlassAccuracy

    rank, size = dist.get_rank(), dist.get_world_size()
    metric = MulticlassAccuracy(num_classes=3, average="micro")
    labels = torch.arange(12) % 3
    guesses = labels.clone()
    guesses[: 3 * rank] = (guesses[: 3 * rank] + 1) % 3  # rank r is wrong 3 r times of 12
    metric.update(guesses, labels)
    wrong = sum(3 * i for i in range(size))
    assert abs(metric.compute().item() - (1 - wrong / (12 * size))) < 1e-6


def test_torchmetrics(run_world: Any) -> None:
    pytest.importorskip("torchmetrics")
    run_world(_torchmetrics, size=2)


def _fabric() -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment
    from lightning_fabric.strategies import DDPStrategy

    class Environment(LightningEnvironment):
        """What the ranks of a pool know."""

        creates_processes_externally = True

        def world_size(self) -> int:
            return dist.get_world_size()

        def global_rank(self) -> int:
            return dist.get_rank()

        def local_rank(self) -> int:
            return dist.get_rank()

    size = dist.get_world_size()
    strategy = DDPStrategy(process_group_backend="horovodlite", cluster_environment=Environment())
    fabric = Fabric(accelerator="cpu", devices=size, strategy=strategy)
    fabric.launch()
    assert (fabric.global_rank, fabric.world_size) == (dist.get_rank(), size)
    assert dist.get_backend() == "horovodlite"
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, optimizer = fabric.setup(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        fabric.backward(wrapped(data(step, size)[fabric.global_rank]).square().mean())
        optimizer.step()
    _check(model, size)
    ranks = fabric.all_gather(torch.tensor(fabric.global_rank))
    assert ranks.tolist() == list(range(size))
    assert fabric.broadcast({"from": fabric.global_rank}) == {"from": 0}
    fabric.barrier()


def test_lightning_fabric(run_world: Any) -> None:
    pytest.importorskip("lightning_fabric")
    run_world(_fabric, size=2)


def _accelerate() -> None:
    import accelerate

    rank, size = dist.get_rank(), dist.get_world_size()
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ["ACCELERATE_USE_CPU"] = "true"
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        assert (accelerator.process_index, accelerator.num_processes) == (rank, size)
        assert dist.get_backend() == "horovodlite"
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped, optimizer = accelerator.prepare(model, optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            accelerator.backward(wrapped(data(step, size)[rank]).square().mean())
            optimizer.step()
        _check(model, size)
        assert accelerator.gather(torch.tensor([rank])).tolist() == list(range(size))
        assert accelerate.utils.gather_object([rank]) == list(range(size))
        accelerator.wait_for_everyone()
    finally:
        for name in (*place, "ACCELERATE_USE_CPU"):
            os.environ.pop(name, None)
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate(run_world: Any) -> None:
    pytest.importorskip("accelerate")
    run_world(_accelerate, size=2)

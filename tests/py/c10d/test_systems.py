"""What torch builds on torch.distributed gives the results of one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

TOLERANCE = 1e-10  # all in float64


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
        return out


def net(blocks: int = 4) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*[Block() for _ in range(blocks)]).double()


def data(step: int, ranks: int) -> list[torch.Tensor]:
    """A batch for each rank."""
    generator = torch.Generator().manual_seed(step)
    return list(torch.randn(ranks, 4, 8, generator=generator, dtype=torch.float64))


def alone(steps: int, ranks: int) -> nn.Sequential:
    """What one process gets with all batches."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(model(x).square().mean() for x in data(step, ranks)) / ranks).backward()
        optimizer.step()
    return model


def near(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.allclose(mine, wanted, rtol=0, atol=TOLERANCE), (mine - wanted).abs().max()


def _zero() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step, size)[rank]).square().mean().backward()
        optimizer.step()
    for mine, wanted in zip(model.module.parameters(), alone(3, size).parameters()):
        near(mine, wanted)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def _fsdp(shape: tuple[int, ...]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model: Any = net()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step, size)[rank]).square().mean().backward()
        optimizer.step()
    for mine, wanted in zip(model.parameters(), alone(3, size).parameters()):
        near(mine.full_tensor(), wanted)
        assert mine.to_local().numel() < wanted.numel() or shape[-1] == 1


def _tensor_parallel() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    model, reference = net(1)[0], net(1)[0]
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    x = data(0, 1)[0]
    model(x).square().mean().backward()
    reference(x).square().mean().backward()
    for mine, wanted in zip(model.parameters(), reference.parameters()):
        gradient: Any = mine.grad
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        near(whole, wanted.grad)


def _sequence_parallel() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, 0)
    reference = copy.deepcopy(model)
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    x = torch.randn(2, 4 * size, 8, generator=torch.Generator().manual_seed(1)).double()
    out: Any = model(distribute_tensor(x, mesh, [Shard(1)]))
    near(out.full_tensor(), reference(x))
    out.redistribute(placements=[Replicate()]).to_local().square().mean().backward()
    reference(x).square().mean().backward()
    for mine, wanted in zip(model.parameters(), reference.parameters()):
        gradient: Any = mine.grad
        near(gradient.full_tensor(), wanted.grad)


def _distributed_tensors() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2))
    a = torch.randn(8, 6, generator=torch.Generator().manual_seed(2)).double()
    b = torch.randn(6, 10, generator=torch.Generator().manual_seed(3)).double()
    left = distribute_tensor(a, mesh, [Shard(0), Replicate()])
    right = distribute_tensor(b, mesh, [Replicate(), Shard(1)])
    near((left @ right).full_tensor(), a @ b)
    inner = distribute_tensor(a, mesh, [Replicate(), Shard(1)])
    outer = distribute_tensor(b, mesh, [Replicate(), Shard(0)])
    near((inner @ outer).full_tensor(), a @ b)
    swapped = left.redistribute(placements=[Shard(1), Replicate()])
    near(swapped.full_tensor(), a)
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0), Shard(0)])
    assert torch.equal(uneven.full_tensor(), torch.arange(7.0))
    group = mesh.get_group(0)
    total = funcol.all_reduce(torch.full((3,), float(rank)), "sum", group)
    near(total, torch.full((3,), float(2 * (rank % (size // 2)) + size // 2)))
    by_ranks = funcol.all_reduce(torch.ones(2), "sum", list(range(size)))
    near(by_ranks, torch.full((2,), float(size)))
    gathered = funcol.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    near(gathered, torch.arange(float(size)).repeat_interleave(2))
    part = funcol.reduce_scatter_tensor(torch.ones(2 * size), "avg", 0, dist.group.WORLD)
    near(part, torch.ones(2))
    swapped_rows = funcol.all_to_all_single(torch.arange(float(size)), None, None, dist.group.WORLD)
    near(swapped_rows, torch.full((size,), float(rank)))


def _functional_in_a_graph() -> None:
    group, size = dist.group.WORLD, dist.get_world_size()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x * 2, "sum", group)
        parts = funcol.reduce_scatter_tensor(torch.cat([total] * size), "sum", 0, group)
        return funcol.all_gather_tensor(parts, 0, group) + 1

    x = torch.ones(4)
    near(step(x), torch.full((4 * size,), 2.0 * size * size + 1))


def _pipeline(schedule: Any, stages_per_rank: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = stages_per_rank * size
    reference, model = net(total), net(total)
    device = torch.device("cpu")
    indices = [rank + size * local for local in range(stages_per_rank)]
    stages = [PipelineStage(model[index], index, total, device) for index in indices]
    x = torch.cat(data(0, 2))
    target = torch.cat(data(1, 2))
    loss_fn = nn.functional.mse_loss
    if stages_per_rank == 1:
        plan = schedule(stages[0], n_microbatches=4, loss_fn=loss_fn)
    else:
        plan = schedule(stages, n_microbatches=4, loss_fn=loss_fn)
    losses: list[torch.Tensor] = []
    if rank == 0:
        plan.step(x, target=target, losses=losses) if size == 1 else plan.step(x)
    elif rank == size - 1:
        plan.step(target=target, losses=losses)
    else:
        plan.step()
    sum(loss_fn(reference(a), b) / 4 for a, b in zip(x.chunk(4), target.chunk(4))).backward()
    for index in indices:
        for mine, wanted in zip(model[index].parameters(), reference[index].parameters()):
            near(mine.grad, wanted.grad)
    if rank == size - 1:
        assert len(losses) == 4


def _checkpoint(folder: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(20.0).view(10, 2)
    state = {"split": distribute_tensor(whole, mesh, [Shard(0)]), "same": torch.full((3,), 4.0)}
    dcp.save(state, checkpoint_id=folder)
    empty = {
        "split": distribute_tensor(torch.zeros(10, 2), mesh, [Shard(1)]),
        "same": torch.zeros(3),
    }
    dcp.load(empty, checkpoint_id=folder)
    near(empty["split"].full_tensor(), whole)
    near(empty["same"], torch.full((3,), 4.0))
    del rank


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "what", [_zero, _tensor_parallel, _sequence_parallel, _functional_in_a_graph]
)
def test_system(run_world: Any, what: Any, size: int) -> None:
    run_world(what, size=size)


def test_distributed_tensors(run_world: Any) -> None:
    run_world(_distributed_tensors, size=4)


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2)])
def test_sharded_models(run_world: Any, shape: tuple[int, ...]) -> None:
    size = shape[0] * (shape[1] if len(shape) > 1 else 1)
    run_world(_fsdp, shape, size=size)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "stages"), [(ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)]
)
def test_pipelines(run_world: Any, schedule: Any, stages: int, size: int) -> None:
    run_world(_pipeline, schedule, stages, size=size)


def test_checkpoints(run_world: Any, tmp_path: Any) -> None:
    run_world(_checkpoint, str(tmp_path / "checkpoint"), size=4)

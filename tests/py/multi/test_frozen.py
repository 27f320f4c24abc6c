"""Training whose plan is frozen: nothing is sent, and no bit of the parameters changes."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def train(
    steps: int, *, metric: bool = False, unused: bool = False
) -> tuple[list[torch.Tensor], int, tuple[int, int]]:
    """Parameters after the steps; fewest frames in ten of them; freezes and thaws until then.

    Not in the last steps: a rank that has finished may leave, and its peers answer that. And a
    machine that stands still for a moment may make a plan thaw.
    """
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(7, 7) for _ in range(6)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters()
    )
    sent: list[int] = []
    plans = 0, 0
    for step in range(steps):
        if step % 10 == 0:
            counters = session().counters()
            sent.append(counters["control_frames_sent"])
            plans = counters["plan_freezes"], counters["plan_thaws"]
        data = torch.randn(5, 7, generator=torch.Generator().manual_seed(100 * step + hvd.rank()))
        optimizer.zero_grad()
        layers = model[:-1] if unused and step % 9 == 8 and hvd.rank() == 0 else model
        loss = layers(data).square().mean()
        loss.backward()
        optimizer.step()
        if metric and step % 8 == 7:
            hvd.allreduce(loss.detach(), name="loss")
    frames = min(after - before for before, after in zip(sent[2:], sent[3:]))
    return [parameter.detach().clone() for parameter in model.parameters()], frames, plans


@pytest.mark.parametrize("size", [2, 3])
def test_frozen_training_sends_nothing_and_changes_no_bit(run, size: int) -> None:
    local = {"HVL_CPU_OPERATIONS": "local"}
    frozen = run(train, 60, size=size, env=local)
    negotiated = run(train, 60, size=size, env={**local, "HVL_FREEZE_AFTER": "0"})
    for (parameters, frames, plans), (expected, spoken, _) in zip(frozen, negotiated):
        assert plans[0] > 0
        assert frames == 0
        assert spoken > 0
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, expected))


@pytest.mark.trial("B98")
def test_the_autotuner_changes_no_bit_and_writes_a_table(
    run, data_path: dict[str, str], tmp_path: Path
) -> None:
    """1,000 operations of many kinds and sizes, with a join at the end. Sockets are not tuned."""

    def body() -> list[bytes]:
        values = torch.Generator().manual_seed(hvd.rank())
        results: list[bytes] = []

        def keep(*tensors: torch.Tensor) -> None:
            """Their bits; the tensors themselves would take longer to hand over than to reduce."""
            results.extend(hashlib.blake2b(t.numpy().data).digest() for t in tensors)

        for step in range(110):
            sizes = (3, 70, 20000, 150000, 1, 4099)
            tensors = [torch.randn(size, generator=values) for size in sizes]
            handles = [hvd.allreduce_async_(t, name=f"t{i}") for i, t in enumerate(tensors)]
            keep(*[hvd.synchronize(handle) for handle in handles])
            keep(hvd.broadcast(tensors[2], root_rank=1, name="copy"))
            if step % 20 == 19:  # each thaws the plan
                keep(hvd.allgather(tensors[1][: 1 + hvd.rank()], name="some"))
            keep(*hvd.grouped_allreduce(tensors[3:5], op=hvd.Max, name="pair"))
        hvd.join()
        return results

    log = tmp_path / "log.csv"
    tuning = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    }
    for tuned, plain in zip(run(body, env=tuning), run(body)):
        assert len(tuned) == 110 * 9 + 5
        assert tuned == plain
    if data_path["HVL_CPU_OPERATIONS"] != "local":
        return
    rows = list(csv.DictReader(log.open(encoding="utf-8")))
    assert len(rows) > 3
    tries_sizes = len({row["bucket_bytes"] for row in rows}) > 1
    assert tries_sizes == (data_path.get("HVL_FUSION_THRESHOLD") != "0")
    assert all(float(row["median_step_seconds"]) > 0 for row in rows)


@pytest.mark.parametrize("how", ["metric", "unused"])
def test_steps_that_differ_now_and_then_change_no_bit(run, how: str) -> None:
    """An operation that comes with every eighth step, or layers that one rank does not use."""

    def body(how: str) -> list[torch.Tensor]:
        return train(60, **{how: True})[0]

    results = [
        run(body, how, env={"HVL_CPU_OPERATIONS": "local", "HVL_FREEZE_AFTER": after})
        for after in ("2", "0")
    ]
    for parameters, expected in zip(*results):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, expected))

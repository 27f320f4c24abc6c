"""What happened when: the timeline file, and the overlap of backward and reduction."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def test_reduction_begins_before_backward_ends(run, plane, fusion) -> None:
    """Each layer records how many gradients have been submitted and reduced by then."""

    def body() -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        class Probe(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
                return x.clone()

            @staticmethod
            def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
                counters = session().counters()
                if len(seen) == 7:  # the last: give the runtime its turn, then look
                    for _ in range(1000):
                        hvd.barrier()
                        counters = session().counters()
                        if counters["operations_completed"] >= 14:
                            break
                seen.append((counters["operations_submitted"], counters["operations_completed"]))
                return gradient

        layers = [torch.nn.Linear(200, 200) for _ in range(8)]
        model = torch.nn.Sequential(*layers)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        hidden = torch.ones(16, 200)
        for layer in layers:
            hidden = layer(Probe.apply(hidden.requires_grad_()))
        hidden.sum().backward()
        optimizer.step()
        return seen

    for seen in run(body, env={**plane, **fusion}):
        submitted = [count for count, _ in seen]
        assert submitted[:7] == [2 * index for index in range(1, 8)]
        assert seen[-1][1] >= 14, "nothing was reduced while backward was running"


def events(path: Path) -> list[dict[str, object]]:
    loaded = json.loads(path.read_text())
    assert isinstance(loaded, list)
    return loaded


def test_the_timeline_has_the_names_of_the_tensors(run, tmp_path: Path) -> None:
    def body(path: str) -> None:
        hvd.start_timeline(path, mark_cycles=True)
        hvd.allreduce(torch.ones(3), name="probe")
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
        weight.sum().backward()
        optimizer.step()
        hvd.stop_timeline()

    path = tmp_path / "timeline.json"
    run(body, str(path))
    text = json.dumps(events(path))
    for word in ("allreduce.probe", "allreduce.w", "NEGOTIATE_ALLREDUCE", "ALLREDUCE"):
        assert word in text


@pytest.mark.trial("B100")
@pytest.mark.parametrize(
    ("size", "body"),
    [
        (1, ""),
        (2, ""),
        (2, "hvd.allreduce(hvd.ones(1))"),
        (2, "try: hvd.allreduce(hvd.ones(1))\nfinally: os.kill(os.getpid(), 9)"),
    ],
)
def test_the_file_is_valid_whatever_happens(
    run_plain_scripts, tmp_path: Path, size: int, body: str
) -> None:
    """Init only; one operation; a crash after one operation."""
    path = tmp_path / "timeline.json"
    script = "import os\nfrom tests.support import plain as hvd\nhvd.init()\n" + body
    ended = run_plain_scripts([script] * size, env={"HVL_TIMELINE": str(path)})
    crash = -signal.SIGKILL if "kill" in body else 0
    assert [rank.status for rank in ended] == [crash] * size
    assert isinstance(events(path), list)


def test_a_timeline_that_cannot_be_written_is_an_error(run) -> None:
    def body() -> None:
        path = "/nonexistent/timeline.json"
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match=path):
                hvd.start_timeline(path)
        else:
            hvd.start_timeline(path)
        assert not os.path.exists(path)  # noqa: PTH110
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    run(body)

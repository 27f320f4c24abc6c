"""DistributedOptimizer with torch.compile: compiled models, and compiled autograd."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


def new_model() -> torch.nn.Sequential:
    torch.manual_seed(5)
    layers = [torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)]
    return torch.nn.Sequential(*layers)


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


@pytest.mark.parametrize("how", ["model", "autograd", "autograd, kept", "autograd, two passes"])
def test_compiled_training_follows_eager_training(run, how: str) -> None:
    """Compiled with aot_eager, which needs no compiler; one graph of backward, no graph break.

    What is compiled submits the same operations, so it does not matter how they travel.
    """

    def body(how: str) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        model, twin = new_model(), new_model()
        passes = 2 if "two" in how else 1
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            backward_passes_per_step=passes,
        )
        plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        forward = torch.compile(model, backend="aot_eager") if how == "model" else model
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiler = torch.compile(backend=counter, fullgraph=True)
        for step in range(4):
            optimizer.zero_grad(set_to_none="kept" not in how)
            plain.zero_grad()
            for _ in range(passes):
                loss = forward(batch(hvd.rank(), step)).square().mean()
                if how == "model":
                    loss.backward()
                else:
                    with torch._dynamo.compiled_autograd._enable(compiler):
                        loss.backward()
            optimizer.step()
            for rank in range(hvd.size()):
                loss = twin(batch(rank, step)).square().mean()
                (passes * loss / hvd.size()).backward()
            plain.step()
            for mine, wanted in zip(model.parameters(), twin.parameters()):
                assert torch.allclose(mine, wanted, atol=1e-6), step
        if how != "model":
            assert counter.frame_count > 0

    run(body, how, env={"PYTHONWARNINGS": "ignore"}, deadline=180.0)


def test_in_a_compiled_backward_reduction_starts_before_the_end(run) -> None:
    """The operator stays where the gradient becomes ready: gradients are submitted one by one."""

    def body() -> list[int]:
        import torch._dynamo

        torch._dynamo.reset()
        seen: list[int] = []

        @torch.library.custom_op("hvl_test::look", mutates_args=("x",))
        def look(x: torch.Tensor) -> None:  # noqa: ARG001
            seen.append(session().counters()["operations_submitted"])

        look.register_fake(lambda x: None)  # noqa: ARG005
        model = copy.deepcopy(new_model())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        hidden = model[0](batch(hvd.rank(), 0))
        hidden.register_hook(look)
        loss = model[2](model[1](hidden)).square().mean()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss.backward()
        optimizer.step()
        return seen

    assert run(body, env={"PYTHONWARNINGS": "ignore"}, deadline=180.0) == [[2], [2]]


def test_a_graph_that_outlives_its_optimizer_does_no_harm(run) -> None:
    def body() -> None:
        from horovodlite.torch import _hooks

        gradient = torch.ones(2)
        _hooks._gradient_ready(gradient, -1)
        assert gradient.tolist() == [1.0, 1.0]
        assert len(_hooks._hooks) == 0

    run(body)


@pytest.mark.parametrize("how", ["whole", "blocks", "eager"])
def test_a_model_whose_gradients_all_come_at_the_end_is_told_once_with_the_cure(
    run, how: str
) -> None:
    def body(how: str) -> list[str]:
        import torch._dynamo

        torch._dynamo.reset()
        blocks = [torch.nn.Linear(256, 256) for _ in range(10)]
        model = torch.nn.Sequential(*blocks)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
        )
        forward = torch.compile(model, backend="aot_eager") if how == "whole" else model
        if how == "blocks":
            for block in blocks:
                block.compile(backend="aot_eager")
        data = torch.randn(1024, 256)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(12):
                optimizer.zero_grad()
                forward(data).square().mean().backward()
                optimizer.step()
        return [str(warning.message) for warning in caught if "overlaps" in str(warning.message)]

    for told in run(body, how, deadline=180.0):
        assert len(told) == (1 if how == "whole" else 0), told
        assert all("All 20 gradients" in text and "block.compile()" in text for text in told)

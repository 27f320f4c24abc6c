"""Adasum on ranks, against a plain implementation of the paper."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_adasum_is_the_papers(run, plane, fusion, size) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        def combined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
            keep_a = 1 - dot / (2 * aa) if aa else 1.0
            keep_b = 1 - dot / (2 * bb) if bb else 1.0
            return keep_a * a + keep_b * b

        def adasum(vectors: list[torch.Tensor]) -> torch.Tensor:
            while len(vectors) > 1:
                pairs = [combined(*vectors[i : i + 2]) for i in range(0, len(vectors) - 1, 2)]
                vectors = pairs + vectors[len(pairs) * 2 :]
            return vectors[0]

        rank, size = hvd.rank(), hvd.size()
        handles, expected = [], []
        for index, count in enumerate((1, 3, 64, 1000, 5)):
            vectors = []
            for r in range(size):
                generator = torch.Generator().manual_seed(index * 10 + r)
                vectors.append(torch.randn(count, dtype=torch.float64, generator=generator))
            if index == 4:
                vectors[0] = torch.zeros(count, dtype=torch.float64)
            expected.append(adasum(vectors))
            handles.append(hvd.allreduce_async(vectors[rank], name=f"a.{index}", op=hvd.Adasum))
        for handle, right in zip(handles, expected):
            assert torch.allclose(hvd.synchronize(handle), right, rtol=1e-12, atol=1e-12)
        half = hvd.allreduce(torch.ones(8, dtype=torch.float16), op=hvd.Adasum)
        assert torch.allclose(half.float(), torch.ones(8), atol=1e-2)

    run(body, size=size, env={**plane, **fusion})


def test_adasum_is_for_floating_point_only(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        with pytest.raises(ValueError, match="dasum"):
            hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)

    run(body)


def test_the_optimizer_combines_what_the_steps_have_changed(run, plane) -> None:
    def body() -> None:
        import copy

        import pytest
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
        assert isinstance(optimizer, torch.optim.SGD)
        direction = [[1.0, 0.0], [0.0, 1.0]][rank]
        model(torch.tensor([direction])).sum().backward()
        optimizer.step()  # orthogonal changes are added up
        assert model.weight.tolist() == [[-0.5, -0.5]]
        optimizer.zero_grad()
        model(torch.tensor([[1.0, 0.0]])).sum().backward()
        optimizer.step()  # equal ones are averaged
        assert model.weight.tolist() == [[-1.0, -0.5]]
        with pytest.raises(AssertionError, match="Skipping synchronization is not supported"):
            optimizer.skip_synchronize()
        copied = copy.deepcopy(optimizer)
        assert type(copied) is type(optimizer)

    run(body, env=plane)

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

        def vector(index: int, r: int, count: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(index * 10 + r)
            return torch.randn(count, dtype=torch.float64, generator=generator)

        rank, size = hvd.rank(), hvd.size()
        handles, expected = [], []
        for index, count in enumerate((1, 3, 64, 1000, 5)):
            vectors = [vector(index, r, count) for r in range(size)]
            if index == 4:
                vectors[0] = torch.zeros(count, dtype=torch.float64)
            expected.append(adasum(vectors))
            handles.append(hvd.allreduce_async(vectors[rank], name=f"a.{index}", op=hvd.Adasum))
        for handle, right in zip(handles, expected):
            assert torch.allclose(hvd.synchronize(handle), right, rtol=1e-12, atol=1e-12)
        for dtype, error in ((torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
            vectors = [vector(5, r, 65).to(dtype) for r in range(size)]
            result = hvd.allreduce(vectors[rank], op=hvd.Adasum)
            right = adasum([narrow.double() for narrow in vectors])
            assert not size > 1 or (right - sum(vectors).double() / size).abs().max() > 0.1
            assert torch.allclose(result.double(), right, rtol=error, atol=error)

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


SCALED = ["naive", "unscale first", "unscale and clip", "fused"]


@pytest.mark.parametrize("order", SCALED)
def test_a_step_that_the_scaler_skips_is_skipped_on_every_rank(run, plane, order: str) -> None:
    """B03 with Adasum, whose gradients stay each rank's own: they are found infinite everywhere."""

    def body(order: str) -> None:
        import torch

        import horovodlite.torch as hvd

        weight = torch.nn.Parameter(torch.zeros(2))
        unused = torch.nn.Parameter(torch.zeros(2))
        table = torch.nn.Parameter(torch.zeros(3, 1))
        parameters = [weight, unused] if order == "fused" else [weight, unused, table]
        optimizer = torch.optim.SGD(parameters, lr=1.0, fused=order == "fused")
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        direction = torch.tensor([[1.0, 0.0], [0.0, 1.0]][hvd.rank()])
        for step in range(4):
            broken = step == 1
            optimizer.zero_grad()
            loss = (weight * direction).sum()
            if order != "fused":
                rows = torch.nn.functional.embedding(torch.tensor([0, 0]), table, sparse=True)
                loss = loss + rows.sum()
            if broken and hvd.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if "unscale" in order:
                scaler.unscale_(optimizer)
            if "clip" in order and not broken:
                norm = torch.nn.utils.clip_grad_norm_([weight], 10.0)
                assert norm == 1.0
            scaler.step(optimizer)
            scaler.update()
            done = float(step + 1 if step < 1 else step)
            assert weight.tolist() == [-done, -done]
            assert scaler.get_scale() == (512.0 if step >= 1 else 1024.0)

    run(body, order, env=plane)


def test_parameters_that_only_some_ranks_have_frozen_are_an_error_everywhere(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = torch.optim.SGD([a, b], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, [("a", a), ("b", b)], op=hvd.Adasum)
        for frozen in ([True, False], [False, True], [True, True], [False, False]):
            a.grad = b.grad = None
            before = a.item(), b.item()
            b.requires_grad_(not frozen[hvd.rank()])
            (a + (0.0 if frozen[hvd.rank()] else b)).backward()
            if frozen[0] != frozen[1]:
                text = r"frozen on some ranks and not on others: 'b'\. Cure"
                with pytest.raises(hvd.HorovodInternalError, match=text) as caught:
                    optimizer.step()
                assert caught.value.code == "Mismatch"
                assert (a.item(), b.item()) == before
            else:
                optimizer.step()
                assert a.item() == before[0] - 1.0
                assert b.item() == before[1] - (0.0 if frozen[0] else 1.0)

    run(body)


@pytest.mark.parametrize("scheduler", [False, True])
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("kinds", ["averages then changes", "changes then averages"])
def test_wrapping_again_replaces_the_kind(run, kinds: str, anew: bool, scheduler: bool) -> None:
    def body(kinds: str, anew: bool, scheduler: bool) -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        weight = torch.nn.Parameter(torch.zeros(2))
        direction = torch.tensor([[1.0, 0.0], [0.0, 1.0]][hvd.rank()])
        ops = [hvd.Average, hvd.Adasum]
        if kinds == "changes then averages":
            ops.reverse()
        plain = torch.optim.SGD([weight], lr=1.0)
        older = []
        for turn, op in enumerate(ops * 2):
            if anew:
                plain = torch.optim.SGD([weight], lr=1.0)
            optimizer = hvd.DistributedOptimizer(plain, [("w", weight)], op=op)
            if scheduler:
                torch.optim.lr_scheduler.StepLR(optimizer, 100)
            if anew and older and turn % 2:
                (weight * direction).sum().backward()
                with pytest.raises(RuntimeError, match="handed to a newer one"):
                    older[-1].step()
                optimizer.step()
            older.append(optimizer)
            with torch.no_grad():
                weight.zero_()
            for _ in range(2):
                optimizer.zero_grad()
                (weight * direction).sum().backward()
                optimizer.step()
            far = -2.0 if op == hvd.Adasum else -1.0
            assert weight.tolist() == [far, far]

    run(body, kinds, anew, scheduler)


def test_names_passes_groups_and_copies_are_those_of_any_distributed_optimizer(run) -> None:
    def body() -> None:
        import copy
        import pickle

        import pytest
        import torch

        import horovodlite.torch as hvd

        a, b, late = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([a, b], lr=1.0),
            [("a", a), ("b", b)],
            op=hvd.Adasum,
            backward_passes_per_step=2,
            groups=1,
            compression=hvd.Compression.fp16,
        )
        optimizer.add_param_group({"params": [late]})
        assert list(optimizer._parameter_names.values()) == ["a", "b", "noname.1.0"]
        for _ in range(2):
            (a + b + late).backward()
        optimizer.step()
        assert [p.item() for p in (a, b, late)] == [-2.0] * 3
        with pytest.raises(ValueError, match="must be an integer > 0"):
            optimizer.set_backward_passes_per_step(0)
        with pytest.raises(TypeError, match="deepcopy"):
            copy.copy(optimizer)
        optimizer.zero_grad()
        model, copied = pickle.loads(pickle.dumps(((a, b, late), optimizer)))
        sum(model).backward()
        copied.step()
        assert [p.item() for p in model] == [-3.0] * 3
        bad = torch.nn.Parameter(torch.zeros(1, device="meta"))
        with pytest.raises(NotImplementedError, match="device meta"):
            optimizer.add_param_group({"params": [bad]})
        assert len(optimizer.param_groups) == 2

    run(body)

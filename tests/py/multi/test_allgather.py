"""allgather on ranks."""

from __future__ import annotations

import pytest


@pytest.mark.trial("B43")
def test_first_dimensions_may_differ_and_be_zero(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        for dtype in (torch.int8, torch.float64, torch.bfloat16, torch.bool):
            rows = [0, 2, 5][rank]
            tensor = torch.full((rows, 3), rank).to(dtype)
            result = hvd.allgather(tensor)
            expected = torch.tensor([1] * 2 + [2] * 5).to(dtype)
            assert result.shape == (7, 3)
            assert result.dtype == dtype
            assert torch.equal(result[:, 1], expected)
        assert hvd.allgather(torch.ones(0, 4)).shape == (0, 4)
        assert hvd.allgather(torch.ones(2, 0)).shape == (6, 0)

    run(body, size=3)


@pytest.mark.trial("B43")
def test_other_dimensions_must_agree(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        for make in (lambda r: torch.ones(2, 3 + r), lambda r: torch.ones([2] * (1 + r))):
            with pytest.raises(hvd.HorovodInternalError, match="odd"):
                hvd.allgather(make(hvd.rank()), name="odd")
        assert hvd.allgather(torch.ones(1)).tolist() == [1.0] * 3

    run(body, size=3)


def test_a_group_of_uneven_tensors_is_gathered(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        tensors = [torch.full((rank,), rank), torch.full((2 - rank, 2), float(rank))]
        a, b = hvd.grouped_allgather(tensors, name="g")
        assert a.tolist() == [1]
        assert b.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
        handle = hvd.grouped_allgather_async(tensors)
        assert [t.shape[0] for t in hvd.synchronize(handle)] == [1, 3]

    run(body, env={**plane, **fusion})


def test_the_memory_format_is_kept(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        tensor = torch.arange(24.0).reshape(1, 2, 3, 4) + hvd.rank()
        last = torch.cat([tensor, tensor]).to(memory_format=torch.channels_last)
        result = hvd.allgather(last)
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(result[:2] - result[2:], torch.full((2, 2, 3, 4), -1.0))

    run(body)


@pytest.mark.trial("B43")
def test_the_gradient_is_the_average_of_the_ranks_cut_to_the_own_rows(run) -> None:
    """Horovod's tests encode Average."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        x = torch.ones(rank + 1, 2, requires_grad=True)
        weights = torch.arange(6.0).unsqueeze(1) * (rank + 1)
        (hvd.allgather(x, name="x") * weights).sum().backward()
        first = [0, 1, 3][rank]
        expected = torch.arange(6.0)[first : first + rank + 1] * 2
        assert torch.equal(x.grad, expected.unsqueeze(1).expand(-1, 2))
        a = torch.ones(2, requires_grad=True)
        joined = hvd.grouped_allgather([a, torch.ones(1)])
        (joined[0] * (rank + 1)).sum().backward()
        assert a.grad.tolist() == [2.0, 2.0]

    run(body, size=3)


@pytest.mark.trial("B60")
def test_evaluation_over_uneven_shards_sees_every_sample_once(run) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        for shards in ([(0, 5), (5, 8)], [(0, 4), (4, 8)]):
            first, last = shards[hvd.rank()]
            samples = torch.arange(first, last)
            assert hvd.allgather(samples).tolist() == list(range(8))
            listed = hvd.allgather_object(samples.tolist())
            assert [number for part in listed for number in part] == list(range(8))

    run(body)

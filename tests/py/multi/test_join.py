"""join: ranks that run out of data before the others."""

from __future__ import annotations


def test_a_rank_that_has_joined_contributes_zeros(run, plane, fusion) -> None:
    def body() -> int:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        for step in range(rank + 1):  # the highest rank has the most
            active = size - step
            total = hvd.allreduce(torch.ones(3), name=f"step.{step % 2}", op=hvd.Sum)
            assert total.tolist() == [float(active)] * 3
            mean = hvd.allreduce(torch.ones(2, dtype=torch.float64), name="mean")
            assert torch.allclose(mean, torch.tensor(active / size, dtype=torch.float64))
            group = hvd.grouped_allreduce(
                [torch.ones(2), torch.ones(1, dtype=torch.int64)], op=hvd.Sum
            )
            assert [int(tensor[0]) for tensor in group] == [active, active]
        return hvd.join()

    for _ in range(2):
        assert run(body, size=3, env={**plane, **fusion}) == [2, 2, 2]


def test_after_a_join_everything_works_again(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        for _ in range(3):
            if hvd.rank() == 0:
                hvd.allreduce(torch.ones(1), name="alone")
            assert hvd.join(device=-1) in (0, 1)
            assert hvd.allgather(torch.ones(1)).tolist() == [1.0, 1.0]

    run(body, env=plane)


def test_other_operations_fail_while_a_rank_has_joined(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        if hvd.rank() == 0:
            for operate in (
                lambda: hvd.allgather(torch.ones(1)),
                lambda: hvd.broadcast(torch.ones(1), 0),
                lambda: hvd.alltoall(torch.ones(2)),
                lambda: hvd.reducescatter(torch.ones(2)),
            ):
                with pytest.raises(hvd.HorovodInternalError, match="not supported with Join"):
                    operate()
            assert hvd.allreduce(torch.ones(1)).tolist() == [0.5]
        hvd.join()

    run(body, env=plane)


def test_unnamed_operations_pair_after_a_join_although_one_rank_had_more(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        for more in (0, 1):
            for step in range(3 if hvd.rank() == more else 0):
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [1.0], step
            assert hvd.join() == more
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [2.0]
            assert hvd.allgather_object(more) == [more, more]

    run(body, env=plane)


def test_the_average_of_integers_rounds_towards_zero_with_joined_ranks_too(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        if hvd.rank() == 0:
            values = torch.tensor([-7, -1, 1, 7], dtype=torch.int32)
            assert hvd.allreduce(values, name="mean").tolist() == [-3, 0, 0, 3]
        hvd.join()

    run(body, env=plane)

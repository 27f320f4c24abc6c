"""join: ranks that run out of data before the others."""

from __future__ import annotations

import pytest


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


@pytest.mark.trial("B54")
@pytest.mark.parametrize("joins", [0, 1])
@pytest.mark.parametrize("first", ["join", "operation"])
def test_other_operations_fail_while_a_rank_has_joined(run, first: str, joins: int) -> None:
    """Whichever comes first. Rank 0, which decides, joins in turn, and so does the other."""

    def body(first: str, joins: int) -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        column = torch.ones(2)
        for start in (
            lambda: hvd.allgather_async(column, "x"),
            lambda: hvd.broadcast_async(column, 1 - joins, "x"),
            lambda: hvd.alltoall_async(column, name="x"),
            lambda: hvd.reducescatter_async(column, "x"),
        ):
            if hvd.rank() == joins:
                if first == "operation":
                    hvd.allreduce(torch.ones(1), name="submitted")
                assert hvd.join() == 1 - joins
                continue
            if first == "join":
                # It can only run without the other rank when that one has joined.
                assert hvd.allreduce(torch.ones(1), name="alone").tolist() == [0.5]
                handle = start()
            else:
                handle = start()
                hvd.allreduce(torch.ones(1), name="submitted")  # runs after the start is known
            with pytest.raises(hvd.HorovodInternalError, match="not supported with Join"):
                hvd.synchronize(handle)
            assert hvd.join() == 1 - joins

    run(body, first, joins)


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


@pytest.mark.trial("B54")
def test_a_rank_that_has_joined_does_not_hang_when_others_call_what_join_cannot_do(run) -> None:
    """Those get an error, allreduce goes on, and after the join everything works again."""

    def body() -> list[int]:
        import torch

        import horovodlite.torch as hvd

        last = []
        for _ in range(2):
            if hvd.rank() != 3:
                for operate in (
                    lambda: hvd.broadcast(torch.ones(1), 0),
                    lambda: hvd.allgather(torch.ones(1)),
                    lambda: hvd.alltoall(torch.ones(4)),
                    lambda: hvd.reducescatter(torch.ones(4)),
                    hvd.barrier,
                ):
                    with pytest.raises(hvd.HorovodInternalError, match="not supported with Join"):
                        operate()
                assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [3.0, 3.0]
            if hvd.rank() == 1:
                assert hvd.allreduce(torch.ones(1), name="rest", op=hvd.Sum).item() in (1.0, 2.0)
            last.append(hvd.join())
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [4.0]
            assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == [0, 1, 2, 3]
            hvd.barrier()
        return last

    results = run(body, size=4)
    assert results == [results[0]] * 4
    assert 3 not in results[0]


@pytest.mark.trial("B55")
@pytest.mark.parametrize("autotune", ["0", "1"])
def test_a_join_after_operations_that_are_known_ends_at_once(run, autotune: str) -> None:
    """Names that come again and again are negotiated by number; the joined rank counts as zeros."""

    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rounds = 20 if hvd.rank() == 0 else 10
        for _ in range(2):
            for step in range(rounds):
                active = 2.0 if step < 10 else 1.0
                for name in ("a", "b", "c"):
                    total = hvd.allreduce(torch.full((3,), step + 1.0), name=name, op=hvd.Sum)
                    assert total.tolist() == [active * (step + 1.0)] * 3, (name, step)
            assert hvd.join() == 0

    run(body, env={"HOROVOD_AUTOTUNE": autotune})

"""send and recv."""

from __future__ import annotations


def test_what_is_sent_is_received_in_order(run, plane, fusion) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        following, before = (rank + 1) % size, (rank - 1) % size
        for dtype in (torch.float32, torch.bool, torch.bfloat16):
            mine = torch.arange(5).add(rank).to(dtype)
            handle = hvd.send_async(mine, following)
            got = hvd.recv(torch.empty(5, dtype=dtype), before)
            hvd.synchronize(handle)
            assert torch.equal(got, torch.arange(5).add(before).to(dtype))
        if rank == 0:
            for number in range(3):
                hvd.send(torch.tensor(number), 1)
        elif rank == 1:
            handles = [hvd.recv_async(torch.empty((), dtype=torch.int64), 0) for _ in range(3)]
            assert [int(hvd.synchronize(handle)) for handle in handles] == [0, 1, 2]
        assert hvd.recv(torch.zeros(0), before) is not None if rank else True
        if rank != size - 1:
            hvd.send(torch.zeros(0), following)
        hvd.barrier()  # who leaves ends the session of all

    run(body, size=3, env={**plane, **fusion})


def test_two_ranks_that_send_to_each_other_at_once(run, plane) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        other = 1 - hvd.rank()
        sent = [hvd.send_async(torch.full((2,), n * 10 + hvd.rank()), other) for n in range(5)]
        empty = [torch.empty(2, dtype=torch.int64) for _ in range(5)]
        received = [hvd.recv_async(tensor, other) for tensor in empty]
        for number, handle in enumerate(received):
            assert hvd.synchronize(handle).tolist() == [number * 10 + other] * 2
        for handle in sent:
            hvd.synchronize(handle)

    run(body, env=plane)


def test_mistakes_are_told(run) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        rank = hvd.rank()
        with pytest.raises(ValueError, match="cannot send to itself"):
            hvd.send(torch.ones(1), rank)
        with pytest.raises(ValueError, match="2 is no rank"):
            hvd.recv(torch.ones(1), 2)
        transfer = hvd.recv if rank else hvd.send
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            transfer(torch.ones(2 + rank), 1 - rank, name="odd")

    run(body)

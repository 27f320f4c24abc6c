"""Unnamed operations that do not belong together are told by where they were submitted."""

from __future__ import annotations

import re

import pytest

SITE = r"<dynamic-code>:(\d+)"  # what cloudpickle makes of this file's functions


def test_unnamed_operations_of_different_lines_are_a_mismatch_that_names_both(run) -> None:
    def body() -> str:
        import pytest
        import torch

        import horovodlite.torch as hvd

        def here() -> None:
            hvd.allreduce(torch.ones(2))

        def there() -> None:
            hvd.allreduce(torch.ones(2))

        with pytest.raises(hvd.HorovodInternalError, match="noname") as caught:
            [here, there][hvd.rank()]()
        assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
        return str(caught.value)

    for text in run(body):
        assert len(set(re.findall(SITE, text))) == 2, text


def test_the_check_can_be_a_warning_or_off(run, pool) -> None:
    def body() -> None:
        import torch

        import horovodlite.torch as hvd

        for _ in range(3):
            if hvd.rank() == 0:
                assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
            else:
                assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]

    run(body, env={"HVL_UNNAMED_SITES": "off"})
    assert not re.search(SITE, pool.stderr(0))
    run(body, env={"HVL_UNNAMED_SITES": "warn"})
    assert pool.stderr(0).count("WARN") == 1


def test_with_debug_mismatches_of_named_operations_show_the_lines(run) -> None:
    def body() -> str:
        import pytest
        import torch

        import horovodlite.torch as hvd

        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(2 + hvd.rank()), name="odd")
        return str(caught.value)

    for text in run(body, env={"HVL_DEBUG": "1"}):
        assert re.search(SITE, text)
    for text in run(body):
        assert not re.search(SITE, text)


def test_with_debug_gradients_and_objects_show_the_lines_too(run) -> None:
    """Also of operations that are prepared once and submitted in every step."""

    def body() -> list[str]:
        import pytest
        import torch

        import horovodlite.torch as hvd

        texts = []
        for op in (hvd.Average, hvd.Adasum):
            weight = torch.nn.Parameter(torch.ones(2 + hvd.rank()))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)], op=op)
            weight.sum().backward()
            with pytest.raises(hvd.HorovodInternalError, match=r"\.w(@2)?'.*shape") as caught:
                optimizer.step()
            texts.append(str(caught.value))
        floats = torch.ones(2)
        gathers = [
            lambda: hvd.allgather_object("a", name="odd"),
            lambda: hvd.allgather(floats, name="odd"),
        ]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            gathers[hvd.rank()]()
        texts.append(str(caught.value))
        return texts

    for texts in run(body, env={"HVL_DEBUG": "1"}):
        for text in texts:
            assert re.search(SITE, text), text


# Ranks that wait for each other are told then, and who is late comes after two of these times.
QUICK = {"HVL_STALL_CHECK_TIME_SECONDS": "0.5"}
LATE = 1.3


@pytest.mark.parametrize("size", [2, 3])
def test_an_unnamed_operation_of_some_ranks_is_an_error_that_names_both_lines(
    run, plane, size
) -> None:
    """Nobody has a partner for it, and the others wait in what comes next."""

    def body() -> str:
        import pytest
        import torch

        import horovodlite.torch as hvd

        x = torch.ones(2)

        def step() -> None:
            if hvd.rank() == 0:
                hvd.allgather(x)
            hvd.allreduce(x)

        with pytest.raises(hvd.HorovodInternalError, match="wait for each other") as caught:
            step()
        # All kinds pair again, although rank 0 has had another number of each than the others.
        for _ in range(2):
            assert hvd.allreduce(x, op=hvd.Sum).tolist() == [hvd.size()] * 2
            assert hvd.allgather(x).tolist() == [1.0] * 2 * hvd.size()
            hvd.barrier()
        return str(caught.value)

    texts = run(body, size=size, env={**plane, **QUICK})
    assert len(set(texts)) == 1
    assert len(set(re.findall(SITE, texts[0]))) == 2, texts[0]
    others = "rank 1" if size == 2 else "ranks 1, 2"
    assert "rank 0 in allgather 'allgather.noname.0'" in texts[0]
    assert f"{others} in allreduce 'allreduce.noname.0'" in texts[0]


def test_ranks_that_wait_for_each_other_are_an_error_without_sites_too(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        x = torch.ones(2)

        def step() -> None:
            if hvd.rank() == 1:
                hvd.broadcast(x, 0)
            hvd.barrier()

        with pytest.raises(hvd.HorovodInternalError, match="wait for each other"):
            step()
        if hvd.rank() == 0:
            hvd.broadcast(x, 0)
        else:
            hvd.broadcast(torch.zeros(2), 0)

    for choice in ("warn", "off"):
        run(body, env={**plane, **QUICK, "HVL_UNNAMED_SITES": choice})


def test_an_unnamed_operation_of_one_rank_against_gradients_is_an_error_too(run, plane) -> None:
    """They have names, but nothing else of this process could submit the other ones."""

    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)])

        def step() -> None:
            if hvd.rank() == 0:
                hvd.allgather(torch.ones(1))
            weight.sum().backward()
            optimizer.step()

        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 in allgather .* rank 1 in"):
            step()

    run(body, env={**plane, **QUICK})


def test_operations_in_flight_may_be_of_other_kinds_in_another_order(run, plane) -> None:
    """However late the second one comes: no rank is stuck."""

    def body() -> None:
        import time

        import torch

        import horovodlite.torch as hvd

        x = torch.ones(2)
        starts = [lambda: hvd.allreduce_async(x), lambda: hvd.allgather_async(x)]
        if hvd.rank() == 0:
            starts.reverse()
        first = starts[0]()
        time.sleep(LATE)
        for handle in (first, starts[1]()):
            hvd.synchronize(handle)

    run(body, env={**plane, **QUICK, "HVL_UNNAMED_SITES": "off"})


def test_a_rank_that_is_slow_is_waited_for(run, plane) -> None:
    def body() -> None:
        import time

        import torch

        import horovodlite.torch as hvd

        if hvd.rank() == 2:
            time.sleep(LATE)
        hvd.allreduce(torch.ones(2))
        hvd.barrier()

    run(body, size=3, env={**plane, **QUICK})


def test_threads_may_wait_in_unnamed_operations_of_different_kinds(run, plane) -> None:
    """Each has its own, and none of them stands in the way of the other."""

    def body() -> None:
        import threading
        import time

        import torch

        import horovodlite.torch as hvd

        x = torch.ones(2)
        hvd.allreduce(x)

        def late() -> None:
            hvd.barrier()
            time.sleep(LATE if hvd.rank() == 0 else 0.0)
            hvd.allgather(x)

        thread = threading.Thread(target=late)
        thread.start()
        time.sleep(LATE if hvd.rank() == 1 else 0.2)
        hvd.allreduce(x)
        thread.join()

    run(body, env={**plane, **QUICK, "HVL_UNNAMED_SITES": "off"})


def test_only_the_process_set_of_ranks_that_wait_for_each_other_is_concerned(run, plane) -> None:
    def body() -> None:
        import pytest
        import torch

        import horovodlite.torch as hvd

        pair = hvd.add_process_set([0, 2])
        x = torch.ones(2)

        def step() -> None:
            if hvd.rank() == 0:
                hvd.allgather(x, process_set=pair)
            hvd.allreduce(x, process_set=pair)

        if hvd.rank() != 1:
            with pytest.raises(hvd.HorovodInternalError, match=r"of process set 1 \(ranks 0, 2\)"):
                step()
            assert hvd.allgather(x, process_set=pair).tolist() == [1.0] * 4
        assert hvd.allreduce(x, op=hvd.Sum).tolist() == [3.0, 3.0]

    run(body, size=3, env={**plane, **QUICK})

"""Unnamed operations that do not belong together are told by where they were submitted."""

from __future__ import annotations

import re

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

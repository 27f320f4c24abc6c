"""State that survives the loss of ranks, the sampler for it, and the loop around both."""

from __future__ import annotations

import collections
from typing import Any

import psutil
import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.elastic import HostUpdateResult, ObjectState
from horovodlite.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def linear(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def weight(model: torch.nn.Linear) -> float:
    return float(model.weight[0, 0])


@pytest.mark.parametrize("wrapped", [False, True])
def test_state_is_synced_committed_and_restored(run, wrapped: bool) -> None:
    def work() -> dict[str, Any]:
        rank = hvd.rank()
        model = linear(1.0 + rank)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + rank))
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        state = hvd.elastic.TorchState(model, optimizer, batch=20 + rank, seen=[rank])
        state.sync()
        seen: dict[str, Any] = {"synced": [weight(model), state.batch, [*state.seen]]}
        seen["lr"] = optimizer.param_groups[0]["lr"]

        def step() -> None:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            state.batch += 1
            state.seen.append(state.batch)

        step()
        state.restore()  # to what rank 0 had, without a commit
        seen["restored"] = [weight(model), state.batch, [*state.seen], len(optimizer.state)]
        step()
        state.commit()
        committed = [weight(model), state.batch, list(state.seen)]
        step()
        state.restore()
        again = [weight(model), state.batch, state.seen]
        steps = [int(values["step"]) for values in optimizer.state.values()]
        seen["committed"] = [again == committed, steps]
        return seen

    expected = {
        "synced": [1.0, 20, [0]],
        "lr": 0.1,
        "restored": [1.0, 20, [0], 0],
        "committed": [True, [1, 1]],
    }
    assert run(work) == [expected] * 2


def test_what_is_saved_is_not_changed_by_later_steps(run) -> None:
    def work() -> list[int]:
        model = linear(1.0)
        optimizer = torch.optim.Adam(model.parameters())
        state = hvd.elastic.TorchState(model, optimizer)
        steps = []
        for _ in range(2):  # the second restore() finds what the first one found
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.restore()
            steps.append(len(optimizer.state))
        return steps

    assert run(work, size=1) == [[0, 0]]


def test_another_object_in_an_attribute_becomes_the_state(run) -> None:
    def work() -> list[float]:
        state = hvd.elastic.TorchState(linear(1.0), other=linear(5.0))
        replacement = linear(2.0)
        state.model = replacement
        with torch.no_grad():
            replacement.weight.fill_(3.0)
        state.restore()
        return [weight(replacement), weight(state.model), weight(state.other)]

    assert run(work, size=1) == [[2.0, 2.0, 5.0]]


def test_own_kinds_of_objects_can_have_handlers(run) -> None:
    def work() -> list[Any]:
        from horovodlite.torch.elastic import state as states

        class Counter:
            value = 0

        class CounterHandler(states.StateHandler):
            saved = 0

            def save(self) -> None:
                self.saved = self.value.value

            def restore(self) -> None:
                self.value.value = self.saved

            def sync(self) -> None:
                self.value.value = hvd.broadcast_object(self.value.value)

        before = states.get_handler_registry()
        states.set_handler_registry([*before, (Counter, CounterHandler)])
        try:
            counter = Counter()
            state = hvd.elastic.TorchState(counter=counter)
            counter.value = 3 + hvd.rank()
            state.commit()
            counter.value = 9
            state.restore()
            restored = counter.value
            state.sync()
            return [state.counter is counter, restored, counter.value]
        finally:
            states.set_handler_registry(before)

    assert run(work) == [[True, 3, 3], [True, 4, 3]]


def test_the_sampler_deals_out_every_sample_and_after_a_sync_only_the_rest(run) -> None:
    def work() -> dict[str, Any]:
        ranks, rank = hvd.size(), hvd.rank()
        dataset = list(range(8 * ranks))
        sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=5)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
        state = hvd.elastic.TorchState(sampler=sampler, batch=0)
        state.sync()
        first = [sample for batch in loader for sample in batch.tolist()]
        for index in range(2):
            sampler.record_batch(index, 2)
        state.commit()
        sampler.record_batch(2, 2)
        recorded = sampler.processed_num
        state.restore()
        counts = [recorded // ranks, sampler.processed_num // ranks]
        state.sync()
        rest = list(sampler)
        sampler.set_epoch(1)
        orders = [list(sampler) != first, len(sampler), rank]
        return {
            "all": first,
            "done": first[:4],
            "rest": rest,
            "n": counts + orders,
        }

    for size in (1, 3):
        results = run(work, size=size)
        everything = set(range(8 * size))
        assert {sample for result in results for sample in result["all"]} == everything
        done = [sample for result in results for sample in result["done"]]
        rest = [sample for result in results for sample in result["rest"]]
        assert sorted(done + rest) == sorted(everything)
        assert [result["n"] for result in results] == [[6, 4, True, 8, r] for r in range(size)]


@pytest.mark.parametrize(("samples", "recorded"), [(10, 0), (9, 8), (4, 4), (2, 0), (0, 0)])
def test_every_rank_gets_as_many_samples_however_few_are_left(
    run, samples: int, recorded: int
) -> None:
    def work() -> list[int]:
        sampler = hvd.elastic.ElasticSampler(range(samples), shuffle=False)
        sampler.load_state_dict({"epoch": 0, "processed_num": recorded})
        assert len(sampler) == len(list(sampler))
        return list(sampler)

    results = run(work, size=4)
    left = samples - recorded
    assert {len(result) for result in results} == {-(-left // 4)}
    counts = collections.Counter(sample for result in results for sample in result)
    assert set(counts) == set(range(recorded, samples))


def test_the_loop_goes_back_after_a_lost_rank_and_keeps_the_state_after_news(run) -> None:
    def work() -> list[Any]:
        from horovodlite.elastic import notification_manager

        seen: list[Any] = []
        model = linear(1.0)
        state = hvd.elastic.TorchState(model, batch=0)
        state.register_reset_callbacks([lambda: seen.append("reset")])

        @hvd.elastic.run
        def train(state: Any, last: int) -> str:
            seen.append((state.batch, weight(model)))
            while state.batch < last:
                state.batch += 1
                with torch.no_grad():
                    model.weight.add_(1.0)
                if state.batch == 2 and "lost" not in seen:
                    seen.append("lost")
                    raise HorovodInternalError("a peer is gone", code="Unavailable")
                if state.batch == 3 and "news" not in seen:
                    seen.append("news")
                    notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
                state.commit()
            return f"done in {hvd.size()}"

        seen.append(train(state, 4))
        return seen

    once = [(0, 1.0), "lost", "reset", (1, 2.0), "news", "reset", (3, 4.0), "done in 2"]
    assert run(work) == [once] * 2


def test_the_loop_does_not_repeat_a_disagreement(run) -> None:
    def work() -> int:
        calls = []
        state = hvd.elastic.TorchState(batch=0)

        @hvd.elastic.run
        def train(state: Any) -> None:  # noqa: ARG001
            calls.append(1)
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="x")

        with pytest.raises(HorovodInternalError, match="shape"):
            train(state)
        return len(calls)

    assert run(work) == [1, 1]


def test_news_of_rank_0_reaches_all_ranks_once(run) -> None:
    def work() -> list[Any]:
        state = hvd.elastic.TorchState(batch=0)
        if hvd.rank() == 0:
            state.on_hosts_updated(1, HostUpdateResult.removed)
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        state.commit()
        if hvd.rank() == 0:
            state.on_hosts_updated(1, HostUpdateResult.added)  # old news
        state.commit()
        if hvd.rank() == 0:
            state.on_hosts_updated(2, HostUpdateResult.removed)
            state.on_hosts_updated(3, HostUpdateResult.added)
        with pytest.raises(HostsUpdatedInterrupt) as mixed:
            state.check_host_updates()
        return [caught.value.skip_sync, mixed.value.skip_sync]

    assert run(work) == [[True, False]] * 2


def test_a_state_of_plain_objects_needs_no_framework() -> None:
    state = ObjectState(lambda value: value, lambda: 0, items=[1], name="a")
    state.items.append(2)
    state.restore()
    assert (state.items, state.name) == ([1], "a")
    state.items.append(3)
    state.sync()
    state.items.append(4)
    state.restore()
    assert state.items == [1, 3]


@pytest.mark.trial("B93")
def test_commits_and_resets_of_a_large_state_do_not_make_memory_grow(pool) -> None:
    """What it holds is the state, what was saved, and no third copy. Data paths do not matter."""

    def work() -> None:
        process = psutil.Process()
        model = torch.nn.Linear(1 << 12, 1 << 11, bias=False)  # 32 MiB
        size = model.weight.nbytes
        state = hvd.elastic.TorchState(model, batch=0)
        state.commit()
        before = process.memory_info().rss
        for reset in range(3):
            for _ in range(10):
                state.batch += 1
                state.commit()
                state.restore()
            hvd.shutdown()
            hvd.init()
            state.sync()
            assert state.batch == 10 * (reset + 1)
        assert process.memory_info().rss - before < 1.5 * size

    pool.run(work, size=2)


def test_a_sync_copies_each_object_once_and_restores_none(run) -> None:
    """What a sync has made equal need not be loaded again, nor do handlers expect that."""

    def work() -> list[str]:
        from horovodlite.torch.elastic import state as states

        calls: list[str] = []

        class Watched(states.ModelStateHandler):
            def save(self) -> None:
                calls.append("save")
                super().save()

            def restore(self) -> None:
                calls.append("restore")
                super().restore()

        before = states.get_handler_registry()
        states.set_handler_registry([(torch.nn.Module, Watched)])
        try:
            state = hvd.elastic.TorchState(linear(hvd.rank() + 1.0), epoch=hvd.rank() + 3)
            calls.clear()
            state.sync()
            assert (weight(state.model), state.epoch) == (1.0, 3)
            return calls
        finally:
            states.set_handler_registry(before)

    assert run(work) == [["save"]] * 2

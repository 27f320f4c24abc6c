"""init, shutdown, exit, fork, threads, signals: the life of a process around its session."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

import horovodlite.torch as hvd
from horovodlite.world import session


@pytest.mark.trial("B70")
def test_a_process_may_join_and_leave_a_hundred_times(run) -> None:
    """No growth of descriptors, threads, or memory; and each time at once."""

    def body() -> None:
        process = psutil.Process()
        starts, ends = [], []

        def once() -> tuple[int, int]:
            begin = time.perf_counter()
            hvd.init()
            starts.append(time.perf_counter() - begin)
            hvd.init()
            assert hvd.allreduce(torch.ones(3)).tolist() == [1.0] * 3
            begin = time.perf_counter()
            hvd.shutdown()
            ends.append(time.perf_counter() - begin)
            hvd.shutdown()
            return process.num_fds(), process.num_threads()

        counts = [once() for _ in range(5)][-1]
        memory = process.memory_info().rss
        for _ in range(95):
            assert once() == counts
        assert process.memory_info().rss - memory < 8 << 20
        for times in (starts, ends):
            assert sorted(times)[25] < 0.05  # not all: other programs may take the processors

    run(body, initialize=False)


def test_after_shutdown_everything_says_what_is_missing(run) -> None:
    def body() -> None:
        handle = hvd.allreduce_async(torch.ones(1), name="pending") if hvd.rank() == 0 else None
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.allreduce(torch.ones(1))
        if handle is not None:
            with pytest.raises(hvd.HorovodInternalError) as caught:
                hvd.synchronize(handle)
            assert caught.value.code == "Aborted"

    run(body)


def test_topology_is_what_the_launcher_says(run) -> None:
    def body() -> tuple[int, ...]:
        assert hvd.is_homogeneous()
        ranks = (hvd.rank(), hvd.local_rank(), hvd.cross_rank())
        return (*ranks, hvd.size(), hvd.local_size(), hvd.cross_size())

    assert run(body, size=3) == [(rank, rank, 0, 3, 3, 1) for rank in range(3)]


def test_ranks_that_disagree_on_a_setting_are_told_at_once(run) -> None:
    def body() -> None:
        os.environ["HVL_FUSION_THRESHOLD"] = str(1024 * (1 + int(os.environ["HVL_RANK"])))
        with pytest.raises(hvd.HorovodInternalError, match="HVL_FUSION_THRESHOLD"):
            hvd.init()
        assert not hvd.is_initialized()
        del os.environ["HVL_FUSION_THRESHOLD"]
        hvd.init()
        assert hvd.allgather_object(hvd.rank()) == [0, 1]

    run(body, initialize=False)


def test_a_rank_that_does_not_come_is_named(run) -> None:
    def body() -> None:
        if os.environ["HVL_RANK"] == "0":
            os.environ["HVL_START_TIMEOUT"] = "0.5"
            with pytest.raises(hvd.HorovodInternalError, match=r"rank.* 1") as caught:
                hvd.init()
            assert caught.value.code == "Timeout"
            os.environ["HVL_START_TIMEOUT"] = "30"

    run(body, initialize=False)


IMPORT = "import horovodlite.torch as hvd, torch, sys, os\nhvd.init()\n"


def test_a_setting_without_effect_is_told_once_in_a_process(run_scripts) -> None:
    code = (
        "import os\nos.environ['HOROVOD_CPU_OPERATIONS'] = 'gloo'\n"
        "import horovodlite.torch as hvd\n"
        "for _ in range(3):\n    hvd.init(); hvd.shutdown()\n"
    )
    first, second = run_scripts([code] * 2)
    assert first.errors.count("HOROVOD_CPU_OPERATIONS='gloo' has no effect") == 1
    assert (first.status, second.status, second.errors) == (0, 0, "")


@pytest.mark.trial("B69")
@pytest.mark.parametrize(
    "ending",
    [
        "",
        "hvd.shutdown(); hvd.shutdown()",
        "hvd.allreduce(torch.ones(3))",
        "keep = hvd.allreduce_async(torch.ones(1000), name='both')",
        "keep = hvd.allreduce_async(torch.ones(1000), name=f'pending {hvd.rank()}')",
        "hvd.allreduce_async(torch.ones(1000), name=f'pending {hvd.rank()}')",
        "sys.modules['keep'] = hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=1))",
        "x = torch.ones(1, requires_grad=True); o = hvd.DistributedOptimizer("
        "torch.optim.SGD([x], lr=1)); x.backward(); hvd.barrier()",
    ],
)
def test_a_process_exits_cleanly_whatever_it_leaves_behind(run_scripts, ending: str) -> None:
    """Status 0 and nothing on standard error."""
    for ended in run_scripts([IMPORT + ending] * 2):
        assert (ended.status, ended.errors) == (0, "")


@pytest.mark.trial("B69")
def test_ranks_that_only_join_and_exit_do_so_every_time(run_plain_scripts) -> None:
    """100 repeats on the four data paths together."""
    script = "from horovodlite import world\nworld.init()\n"
    for _ in range(25):
        for ended in run_plain_scripts([script] * 2):
            assert (ended.status, ended.errors) == (0, "")


@pytest.mark.trial("B08")
def test_a_mistake_in_backward_ends_the_process_with_its_traceback(run_scripts) -> None:
    """Uncaught, with gradients in flight: no rank waits for another on its way out."""
    script = IMPORT + (
        "w = torch.nn.Parameter(torch.ones(2))\n"
        "o = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1), [('w', w)])\n"
        "loss = w.sum()\n"
        "loss.backward(retain_graph=True)\n"
        "loss.backward()\n"
    )
    for ended in run_scripts([script] * 2):
        assert ended.status == 1
        assert "of 'w' was computed 2 times" in ended.errors
        assert ended.errors.rstrip().endswith("no_sync() have to come first.")


@pytest.mark.trial("B56", "B69")
@pytest.mark.parametrize("leave", ["os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_a_rank_that_goes_is_named_to_those_who_wait_for_it(run_plain_scripts, leave: str) -> None:
    """The peer ends with an error that names rank 0, and not with a crash."""
    begin = "import os, sys, time\nfrom tests.support import plain as hvd\nhvd.init()\n"
    first = begin + "hvd.allreduce(hvd.ones(3))\n" + leave
    second = begin + (  # in the first operation or a later one: rank 0 may be killed in between
        "try:\n"
        "    while True:\n"
        "        begin = time.monotonic()\n"
        "        hvd.allreduce(hvd.ones(3))\n"
        "except hvd.HorovodInternalError as error:\n"
        "    print(error.code, error.culprit_rank, time.monotonic() - begin, error)\n"
    )
    ended = run_plain_scripts([first, second])[1]
    assert ended.status == 0, ended.errors
    code, culprit, seconds, text = ended.output.split(maxsplit=3)
    assert code in ("Unavailable", "Aborted")
    assert culprit == "0"
    assert "rank 0" in text
    if leave == "sys.exit(0)":
        assert "rank 0 has left" in text
        assert "uneven data" in text
        assert "join" in text
    assert float(seconds) < 20.0


@pytest.mark.trial("B63")
def test_a_killed_rank_ends_a_large_operation_of_all_others(pool, data_path) -> None:
    """In the middle of a 64 MiB allreduce; within seconds, naming the rank."""

    def body() -> tuple[float, int | None, str]:
        tensor = torch.ones(16 << 20)
        hvd.allreduce_(tensor)
        if hvd.rank() == 1:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            while True:
                begin = time.monotonic()
                hvd.allreduce_(tensor)
        except hvd.HorovodInternalError as error:
            return time.monotonic() - begin, error.culprit_rank, error.code

    outcomes = pool.outcomes(body, size=3, env=data_path)
    assert outcomes[1] == ("died", -signal.SIGKILL)
    for kind, details in (outcomes[0], outcomes[2]):
        assert kind == "value", details
        seconds, culprit, code = details
        assert (culprit, code) == (1, "Unavailable")
        assert seconds < 20.0


def test_after_a_failure_the_survivors_can_start_a_new_session(pool, data_path) -> None:
    def body() -> list[int]:
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hvd.HorovodInternalError):
            hvd.barrier()
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1))
        assert caught.value.culprit_rank == 2
        hvd.shutdown()
        os.environ.update({"HVL_SIZE": "2", "HVL_LOCAL_SIZE": "2"})
        hvd.init()
        return hvd.allgather_object(hvd.rank())

    outcomes = pool.outcomes(body, size=3, env=data_path)
    assert outcomes[:2] == [("value", [0, 1])] * 2


def test_after_a_failure_during_backward_training_goes_on_in_a_new_session(pool, data_path) -> None:
    """Rank 2 dies while gradients are reduced; the others zero them and train on."""

    def body() -> None:
        weight = torch.nn.Parameter(torch.ones(100000))
        other = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=0.1))
        (weight.sum() + other.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)

        def fails() -> None:
            while True:
                (weight.sum() + other.sum()).backward()
                optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(hvd.HorovodInternalError) as caught:
            fails()
        assert caught.value.culprit_rank == 2
        optimizer.zero_grad()
        hvd.shutdown()
        os.environ.update({"HVL_SIZE": "2", "HVL_LOCAL_SIZE": "2"})
        hvd.init()
        hvd.broadcast_parameters([weight, other], 0)
        (weight.sum() * (1 + hvd.rank())).backward()
        optimizer.step()
        assert weight.grad[0] == 1.5

    outcomes = pool.outcomes(body, size=3, env=data_path)
    assert outcomes[:2] == [("value", None)] * 2


@pytest.mark.trial("B84")
def test_ranks_that_may_not_look_into_each_other_work_alike(run) -> None:
    """Memory comes from descriptors that are handed over, not from rights to trace."""

    def body() -> None:
        import ctypes

        get_dumpable, set_dumpable = 3, 4  # of <linux/prctl.h>
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        before = prctl(get_dumpable)
        assert prctl(set_dumpable, 0) == 0
        try:
            hvd.init()
            for count in (1, 1000, 3000000):
                tensor = torch.full((count,), float(hvd.rank()))
                assert torch.equal(hvd.allreduce(tensor), torch.full_like(tensor, 0.5))
            hvd.shutdown()
        finally:
            prctl(set_dumpable, before)

    run(body, initialize=False)


def test_a_forked_child_is_outside_and_leaves_its_parent_alone(run, plane) -> None:
    def body() -> None:
        tensor = torch.ones(3)
        handle = hvd.allreduce_async(tensor, name="before")
        child = os.fork()
        if child == 0:
            ok = not hvd.is_initialized()
            try:
                hvd.rank()
            except ValueError:
                os._exit(0 if ok else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert hvd.synchronize(handle).tolist() == [1.0] * 3
        assert hvd.allreduce(tensor).tolist() == [1.0] * 3

    run(body, env=plane)


def test_a_forked_child_may_exit_the_long_way(run_scripts) -> None:
    """Its destructors and exit handlers must not touch the session of the parent."""
    script = IMPORT + (
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]\n"
    )
    for ended in run_scripts([script] * 2):
        assert (ended.status, ended.errors) == (0, "")


def test_workers_of_a_data_loader_do_not_disturb_training(run) -> None:
    def body() -> None:
        dataset = torch.utils.data.TensorDataset(torch.arange(16.0))
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
        for _ in range(2):
            for (part,) in loader:
                assert hvd.allreduce(part).shape == (4,)

    run(body, env={"PYTHONWARNINGS": "ignore"})


def test_other_threads_run_while_one_waits(run) -> None:
    """The GIL is free in every wait, also in init()."""

    def body() -> None:
        ticks = 0
        done = threading.Event()

        def count() -> None:
            nonlocal ticks
            while not done.wait(0.001):
                ticks += 1

        thread = threading.Thread(target=count)
        late = os.environ["HVL_RANK"] == "1"

        def wait_for_the_late_one() -> int:
            before = ticks
            if late:
                time.sleep(0.3)
            return before

        thread.start()
        before = wait_for_the_late_one()
        hvd.init()
        assert late or ticks - before > 10
        for wait in (lambda: hvd.allreduce(torch.ones(1)), hvd.barrier):
            before = wait_for_the_late_one()
            wait()
            assert late or ticks - before > 10
        handle = hvd.allreduce_async(torch.ones(1), name="late") if not late else None
        before = wait_for_the_late_one()
        hvd.synchronize(handle or hvd.allreduce_async(torch.ones(1), name="late"))
        assert late or ticks - before > 10
        done.set()
        thread.join()

    run(body, initialize=False)


def test_several_threads_may_use_the_session(run, plane) -> None:
    def body() -> None:
        errors: list[BaseException] = []

        def work(thread: int) -> None:
            try:
                for step in range(30):
                    tensor = torch.full((10 * thread + 1,), float(hvd.rank() + step))
                    result = hvd.allreduce(tensor, name=f"{thread}.{step}")
                    assert torch.equal(result, torch.full_like(tensor, step + 0.5))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    run(body, env=plane)


def test_an_interrupt_ends_the_wait_and_not_the_operation(run, plane) -> None:
    """Ctrl-C while the other rank is late; the handle and the tensor stay good."""

    def body() -> None:
        if hvd.rank() == 0:
            tensor = torch.ones(1000)
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="late")
            for wait in (
                lambda: hvd.synchronize(handle),
                lambda: hvd.allreduce(torch.ones(1000), name="lost"),
                hvd.barrier,
            ):
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                begin = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    wait()
                assert time.monotonic() - begin < 20.0
            hvd.allreduce_async(torch.ones(1), name="go")
            assert hvd.synchronize(handle) is tensor
            assert tensor.tolist() == [2.0] * 1000
        else:
            hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="go"))
            handle = hvd.allreduce_async(torch.ones(1000), op=hvd.Sum, name="late")
            assert hvd.synchronize(handle).tolist() == [2.0] * 1000
            assert hvd.allreduce(torch.ones(1000), name="lost").tolist() == [1.0] * 1000
            hvd.barrier()
        hvd.barrier()
        assert session().counters()["operations_submitted"] == 5

    run(body, env=plane)


def test_an_interrupt_ends_the_wait_for_ranks_that_do_not_join_or_change_sets(
    run, plane, tmp_path: Path
) -> None:
    """init() can be called again; a change of the sets goes on, and the same call takes it up."""

    def body(gate: str) -> None:
        def interrupted(call: Callable[[], object]) -> None:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert time.monotonic() - begin < 20.0

        first = os.environ["HVL_RANK"] == "0"
        if first:
            interrupted(hvd.init)
            assert not hvd.is_initialized()
        with open(gate, "w" if first else "r"):  # noqa: PTH123  (rank 1 waits here for rank 0)
            pass
        hvd.init()
        chosen = hvd.ProcessSet([0])
        for call in (hvd.add_process_set, hvd.remove_process_set):
            if first:
                interrupted(lambda call=call: call(chosen))
                hvd.send(torch.ones(1), 1)
            else:
                hvd.recv(torch.zeros(1), 0)
            assert call(chosen)
            assert hvd.allgather_object(chosen.process_set_id) == [chosen.process_set_id] * 2
        assert hvd.add_process_set(chosen).process_set_id == 2

    os.mkfifo(tmp_path / "gate")
    run(body, str(tmp_path / "gate"), env=plane, initialize=False)

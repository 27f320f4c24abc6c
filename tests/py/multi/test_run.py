"""horovodlite.run(): a function as the ranks of a job."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from support.forks import ROOT

import horovodlite
from horovodlite.world import mpi_built

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def total(start: int, *, step: int = 1) -> tuple[int, float]:
    from tests.support import plain as hvd

    hvd.init()
    return hvd.rank(), hvd.allreduce(hvd.values(start + step * hvd.rank()), op=hvd.SUM)[0]


@pytest.mark.trial("B71")
def test_results_come_back_by_rank(data_path: dict[str, str]) -> None:
    results = horovodlite.run(total, args=(10,), kwargs={"step": 5}, np=2, env=data_path)
    assert results == [(0, 25.0), (1, 25.0)]


@pytest.mark.trial("B71")
def test_closures_and_lambdas_work_and_see_the_environment() -> None:
    offset = 7
    chosen = {"HVL_TEST_ONLY": "seen", "HOME": None}

    def place() -> tuple[int, str, bool]:
        return (
            offset + int(os.environ["HVL_RANK"]),
            os.environ["HVL_TEST_ONLY"],
            "HOME" in os.environ,
        )

    results = horovodlite.run(place, num_proc=3, env=chosen)
    assert results == [(7 + rank, "seen", False) for rank in range(3)]


@pytest.mark.trial("B71")
def test_a_function_of_a_script_or_notebook_works(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import horovodlite\n"
        "from beside import VALUE\n"
        "def work(x):\n    import beside\n    return x + beside.VALUE\n"
        "if __name__ == '__main__':\n    print(horovodlite.run(work, (1,), np=2))\n"
    )
    (tmp_path / "beside.py").write_text("VALUE = 41\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "[42, 42]\n", done.stderr


@pytest.mark.trial("B71")
def test_the_traceback_of_the_rank_that_failed_first_is_raised(
    capsys: Any, data_path: dict[str, str]
) -> None:
    def fails() -> None:
        from tests.support import plain as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the reason")
        hvd.allreduce(hvd.ones(1))  # fails as a consequence

    with pytest.raises(horovodlite.RunError, match="rank 1 of 2 failed") as caught:
        horovodlite.run(fails, np=2, env=data_path)
    assert "in fails" in str(caught.value)
    assert "KeyError: 'the reason'" in str(caught.value)
    assert "_worker.py" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.rank, caught.value.status) == (1, 1)
    assert "[1]<stderr>:KeyError: 'the reason'" in capsys.readouterr().err


def test_what_ranks_print_appears_where_python_prints(capsys: Any) -> None:
    horovodlite.run(lambda: print("hello"), np=2)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0]<stdout>:hello",
        "[1]<stdout>:hello",
    ]


class Closed(io.StringIO):
    """A stream that is closed at its other end, as behind `| head -1`."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def write(self, text: str) -> int:
        if self.good == 0:
            raise BrokenPipeError("closed")
        self.good -= 1
        return super().write(text)


def chatter() -> None:
    for _ in range(30000):  # far more than a pipe holds
        print("e" * 60, flush=True)
        print("f" * 60, file=sys.stderr, flush=True)


def failure_of_run(*args: Any, **how: Any) -> BaseException | None:
    """What run() raises; it is given a minute."""
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            horovodlite.run(*args, **how)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return caught[0] if caught else None


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_fails_ends_the_job_and_is_raised(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    stream = Closed(good=1)
    monkeypatch.setattr(sys, name, stream)
    failure = failure_of_run(chatter, np=1)
    assert isinstance(failure, BrokenPipeError)
    letter = {"stdout": "e", "stderr": "f"}[name]
    assert stream.getvalue() == f"[0]<{name}>:{letter * 60}\n"


def test_a_stream_that_fails_only_when_it_is_flushed_is_raised_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = open("/dev/full", "w", buffering=1 << 20)  # noqa: PTH123, SIM115  (fails when flushed)
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(OSError, match="No space left"):
        horovodlite.run(lambda: print("hello"), np=1)
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_letters_that_the_stream_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert horovodlite.run(lambda: print("gr\u00fcn"), np=1) == [None]
    assert stream.buffer.getvalue() == b"[0]<stdout>:gr\\xfcn\n"  # type: ignore[attr-defined]


def test_without_a_stream_the_output_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert horovodlite.run(lambda: print("hello"), np=1) == [None]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


@pytest.mark.trial("B71")
def test_what_cannot_be_pickled_is_an_error_at_the_caller() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        horovodlite.run(print, args=(Unpicklable(),))
    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        horovodlite.run(lambda: lock)
    with pytest.raises(horovodlite.RunError, match="cannot be pickled"):
        horovodlite.run(Unpicklable)
    assert horovodlite.run(lambda: 1, np=2) == [1, 1]


class TwoArgumentsError(Exception):  # pickles, as every exception does, and then lacks an argument
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first + second)


@pytest.mark.trial("B71")
def test_a_result_that_cannot_be_unpickled_is_an_error_that_names_its_rank() -> None:
    def work() -> Any:
        return TwoArgumentsError(1, 2) if os.environ["HVL_RANK"] == "1" else None

    words = "what rank 1 returned cannot be unpickled here: TypeError: .*second"
    with pytest.raises(horovodlite.RunError, match=words) as caught:
        horovodlite.run(work, np=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.trial("B71")
def test_a_rank_that_dies_is_named_by_the_launchers_words() -> None:
    def dies() -> None:
        if os.environ["HVL_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(horovodlite.RunError, match="first to fail: rank 1 of 2") as caught:
        horovodlite.run(dies, np=2)
    assert caught.value.status == 137


def test_a_rank_that_leaves_without_a_result_is_named() -> None:
    def leaves() -> None:
        if os.environ["HVL_RANK"] == "1":
            os._exit(0)

    with pytest.raises(horovodlite.RunError, match="without a result of rank 1"):
        horovodlite.run(leaves, np=2)


def test_options_are_handed_to_the_launcher(tmp_path: Path) -> None:
    place = ("HVL_CROSS_RANK", "HVL_START_TIMEOUT")
    results = horovodlite.run(
        lambda: [os.environ[name] for name in place],
        np=2,
        hosts="localhost:1,127.0.0.1:1",
        start_timeout=77,
        output_filename=str(tmp_path),
        use_gloo=True,
        disable_cache=True,
    )
    assert results == [["0", "77"], ["1", "77"]]
    assert (tmp_path / "rank.1" / "stdout").exists()


def test_mpi_starts_the_ranks_where_it_is_asked_for() -> None:
    if shutil.which("mpirun") is None or not mpi_built():
        pytest.skip("needs mpirun and a build with the MPI plug-in")
    assert horovodlite.run(total, args=(10,), np=2, use_mpi=True) == [(0, 21.0), (1, 21.0)]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"min_np": 1}, "--min-np"), ({"hosts": "nowhere.invalid:2"}, "nowhere.invalid")],
)
def test_what_the_launcher_refuses_is_raised_with_its_words(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(horovodlite.RunError, match=words):
        horovodlite.run(print, np=2, **options)


@pytest.mark.parametrize(
    "options", [{"hosts": "a:1", "hostfile": "b"}, {"use_gloo": True, "use_mpi": True}]
)
def test_arguments_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only allow one"):
        horovodlite.run(print, **options)


def test_an_interrupt_ends_the_job_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import horovodlite, os, sys, time\n"
        "def work(folder):\n"
        "    open(f'{folder}/{os.getpid()}', 'w').close()\n"
        "    time.sleep(600)\n"
        f"horovodlite.run(work, ({str(tmp_path)!r},), np=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(tmp_path.iterdir())) < 2:
        assert process.poll() is None
        threading.Event().wait(0.05)
    pids = [int(file.name) for file in tmp_path.iterdir()]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

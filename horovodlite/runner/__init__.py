"""Running a Python function as the ranks of a job: ``horovodlite.run()``."""

from __future__ import annotations

import operator
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Callable, SupportsIndex, TextIO

from horovodlite._environment import environment_with
from horovodlite._hvlrun import LAUNCHER
from horovodlite.runner.launch import HorovodArgs, command_line

__all__ = ["RunError", "run"]

_HorovodArgs = HorovodArgs  # Horovod's name, which its users' tests import

_WORKER = Path(__file__).with_name("_worker.py")


class RunError(RuntimeError):
    """A job of run() has failed.

    Attributes:
        rank: The rank that failed first, or None when the job failed as a whole.
        status: The exit status of ``hvlrun``.

    The message has the traceback of that rank, or the last words of ``hvlrun``. The exception that
    the function raised is the ``__cause__``, if it can be pickled.
    """

    def __init__(self, message: str, *, rank: int | None = None, status: int = 1) -> None:
        super().__init__(message)
        self.rank = rank
        self.status = status


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Iterable[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str | None] | None = None,
) -> list[Any]:
    """Returns what a function returns on each rank of a job, by rank.

    Starts the job with ``hvlrun`` and blocks until it has ended. The function is pickled by
    cloudpickle, so lambdas, closures and functions of a notebook work; it calls ``init()`` itself.
    What the ranks print appears here, tagged by rank, also in a notebook. Ctrl-C ends the job.
    Function and results travel in files that only this user can read.

    Args:
        func: The function; each rank calls it once.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks.
        np: The same; the shorter name.
        hosts: As ``-H`` of hvlrun.
        hostfile: As ``--hostfile``.
        start_timeout: Seconds that ``init()`` waits for all ranks.
        output_filename: Folder for ``rank.N/stdout`` and ``stderr``.
        verbose: Also tell what hvlrun does.
        network_interfaces: As ``--network-interfaces``.
        network_interface: The same as one string; deprecated.
        executable: The Python of the ranks; this one by default.
        env: Variables for the ranks, besides this process's own; None takes one away.
        min_num_proc: Elastic: hvlrun says what it makes of it; so with max_num_proc, slots,
            reset_limit, cooldown_range, host_discovery_script, min_np, max_np.
        max_num_proc: As min_num_proc.
        slots: As min_num_proc.
        reset_limit: As min_num_proc.
        cooldown_range: As min_num_proc.
        host_discovery_script: As min_num_proc.
        ssh_port: Of remote hosts.
        ssh_identity_file: For remote hosts.
        disable_cache: Changes nothing.
        use_gloo: Changes nothing.
        use_mpi: As ``--mpi``: mpirun starts the ranks, and MPI carries the data.
        mpi_args: With use_mpi: more words for mpirun.
        min_np: As min_num_proc.
        max_np: As max_num_proc.

    Raises:
        ValueError: Arguments that contradict each other.
        TypeError: An argument of the wrong kind. Nothing was started.
        RunError: A rank raised (the message has its traceback), died, or returned what cannot be
            pickled, or unpickled here; or hvlrun refused to start.
        OSError: What the ranks print cannot be written here; the job is ended.
        Exception: What pickling the function raises.

    Source: ``horovod.run``.

    Example:
        >>> import horovodlite
        >>> horovodlite.run(lambda x: x + 1, args=(1,), np=2)
        [2, 2]
    """
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if network_interface:
        warnings.warn(
            "network_interface is deprecated: use network_interfaces",
            DeprecationWarning,
            stacklevel=2,
        )
        network_interfaces = network_interface.split(",")
    _check_work(func, args, kwargs, env)
    options = HorovodArgs(
        num_proc=_count("num_proc", num_proc) if np is None else _count("np", np),
        min_num_proc=min_num_proc if min_np is None else min_np,
        max_num_proc=max_num_proc if max_np is None else max_np,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        hosts=hosts,
        hostfile=hostfile,
        host_discovery_script=host_discovery_script,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        disable_cache=disable_cache,
        output_filename=output_filename,
        verbose=verbose,
        use_gloo=use_gloo,
        use_mpi=use_mpi,
        mpi_args=mpi_args,
        nics=None if network_interfaces is None else list(network_interfaces),
        executable=executable,
    )
    return run_function(options, func, args, kwargs or {}, env or {})


def _count(name: str, value: Any) -> int:
    """The number of ranks; hvlrun says how many there may be."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    return operator.index(value)


def _check_work(func: Any, args: Any, kwargs: Any, env: Any) -> None:
    """Raises TypeError for what each rank could only fail on, or the job after its end."""
    if not callable(func):
        raise TypeError(f"func must be a function, not {func!r}")
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes)):
        raise TypeError(
            f"args must be a tuple of the function's arguments, not {args!r}; a single one is "
            "args=(value,)"
        )
    if not isinstance(kwargs, (Mapping, type(None))):
        raise TypeError(f"kwargs must be a dict, not {kwargs!r}")
    if not isinstance(env, (Mapping, type(None))):
        raise TypeError(f"env must be a dict of variables, not {env!r}")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, type(None))):
            raise TypeError(
                f"env has {name!r}: {value!r}: a variable and its value are text; None takes the "
                "variable away"
            )


def run_function(
    options: HorovodArgs,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    env: Mapping[str, str | None],
) -> list[Any]:
    """As run(), with the options of the launcher in one object."""
    import cloudpickle  # type: ignore[import-untyped]  # importing horovodlite does not need it

    work = cloudpickle.dumps((func, tuple(args), dict(kwargs)))
    setup = pickle.dumps({"path": sys.path, "drop_in": "horovodlite.drop_in" in sys.modules})
    with tempfile.TemporaryDirectory(prefix="horovodlite-run-") as folder:
        Path(folder, "job").write_bytes(setup + work)
        worker = [options.executable or sys.executable, str(_WORKER), folder]
        command = [str(LAUNCHER), *command_line(options), "--", *worker]
        status, words = _execute(command, environment_with(env))
        outcomes = [_outcome(Path(folder, str(rank))) for rank in range(options.num_proc)]
    return _results(status, words, outcomes)


def _execute(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Runs hvlrun and passes its output on. Its status, and what it said itself."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    output, errors = (
        _Copy(source, target, process.terminate)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    )
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        for copy in (output, errors):
            copy.join()
    for failure in (output.failure, errors.failure):
        if failure is not None:
            raise failure
    return status, "".join(errors.words)


class _Copy(threading.Thread):
    """Passes on what a job writes, to where Python prints, be it a notebook.

    It reads to the end even when it cannot write any more: a job whose output nobody reads would
    block on the full pipe, and so would who waits for the job.

    Attributes:
        failure: Why writing has failed, if it has.
        words: The lines of hvlrun itself.
    """

    def __init__(
        self, source: IO[str] | None, target: TextIO | None, give_up: Callable[[], None]
    ) -> None:
        """Starts at once.

        Args:
            source: Lines; closed at the end.
            target: None where Python has no such stream; then lines go nowhere.
            give_up: Called once, when writing fails.
        """
        super().__init__(daemon=True)
        assert source is not None
        self._source, self._target, self._give_up = source, target, give_up
        self.failure: BaseException | None = None
        self.words: list[str] = []
        self.start()

    def run(self) -> None:
        """Copies until the source ends."""
        with self._source:
            for line in self._source:
                if re.match(r"hvlrun\b", line):
                    self.words.append(line)
                self._attempt(partial(_write, line=line))
            self._attempt(lambda target: target.flush())

    def _attempt(self, operate: Callable[[TextIO], object]) -> None:
        if self._target is None or self.failure is not None:
            return
        try:
            operate(self._target)
        except BaseException as error:  # the caller raises it
            self.failure = error
            self._give_up()


def _write(target: TextIO, line: str) -> None:
    """Writes a line; what the stream's encoding lacks, as Python does on standard error."""
    try:
        target.write(line)
    except UnicodeEncodeError as error:
        target.write(line.encode(error.encoding, "backslashreplace").decode(error.encoding))


def _outcome(file: Path) -> dict[str, Any] | None:
    """What a rank has left, or None if it did not come so far."""
    if not file.exists():
        return None
    outcome: dict[str, Any] = pickle.loads(file.read_bytes())
    return outcome


def _results(status: int, words: str, outcomes: list[dict[str, Any] | None]) -> list[Any]:
    """The values of all ranks.

    Raises:
        RunError: There is one that has no value, or hvlrun was not content.
    """
    failed = [
        (outcome["is_consequence"], outcome["time"], rank, outcome)
        for rank, outcome in enumerate(outcomes)
        if outcome is not None and "traceback" in outcome
    ]
    if failed:
        _, _, rank, outcome = min(failed, key=lambda entry: entry[:3])
        error = RunError(
            f"rank {rank} of {len(outcomes)} failed:\n{outcome['traceback']}",
            rank=rank,
            status=status or 1,
        )
        raise error from _unpickled(outcome["error"])
    missing = [str(rank) for rank, outcome in enumerate(outcomes) if outcome is None]
    if status != 0:
        raise RunError(f"the job ended with exit status {status}\n{words}".rstrip(), status=status)
    if missing:
        raise RunError(
            f"the job ended without a result of rank {', '.join(missing)}", status=status
        )
    return [
        _value(rank, outcome["value"])
        for rank, outcome in enumerate(outcomes)
        if outcome is not None
    ]


def _value(rank: int, pickled: bytes) -> Any:
    """What a rank has returned.

    Raises:
        RunError: It cannot be unpickled in this process.
    """
    try:
        return pickle.loads(pickled)
    except Exception as error:  # its module may not exist here, or its class not take what it gives
        raise RunError(
            f"what rank {rank} returned cannot be unpickled here: {type(error).__name__}: {error}; "
            "return numbers, text, tensors and lists or dicts of them",
            rank=rank,
        ) from error


def _unpickled(error: bytes | None) -> BaseException | None:
    """The exception of a rank, if it can be had in this process."""
    try:
        found = pickle.loads(error) if error is not None else None
    except Exception:  # its class may not exist here, or not take its own arguments
        return None
    return found if isinstance(found, BaseException) else None

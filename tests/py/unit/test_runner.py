"""The helpers that Horovod's users import from its runner."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.forks import ROOT

import horovodlite
from horovodlite import _environment as env
from horovodlite.runner import hosts, launch, options, secret, settings, shell, threads
from horovodlite.runner import other_launchers as other


def parse(monkeypatch: pytest.MonkeyPatch, *words: str) -> launch.HorovodArgs:
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    return launch.parse_args()


def variables(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    return dict(options.set_env_from_args({}, parse(monkeypatch, "-np", "2", *words)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (
            ["--fusion-threshold-mb", "10", "--cycle-time-ms", "20", "--cache-capacity", "512"],
            {"FUSION_THRESHOLD": "10485760", "CYCLE_TIME": "20.0", "CACHE_CAPACITY": "512"},
        ),
        (
            ["--hierarchical-allreduce", "--no-torus-allreduce"],
            {"HIERARCHICAL_ALLREDUCE": "1", "TORUS_ALLREDUCE": "0"},
        ),
        (
            ["--autotune", "--autotune-log-file", "a", "--autotune-gaussian-process-noise", "0.2"],
            {"AUTOTUNE": "1", "AUTOTUNE_LOG": "a", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.2"},
        ),
        (["--autotune-log-file", "a"], {}),
        (
            ["--timeline-filename", "/t", "--timeline-mark-cycles"],
            {"TIMELINE": "/t", "TIMELINE_MARK_CYCLES": "1"},
        ),
        (["--no-stall-check"], {"STALL_CHECK_DISABLE": "1"}),
        (
            ["--stall-check-warning-time-seconds=10", "--stall-check-shutdown-time-seconds", "20"],
            {"STALL_CHECK_TIME_SECONDS": "10", "STALL_SHUTDOWN_TIME_SECONDS": "20"},
        ),
        (
            ["--mpi-threads-disable", "--num-nccl-streams", "2", "--gloo-timeout-seconds", "60"],
            {"MPI_THREADS_DISABLE": "1", "NUM_NCCL_STREAMS": "2", "GLOO_TIMEOUT_SECONDS": "60"},
        ),
        (
            ["--log-level", "INFO", "--log-hide-timestamp"],
            {"LOG_LEVEL": "INFO", "LOG_HIDE_TIME": "1"},
        ),
        (["--log-with-timestamp"], {"LOG_HIDE_TIME": "0"}),
    ],
)
def test_flags_become_variables(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, str]
) -> None:
    assert variables(monkeypatch, *words) == {f"HOROVOD_{k}": v for k, v in expected.items()}


def test_variables_that_no_flag_sets_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "1800"}
    options.set_env_from_args(environment, parse(monkeypatch, "-np", "2"))
    assert environment == {"HOROVOD_GLOO_TIMEOUT_SECONDS": "1800"}
    assert options.HOROVOD_CYCLE_TIME == "HOROVOD_CYCLE_TIME"
    with pytest.raises(AttributeError, match="HOROVOD_NONSENSE"):
        options.HOROVOD_NONSENSE  # noqa: B018  (the access is the test)


CONFIG = """
controller: gloo
params: {fusion_threshold_mb: 32, cycle_time_ms: 10, hierarchical_allreduce: true}
autotune: {enabled: true, warmup_samples: 5}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 120}
library_options: {thread_affinity: 1}
logging: {level: INFO, with_timestamp: false}
"""


def test_the_command_line_is_stronger_than_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    words = ["--fusion-threshold-mb", "256", "--config-file", str(file), "--cycle-time-ms", "20"]
    args = parse(monkeypatch, "-np", "2", *words)
    assert (args.fusion_threshold_mb, args.cycle_time_ms, args.use_gloo) == (256, 20, True)
    assert (args.hierarchical_allreduce, args.autotune, args.autotune_warmup_samples) == (1, 1, 5)
    assert (args.timeline_filename, args.timeline_mark_cycles) == ("t.json", True)
    assert (args.no_stall_check, args.stall_check_warning_time_seconds) == (True, 120)
    assert (args.thread_affinity, args.log_level, args.log_with_timestamp) == (1, "INFO", False)


@pytest.mark.parametrize(
    "words", [["--fusion-threshold-mb", "-1"], ["--autotune-gaussian-process-noise", "1.5"]]
)
def test_numbers_out_of_range_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse(monkeypatch, "-np", "2", *words)


def test_arguments_become_options_of_hvlrun(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-np", "3", "-H", "localhost:3", "--network-interfaces", "lo", "--verbose"]
    words += ["--network-interface", "eth0,eth1", "train", "--flag"]
    args = parse(monkeypatch, *words)
    assert args.command == ["train", "--flag"]
    assert args.nics == {"lo", "eth0", "eth1"}
    line = launch.command_line(launch.HorovodArgs(num_proc=3, hosts="a:3", cooldown_range=(1, 2)))
    assert line == ["-np", "3", "-H", "a:3", "--blacklist-cooldown-range", "1", "2"]


class _Launches:
    """Stands for subprocess.run and remembers the command lines, without the program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[list[str]] = []
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], **_how: Any) -> subprocess.CompletedProcess[str]:
        self.seen.append(command[1:])
        return subprocess.CompletedProcess(command, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "--hostfile hosts --start-timeout 7 -p 22 -i key",
            "--hostfile hosts --start-timeout 7 --ssh-port 22 --ssh-identity-file key",
        ),
        ("--gloo --tcp --disable-cache", "--disable-cache --gloo --tcp"),
        ("--mpi --mpi-args x --binding-args y", "--mpi-args x --binding-args y --mpi"),
        (
            "--min-np 1 --max-np 4 --host-discovery-script found.sh",
            "--min-np 1 --max-np 4 --host-discovery-script found.sh",
        ),
        (
            "-H a:2 --output-filename out --verbose --network-interfaces eth1,eth0",
            "-H a:2 --output-filename out --verbose --network-interfaces eth0,eth1",
        ),
    ],
)
def test_a_command_is_run_with_every_option_that_was_parsed(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: str
) -> None:
    launches = _Launches(monkeypatch)
    args = parse(monkeypatch, "-np", "2", *line.split(), "python", "x.py")
    assert launch._run(args) is None
    assert launches.seen == [["-np", "2", *expected.split(), "--", "python", "x.py"]]


def test_settings_are_handed_over_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = _Launches(monkeypatch)
    chosen = settings.Settings(
        num_proc=2,
        ssh_port=22,
        ssh_identity_file="key",
        start_timeout=settings.Timeout(100.5, "late"),
        nics=["b", "a"],
    )
    launch.gloo_run(chosen, None, {}, None, ["x"])
    (words,) = launches.seen
    assert words == [
        *("-np", "2", "--start-timeout", "100", "--ssh-port", "22", "--ssh-identity-file", "key"),
        *("--network-interfaces", "a,b", "--", "x"),
    ]


def test_hosts_are_the_only_setting_by_position() -> None:
    """As in Horovod, whose other settings have names."""
    assert settings.Settings("a:1", num_proc=2, verbose=1).hosts == "a:1"
    assert settings.Settings("a:1") == settings.Settings(hosts="a:1")
    assert settings.Settings("a:1") != settings.Settings("b:1")
    assert settings.BaseSettings(3, 2).num_proc == 3
    with pytest.raises(TypeError):
        settings.Settings("a:1", 2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("asked", "used"),
    [((), True), ((True, False, False), True), ((False, True), False), ((None, None, True), False)],
)
def test_what_stands_for_gloo_is_used_unless_something_else_is_asked_for(
    asked: tuple[bool | None, ...], used: bool
) -> None:
    assert launch.is_gloo_used(*asked) is used


def test_what_the_build_can_do_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.check_build(verbose=False)
    assert ended.value.code == 0
    assert "Available Frameworks" in capfd.readouterr().out


def test_what_the_build_can_do_is_asked_without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = _Launches(monkeypatch)
    for flag in ("-cb", "--check-build"):
        args = parse(monkeypatch, flag)
        assert (args.check_build, args.num_proc) == (True, None)
        launch._run(args)
    assert launches.seen == [["--check-build"]] * 2
    with pytest.raises(SystemExit):
        parse(monkeypatch, "python", "x.py")


@pytest.mark.parametrize("affinity", ['"0,1"', "1"])
def test_the_affinity_is_a_list_of_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, affinity: str
) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "config.yaml"
    file.write_text(f"library_options: {{thread_affinity: {affinity}}}")
    expected = {"HOROVOD_THREAD_AFFINITY": affinity.strip('"')}
    assert variables(monkeypatch, "--config-file", str(file)) == expected
    assert variables(monkeypatch, "--thread-affinity", affinity.strip('"')) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("params: {cycle_time_ms: fast}", "params: cycle_time_ms: 'fast' must be a number"),
        ("params: {cache_capacity: 1.5}", "params: cache_capacity: 1.5 must be a whole number"),
        ("params: {cache_capacity: true}", "cache_capacity: True must be a whole number"),
        ('autotune: {enabled: "no"}', "autotune: enabled: 'no' must be true or false"),
        ("timeline: {filename: [a]}", r"timeline: filename: \['a'\] must be text"),
        ("params: 3", "params: 3 must be a section of keys"),
        ("[1]", r"must hold sections of keys, not \[1\]"),
        ('library_options: {thread_affinity: "0;1"}', "thread_affinity=0;1 must be numbers"),
    ],
)
def test_values_of_a_file_that_have_the_wrong_type_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, words: str
) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=words):
        parse(monkeypatch, "-np", "2", "--config-file", str(file))


def test_hosts_are_read_from_text_and_files(tmp_path: Path) -> None:
    parsed = hosts.parse_hosts("worker-0:2,[fe80::1]:4")
    assert [(host.hostname, host.slots) for host in parsed] == [("worker-0", 2), ("[fe80::1]", 4)]
    assert hosts.parse_hosts_and_slots("a:1,b:2") == (["a", "b"], {"a": 1, "b": 2})
    file = tmp_path / "hosts"
    file.write_bytes(b"# all\r\n172.31.32.7 slots=8\r\n\r\n172.31.33.9:4 # two")
    assert hosts.parse_host_files(file) == "172.31.32.7:8,172.31.33.9:4"
    file.write_text("a slots=2\nb slots=x\n")
    with pytest.raises(ValueError, match=r"line 2: Invalid host input 'b slots=x'"):
        hosts.parse_host_files(str(file))
    with pytest.raises(ValueError, match="Invalid host input 'a', please"):
        hosts.parse_hosts("a")


def places(text: str, *counts: int) -> list[tuple[int, ...]]:
    return [
        (s.rank, s.local_rank, s.cross_rank, s.size, s.local_size, s.cross_size)
        for s in hosts.get_host_assignments(hosts.parse_hosts(text), *counts)
    ]


def test_ranks_are_dealt_out_host_by_host() -> None:
    assert places("a:2,b:2", 4) == [
        (0, 0, 0, 4, 2, 2),
        (1, 1, 0, 4, 2, 2),
        (2, 0, 1, 4, 2, 2),
        (3, 1, 1, 4, 2, 2),
    ]
    assert places("a:2,b:2", 1, 2) == [(0, 0, 0, 2, 2, 1), (1, 1, 0, 2, 2, 1)]
    assert places("a:1,b:2", 3) == [(0, 0, 0, 3, 1, 2), (1, 0, 1, 3, 2, 2), (2, 1, 0, 3, 2, 1)]
    with pytest.raises(ValueError, match=r"\(5\) than there are available slots \(3\)"):
        places("a:1,b:2", 5)


def test_a_host_has_one_name_and_another_one_with_salt() -> None:
    assert hosts.host_hash() == hosts.host_hash("") != hosts.host_hash("salt")


def test_rank_and_size_come_from_the_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "3")
    with pytest.raises(RuntimeError, match="only one of PMI_RANK and PMI_SIZE"):
        env.get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "4")
    assert env.get_env_rank_and_size() == (3, 4)
    assert [env.is_exportable(n) for n in ("PATH", "OLDPWD", "BASH_FUNC_f%%")] == [
        True,
        False,
        False,
    ]


def test_a_digest_fits_its_key_and_message() -> None:
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"another", digest)
    assert not secret.check_digest(secret.make_secret_key(), b"message", digest)


def test_a_timeout_that_is_over_says_of_what() -> None:
    assert settings.Timeout(60, "never").remaining() > 0
    over = settings.Timeout(-1, "Timed out waiting for {activity}.")
    assert over.timed_out()
    with pytest.raises(settings.TimeoutException, match=r"waiting for hosts\. Timeout after -1"):
        over.check_time_out_for("hosts")


def test_functions_run_in_threads() -> None:
    seen: list[Any] = []
    threads.in_thread(seen.append, (1,)).join()
    threads.in_thread(lambda: 1 / 0, silent=True).join()
    event, stop = threading.Event(), threading.Event()
    waiting = threads.on_event(event, seen.append, (2,))
    stopped = threads.on_event(event, seen.append, (3,), stop=stop, check_stop_interval_s=0.01)
    stop.set()
    stopped.join()
    event.set()
    waiting.join()
    assert seen == [1, 2]
    assert threads.execute_function_multithreaded(pow, [[2, 3], [3, 2]]) == {0: 8, 1: 9}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: threads.in_thread(print, args=1), "args must be a tuple, not <class 'int'>"),
        (lambda: threads.on_event(None, print), "Event must not be None"),
        (
            lambda: threads.on_event(threading.Event(), print, daemon=False),
            "Stop event must be given",
        ),
    ],
)
def test_threads_refuse_what_makes_no_sense(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def copied(data: bytes, prefix: str | None, index: int | None, stamp: bool = False) -> str:
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    target = io.StringIO()
    shell.prefix_connection(os.fdopen(source, "rb"), target, prefix, index, stamp)
    return target.getvalue()


def test_lines_get_tags() -> None:
    assert copied(b"a\nb\r\xe2\x88\x80\nlast", "out", 1) == (
        "[1]<out>:a\n[1]<out>:b\r[1]<out>:\u2200\n[1]<out>:last"
    )
    assert copied(b"a\nb", None, 1) == copied(b"a\nb", "out", None) == "a\nb"
    stamped = copied(b"a\n", "out", 1, stamp=True)
    assert stamped.endswith("[1]<out>:a\n")
    assert len(stamped) > len("[1]<out>:a\n")


class Closed(io.StringIO):
    """A stream that is closed at its other end, as behind `| head -1`."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(f"cannot write {text[:1]!r}")


def test_a_source_is_read_to_its_end_though_its_target_fails() -> None:
    source, sink = os.pipe()
    written = threads.in_thread(lambda: (os.write(sink, b"x\n" * 200000), os.close(sink)))
    with pytest.raises(BrokenPipeError, match="cannot write 'x'"):
        shell.prefix_connection(os.fdopen(source, "rb"), Closed(), None, None, False)
    written.join()


@pytest.mark.parametrize("number", [1, 2])
def test_a_stream_that_fails_ends_the_shell_command_and_is_raised(number: int) -> None:
    streams: list[io.StringIO] = [io.StringIO(), io.StringIO()]
    streams[number - 1] = Closed()
    with pytest.raises(BrokenPipeError, match="cannot write"):
        shell.execute(f"yes >&{number}", None, *streams)


@pytest.mark.parametrize(
    ("command", "status", "output", "errors"),
    [
        ("echo hello; printf last", 0, "hello\nlast", ""),
        ("echo hello >&2; exit 3", 3, "", "hello\n"),
        ("kill -TERM $$", 128 + signal.SIGTERM, "", ""),
    ],
)
def test_a_shell_command_gives_status_and_output(
    command: str, status: int, output: str, errors: str
) -> None:
    streams = io.StringIO(), io.StringIO()
    assert shell.execute(command, stdout=streams[0], stderr=streams[1]) == status
    assert (streams[0].getvalue(), streams[1].getvalue()) == (output, errors)


def test_a_shell_command_ends_when_an_event_says_so() -> None:
    event = threading.Event()
    streams = io.StringIO(), io.StringIO()
    threading.Timer(0.2, event.set).start()
    assert shell.execute("sleep 600", None, *streams, events=[event]) == 128 + signal.SIGTERM


def test_a_shell_command_ends_with_the_process_that_runs_it() -> None:
    script = "from horovodlite.runner import shell; shell.execute('echo $$; exec sleep 600')"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    command = int(process.stdout.readline())
    watched = os.pidfd_open(command)
    process.kill()
    process.wait()
    ended, _, _ = select.select([watched], [], [], 30)
    os.close(watched)
    assert ended


def test_a_command_runs_as_ranks(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo $X > {tmp_path}/$HVL_RANK"]
    launch.gloo_run(settings.Settings(num_proc=2), None, {"X": "here"}, "127.0.0.1", command)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["here\n"] * 2
    with pytest.raises(RuntimeError, match="exit status 3"):
        launch.gloo_run(settings.Settings(num_proc=1), None, {}, None, ["sh", "-c", "exit 3"])


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4", 0, "OpenMPI"),
        ("OpenRTE", 0, "OpenMPI"),
        ("HYDRA build details:", 0, "MPICH"),
        ("Intel(R) MPI Library for Linux* OS", 0, "IntelMPI"),
        ("IBM Spectrum MPI", 0, "SpectrumMPI"),
        ("somebody else's", 0, "Unknown"),
        ("Open MPI", 1, "Missing"),
    ],
)
def test_the_mpi_that_is_installed_is_known(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], said: str, status: int, expected: str
) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(0o755)
    found = other._get_mpi_implementation({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found == expected
    assert (said in capfd.readouterr().err) == (expected in ("Unknown", "Missing"))


def test_no_mpi_is_known_as_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert other._get_mpi_implementation({"PATH": str(tmp_path)}) == "Missing"
    assert "not found" in capfd.readouterr().err


def test_other_launchers_have_names_and_refuse() -> None:
    assert not other.mpi_available()
    with pytest.raises(NotImplementedError, match="mpi_run: horovodlite starts ranks with hvlrun"):
        other.mpi_run(None, None, {}, ["x"])
    with pytest.raises(ValueError, match="not with MPI"):
        launch.run_controller(False, print, True, print, False, print, 0)


def test_the_time_before_a_line_is_that_of_time_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    stamped = copied(b"a\n", "out", 1, stamp=True)
    assert stamped == f"{time.asctime(time.localtime(0))}[1]<out>:a\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"func": 5}, "func must be a function, not 5"),
        ({"args": 5}, r"args must be a tuple .* not 5; a single one is args=\(value,\)"),
        ({"args": "abc"}, "args must be a tuple .* not 'abc'"),
        ({"kwargs": ["a"]}, "kwargs must be a dict"),
        ({"np": "2"}, "np must be a whole number, not '2'"),
        ({"num_proc": 1.5}, "num_proc must be a whole number, not 1.5"),
        ({"np": True}, "np must be a whole number, not True"),
        ({"env": 5}, "env must be a dict of variables, not 5"),
        ({"env": {"A": 1}}, "env has 'A': 1: a variable and its value are text"),
    ],
)
def test_run_refuses_arguments_of_the_wrong_kind_before_it_starts_anything(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(TypeError, match=message):
        horovodlite.run(**{"func": print, **arguments})


def test_a_rank_that_does_not_see_the_callers_folder_says_what_to_do(tmp_path: Path) -> None:
    worker = ROOT / "horovodlite" / "runner" / "_worker.py"
    command = [sys.executable, str(worker), str(tmp_path / "elsewhere")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "is not on this host" in ended.stderr
    assert "set TMPDIR to a folder that all of them see" in ended.stderr
    assert "Traceback" not in ended.stderr

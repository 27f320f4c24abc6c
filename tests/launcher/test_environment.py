"""What a rank finds in its environment and among its descriptors."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, Launcher, read_json

DUMP = """
import base64, json, os, sys
fds = [int(name) for name in os.listdir("/proc/self/fd")]
env = [[base64.b64encode(k).decode(), base64.b64encode(v).decode()] for k, v in os.environb.items()]
with open(f"rank{os.environ['RANK']}.json", "w") as file:
    json.dump({"env": env, "fds": fds, "argv": sys.argv[1:]}, file)
"""


def dumps(hvlrun: Launcher, *words: str, **options: Any) -> list[dict[str, Any]]:
    """Runs a job whose ranks report what they see; names and values are bytes."""
    at = words.index("--") if "--" in words else len(words)
    command = [*words[:at], *hvlrun.script(DUMP), *words[at + 1 :]]
    ended = hvlrun(*command, **options)
    assert ended.code == 0, ended.error_text
    seen = read_json(hvlrun.folder, "rank*.json")
    for rank in seen:
        pairs = [(base64.b64decode(k), base64.b64decode(v)) for k, v in rank["env"]]
        rank["env"] = dict(pairs)
    return seen


def text(rank: dict[str, Any], name: str) -> str | None:
    value = rank["env"].get(name.encode())
    return None if value is None else value.decode()


def test_each_rank_is_told_its_place_under_all_usual_names(hvlrun: Launcher) -> None:
    ranks = dumps(hvlrun, "-np", "3")
    assert len(ranks) == 3
    for number, rank in enumerate(ranks):
        for name in ("HVL_RANK", "HOROVOD_RANK", "RANK", "HVL_LOCAL_RANK", "LOCAL_RANK"):
            assert text(rank, name) == str(number), name
        for name in ("HVL_SIZE", "HOROVOD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            assert text(rank, name) == "3", name
        assert text(rank, "HVL_CROSS_SIZE") == "1"
        assert text(rank, "HOROVOD_HOSTNAME") == "localhost"
        assert text(rank, "MASTER_ADDR") == "127.0.0.1"
        assert text(rank, "PYTHONUNBUFFERED") == "1"
    shared = [(text(r, "HVL_JOB_ID"), text(r, "HVL_STORE"), text(r, "MASTER_PORT")) for r in ranks]
    assert len(set(shared)) == 1
    assert all(shared[0])


@pytest.mark.trial("B78")
def test_unequal_hosts_give_consistent_local_and_cross_ranks(hvlrun: Launcher) -> None:
    ranks = dumps(hvlrun, "-np", "4", "-H", "localhost:1,127.0.0.1:3")
    names = ("HVL_LOCAL_RANK", "HVL_LOCAL_SIZE", "HVL_CROSS_RANK", "HVL_CROSS_SIZE")
    places = [tuple(int(text(rank, name) or -1) for name in names) for rank in ranks]
    assert places == [(0, 1, 0, 2), (0, 3, 1, 2), (1, 3, 0, 1), (2, 3, 0, 1)]


@pytest.mark.trial("B72", "B73")
def test_the_users_environment_arrives_byte_for_byte(hvlrun: Launcher) -> None:
    odd = {
        b"MULTI": b"one\ntwo\n",
        b"QUOTED": b"'\"$HOME \\ `x`",
        b"EMPTY": b"",
        b"FOO.BAR": b"1",
        b"a-b": b"2",
        b"BASH_FUNC_foo%%": b"() {  echo from foo\n}",
        b"NOT_UTF8": b"\xff\xfe\x01",
        b"BIG": b"x" * 100_000,
    }
    env = {os.fsdecode(k): os.fsdecode(v) for k, v in odd.items()}
    for rank in dumps(hvlrun, "-np", "2", env=env):
        assert {k: rank["env"].get(k) for k in odd} == odd


@pytest.mark.trial("B72")
def test_exported_bash_functions_work_in_ranks(hvlrun: Launcher) -> None:
    line = f"greet() {{ echo hello $1; }}; export -f greet; {HVLRUN} -np 1 bash -c 'greet you'"
    done = subprocess.run(
        ["bash", "-c", line], check=False, capture_output=True, env=hvlrun.env(), timeout=60
    )
    assert done.stdout == b"[0]<stdout>:hello you\n", done.stderr


def test_x_sets_a_variable_and_warns_about_one_that_is_not_set(hvlrun: Launcher) -> None:
    ranks = dumps(hvlrun, "-np", "2", "-x", "A=1", "-x", "B=x=y z", env={"A": "0"})
    assert [(text(r, "A"), text(r, "B")) for r in ranks] == [("1", "x=y z")] * 2
    ended = hvlrun("-np", "1", "-x", "NO_SUCH_VARIABLE", "true")
    assert ended.code == 0
    assert "NO_SUCH_VARIABLE: this variable is not set" in ended.error_text


def test_x_takes_a_pattern_and_warns_when_nothing_matches(hvlrun: Launcher) -> None:
    env = {"MINE_A": "1", "MINE_B": "2"}
    ended = hvlrun("-np", "1", "-x", "MINE_*", "sh", "-c", "echo $MINE_A$MINE_B", env=env)
    assert (ended.out, ended.err) == (b"[0]<stdout>:12\n", b"")
    ended = hvlrun("-np", "1", "-x", "YOURS_*", "true", env=env)
    assert ended.code == 0
    assert "-x 'YOURS_*': no variable of this name is set" in ended.error_text


@pytest.mark.trial("B74")
@pytest.mark.parametrize(
    ("words", "env", "winner"),
    [
        ([], {}, None),
        ([], {"HVL_CACHE_CAPACITY": "11"}, "11"),
        (["--cache-capacity", "22"], {"HVL_CACHE_CAPACITY": "11"}, "22"),
        (["--cache-capacity", "22", "-x", "HVL_CACHE_CAPACITY=33"], {}, "22"),
        (["-x", "HVL_CACHE_CAPACITY=33"], {"HVL_CACHE_CAPACITY": "11"}, "33"),
    ],
)
def test_flag_beats_environment_beats_default(
    hvlrun: Launcher, words: list[str], env: dict[str, str], winner: str | None
) -> None:
    assert text(dumps(hvlrun, "-np", "1", *words, env=env)[0], "HVL_CACHE_CAPACITY") == winner


FILE = "params:\n  cache_capacity: 44\nstall_check:\n  enabled: false\n"


@pytest.mark.trial("B74")
@pytest.mark.parametrize(
    ("words", "env", "winner"),
    [
        ([], {}, "44"),
        ([], {"HVL_CACHE_CAPACITY": "11"}, "44"),
        ([], {"HOROVOD_CACHE_CAPACITY": "11"}, "44"),
        (["-x", "HVL_CACHE_CAPACITY=33"], {}, "33"),
        (["--cache-capacity", "22"], {"HVL_CACHE_CAPACITY": "11"}, "22"),
        (["--cache-capacity", "22", "-x", "HVL_CACHE_CAPACITY=33"], {}, "22"),
    ],
)
@pytest.mark.parametrize("file_last", [False, True])
def test_the_command_line_beats_the_file_wherever_it_stands_and_the_file_the_environment(
    hvlrun: Launcher, words: list[str], env: dict[str, str], winner: str, file_last: bool
) -> None:
    (hvlrun.folder / "job.yaml").write_text(FILE)
    file = ["--config-file", "job.yaml"]
    options = [*words, *file] if file_last else [*file, *words]
    rank = dumps(hvlrun, "-np", "1", *options, env=env)[0]
    assert text(rank, "HVL_CACHE_CAPACITY") == winner
    assert text(rank, "HVL_STALL_CHECK_DISABLE") == "1"


def test_an_exported_horovod_name_also_beats_the_file(hvlrun: Launcher) -> None:
    (hvlrun.folder / "job.yaml").write_text(FILE)
    words = ["--config-file", "job.yaml", "-x", "HOROVOD_CACHE_CAPACITY=33"]
    rank = dumps(hvlrun, "-np", "1", *words)[0]
    assert text(rank, "HOROVOD_CACHE_CAPACITY") == "33"
    assert text(rank, "HVL_CACHE_CAPACITY") is None


@pytest.fixture
def package(hvlrun: Launcher) -> Path:
    """hvlrun as it is installed, in a package with a drop-in folder that stands in for horovod."""
    package = hvlrun.folder / "site-packages" / "horovodlite"
    (package / "bin").mkdir(parents=True)
    shutil.copy(HVLRUN, package / "bin" / "hvlrun")
    torch = package / "_drop_in_site" / "horovod" / "torch"
    torch.mkdir(parents=True)
    (torch.parent / "__init__.py").touch()
    (torch / "__init__.py").write_text("drop_in = True\n")
    return package


def run_installed(hvlrun: Launcher, package: Path, *words: str, **env: str) -> list[str]:
    command = [str(package / "bin" / "hvlrun"), "-np", "1", *words]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        env=hvlrun.env(env),
        cwd=hvlrun.folder,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def test_in_drop_in_mode_import_horovod_finds_ours_first(hvlrun: Launcher, package: Path) -> None:
    other = hvlrun.folder / "other" / "horovod"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('the installed Horovod')\n")
    code = """
        import os
        import horovod.torch as hvd
        print(hvd.drop_in, os.environ["HVL_UNNAMED_SITES"], os.environ["PYTHONPATH"])
    """
    path = str(other.parent)
    site = package / "_drop_in_site"
    for words in (["--drop-in"], ["-x", f"PYTHONPATH={path}", "--drop-in"]):
        lines = run_installed(hvlrun, package, *words, *hvlrun.script(code), PYTHONPATH=path)
        assert lines == [f"[0]<stdout>:True warn {site}:{path}"]
    (hvlrun.folder / "link").symlink_to(package / "bin" / "hvlrun")
    linked = [str(hvlrun.folder / "link"), "-np", "1", "--drop-in", *hvlrun.script(code)]
    done = subprocess.run(linked, check=False, capture_output=True, env=hvlrun.env(), timeout=60)
    assert done.stdout.decode().startswith(f"[0]<stdout>:True warn {site}")


def test_drop_in_mode_keeps_what_is_said_about_unnamed_operations(
    hvlrun: Launcher, package: Path
) -> None:
    command = ["sh", "-c", "echo $HVL_UNNAMED_SITES"]
    said = {"HVL_UNNAMED_SITES": "off"}
    assert run_installed(hvlrun, package, "--drop-in", *command, **said) == ["[0]<stdout>:off"]
    exported = ["-x", "HVL_UNNAMED_SITES=error"]
    lines = run_installed(hvlrun, package, *exported, "--drop-in", *command, **said)
    assert lines == ["[0]<stdout>:error"]
    assert run_installed(hvlrun, package, *command) == ["[0]<stdout>:"]


@pytest.mark.trial("B74")
def test_a_flag_also_sets_the_horovod_name(hvlrun: Launcher) -> None:
    env = {"HOROVOD_FUSION_THRESHOLD": "1024"}
    rank = dumps(hvlrun, "-np", "1", "--fusion-threshold-mb", "32", env=env)[0]
    assert (
        text(rank, "HVL_FUSION_THRESHOLD") == text(rank, "HOROVOD_FUSION_THRESHOLD") == "33554432"
    )


def test_a_bad_knob_in_the_environment_is_one_error_before_the_start(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "touch", "started", env={"HVL_CACHE_CAPACITY": "12abc"})
    assert ended.code == 125
    assert ended.error_text.startswith("hvlrun: HVL_CACHE_CAPACITY='12abc' is not valid")
    assert ended.error_text.count("\n") == 1
    assert not (hvlrun.folder / "started").exists()


@pytest.mark.trial("B96")
def test_threads_follow_the_allowed_processors_unless_the_user_said(hvlrun: Launcher) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    fair = str(max(1, len(allowed) // 2))
    assert text(dumps(hvlrun, "-np", "2")[0], "OMP_NUM_THREADS") == fair
    kept = dumps(hvlrun, "-np", "2", env={"OMP_NUM_THREADS": "13"})[0]
    assert text(kept, "OMP_NUM_THREADS") == "13"
    prefix = ["taskset", "-c", str(allowed[0])]
    masked = dumps(hvlrun, "-np", "1", command_prefix=prefix)[0]
    assert text(masked, "OMP_NUM_THREADS") == "1"


def test_a_job_inside_a_job_gets_its_own_identity(hvlrun: Launcher) -> None:
    inner = f"{HVLRUN} -np 2 sh -c 'echo $HVL_RANK/$HVL_SIZE $HVL_JOB_ID'"
    ended = hvlrun("-np", "1", "sh", "-c", f"echo $HVL_RANK/$HVL_SIZE $HVL_JOB_ID; {inner}")
    assert ended.code == 0, ended.error_text
    words = [line.split(":")[-1].split() for line in ended.lines]
    assert sorted(place for place, _ in words) == ["0/1", "0/2", "1/2"]
    assert len({job for _, job in words}) == 2


def test_a_rank_has_three_streams_the_secret_its_page_and_nothing_else(hvlrun: Launcher) -> None:
    for rank in dumps(hvlrun, "-np", "2", close_fds=True):
        given = {int(text(rank, name) or -1) for name in ("HVL_SECRET_FD", "HVL_STATUS_FD")}
        assert len(given) == 2
        assert min(given) > 2
        # The listing itself opens one more.
        assert len(set(rank["fds"]) - {0, 1, 2} - given) == 1, rank["fds"]


def test_descriptors_of_the_caller_are_passed_on(hvlrun: Launcher) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from outside\n")
    os.close(writing)
    ended = hvlrun("-np", "1", "cat", f"/dev/fd/{reading}", pass_fds=[reading])
    os.close(reading)
    assert ended.out == b"[0]<stdout>:from outside\n"


def test_the_secret_is_readable_by_ranks_and_shows_nowhere(hvlrun: Launcher) -> None:
    code = """
        import os
        fd = int(os.environ["HVL_SECRET_FD"])
        secret = os.pread(fd, 64, 0)
        assert len(secret) == 32 and secret != bytes(32)
        shown = ["/proc/self/environ", "/proc/self/cmdline", f"/proc/{os.getppid()}/cmdline"]
        everything = b"".join(open(path, "rb").read() for path in shown)
        assert secret not in everything and secret.hex().encode() not in everything
        try:
            os.pwrite(fd, b"x", 0)
        except PermissionError:
            print("sealed")
    """
    ended = hvlrun("-np", "1", *hvlrun.script(code))
    assert ended.out == b"[0]<stdout>:sealed\n", ended.error_text


def test_arguments_arrive_as_they_were_given(hvlrun: Launcher) -> None:
    words = ["--np", "-x", "", "a b", "'\"", "$HOME", "*", "--help", "\n"]
    assert dumps(hvlrun, "-np", "1", "--", *words)[0]["argv"] == words


def test_ranks_start_in_the_callers_folder(hvlrun: Launcher) -> None:
    assert hvlrun("-np", "1", "pwd").lines == [f"[0]<stdout>:{hvlrun.folder}"]


@pytest.mark.trial("B83")
def test_a_chosen_master_port_is_kept_and_a_busy_one_is_named(hvlrun: Launcher) -> None:
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        ended = hvlrun("-np", "2", "touch", "started", env={"MASTER_PORT": port})
        assert ended.code == 125
        assert f"MASTER_PORT={port}: this port is in use" in ended.error_text
        assert not (hvlrun.folder / "started").exists()
    assert text(dumps(hvlrun, "-np", "1", env={"MASTER_PORT": port})[0], "MASTER_PORT") == port


def test_rank_0_can_listen_on_the_master_port(hvlrun: Launcher) -> None:
    code = """
        import os, socket
        where = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
        with socket.create_server(where) as server:
            print("listening")
    """
    assert hvlrun("-np", "1", *hvlrun.script(code)).out == b"[0]<stdout>:listening\n"


def test_ranks_see_default_signals_and_none_blocked(hvlrun: Launcher) -> None:
    code = """
        import signal
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print("clean")
    """

    def spoil() -> None:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])

    ended = hvlrun("-np", "1", *hvlrun.script(code), preexec_fn=spoil)
    assert ended.out == b"[0]<stdout>:clean\n", ended.error_text


@pytest.mark.trial("B81")
def test_interface_names_are_checked_before_the_start(hvlrun: Launcher) -> None:
    for names in ("nosuch0", "lo,nosuch0"):
        ended = hvlrun("-np", "1", "--network-interfaces", names, "touch", "started")
        assert ended.code == 125
        assert "no interface 'nosuch0'; it has: " in ended.error_text
        assert "lo" in ended.error_text
        assert ended.seconds < 5
    assert not (hvlrun.folder / "started").exists()
    rank = dumps(hvlrun, "-np", "1", "--network-interface", "lo")[0]
    assert text(rank, "NCCL_SOCKET_IFNAME") == text(rank, "GLOO_SOCKET_IFNAME") == "lo"


def test_the_python_of_the_caller_is_what_ranks_run(hvlrun: Launcher) -> None:
    code = "import sys; print(sys.executable)"
    ended = hvlrun(
        "-np",
        "1",
        Path(sys.executable).name,
        "-c",
        code,
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert ended.lines == [f"[0]<stdout>:{sys.executable}"]

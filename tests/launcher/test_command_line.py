"""The command line from outside: refusals start nothing, and the reports are as promised."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Launcher


@pytest.mark.trial("B76", "B77")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["touch", "started"], "the number of ranks is missing; give it with -np"),
        (["-np", "0", "touch", "started"], "-np '0' is not valid: expected an integer from 1"),
        (["-np", "2x", "touch", "started"], "-np '2x' is not valid"),
        (["-np", "3", "-H", "localhost:2", "touch", "started"], "use -np 2 or give a host more"),
        (["-np", "2", "-H", "n1:1,-x:2", "touch", "started"], "'-x:2' is not a host"),
        (
            ["-np", "2", "-H", "elsewhere:2", "--rsh", "no-such-rsh", "touch", "started"],
            "'no-such-rsh', by which host elsewhere is reached: command not found",
        ),
        (["-np", "2", "-H", "localhost:x", "touch", "started"], "number of slots"),
        (["-np", "2", "--hostfile", "missing", "touch", "started"], "cannot read the host file"),
        (["-np", "2", "--hostfile", ".", "touch", "started"], "cannot read the host file"),
        (["-np", "2", "--min-np", "1", "touch", "started"], "--min-np is not supported yet"),
        (["-np", "2", "--bogus", "touch", "started"], "unknown option --bogus"),
        (["-np", "2", "--cycle-time-ms", "fast", "touch", "started"], "--cycle-time-ms fast"),
        (["-np", "2", "--config-file", "no", "touch", "started"], "cannot read the configuration"),
        (["-np", "2", "-H", "n[1-", "touch", "started"], "a '[' without its ']'"),
        (["-np", "2", "--rsh", "", "touch", "started"], "--rsh '' names no program"),
        (["-np", "2", "--drop-in", "touch", "started"], "_drop_in_site does not exist"),
        (["-np", "2"], "the command is missing"),
        ([], "the number of ranks is missing"),
    ],
)
def test_a_refusal_is_one_line_and_starts_nothing(
    hvlrun: Launcher, words: list[str], expected: str
) -> None:
    ended = hvlrun(*words)
    assert ended.code == 125
    assert ended.error_text.startswith("hvlrun: ")
    assert expected in ended.error_text
    assert ended.error_text.count("\n") == 1
    assert not (hvlrun.folder / "started").exists()


@pytest.mark.trial("B77")
def test_a_host_without_a_count_takes_all_ranks(hvlrun: Launcher) -> None:
    assert len(hvlrun("-np", "3", "-H", "localhost", "echo", "x").lines) == 3


@pytest.mark.trial("B76")
def test_a_host_file_of_this_machine_works(hvlrun: Launcher) -> None:
    text = "# two names, one machine\r\n\r\nlocalhost slots=2 # here\n\t127.0.0.1:1\nlocalhost:1"
    (hvlrun.folder / "hosts").write_text(text)
    command = ["sh", "-c", "echo $HOROVOD_HOSTNAME $HVL_LOCAL_RANK/$HVL_LOCAL_SIZE"]
    ended = hvlrun("-np", "4", "-hostfile", "hosts", *command)
    places = sorted(line.split(":", 1)[1] for line in ended.lines)
    assert places == ["127.0.0.1 0/1", "localhost 0/3", "localhost 1/3", "localhost 2/3"]
    ended = hvlrun("-np", "5", "--hostfile", "hosts", "true")
    assert "the hosts offer 4" in ended.error_text


def test_a_range_of_hosts_is_filled_in_order(hvlrun: Launcher) -> None:
    ended = hvlrun(
        "-np", "3", "-H", "127.0.0.[1-2]:1,[::1]:1", "sh", "-c", "echo $HOROVOD_HOSTNAME"
    )
    assert sorted(ended.lines) == [
        "[0]<stdout>:127.0.0.1",
        "[1]<stdout>:127.0.0.2",
        "[2]<stdout>:::1",
    ]


@pytest.mark.trial("B76")
def test_a_bad_line_of_a_host_file_is_named(hvlrun: Launcher) -> None:
    (hvlrun.folder / "hosts").write_text("localhost slots=1\n\nlocalhost slots=x\n")
    ended = hvlrun("-np", "1", "--hostfile", "hosts", "true")
    assert ended.code == 125
    assert "hosts:3: 'slots=x'" in ended.error_text


def test_what_has_no_effect_is_said_once_and_the_job_runs(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "--tcp", "--gloo", "--disable-cache", "echo", "x")
    assert ended.code == 0
    assert len(ended.lines) == 2
    assert ended.error_text == (
        "hvlrun: --disable-cache has no effect: nothing is cached between runs\n"
        "hvlrun: --tcp has no effect: ranks of one machine use no network; HVL_CPU_OPERATIONS=tcp "
        "forces sockets\n"
    )


def test_a_configuration_file_is_checked_before_the_start(hvlrun: Launcher) -> None:
    (hvlrun.folder / "job.yaml").write_text("params:\n  cache_capcity: 7\n")
    ended = hvlrun("-np", "1", "--config-file", "job.yaml", "touch", "started")
    assert ended.code == 125
    assert ended.error_text == (
        "hvlrun: job.yaml:2: unknown key params.cache_capcity; did you mean "
        "params.cache_capacity?\n"
    )
    assert not (hvlrun.folder / "started").exists()


def test_keys_without_effect_are_said_once_and_the_job_runs(hvlrun: Launcher) -> None:
    (hvlrun.folder / "job.yaml").write_text(
        "library_options: {mpi_threads_disable: true}\nparams: {torus_allreduce: 1}"
    )
    ended = hvlrun("-np", "2", "--config-file", "job.yaml", "--mpi-threads-disable", "echo", "x")
    assert ended.code == 0
    assert sorted(ended.error_text.splitlines()) == [
        "hvlrun: --mpi-threads-disable has no effect: MPI is not used",
        "hvlrun: job.yaml:2: params.torus_allreduce has no effect: it concerns GPUs, which are not "
        "used yet",
    ]


def test_version_and_help(hvlrun: Launcher) -> None:
    for word in ("--version", "-v"):
        assert re.fullmatch(rb"hvlrun \d+\.\d+\.\d+\n", hvlrun(word).out)
    ended = hvlrun("--help")
    text = ended.out.decode()
    assert ended.code == 0
    assert "Usage: hvlrun -np N [options] command [arguments]" in text
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= 100
    for name in ("-np, -n, --num-proc", "--log-dir", "--grace", "--fusion-threshold-mb"):
        assert name in text


def test_check_build_is_laid_out_as_in_horovodrun(hvlrun: Launcher) -> None:
    for word in ("--check-build", "-cb"):
        ended = hvlrun(word)
        assert ended.code == 0
        text = ended.out.decode()
        sections = [
            "Available Frameworks:",
            "Available Controllers:",
            "Available Tensor Operations:",
        ]
        places = [text.index(section) for section in sections]
        assert places == sorted(places)
        rows = re.findall(r"^    \[[ X]\] .+$", text, re.MULTILINE)
        assert "    [X] local (shared memory)" in rows
        assert "    [ ] NCCL" in rows
        built = any((ROOT / "horovodlite" / "plugins").glob("libhvl_mpi_*"))
        assert f"    [{'X' if built else ' '}] MPI\n" in text[places[2] :]
        assert len(rows) >= 10


def test_check_build_as_json_has_the_same_rows(hvlrun: Launcher) -> None:
    report = json.loads(hvlrun("--check-build", "--json").out)
    text = hvlrun("--check-build").out.decode()
    for title in ("Available Frameworks", "Available Controllers", "Available Tensor Operations"):
        for name, available in report[title].items():
            assert f"    [{'X' if available else ' '}] {name}" in text
    assert f"horovodlite v{report['version']}:" in text
    assert report["torch"] in text


def test_check_build_finds_packages_only_where_they_are(hvlrun: Launcher) -> None:
    ended = hvlrun("--check-build", env={"PATH": "/nonexistent"})
    assert "    [ ] PyTorch\n" in ended.out.decode()
    assert "python3: not found in PATH; horovodlite there: no" in ended.out.decode()
    (hvlrun.folder / "python3").symlink_to(sys.executable)
    (hvlrun.folder / "torch-7.8.dist-info").mkdir()
    (hvlrun.folder / "torch-7.8.dist-info" / "METADATA").write_text("Name: torch\nVersion: 7.8\n")
    (hvlrun.folder / "torch.py").write_text("raise RuntimeError('must not be imported')")
    path = f"{hvlrun.folder}:/usr/bin:/bin"
    text = hvlrun("-cb", env={"PATH": path, "PYTHONPATH": f"{hvlrun.folder}:{ROOT}"}).out.decode()
    assert "    [X] PyTorch 7.8\n" in text
    assert f"python3: {hvlrun.folder}/python3; horovodlite there: yes" in text


def test_a_dry_run_shows_the_plan_and_starts_nothing(hvlrun: Launcher) -> None:
    ended = hvlrun(
        "-np", "3", "--dry-run", "-x", "A=b", "--cache-capacity", "5", "touch", "started", "a b"
    )
    assert ended.code == 0
    assert not (hvlrun.folder / "started").exists()
    text = ended.out.decode()
    assert "command: touch started 'a b'\n" in text
    assert "  HVL_CACHE_CAPACITY=5\n" in text
    assert "  A=b\n" in text
    assert "rank 2 differs in: HVL_RANK=2" in text
    assert hvlrun("-np", "1", "--dry-run", "no-such-command").code == 127


def test_output_that_nobody_takes_is_an_error_of_the_reports(hvlrun: Launcher) -> None:
    with Path("/dev/full").open("wb") as full:
        assert hvlrun("--help", stdout=full).code == 125


def test_verbose_tells_what_happens(hvlrun: Launcher) -> None:
    ended = hvlrun("-v", "-np", "2", "true")
    assert ended.code == 0
    assert "started 2 ranks of " in ended.error_text
    assert re.search(r"rank [01] \(pid \d+\) ended: exit code 0", ended.error_text)


def test_every_option_is_in_the_documents(hvlrun: Launcher) -> None:
    documents = "".join((ROOT / "docs" / name).read_text() for name in ("launcher.md", "knobs.md"))
    help_text = hvlrun("--help").out.decode()
    names = set(re.findall(r"--[a-z][a-z-]+", help_text.partition("Examples:")[0]))
    # Negations and second spellings follow from the first.
    second = {"--min-num-proc", "--max-num-proc", "--stall-check", "--log-with-timestamp"}
    second |= {"--log-hide-timestamp", "--no-timeline-mark-cycles", "--no-log-hide-timestamp"}
    second |= {"--no-autotune"}
    for name in sorted(names - second):
        plain = name.replace("--no-", "--") if name != "--no-stall-check" else name
        assert f"`{plain}" in documents, f"{name} is in neither docs/launcher.md nor docs/knobs.md"

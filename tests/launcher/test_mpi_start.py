"""hvlrun --mpi, and ranks of several hosts that mpirun starts.

With the Open MPI or MPICH whose mpirun is in PATH: docs/testing.md tells how to try another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Launcher, read_json, wait_until
from namespaces import Spaces

from tests.support.network import why_not

NO_SPACES = why_not()
MPIRUN = shutil.which("mpirun") or ""
SAYS = (
    subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=False).stdout
    if MPIRUN
    else ""
)
IS_OPEN_MPI = "Open MPI" in SAYS
pytestmark = pytest.mark.skipif(
    not IS_OPEN_MPI and "HYDRA" not in SAYS,
    reason="no mpirun of Open MPI or MPICH in PATH (apt-get install openmpi-bin)",
)
HAS_PLUGIN = bool(list((ROOT / "horovodlite" / "plugins").glob("libhvl_mpi_*.so")))
computes = pytest.mark.skipif(not HAS_PLUGIN, reason="needs a build with the MPI plug-in")
DEADLINE_S = 150.0
RANK = "(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])"


def clean(**variables: str) -> dict[str, str]:
    """No trace of another launcher, whose job these tests may run in."""
    return {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


TELL = f"""
    import json, os, sys
    facts = dict(argv=[os.fsencode(word).hex() for word in sys.argv[1:]], cwd=os.getcwd(),
                 env={{k.hex(): v.hex() for k, v in os.environb.items()}},
                 read=sys.stdin.read())
    with open(f"told.{{{RANK}}}", "w") as file:
        json.dump(facts, file)
"""


def variables(facts: Any) -> dict[bytes, bytes]:
    return {bytes.fromhex(k): bytes.fromhex(v) for k, v in facts["env"].items()}


def test_a_dry_run_shows_the_very_command(hvlrun: Launcher) -> None:
    ended = hvlrun("--mpi", "-np", "3", "--dry-run", "--mpi-args", "-x 'A B'", "echo", "a b")
    assert (ended.code, ended.error_text) == (0, "")
    command = ended.lines[0]
    assert command.startswith(MPIRUN)
    assert " -np 3 " in command
    assert command.endswith(" -x 'A B' echo 'a b'")
    assert "  HVL_CPU_OPERATIONS=mpi" in ended.lines


def test_arguments_environment_and_folder_arrive_byte_for_byte(hvlrun: Launcher) -> None:
    words = [b"", b"a b", b"'\"$HOME`ls`\\", b"new\nline", b"\xff\xfe", b"-np", b"*"]
    values = {b"QUOTES": b"'\"", b"RAW": bytes(range(1, 256)), b"EMPTY": b"", b"SEMI": b"a;b=c"}
    command = [*hvlrun.script(TELL), *map(os.fsdecode, words)]
    env = {os.fsdecode(k): os.fsdecode(v) for k, v in values.items()}
    stale = {"RANK": "7", "WORLD_SIZE": "9", "HVL_RANK": "7", "HVL_SIZE": "9"}
    ended = hvlrun("--mpi", "-np", "2", "-x", "MORE=x y", *command, env={**env, **stale})
    assert ended.code == 0, ended.error_text
    for facts in read_json(hvlrun.folder, "told.*"):
        assert [bytes.fromhex(word) for word in facts["argv"]] == words
        assert facts["cwd"] == str(hvlrun.folder)
        assert facts["read"] == ""  # nobody reads standard input
        seen = variables(facts)
        assert {name: seen[name] for name in values} == values
        assert seen[b"MORE"] == b"x y"
        assert seen[b"HVL_CPU_OPERATIONS"] == b"mpi"
        for name in map(os.fsencode, stale):
            assert name not in seen


def test_exit_status_and_output_are_those_of_the_ranks(hvlrun: Launcher) -> None:
    script = hvlrun.script(f"""
        import os, sys
        rank = int{RANK}
        print("line of", rank, "ends here", flush=True)
        sys.exit(3 if rank == 1 else 0)
    """)
    # Where Python writes a line in pieces, Open MPI tags the pieces.
    ended = hvlrun("--mpi", "-np", "2", *script, env={"PYTHONUNBUFFERED": ""})
    assert ended.code == 3
    # Tagged, whole, and perhaps without that of a rank which mpirun ended.
    tagged = [line for line in ended.lines if "line of" in line]
    assert tagged
    assert all(re.fullmatch(r"\[(1,)?[01]\]\S* ?line of [01] ends here\s*", x) for x in tagged)


def test_standard_input_is_rank_0_s_where_it_is_asked_for(hvlrun: Launcher) -> None:
    (hvlrun.folder / "input").write_text("for rank 0")
    with (hvlrun.folder / "input").open() as file:
        ended = hvlrun("--mpi", "-np", "2", "--stdin", "0", *hvlrun.script(TELL), stdin=file)
    assert ended.code == 0, ended.error_text
    told = [json.loads((hvlrun.folder / f"told.{rank}").read_text()) for rank in range(2)]
    assert [facts["read"] for facts in told] == ["for rank 0", ""]


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks(hvlrun: Launcher, signo: int) -> None:
    script = hvlrun.script(f"""
        import os, time
        open(f"up{{{RANK}}}", "w").close()
        time.sleep(600)
    """)
    running = hvlrun.start("--mpi", "-np", "2", *script)
    wait_until("both ranks run", lambda: len(list(hvlrun.folder.glob("up*"))) == 2)
    running.signal(signo)
    assert running.wait().code != 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--timeout", "3"], "--timeout does not go with --mpi"),
        (["--max-restarts", "1"], "--max-restarts does not go with --mpi"),
        (["--gloo"], "--gloo and --mpi exclude each other"),
        (["--mpi-args", "'"], "--mpi-args ''' is not valid"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    hvlrun: Launcher, words: list[str], expected: str
) -> None:
    ended = hvlrun("--mpi", "-np", "2", *words, "touch", "started")
    assert ended.code == 125
    assert expected in ended.error_text
    assert not (hvlrun.folder / "started").exists()


def test_without_an_mpi_in_path_the_cure_is_told(hvlrun: Launcher) -> None:
    ended = hvlrun("--mpi", "-np", "2", sys.executable, env={"PATH": "/nonexistent"})
    assert ended.code == 125
    assert "there is no mpirun or mpiexec in PATH" in ended.error_text


def test_an_mpi_that_is_not_known_is_named(hvlrun: Launcher) -> None:
    fake = hvlrun.folder / "mpirun"
    fake.write_text("#!/bin/sh\necho mystery 1.0\n")
    fake.chmod(0o755)
    path = f"{hvlrun.folder}:{os.environ['PATH']}"
    ended = hvlrun("--mpi", "-np", "2", "true", env={"PATH": path})
    assert ended.code == 125
    assert f"{fake} is of an MPI that hvlrun does not know: it says 'mystery 1.0'" in (
        ended.error_text
    )


def test_a_configuration_file_can_choose_mpi(hvlrun: Launcher) -> None:
    (hvlrun.folder / "job.yaml").write_text(
        "controller: mpi\nlibrary_options: {mpi_args: -x A, mpi_threads_disable: true}\n"
    )
    words = ["-np", "1", "--config-file", "job.yaml", "--dry-run", "true"]
    ended = hvlrun(*words)
    assert (ended.code, ended.error_text) == (0, "")
    assert ended.lines[0].endswith(" -x A true")
    assert "  HVL_MPI_THREADS_DISABLE=1" in ended.lines
    ended = hvlrun("--gloo", *words)
    assert "library_options.mpi_args has no effect: MPI does not start the ranks" in (
        ended.error_text
    )


# Without torch, which takes each rank seconds to import; train_digits.py has tensors.
SUM = """
    import json, os
    from tests.support import plain as hvd
    sums = []
    for round in range(5):
        hvd.init()
        mine = hvd.values(*[hvd.rank() + round] * 3)
        sums.append(hvd.allreduce(mine, op=hvd.SUM)[0])
        seen = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank(), hvd.mpi_enabled()]
        if round < 4:
            hvd.shutdown()
    maps = open("/proc/self/maps").read()
    with open(f"seen.{hvd.rank()}", "w") as file:
        json.dump([*seen, "libmpi" in maps, sums], file)
"""


@computes
@pytest.mark.parametrize("words", [[], ["--cpu-operations", "tcp"], ["--mpi-threads-disable"]])
def test_ranks_compute_over_mpi_unless_told_otherwise(hvlrun: Launcher, words: list[str]) -> None:
    env = clean()
    if words[:1] == ["--cpu-operations"]:
        env, words = clean(HVL_CPU_OPERATIONS=words[1]), []
    ended = hvlrun(
        *["--mpi", "-np", "2", *words, *hvlrun.script(SUM)], env=env, deadline_s=DEADLINE_S
    )
    assert ended.code == 0, ended.error_text + ended.out.decode()
    by_mpi = "HVL_CPU_OPERATIONS" not in env
    sums = [1.0 + 2 * n for n in range(5)]
    for rank, seen in enumerate(read_json(hvlrun.folder, "seen.*")):
        assert seen == [rank, 2, rank, 0, by_mpi, by_mpi, sums]


# --- Several hosts ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spaces]:
    if NO_SPACES:
        pytest.skip(NO_SPACES)
    with Spaces(tmp_path_factory.mktemp("spaces"), 2) as made:
        yield made


def by_hvlrun(spaces: Spaces) -> list[str]:
    """Words for four ranks on two hosts."""
    hosts = ",".join(f"{host}:2" for host in spaces.hosts)
    return ["--mpi", "-np", "4", "-H", hosts, "--rsh", spaces.shell]


def by_mpirun(spaces: Spaces, *names: str) -> list[str]:
    """The same without hvlrun."""
    hosts = ",".join(f"{host}:2" for host in spaces.hosts)
    if not IS_OPEN_MPI:
        remote = ["-launcher", "ssh", "-launcher-exec", spaces.shell]
        return [MPIRUN, "-np", "4", "-hosts", hosts, *remote]
    is_5 = re.search(r"Open MPI\) [5-9]", SAYS) is not None
    remote = ["--prtemca", "plm_ssh_agent"] if is_5 else ["--mca", "plm_rsh_agent"]
    exports = [word for name in ("PYTHONPATH", *names) for word in ("-x", name)]
    return [MPIRUN, "-np", "4", "-H", hosts, "--bind-to", "none", *remote, spaces.shell, *exports]


def run(
    folder: Path, *command: str, deadline_s: float = DEADLINE_S, **more: str
) -> subprocess.CompletedProcess[str]:
    places = ("HVL_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_", "RANK", "LOCAL_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(places)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        list(command),
        cwd=folder,
        env={**inherited, **root, **clean(**more)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=deadline_s,
        check=False,
    )


def test_other_hosts_get_the_environment_byte_for_byte(hvlrun: Launcher, spaces: Spaces) -> None:
    values = {b"RAW": bytes(range(1, 256)), b"LINES3": b"a\nb\n", b"SEMI": b"a;b=c", b"EMPTY": b""}
    env = {os.fsdecode(k): os.fsdecode(v) for k, v in values.items()}
    words = [*by_hvlrun(spaces), *hvlrun.script(TELL), "a b", "'$HOME"]
    ended = hvlrun(*words, env=env, command_prefix=spaces.inside(0))
    assert ended.code == 0, ended.error_text
    told = read_json(hvlrun.folder, "told.*")
    assert len(told) == 4
    for facts in told:
        assert [bytes.fromhex(word) for word in facts["argv"]] == [b"a b", b"'$HOME"]
        seen = variables(facts)
        assert {name: seen[name] for name in values} == values
    assert len({variables(facts)[b"HVL_JOB_ID"] for facts in told}) == 1


@computes
@pytest.mark.parametrize("plane", ["auto", "mpi"])
def test_ranks_of_several_hosts_meet_over_mpi_again_and_again(
    hvlrun: Launcher, spaces: Spaces, plane: str
) -> None:
    """mpirun alone, and nothing that says where rank 0 is."""
    script = hvlrun.script(SUM)
    command = spaces.inside(0, *by_mpirun(spaces, "HVL_CPU_OPERATIONS"), *script)
    done = run(hvlrun.folder, *command, HVL_CPU_OPERATIONS=plane)
    assert done.returncode == 0, done.stdout
    sums = [6.0 + 4 * n for n in range(5)]
    for rank, seen in enumerate(read_json(hvlrun.folder, "seen.*")):
        assert seen == [rank, 4, rank % 2, rank // 2, plane == "mpi", True, sums]


@computes
def test_with_master_addr_the_ranks_meet_there_and_no_mpi_is_loaded(
    hvlrun: Launcher, spaces: Spaces
) -> None:
    head = {"MASTER_ADDR": spaces.hosts[0], "MASTER_PORT": "29510"}
    command = spaces.inside(0, *by_mpirun(spaces, *head), *hvlrun.script(SUM))
    done = run(hvlrun.folder, *command, **head)
    assert done.returncode == 0, done.stdout
    assert [seen[5] for seen in read_json(hvlrun.folder, "seen.*")] == [False] * 4


@computes
def test_worlds_of_some_ranks_meet_over_mpi(hvlrun: Launcher, spaces: Spaces) -> None:
    script = hvlrun.script(f"""
        import os
        from tests.support import plain as hvd
        place = int{RANK}
        hvd.init(comm=[0, 2] if place % 2 == 0 else [1, 3])
        total = hvd.allreduce(hvd.values(place), op=hvd.SUM)[0]
        open(f"seen.{{place}}", "w").write(str([hvd.rank(), hvd.size(), total]))
    """)
    done = run(hvlrun.folder, *spaces.inside(0, *by_mpirun(spaces), *script))
    assert done.returncode == 0, done.stdout
    assert read_json(hvlrun.folder, "seen.*") == [[0, 2, 2], [0, 2, 4], [1, 2, 2], [1, 2, 4]]


@computes
def test_without_a_plug_in_the_ranks_are_told_of_master_addr(
    hvlrun: Launcher, spaces: Spaces
) -> None:
    script = hvlrun.script("from tests.support import plain; plain.init()")
    command = spaces.inside(0, *by_mpirun(spaces, "HVL_PLUGIN_FOLDER"), *script)
    done = run(hvlrun.folder, *command, HVL_PLUGIN_FOLDER=str(hvlrun.folder))
    assert done.returncode != 0
    assert "2 of 4 ranks are on this host" in done.stdout
    assert "cannot find the others through MPI: this build of horovodlite has no plug-in" in (
        done.stdout
    )
    assert "MASTER_ADDR and MASTER_PORT" in done.stdout


@computes
def test_a_rank_that_does_not_come_is_an_error_and_no_hang(
    hvlrun: Launcher, spaces: Spaces
) -> None:
    script = hvlrun.script(f"""
        import os, sys, time
        if {RANK} == "3":
            from mpi4py import MPI  # comes to MPI's world, but not to ours
            time.sleep(600)
        from tests.support import plain as hvd
        try:
            hvd.init()
        except Exception as error:
            open(f"seen.{{{RANK}}}", "w").write(f'"{{type(error).__name__}}: {{error}}"')
            sys.exit(1)
    """)
    pytest.importorskip("mpi4py")
    begin = time.monotonic()
    command = spaces.inside(0, *by_mpirun(spaces, "HVL_START_TIMEOUT"), *script)
    done = run(hvlrun.folder, *command, HVL_START_TIMEOUT="6")
    assert done.returncode != 0
    assert time.monotonic() - begin < 100
    seen = read_json(hvlrun.folder, "seen.*")
    assert seen, done.stdout
    assert all("not all have come" in words for words in seen)

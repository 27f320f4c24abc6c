"""The same script, unchanged, gives the same losses whoever starts it and wherever its ranks are.

Sums go host by host, so that ranks on two hosts may give other last bits than ranks on one; a world
that pretends to have these hosts (HVL_SUM_GROUPS) gives the same ones again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HVLRUN, ROOT
from forked import Forks
from namespaces import Spaces
from ssh_jobs import NO_SSH, SshNetwork

from tests.support.network import Network, why_not

NO_SPACES = why_not()
HAS_PACKAGE = bool(list((ROOT / "horovodlite").glob("_core.*.so")))
MISSING = [name for name in ("torch", "mlxtend") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    not HAS_PACKAGE or bool(MISSING),
    reason=f"needs the built package (`tests/dev build`) and torch, mlxtend; missing: {MISSING}",
)
SCRIPT = ROOT / "tests" / "launcher" / "train_digits.py"
DEADLINE_S = 240.0  # with importing torch, on a machine that does other things too
RANKS = 4
# Whatever tells a process its place, so that these tests may run in a job themselves.
PLACES = ("HVL_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
PLACES += ("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


class Trainer:
    """Runs the script by a launcher and tells what it has written."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder = folder
        self.forks = forks
        self.known: dict[str, Any] = {}

    def env(self, **variables: str) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(PLACES)}
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**inherited, **root, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}

    def __call__(self, name: str, *launcher: str, **variables: str) -> Any:
        return self.run(name, [(list(launcher), variables)])

    def run(self, name: str, processes: list[tuple[list[str], dict[str, str]]]) -> Any:
        """What the processes have written, which are started together and must end well."""
        file = self.folder / f"{name}.json"
        started = [
            subprocess.Popen(
                [*command, *self.forks.command(str(SCRIPT), str(file))],
                env=self.env(**variables),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command, variables in processes
        ]
        try:
            for process in started:
                output, _ = process.communicate(timeout=DEADLINE_S)
                assert process.returncode == 0, f"{name}:\n{output}"
        finally:
            for process in started:
                process.kill()
        return json.loads(file.read_text())

    def on_one_host(self, groups: str = "") -> Any:
        """Under hvlrun, summed as if the ranks were on hosts of so many each."""
        if groups not in self.known:
            variables = {"HVL_SUM_GROUPS": groups} if groups else {}
            name = f"hvlrun-{groups}"
            self.known[groups] = self(name, str(HVLRUN), "-np", str(RANKS), **variables)
        return self.known[groups]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("losses")
    with Forks(folder) as forks:
        yield Trainer(folder, forks)


def far_apart(a: Any, b: Any) -> float:
    """The largest relative difference between two runs' losses."""
    pairs = zip(a["losses"], b["losses"], strict=True)
    return max(abs(float.fromhex(x) / float.fromhex(y) - 1) for x, y in pairs)


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


# --- One host ---------------------------------------------------------------------------------


def test_the_script_learns(train: Trainer) -> None:
    first = train.on_one_host()
    losses = [float.fromhex(loss) for loss in first["losses"]]
    assert losses[-1] < 0.7 * losses[0]


def test_open_mpi_s_ranks_have_the_same_losses(train: Trainer) -> None:
    mpirun = needed("mpirun")
    words = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in words.stdout:
        pytest.skip("mpirun is not Open MPI's")
    start = [mpirun, "--oversubscribe", "--bind-to", "none", "-np", str(RANKS)]
    assert train("mpirun", *start) == train.on_one_host()


def test_hydra_s_ranks_have_the_same_losses(train: Trainer) -> None:
    start = [needed("mpiexec.hydra"), "-bind-to", "none", "-n", str(RANKS)]
    assert train("hydra", *start) == train.on_one_host()


def test_ranks_that_mpi_starts_and_joins_have_the_same_losses(train: Trainer) -> None:
    needed("mpirun")
    if not list((ROOT / "horovodlite" / "plugins").glob("libhvl_mpi_*.so")):
        pytest.skip("this build has no MPI plug-in")
    assert train("mpi", str(HVLRUN), "--mpi", "-np", str(RANKS)) == train.on_one_host()


def test_torchrun_s_ranks_have_the_same_losses(train: Trainer) -> None:
    # It starts Python scripts by itself: "--no-python" takes the interpreter of ours.
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    assert train("torchrun", *start, "--nproc-per-node", str(RANKS)) == train.on_one_host()


def test_plain_variables_give_the_same_losses(train: Trainer) -> None:
    port = str(20000 + os.getpid() % 10000)
    job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks: list[tuple[list[str], dict[str, str]]] = [
        ([], {**job, "RANK": str(rank)}) for rank in range(RANKS)
    ]
    assert train.run("plain", ranks) == train.on_one_host()


# --- Several hosts ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spaces]:
    if NO_SPACES:
        pytest.skip(NO_SPACES)
    with Spaces(tmp_path_factory.mktemp("spaces"), RANKS) as made:
        yield made


def places(cluster: Network, hosts: int) -> list[str]:
    slots = RANKS // hosts
    return ["-np", str(RANKS), "-H", ",".join(f"{h}:{slots}" for h in cluster.hosts[:hosts])]


def test_four_hosts_of_one_rank_have_the_bits_of_one_host_of_four(
    train: Trainer, spaces: Spaces
) -> None:
    """A host's sum of one rank is that rank, so the order is the same."""
    rsh = ["--rsh", spaces.shell]
    command = spaces.inside(0, str(HVLRUN), *places(spaces, 4), *rsh)
    assert train("rsh-4x1", *command) == train.on_one_host()


def test_two_hosts_of_two_ranks_have_the_bits_of_one_host_that_sums_by_two(
    train: Trainer, spaces: Spaces
) -> None:
    rsh = ["--rsh", spaces.shell]
    command = spaces.inside(0, str(HVLRUN), *places(spaces, 2), *rsh)
    found = train("rsh-2x2", *command)
    assert found == train.on_one_host("2,2")
    assert far_apart(found, train.on_one_host()) < 1e-4  # (a+b)+(c+d) is not ((a+b)+c)+d


def test_hosts_that_mpi_reaches_have_the_same_losses(train: Trainer, spaces: Spaces) -> None:
    """No MASTER_ADDR, no launcher of ours: the ranks meet over MPI, and it carries the data."""
    needed("mpirun")
    if not list((ROOT / "horovodlite" / "plugins").glob("libhvl_mpi_*.so")):
        pytest.skip("this build has no MPI plug-in")
    rsh = ["--rsh", spaces.shell]
    command = spaces.inside(0, str(HVLRUN), "--mpi", *places(spaces, 4), *rsh)
    assert train("mpi-4x1", *command) == train.on_one_host()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshNetwork]:
    if NO_SSH:
        pytest.skip(NO_SSH)
    with SshNetwork(tmp_path_factory.mktemp("ssh"), RANKS) as made:
        yield made


def test_four_hosts_over_ssh_have_the_same_losses(train: Trainer, cluster: SshNetwork) -> None:
    command = [str(HVLRUN), "--ssh-accept-new", *places(cluster, 4)]
    path = f"{cluster.folder}/bin:{os.environ['PATH']}"
    assert train("ssh-4x1", *cluster.inside(0, *command), PATH=path) == train.on_one_host()

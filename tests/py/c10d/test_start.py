"""However the ranks are started, init_process_group("horovodlite") finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.groups import free_port

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 200.0  # most of it is importing torch on a machine that does other things too

BODY = """
import os, sys
import torch
import torch.distributed as dist
import horovodlite.torch.c10d
import horovodlite.torch as hvd

def work():
    tensor = torch.full((3,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3, tensor
    assert (hvd.rank(), hvd.size()) == (dist.get_rank(), dist.get_world_size())
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "sums", tensor[0].item())
"""
# A rank of the nursery forgets that it has been started for hvd.
FORGET = """
for name in [name for name in os.environ if name.startswith("HVL_")]:
    del os.environ[name]
"""


def _environment(rank: int, port: int) -> str:
    return f"""
os.environ.update(RANK="{rank}", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
dist.init_process_group("horovodlite")
"""


def _torchrun(rank: int, port: int) -> str:
    return f"""
os.environ.update(LOCAL_RANK="{rank}", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
os.environ.update(TORCHELASTIC_RESTART_COUNT="0")
""" + _environment(rank, port)


def _address(rank: int, port: int) -> str:
    where = f"tcp://127.0.0.1:{port}"
    return f"""
dist.init_process_group("horovodlite", init_method="{where}", rank={rank}, world_size=2)
"""


def _store(rank: int, port: int) -> str:
    return f"""
store = dist.TCPStore("127.0.0.1", {port}, 2, {rank == 0})
dist.init_process_group("horovodlite", store=store, rank={rank}, world_size=2)
"""


def _after_hvd(rank: int, port: int) -> str:
    return f'os.environ["HVL_JOB_ID"] = "{port}"\n' + (
        _environment(rank, port).replace("dist.init", "hvd.init()\ndist.init")
    )


@pytest.mark.parametrize("how", [_environment, _torchrun, _address, _store, _after_hvd])
def test_ranks_find_each_other(run_scripts: Any, how: Any) -> None:
    port = free_port()
    end = "\nwork()\ndist.destroy_process_group()\n"
    ended = run_scripts([BODY + FORGET + how(rank, port) + end for rank in range(2)])
    for rank, one in enumerate(ended):
        assert one.status == 0, one.errors
        assert one.output == f"rank {rank} of 2 sums 3.0\n"


def test_a_rank_may_exit_without_a_word(run_scripts: Any) -> None:
    """What it has sent is received before it ends."""
    port = free_port()
    sends = "\nwork()\nif dist.get_rank() == 0: dist.send(torch.ones(4), 1)\n"
    receives = (
        "if dist.get_rank() == 1:\n"
        "    import time; time.sleep(0.5); got = torch.zeros(4); dist.recv(got, 0); print(got)\n"
    )
    scripts = [BODY + FORGET + _environment(rank, port) + sends + receives for rank in range(2)]
    ended = run_scripts(scripts)
    assert [one.status for one in ended] == [0, 0], ended
    assert "tensor([1., 1., 1., 1.])" in ended[1].output


def _run(command: list[str], folder: Path, **variables: str) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HVL_", "HOROVOD_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"))
    }
    environment.update(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", **variables)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


INIT = 'dist.init_process_group("horovodlite")\nwork()\ndist.destroy_process_group()\n'
SPAWN = """
def rank(rank, port):
    init = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("horovodlite", init_method=init, rank=rank, world_size=2)
    work()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(rank, (int(sys.argv[1]),), 2, start_method="fork")
"""


def test_hvlrun_torchrun_and_spawn(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BODY + INIT)
    launchers = {
        "hvlrun": [sys.executable, "-m", "horovodlite", "-np", "2", sys.executable],
        "torchrun": [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-port", str(free_port()),
        ],
    }  # fmt: skip
    for launcher in launchers.values():
        output = _run([*launcher, str(script)], tmp_path)
        for rank in range(2):
            assert f"rank {rank} of 2 sums 3.0" in output
    script.write_text(BODY + SPAWN)
    output = _run([sys.executable, str(script), str(free_port())], tmp_path)
    assert sorted(output.splitlines()) == ["rank 0 of 2 sums 3.0", "rank 1 of 2 sums 3.0"]

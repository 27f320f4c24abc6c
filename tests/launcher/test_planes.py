"""Trials about starting and stopping, with ranks that move data: on every way in which it travels.

What hvlrun does with environments, host files, log files and signals does not depend on how data
travels, and is tested with ranks that move none. Here is where it might: a rank that gets a signal
inside of an operation, ranks on hosts of several names, ranks that share too few processors.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import ROOT, Launcher, wait_until

DEADLINE_S = 180.0
PLANES = pytest.mark.parametrize("plane", ["local", "tcp"])


def environment(plane: str, **more: str) -> dict[str, str]:
    chosen = {"HVL_CPU_OPERATIONS": plane, "OMP_NUM_THREADS": "1"}
    return {"PYTHONPATH": str(ROOT), **chosen, **more}


# Rank 0 waits in an operation that rank 1 never submits. Python runs a handler when it is its turn.
WAITING = """
    import os, signal, sys, time
    from tests.support import plain as hvd
    hvd.init()
    rank = hvd.rank()
    hvd.allreduce(hvd.ones(5), name="warm")
    if os.environ["SIGNAL"] == "SIGTERM":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    open(f"up{rank}", "w").close()
    try:
        if rank == 0:
            hvd.allreduce(hvd.ones(5), name="never")
        time.sleep(60)
    except KeyboardInterrupt:
        for _ in range(10):
            with open(f"saved{rank}", "a") as file:
                file.write("x")
            time.sleep(0.1)
        sys.exit(1)
"""


@pytest.mark.trial("B65", "B66")
@PLANES
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_inside_of_an_operation_gives_time_to_save(
    hvlrun: Launcher, plane: str, signo: signal.Signals
) -> None:
    env = environment(plane, SIGNAL=signo.name)
    running = hvlrun.start("-np", "2", *hvlrun.script(WAITING), env=env)
    wait_until("both are up", lambda: len(list(hvlrun.folder.glob("up*"))) == 2, seconds=DEADLINE_S)
    running.signal(signo)
    ended = running.wait(DEADLINE_S)
    assert ended.code == 128 + signo, ended.error_text
    saved = [(hvlrun.folder / f"saved{rank}").read_text() for rank in range(2)]
    assert saved == ["x" * 10] * 2


PLACES = """
    import json, os
    from tests.support import plain as hvd
    hvd.init()
    mine = [hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    total = hvd.allreduce(hvd.values(*(n * hvd.rank() for n in range(1000))), op=hvd.SUM)
    assert total == hvd.values(*range(0, 3000, 3))
    with open(f"place{hvd.rank()}", "w") as file:
        json.dump([*mine, sorted(os.sched_getaffinity(0))], file)
    hvd.barrier()
"""


def places(folder: Path) -> list[list[object]]:
    return [json.loads((folder / f"place{rank}").read_text()) for rank in range(3)]


@pytest.mark.trial("B78", "B81", "B96")
@PLANES
def test_names_of_hosts_an_interface_and_one_processor_change_no_result(
    hvlrun: Launcher, plane: str
) -> None:
    """Three ranks on one processor, on hosts of one and two slots, of a network that is lo."""
    only = min(os.sched_getaffinity(0))
    words = ["-np", "3", "-H", "localhost:1,127.0.0.1:2", "--network-interfaces", "lo"]
    prefix = ["taskset", "-c", str(only)]
    script = hvlrun.script(PLACES)
    how = {"env": environment(plane), "command_prefix": prefix}
    ended = hvlrun(*words, *script, deadline_s=DEADLINE_S, **how)
    assert ended.code == 0, ended.error_text
    expected = [(0, 0, 1, 0, 2), (1, 0, 2, 1, 2), (2, 1, 2, 0, 1)]
    assert places(hvlrun.folder) == [[*place, [only]] for place in expected]

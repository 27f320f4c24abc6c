"""Ranks that run a script from start to exit: for what happens at the end of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from support import _store
from support.ranks import ROOT, identity


@dataclass
class Ended:
    """How one rank ended."""

    status: int
    output: str
    errors: str
    seconds: float


def run_scripts(
    scripts: list[str], env: dict[str, str] | None = None, deadline: float = 60.0
) -> list[Ended]:
    """Runs one script per rank of a world and returns how each ended, by rank.

    Raises:
        AssertionError: Some rank did not end in time. All are killed then; the message has what
            they wrote.
    """
    job = _store.Job("scripts")
    begin = time.monotonic()
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        for rank, script in enumerate(scripts):
            environment = {
                **os.environ,
                **identity(rank, len(scripts)),
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONFAULTHANDLER": "1",
                "HVL_JOB_ID": "scripts",
                "HVL_STORE": job.address,
                "HVL_SECRET_FD": str(job.secret_fd),
                **(env or {}),
            }
            paths = [Path(folder, f"{rank}.{name}") for name in ("out", "err")]
            files = [path.open("w+") for path in paths]
            process = subprocess.Popen(
                [sys.executable, "-c", script],
                env=environment,
                pass_fds=(job.secret_fd,),
                stdin=subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
            )
            ranks.append((process, files))
        late = [
            rank for rank, (process, _) in enumerate(ranks) if not _ends(process, begin, deadline)
        ]
        ended = []
        for process, files in ranks:
            process.kill()
            status = process.wait()
            for file in files:
                file.seek(0)
            ended.append(Ended(status, files[0].read(), files[1].read(), time.monotonic() - begin))
            for file in files:
                file.close()
    if late:
        raise AssertionError(f"ranks {late} did not end within {deadline} s: {ended}")
    return ended


def _ends(process: subprocess.Popen[bytes], begin: float, deadline: float) -> bool:
    try:
        process.wait(timeout=max(0.0, begin + deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True

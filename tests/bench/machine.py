"""What the numbers were measured on and with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path


def first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "not installed"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def describe() -> dict[str, object]:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor_name(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "open_mpi": first_line("mpirun", "--version"),
            "compiler": first_line("c++", "--version"),
        },
    }

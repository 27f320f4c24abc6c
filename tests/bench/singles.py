"""Measures that need no contest: the address trap, an idle process, and init and shutdown."""

from __future__ import annotations

import subprocess

from .cases import MIB
from .contestants import Setup
from .report import time_text
from .team import Team


def trap(setup: Setup) -> dict[str, object]:
    """Adding two slices of 512 KiB in place, by how far apart they are mapped."""
    command = [setup.program("bench_trap"), str(setup.processors[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    pairs = [line.split() for line in done.stdout.splitlines()]
    seconds = {int(distance): float(time) for distance, time in pairs}
    ordinary = next(iter(seconds.values()))
    return {
        "distances": [
            {"bytes": distance, "seconds": time, "ratio": time / ordinary}
            for distance, time in seconds.items()
        ]
    }


def trap_text(result: dict[str, object]) -> str:
    lines = ["One process adds two slices of 512 KiB in place, mapped so far apart:"]
    distances = result["distances"]
    assert isinstance(distances, list)
    for entry in distances:
        whole, rest = divmod(entry["bytes"], 256 * MIB)
        name = f"{whole} x 256 MiB" + (f" + {rest:,} bytes" if rest else "")
        lines.append(f"  {name:<30}{time_text(entry['seconds']):>10}{entry['ratio']:>8.1f}x")
    return "\n".join(lines)


def idle(team: Team, seconds: int) -> dict[str, object]:
    """Processor time and control frames of initialised ranks that have nothing to do."""
    answers = team.run(f"idle {seconds}")
    return {
        "seconds": seconds,
        "processor_seconds": [answer[0] for answer in answers],
        "frames_sent": [int(answer[1]) for answer in answers],
        "context_switches": [int(answer[2]) for answer in answers],
    }


def idle_text(result: dict[str, object]) -> str:
    return (
        f"Initialised and idle for {result['seconds']} s, per rank: processor seconds "
        f"{result['processor_seconds']}, control frames {result['frames_sent']}, "
        f"context switches {result['context_switches']}"
    )


def cycles(team: Team, count: int) -> dict[str, object]:
    """Shutdown and init, so many times in the same processes, and what has grown meanwhile."""
    answers = team.run(f"cycle {count}")
    names = ("init_seconds", "shutdown_seconds", "rss_bytes", "threads", "descriptors")
    columns = {name: [answer[i] for answer in answers] for i, name in enumerate(names)}
    return {"count": count, **columns}


def cycles_text(result: dict[str, object]) -> str:
    return (
        f"{result['count']} x init and shutdown, per rank: longest init {result['init_seconds']} s,"
        f" longest shutdown {result['shutdown_seconds']} s; growth: {result['rss_bytes']} bytes,"
        f" {result['threads']} threads, {result['descriptors']} descriptors"
    )

"""`python -m tests.bench.hosts`: allreduce between hosts, which are network namespaces here.

Each byte should cross the network once per host. For M hosts and a tensor of K bytes that is
2 (M - 1) / M K bytes out of each host, and the link needs so long for them: the limit. Measured
besides: a flat exchange and a ring over all ranks, and Gloo. All contestants take turns in the same
processes; `sent` is what the kernel counted on the link of a host, headers and control included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.support.network import MissingError, Network

from .report import align, time_text

ROOT = Path(__file__).resolve().parents[2]
CONTESTANTS = ("two levels", "flat", "flat ring", "Gloo")
EXAMPLES = """examples (root only; close other programs first):
  python -m tests.bench.hosts                             4 hosts, 2 ranks each, 1 Gbit/s
  python -m tests.bench.hosts --hosts 2 --megabits 10000
  python -m tests.bench.hosts --sizes 65536,67108864 --rounds 9
"""
HEADERS = 1514 / 1448  # Ethernet frame to payload, IPv4 and TCP with time stamps


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.hosts",
        description="Measures allreduce between hosts that are network namespaces.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=4, metavar="M", help="hosts (4)")
    parser.add_argument("--slots", type=int, default=2, metavar="L", help="ranks per host (2)")
    parser.add_argument("--megabits", type=int, default=1000, help="of each link (1000)")
    parser.add_argument("--sizes", default="4096,65536,1048576,67108864", help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, with commas")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "hosts.json")
    options = parser.parse_args(arguments)
    if options.hosts < 2 or options.slots < 1 or options.rounds < 1:
        parser.error("at least two hosts, one rank on each, and one round")
    for name in options.only.split(","):
        if name not in CONTESTANTS:
            parser.error(f"no contestant is named '{name}'; there are {', '.join(CONTESTANTS)}")
    return options


def measure(options: argparse.Namespace, network: Network, folder: Path) -> list[dict[str, object]]:
    script = network.rsh(folder)
    hosts = ",".join(f"{host}:{options.slots}" for host in network.hosts)
    ranks = options.hosts * options.slots
    hvlrun = [str(ROOT / "horovodlite" / "bin" / "hvlrun"), "-np", str(ranks), "-H", hosts]
    worker = [sys.executable, str(Path(__file__).with_name("hosts_worker.py"))]
    words = [options.sizes, str(options.rounds), options.only]
    command = [*hvlrun, "--rsh", str(script), "--output", "none", "--show", "0", *worker, *words]
    done = subprocess.run(
        network.inside(0, *command),
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the ranks ended with exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(options: argparse.Namespace, found: Sequence[dict[str, object]]) -> str:
    names = options.only.split(",")
    titles = [text for name in names for text in (name, "of limit", "sent")]
    lines = [["bytes", "limit", *titles]]
    for size in map(int, options.sizes.split(",")):
        payload = 2 * (options.hosts - 1) / options.hosts * size
        limit = payload * 8 / (options.megabits * 1e6)
        texts = []
        for name in names:
            rounds = [row for row in found if row["name"] == name and row["bytes"] == size]
            seconds = median(float(str(row["seconds"])) for row in rounds)
            sent = median(float(str(row["sent"])) for row in rounds)
            texts += [time_text(seconds), f"{limit / seconds:.2f}x", f"{sent / payload:.2f}x"]
        lines.append([str(size), time_text(limit), *texts])
    return align(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        with (
            Network(options.hosts, options.megabits) as network,
            tempfile.TemporaryDirectory() as folder,
        ):
            found = measure(options, network, Path(folder))
    except MissingError as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"options": vars(options), "rounds": found}, default=str))
    print(table(options, found))
    best = options.megabits * 1e6 / HEADERS
    print(
        f"\n{options.hosts} hosts with {options.slots} ranks each, {options.megabits} Mbit/s; "
        f"medians of {options.rounds} rounds, interleaved.\n"
        f"limit: 2 (M - 1) / M K bytes on the link, "
        f"headers not counted (with them TCP carries at most {best / 1e6:.0f} Mbit/s).\n"
        f"sent: what left the host of rank 0, as a part of 2 (M - 1) / M K."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

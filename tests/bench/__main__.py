"""`tests/dev bench`, or `python -m tests.bench` in a tree that is built."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from . import machine, plot, singles
from .cases import CONTESTANTS, Case, Contestant, all_cases, choose
from .contestants import STARTERS, MissingError, Setup, start_probe
from .measure import Bench, Repetition
from .report import rows, table
from .team import Team, scratch_folder

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = """examples:
  tests/dev bench                                everything: some minutes
  tests/dev bench -- --quick                     fewer sizes and rounds: about a minute
  tests/dev bench -- --only 64MiB step           some cases
  tests/dev bench -- --against Gloo --rounds 31  one rival, more rounds
  tests/dev bench -- --json a.json --plot a.png  results elsewhere

docs/benchmarks.md tells how to read the table. Close other programs first: the machine must be
quiet, and the two ranks need two processors.
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/dev bench --",
        description="Measures horovodlite against Gloo, DDP, Open MPI and the limit, interleaved.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    results = ROOT / "build" / "bench"
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (11; 3 with --quick)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases by name")
    parser.add_argument(
        "--against", nargs="*", metavar="NAME", help="rivals by name (all); none: only ours"
    )
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks of a team (2)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="CMake's directory")
    parser.add_argument("--json", type=Path, default=results / "result.json", metavar="OUT")
    parser.add_argument("--plot", type=Path, default=results / "result.png", metavar="OUT")
    parser.add_argument("--no-singles", action="store_true", help="leave out trap, idle and cycle")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 11)
    if options.rounds < 1 or options.ranks < 2:
        parser.error("--rounds must be at least 1 and --ranks at least 2")
    return options


def choose_contestants(against: Sequence[str] | None) -> list[Contestant]:
    def wanted(contestant: Contestant) -> bool:
        ours = contestant.name.startswith("ours")
        return ours or against is None or contestant.name in against

    rivals = [c.name for c in CONTESTANTS if not c.name.startswith("ours")]
    for name in against or []:
        if name not in rivals:
            raise ValueError(f"no rival is named '{name}'; there are {', '.join(rivals)}")
    return [contestant for contestant in CONTESTANTS if wanted(contestant)]


def start_teams(
    stack: ExitStack, setup: Setup, contestants: Sequence[Contestant], cases: Sequence[Case]
) -> dict[str, Team]:
    """Those that take part and can be started; what cannot is said and left out."""
    groups = {case.group for case in cases}
    needed = {c.team for c in contestants if groups & c.says.keys()}
    teams: dict[str, Team] = {}
    for name, start in STARTERS.items():
        if name not in needed:
            continue
        try:
            teams[name] = stack.enter_context(start(setup))
        except MissingError as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return teams


def measure_singles(setup: Setup, teams: dict[str, Team], *, quick: bool) -> dict[str, object]:
    found: dict[str, object] = {"trap": (result := singles.trap(setup))}
    print(f"\n{singles.trap_text(result)}")
    if "cpp" in teams:
        found["idle"] = (result := singles.idle(teams["cpp"], 2 if quick else 10))
        print(f"\n{singles.idle_text(result)}")
        found["cycles"] = (result := singles.cycles(teams["cpp"], 20 if quick else 100))
        print(f"\n{singles.cycles_text(result)}")
    return found


def waiting_text(repetitions: Sequence[Repetition], elapsed: float) -> str:
    """How idle the waiting teams really were."""
    used: dict[str, float] = {}
    for rep in repetitions:
        for team, seconds in rep.waiting_seconds.items():
            used[team] = used.get(team, 0.0) + seconds
    shares = ", ".join(f"{team} {seconds / elapsed:.2%}" for team, seconds in used.items())
    return f"Of {elapsed:.0f} s, waiting teams used this part of a processor: {shares or 'none'}."


def write_json(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        cases = choose(all_cases(quick=options.quick), options.only)
        contestants = choose_contestants(options.against)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        print("error: two processors are needed, this process may use one", file=sys.stderr)
        return 2
    pinned = [processors[rank % len(processors)] for rank in range(options.ranks)]
    described = machine.describe()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch_folder()))
        setup = Setup(options.ranks, pinned, options.build, folder)
        teams = start_teams(stack, setup, contestants, cases)
        bench = Bench(teams, stack.enter_context(start_probe(setup)))
        taking_part = [c for c in contestants if c.team in teams]
        start = time.monotonic()
        repetitions = list(bench.rounds(options.rounds, cases, taking_part))
        elapsed = time.monotonic() - start
        found = rows(cases, repetitions)
        print(f"\n{table(found, [c.name for c in taking_part])}")
        print(f"\n{waiting_text(repetitions, elapsed)}")
        single = {} if options.no_singles else measure_singles(setup, teams, quick=options.quick)
    result = {
        "machine": described,
        "ranks": options.ranks,
        "rounds": options.rounds,
        "summary": [row.to_json() for row in found],
        "single": single,
        "repetitions": [rep.to_json() for rep in repetitions],
    }
    write_json(options.json, result)
    plot.save(found, options.plot, f"{options.ranks} ranks, {described['processor']}")
    print(f"\n{options.json} holds every repetition; {options.plot} is the picture.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

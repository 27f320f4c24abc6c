"""Runs the rounds: every contestant once per case and round, each repetition between two probes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from tqdm import tqdm

from .cases import Case, Contestant
from .team import Team, TeamError

# One way between two processors, in nanoseconds. In 1,298 probes on a virtual machine with an AMD
# EPYC: 32 when near, 130 to 220 when far, nothing between.
NEAR_BELOW_NS = 100.0
# So few bytes are one cache line, and what limits them is the way of that line.
LINE_BYTES = 64


@dataclass(frozen=True)
class Repetition:
    """One measured number, and what was around it."""

    round: int
    case: str
    contestant: str
    seconds: float  # per iteration, of the slowest rank
    rank_seconds: list[list[float]]  # as answered: what each rank measured
    probe_ns: tuple[float, float]  # before and after
    waiting_seconds: dict[str, float]  # processor time of each waiting team meanwhile

    @property
    def regime(self) -> str:
        """Where the processors were: "mixed" when they moved meanwhile."""
        near = [distance < NEAR_BELOW_NS for distance in self.probe_ns]
        return {(True, True): "near", (False, False): "far"}.get((near[0], near[1]), "mixed")

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "regime": self.regime}


def slowest(case: Case, contestant: Contestant, answers: Sequence[Sequence[float]]) -> float:
    """The time of the slowest rank.

    The limit answers with two ways to write, of which the better one counts. Steps answer with a
    sum over the parameters as well, which has to be the same everywhere.
    """
    if contestant.name == "limit":
        ways: list[float] = [max(times) for times in zip(*answers)]
        return min(ways)
    if case.group == "step" and contestant.says["step"] != "alone":
        sums = {answer[1] for answer in answers}
        if len(sums) != 1:
            raise TeamError(f"{contestant.name}: parameters differ after '{case.name}': {sums}")
    return max(float(answer[0]) for answer in answers)


class Bench:
    """The teams that could be started, and the probe."""

    def __init__(self, teams: Mapping[str, Team], probe: Team) -> None:
        self.teams = teams
        self.probe = probe

    def probe_ns(self) -> float:
        return self.probe.run("probe")[0][0] * 1e9

    def repetition(self, number: int, case: Case, contestant: Contestant) -> Repetition:
        team = self.teams[contestant.team]
        waiting = {name: other for name, other in self.teams.items() if other is not team}
        used_before = {name: other.processor_seconds() for name, other in waiting.items()}
        before = self.probe_ns()
        answers = team.run(case.command.format(contestant.says[case.group]))
        after = self.probe_ns()
        seconds = slowest(case, contestant, answers)
        if contestant.name == "limit" and case.payload_bytes <= LINE_BYTES:
            seconds = max(seconds, (before + after) / 2 * 1e-9)
        return Repetition(
            round=number,
            case=case.name,
            contestant=contestant.name,
            seconds=seconds,
            rank_seconds=answers,
            probe_ns=(before, after),
            waiting_seconds={
                name: other.processor_seconds() - used_before[name]
                for name, other in waiting.items()
            },
        )

    def rounds(
        self, count: int, cases: Sequence[Case], contestants: Sequence[Contestant]
    ) -> Iterator[Repetition]:
        """In each round all cases, in each case all contestants in a new order."""
        order = random.Random(0)
        total = count * sum(case.group in c.says for case in cases for c in contestants)
        with tqdm(total=total, unit="rep", dynamic_ncols=True) as bar:
            for number in range(count):
                for case in cases:
                    taking_part = [c for c in contestants if case.group in c.says]
                    order.shuffle(taking_part)
                    for contestant in taking_part:
                        bar.set_postfix_str(f"{case.name}, {contestant.name}")
                        yield self.repetition(number, case, contestant)
                        bar.update()

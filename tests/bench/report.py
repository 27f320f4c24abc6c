"""Tables from repetitions: medians by regime, and the ratios between contestants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .cases import Case
from .measure import Repetition

REGIMES = ("near", "far", "mixed")
# "ours" in a ratio is the best of ours that took part: title, the other (one of them at most takes
# part in a case), which ours.
RATIOS = (
    ("vs Gloo", ("Gloo",), ("ours Python", "ours tcp")),
    ("vs MPI", ("Open MPI", "Open MPI tcp"), ("ours C++", "ours C++ arena", "ours tcp C++")),
    ("of limit", ("limit",), ("ours C++", "ours C++ arena")),
)
OVERHEAD = "overhead"


@dataclass(frozen=True)
class Cell:
    """What is known of one contestant in one case and regime."""

    seconds: float  # median
    best: float
    worst: float
    count: int


@dataclass(frozen=True)
class Row:
    """One case in one regime."""

    case: Case
    regime: str
    cells: dict[str, Cell]

    def ratio(self, others: Sequence[str], ours: Sequence[str]) -> float | None:
        """How many times as fast as the other we are (medians)."""
        own = [self.cells[name].seconds for name in ours if name in self.cells]
        theirs = [self.cells[name].seconds for name in others if name in self.cells]
        return min(theirs) / min(own) if theirs and own else None

    def overhead(self) -> float | None:
        """Of a step: what communication adds with ours, as a part of what it adds with DDP."""
        names = ("ours Python", "Gloo", "no communication")
        if not all(name in self.cells for name in names):
            return None
        ours, theirs, alone = (self.cells[name].seconds for name in names)
        return (ours - alone) / (theirs - alone) if theirs > alone else None

    def to_json(self) -> dict[str, object]:
        return {
            "case": self.case.name,
            "regime": self.regime,
            "payload_bytes": self.case.payload_bytes,
            "median_seconds": {name: cell.seconds for name, cell in self.cells.items()},
            "repetitions": {name: cell.count for name, cell in self.cells.items()},
            "ratios": {title: self.ratio(others, ours) for title, others, ours in RATIOS},
            "part_of_overhead": self.overhead(),
        }


def rows(cases: Iterable[Case], repetitions: Sequence[Repetition]) -> list[Row]:
    found = []
    for case in cases:
        for regime in REGIMES:
            times: dict[str, list[float]] = {}
            for rep in repetitions:
                if rep.case == case.name and rep.regime == regime:
                    times.setdefault(rep.contestant, []).append(rep.seconds)
            cells = {
                name: Cell(median(values), min(values), max(values), len(values))
                for name, values in times.items()
            }
            if cells:
                found.append(Row(case, regime, cells))
    return found


def time_text(seconds: float) -> str:
    for unit, name in ((1.0, "s "), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def table(found: Sequence[Row], contestants: Sequence[str]) -> str:
    """Median times; the number of repetitions behind each in brackets."""
    present = [name for name in contestants if any(name in row.cells for row in found)]
    lines = [["case", "cores", *present, *(title for title, _, _ in RATIOS), OVERHEAD]]
    for row in found:
        cells = [row.cells.get(name) for name in present]
        texts = [f"{time_text(cell.seconds)} ({cell.count})" if cell else "-" for cell in cells]
        ratios = [row.ratio(others, ours) for _, others, ours in RATIOS] + [row.overhead()]
        shown = ["-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]
        lines.append([row.case.name, row.regime, *texts, *shown])
    return align(lines)


def align(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = []
    for line in lines:
        head = "  ".join(line[column].ljust(widths[column]) for column in range(2))
        tail = "  ".join(line[column].rjust(widths[column]) for column in range(2, len(widths)))
        texts.append(f"{head}  {tail}".rstrip())
    texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(texts)

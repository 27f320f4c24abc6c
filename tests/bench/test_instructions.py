"""Hot paths take as many instructions as is committed, so that nothing gets slower unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import instructions
from .instructions import Counts, deviations, read_dump

CURE = (
    "If that is meant, say why in the commit and run `python -m tests.bench.instructions --record`."
)


def test_the_hot_paths_take_as_many_instructions_as_is_committed() -> None:
    try:
        now = instructions.count()
    except instructions.MissingError as missing:
        pytest.skip(str(missing))
    committed = instructions.recorded()
    if now.compiler != committed.compiler:
        pytest.skip(f"the committed counts are of '{committed.compiler}', not '{now.compiler}'")
    print(instructions.table(now, committed))
    assert not deviations(now, committed), CURE


def test_a_path_that_gets_slower_faster_lost_or_new_is_told() -> None:
    committed = Counts("x", {"same": 100, "slower": 100, "faster": 100, "lost": 1})
    now = Counts("x", {"same": 102, "slower": 104, "faster": 96, "new": 1})
    told = deviations(now, committed)
    assert [line.split(":")[0] for line in told] == ["faster", "lost", "new", "slower"]
    assert "100.0 -> 104.0 instructions (+4.0 %, slower)" in told[3]


def test_a_dump_gives_name_and_count_and_the_last_one_nothing(tmp_path: Path) -> None:
    dump = tmp_path / "out.1"
    dump.write_text("desc: Trigger: Client Request: plan submit / 50\ntotals: 125\n")
    assert read_dump(dump) == ("plan submit", 2.5)
    dump.write_text("desc: Trigger: Program termination\ntotals: 8\n")
    assert read_dump(dump) is None

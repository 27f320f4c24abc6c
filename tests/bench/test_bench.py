"""The benchmark's own arithmetic and process handling; nothing here measures anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cases import CONTESTANTS, KIB, STEPS, Case, all_cases, choose, size_text
from .measure import Bench, Repetition, slowest
from .report import Row, rows, table, time_text
from .team import Process, Team, TeamError, scratch_folder
from .torch_worker import make_model

FAKE_RANK = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["HVL_BENCH_SOCKET"])
connection.sendall(f"hello {os.environ['HVL_BENCH_TEAM']} {sys.argv[1]} {os.getpid()}\\n".encode())
for line in connection.makefile():
    if line.startswith("crash"):
        sys.exit("told to crash")
    connection.sendall(f"ok {len(line.split())} {sys.argv[1]}\\n".encode())
"""
CASE = Case("allreduce", "allreduce 4 B", 4, "{} 4")
CONTESTANT = {contestant.name: contestant for contestant in CONTESTANTS}


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield Path(path)


def fake_team(folder: Path, ranks: int = 2) -> Team:
    commands = [Process([sys.executable, "-c", FAKE_RANK, str(rank)]) for rank in range(ranks)]
    return Team("fake", ranks, commands, folder)


def repetition(contestant: str, seconds: float, probe_ns: tuple[float, float]) -> Repetition:
    return Repetition(0, CASE.name, contestant, seconds, [[seconds]], probe_ns, {})


def test_all_ranks_carry_out_a_command_and_answer_in_rank_order(folder: Path) -> None:
    with fake_team(folder, 3) as team:
        assert team.run("one two") == [[2.0, 0.0], [2.0, 1.0], [2.0, 2.0]]
        assert team.processor_seconds() > 0


def test_a_rank_that_fails_is_reported_with_its_last_words(folder: Path) -> None:
    with fake_team(folder) as team, pytest.raises(TeamError, match="told to crash"):
        team.run("crash")


def test_a_team_that_does_not_start_is_reported_with_its_last_words(folder: Path) -> None:
    process = Process([sys.executable, "-c", "import sys; sys.exit('no luck')"])
    with pytest.raises(TeamError, match=r"(?s)status 1.*no luck"):
        Team("fake", 1, [process], folder)


def test_stopping_leaves_no_process(folder: Path) -> None:
    with fake_team(folder) as team:
        pids = [rank.pid for rank in team.ranks]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_repetition_is_near_or_far_only_when_both_probes_say_so() -> None:
    assert repetition("Gloo", 1.0, (45.0, 60.0)).regime == "near"
    assert repetition("Gloo", 1.0, (190.0, 230.0)).regime == "far"
    assert repetition("Gloo", 1.0, (45.0, 230.0)).regime == "mixed"
    assert repetition("Gloo", 1.0, (230.0, 45.0)).regime == "mixed"


def test_the_time_is_that_of_the_slowest_rank() -> None:
    assert slowest(CASE, CONTESTANT["Gloo"], [[1.0], [3.0]]) == 3.0


def test_the_limit_is_the_better_of_two_ways_each_as_slow_as_its_slowest_rank() -> None:
    assert slowest(CASE, CONTESTANT["limit"], [[1.0, 2.5], [3.0, 2.0]]) == 2.5


def test_parameters_that_differ_after_a_step_are_an_error_unless_nothing_was_exchanged() -> None:
    answers = [[1.0, 0.5], [1.0, 0.75]]
    with pytest.raises(TeamError, match="parameters differ"):
        slowest(STEPS[0], CONTESTANT["Gloo"], answers)
    assert slowest(STEPS[0], CONTESTANT["no communication"], answers) == 1.0


def test_every_case_has_contestants_and_a_command_that_they_complete() -> None:
    for case in all_cases(quick=False):
        taking_part = [c for c in CONTESTANTS if case.group in c.says]
        assert len(taking_part) >= 3
        assert "{" not in case.command.format(taking_part[0].says[case.group])


def test_cases_are_chosen_by_parts_of_their_names() -> None:
    cases = all_cases(quick=False)
    assert choose(cases, []) == cases
    assert [case.name for case in choose(cases, ["64MiB"])] == [
        "allreduce 64 MiB",
        "tcp 64 MiB",
        "fresh 64 MiB",
    ]
    with pytest.raises(ValueError, match="no case is named like nonsense"):
        choose(cases, ["nonsense"])


def test_rows_hold_medians_by_regime_and_ratios_of_ours() -> None:
    near, far = (50.0, 50.0), (200.0, 200.0)
    repetitions = [
        *(repetition("Open MPI", seconds, near) for seconds in (4.0, 6.0, 100.0)),
        *(repetition("ours C++", seconds, near) for seconds in (3.0, 2.0, 4.0)),
        repetition("ours C++ arena", 1.5, near),
        repetition("limit", 1.0, near),
        repetition("Open MPI", 8.0, far),
    ]
    first, second = rows([CASE], repetitions)
    assert (first.regime, second.regime) == ("near", "far")
    assert first.cells["Open MPI"].seconds == 6.0
    assert first.cells["Open MPI"].count == 3
    assert first.ratio(("Open MPI",), ("ours C++", "ours C++ arena")) == 4.0
    assert first.ratio(("limit",), ("ours C++",)) == pytest.approx(1 / 3)
    assert second.ratio(("Open MPI",), ("ours C++",)) is None


def test_the_table_has_a_line_per_row_and_leaves_out_who_was_absent() -> None:
    found: list[Row] = rows([CASE], [repetition("Gloo", 2e-6, (50.0, 50.0))])
    text = table(found, ["ours C++", "Gloo"])
    assert "ours C++" not in text
    assert "2 us (1)" in text
    assert len(text.splitlines()) == 3


def test_texts_of_times_and_sizes() -> None:
    assert time_text(1.5) == "1.5 s "
    assert time_text(12.34e-3) == "12.3 ms"
    assert time_text(4e-9) == "4 ns"
    assert [size_text(n) for n in (4, 32 * KIB, 1 << 20)] == ["4 B", "32 KiB", "1 MiB"]


def test_the_models_are_as_large_as_the_cases_say() -> None:
    for case in STEPS:
        model = make_model(case.name.removeprefix("step "), 0)
        assert 4 * sum(p.numel() for p in model.parameters()) == case.payload_bytes
    for name, tensors in (("wide", 161), ("resnet50", 161), ("small", 400)):
        assert len(list(make_model(name, 0).parameters())) == tensors


def test_a_repetition_as_json_says_its_regime() -> None:
    assert repetition("Gloo", 1.0, (45.0, 60.0)).to_json()["regime"] == "near"


def test_a_round_measures_every_contestant_once_and_probes_around_it(folder: Path) -> None:
    with fake_team(folder) as team, scratch_folder() as other:
        probe = Team("fake", 1, [Process([sys.executable, "-c", FAKE_RANK, "0"])], Path(other))
        with probe:
            bench = Bench({"gloo": team}, probe)
            taking_part = [CONTESTANT["Gloo"]]
            found = list(bench.rounds(2, [CASE], taking_part))
    assert [(rep.round, rep.contestant) for rep in found] == [(0, "Gloo"), (1, "Gloo")]
    assert found[0].seconds == 2.0
    assert found[0].probe_ns == (1e9, 1e9)

"""How jobs end by themselves: exit codes, who is named first, what the summary says."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import Launcher, wait_until

INTERNAL_ERROR = """
    class HorovodInternalError(RuntimeError):
        pass
"""


def test_all_well_is_0(hvlrun: Launcher) -> None:
    assert hvlrun("-np", "4", "true").code == 0


@pytest.mark.parametrize("code", [1, 3, 77, 255])
def test_the_exit_code_is_that_of_the_rank_that_failed(hvlrun: Launcher, code: int) -> None:
    ended = hvlrun("-np", "3", "sh", "-c", f"test $RANK != 1 || exit {code}; sleep 100")
    assert ended.code == code
    assert "first to fail: rank 1 of 3" in ended.error_text
    assert f"exit code {code}\n" in ended.error_text
    assert "ranks 0 and 2: stopped by hvlrun" in ended.error_text
    assert ended.seconds < 10


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_rank_that_dies_of_a_signal_is_128_more(hvlrun: Launcher, signo: signal.Signals) -> None:
    ended = hvlrun("-np", "2", "sh", "-c", f"test $RANK = 0 && kill -{signo.value} $$; sleep 100")
    assert ended.code == 128 + signo
    assert f"{signo.name} (signal {signo.value}" in ended.error_text
    assert "not sent by hvlrun" in ended.error_text


@pytest.mark.trial("B61")
def test_sys_exit_of_one_rank_ends_the_others_that_sleep(hvlrun: Launcher) -> None:
    code = """
        import os, sys, time
        if os.environ["RANK"] == "0":
            sys.exit(3)
        time.sleep(60)
    """
    ended = hvlrun("-np", "2", *hvlrun.script(code))
    assert ended.code == 3
    assert ended.seconds < 10
    assert "first to fail: rank 0" in ended.error_text


@pytest.mark.trial("B62")
def test_the_traceback_of_the_rank_that_raised_is_shown(hvlrun: Launcher) -> None:
    code = """
        import os, time
        if os.environ["RANK"] == "2":
            raise ValueError("bad batch 17")
        time.sleep(120)
    """
    ended = hvlrun("-np", "4", *hvlrun.script(code))
    assert ended.code == 1
    assert "[2]<stderr>:ValueError: bad batch 17\n" in ended.error_text
    assert "hvlrun:   | ValueError: bad batch 17\n" in ended.error_text
    assert "first to fail: rank 2 of 4" in ended.error_text
    assert ended.seconds < 10


def test_a_rank_that_lost_a_peer_is_not_named_first_even_if_it_ends_first(hvlrun: Launcher) -> None:
    code = (
        INTERNAL_ERROR
        + """
    import os, signal, time
    if os.environ["RANK"] == "1":
        time.sleep(0.4)  # a rank that is long in falling, as with gigabytes to free
        os.kill(os.getpid(), signal.SIGKILL)
    raise HorovodInternalError("allreduce 'x': rank 1 was killed by signal 9")
    """
    )
    ended = hvlrun("-np", "3", *hvlrun.script(code))
    assert ended.code == 137
    assert "first to fail: rank 1 of 3" in ended.error_text
    assert "ranks 0 and 2: exit code 1, lost rank 1" in ended.error_text


def test_a_blamed_rank_that_is_slow_in_ending_is_waited_for(hvlrun: Launcher) -> None:
    code = (
        INTERNAL_ERROR
        + """
    import atexit, os, time
    if os.environ["RANK"] == "1":
        atexit.register(time.sleep, 3)  # longer than others get after a failure
        raise ValueError("bad batch")
    raise HorovodInternalError("allreduce 'x': rank 1 has left")
    """
    )
    ended = hvlrun("-np", "3", *hvlrun.script(code))
    assert ended.code == 1
    assert "first to fail: rank 1 of 3" in ended.error_text
    assert "hvlrun:   | ValueError: bad batch" in ended.error_text
    assert "ranks 0 and 2: exit code 1, lost rank 1" in ended.error_text


def test_a_blamed_rank_that_never_ends_is_not_waited_for_long(hvlrun: Launcher) -> None:
    code = (
        INTERNAL_ERROR
        + """
    import os, time
    if os.environ["RANK"] == "1":
        time.sleep(100)
    raise HorovodInternalError("allreduce 'x': rank 1 does not answer")
    """
    )
    ended = hvlrun("-np", "2", "-v", *hvlrun.script(code))
    assert ended.code == 1
    assert "waiting for rank 1, which others report as lost, to end" in ended.error_text
    assert "first to fail: rank 0 of 2" in ended.error_text
    assert "it lost rank 1, which did not end by itself" in ended.error_text
    assert "then rank 1: stopped by hvlrun" in ended.error_text
    assert ended.seconds < 30


def test_a_peer_that_had_ended_well_is_mentioned(hvlrun: Launcher) -> None:
    code = (
        INTERNAL_ERROR
        + """
    import os, time
    if os.environ["RANK"] == "0":
        time.sleep(0.3)
        raise HorovodInternalError("allreduce 'x': rank 1 exited")
    """
    )
    ended = hvlrun("-np", "2", *hvlrun.script(code))
    assert ended.code == 1
    assert "it lost rank 1, which had ended with exit code 0" in ended.error_text


def test_survivors_get_a_moment_for_their_own_error(hvlrun: Launcher) -> None:
    code = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        time.sleep(0.5)
        print("noticed", flush=True)
        sys.exit(5)
    """
    ended = hvlrun("-np", "2", *hvlrun.script(code))
    assert ended.code == 137
    assert ended.lines == ["[0]<stdout>:noticed"]
    assert "rank 0: exit code 5" in ended.error_text


def test_ranks_that_do_not_block_signals_are_gone_in_3_s(hvlrun: Launcher) -> None:
    code = """
        import os, time
        open(f"up{os.environ['RANK']}", "w").close()
        while len([n for n in os.listdir() if n.startswith("up")]) < 4:
            time.sleep(0.01)
        if os.environ["RANK"] == "3":
            open("death", "w").write(str(time.monotonic()))
            os.kill(os.getpid(), 9)
        time.sleep(100)
    """
    ended = hvlrun("-np", "4", *hvlrun.script(code))
    end = time.monotonic()
    assert ended.code == 137
    assert end - float((hvlrun.folder / "death").read_text()) < 3


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_time(hvlrun: Launcher) -> None:
    command = "trap '' TERM; test $RANK = 0 && exit 9; while :; do sleep 0.1; done"
    ended = hvlrun("-np", "2", "--grace", "0.5", "sh", "-c", command)
    assert ended.code == 9
    assert "rank 1: killed by hvlrun, did not stop when asked" in ended.error_text
    assert ended.seconds < 10


def test_a_rank_that_ends_well_early_does_not_end_the_others(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "sh", "-c", "test $RANK = 0 || { sleep 1.5; echo still here; }")
    assert ended.code == 0
    assert ended.lines == ["[1]<stdout>:still here"]


def test_many_ranks_fail_at_once(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "8", "sh", "-c", "exit $((RANK + 1))")
    assert 1 <= ended.code <= 8
    assert f"first to fail: rank {ended.code - 1} of 8" in ended.error_text


def test_the_timeout_stops_the_job_with_124(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "--timeout", "0.5", "sleep", "100")
    assert ended.code == 124
    assert "the time of --timeout was over" in ended.error_text
    assert ended.seconds < 10


def test_a_job_that_is_in_time_does_not_notice_the_timeout(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "--timeout", "50", "true")
    assert (ended.code, ended.err) == (0, b"")
    assert ended.seconds < 10


# --- restarts -------------------------------------------------------------------------------------


def test_a_job_that_failed_is_started_again_as_often_as_allowed(hvlrun: Launcher) -> None:
    command = "echo $HVL_RUN_RESTART_COUNT/$TORCHELASTIC_RESTART_COUNT $HVL_JOB_ID; exit 3"
    words = ["--max-restarts", "2", "--log-dir", "logs"]
    ended = hvlrun("-np", "1", *words, "sh", "-c", command)
    assert ended.code == 3
    started = [line.split() for line in ended.lines]
    assert [count for count, _ in started] == [f"[0]<stdout>:{n}/{n}" for n in (0, 1, 2)]
    assert len({job for _, job in started}) == 3
    assert ended.error_text.count("first to fail: rank 0 of 1") == 3
    assert ended.error_text.count("hvlrun: starting all ranks again: restart 1 of 2\n") == 1
    assert "restart 2 of 2" in ended.error_text
    for attempt in range(3):
        log = hvlrun.folder / "logs" / f"attempt.{attempt}" / "rank.0" / "stdout"
        assert log.read_text().startswith(f"{attempt}/")


def test_a_job_that_succeeds_after_a_restart_is_0_and_all_its_ranks_were_new(
    hvlrun: Launcher,
) -> None:
    command = """
        echo $RANK >> started
        test $HVL_RUN_RESTART_COUNT = 1 && exit 0
        test $RANK = 1 && kill -9 $$
        sleep 100 & sleep 100
    """
    ended = hvlrun("-np", "3", "--max-restarts", "5", "sh", "-c", command)
    assert ended.code == 0
    assert sorted((hvlrun.folder / "started").read_text().split()) == ["0", "0", "1", "1", "2", "2"]
    assert ended.error_text.count("starting all ranks again") == 1


def test_a_job_without_restarts_knows_nothing_of_them(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "1", "sh", "-c", "echo ${HVL_RUN_RESTART_COUNT-none}")
    assert ended.lines == ["[0]<stdout>:none"]


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_no_reason_to_start_again(hvlrun: Launcher, signo: signal.Signals) -> None:
    command = "echo $$ > up; trap 'exit 7' TERM INT; while :; do sleep 0.05; done"
    running = hvlrun.start("-np", "1", "--max-restarts", "3", "sh", "-c", command)
    wait_until("the rank runs", (hvlrun.folder / "up").exists)
    running.signal(signo)
    ended = running.wait()
    assert ended.code == 128 + signo
    assert "starting all ranks again" not in ended.error_text


def test_the_time_of_timeout_covers_restarts(hvlrun: Launcher) -> None:
    words = ["--timeout", "3", "--max-restarts", "1000"]
    ended = hvlrun("-np", "1", *words, "sh", "-c", "sleep 0.3; exit 3")
    assert ended.code == 124
    assert ended.error_text.count("starting all ranks again") < 11


def test_what_cannot_be_started_is_not_tried_again(hvlrun: Launcher) -> None:
    path = hvlrun.folder / "script"
    path.write_text("echo hi\n")
    path.chmod(0o755)
    ended = hvlrun("-np", "2", "--max-restarts", "3", "./script")
    assert ended.code == 126
    assert ended.error_text.count("hvlrun: ") == 1


# --- commands that cannot run ---------------------------------------------------------------------


def test_an_unknown_command_is_127(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "no-such-command-here")
    assert ended.code == 127
    assert ended.error_text == "hvlrun: command not found: no 'no-such-command-here' in PATH\n"


def test_a_file_that_is_no_program_is_126(hvlrun: Launcher) -> None:
    (hvlrun.folder / "plain.py").write_text("print()")
    ended = hvlrun("-np", "2", "./plain.py")
    assert ended.code == 126
    assert "python ./plain.py" in ended.error_text
    assert hvlrun("-np", "2", "./").code == 126


def test_a_script_without_a_first_line_is_126_and_one_with_a_bad_one_127(hvlrun: Launcher) -> None:
    for text, code, words in (
        ("echo hi\n", 126, "needs a first line like #!/bin/sh"),
        ("#!/no/such/interpreter\n", 127, "interpreter of its first line"),
    ):
        path = hvlrun.folder / "script"
        path.write_text(text)
        path.chmod(0o755)
        ended = hvlrun("-np", "2", "./script")
        assert ended.code == code
        assert words in ended.error_text


def test_a_variable_that_the_kernel_refuses_is_126(hvlrun: Launcher) -> None:
    # Two options of hvlrun that fit by themselves make one variable that does not.
    names = ["--network-interfaces", "lo" + ",lo" * 30_000]
    ended = hvlrun("-np", "2", *names, *names, "touch", "started")
    assert ended.code == 126
    assert "one variable is longer than 128 KiB" in ended.error_text
    assert not (hvlrun.folder / "started").exists()


def test_the_summary_says_when_where_and_how(hvlrun: Launcher) -> None:
    command = "if [ $RANK = 1 ]; then echo oh no >&2; kill -9 $$; fi; sleep 50"
    ended = hvlrun("-np", "2", "--log-dir", "logs", "sh", "-c", command)
    lines = [line for line in ended.error_text.splitlines() if line.startswith("hvlrun:")]
    assert lines[0].startswith("hvlrun: job ")
    assert " failed after 0." in lines[0]
    assert "rank 1 of 2 (pid " in lines[0]
    assert "on localhost)" in lines[0]
    assert lines[1].startswith("hvlrun:   SIGKILL (signal 9), not sent by hvlrun; peak memory ")
    assert lines[2:] == [
        "hvlrun:   its last lines on stderr:",
        "hvlrun:   | oh no",
        "hvlrun: then rank 0: stopped by hvlrun",
        "hvlrun: exit code 137; its output is in logs/rank.1",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="limiting a control group's memory needs root")
def test_the_out_of_memory_killer_is_named(hvlrun: Launcher) -> None:
    old = Path("/sys/fs/cgroup/memory")
    group = (old if old.is_dir() else old.parent) / f"hvl-test-{hvlrun.mark}"
    limit = "memory.limit_in_bytes" if old.is_dir() else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group here: {error}")
    try:
        (group / limit).write_text(str(64 << 20))
        code = """
            import os, time
            if os.environ["RANK"] == "1":
                hog = []
                while True:
                    hog.append(b"m" * (1 << 20))
            time.sleep(60)
        """
        prefix = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        ended = hvlrun("-np", "2", *hvlrun.script(code), command_prefix=prefix)
        assert ended.code == 137
        assert "first to fail: rank 1" in ended.error_text
        assert "very likely out of memory" in ended.error_text
    finally:
        hvlrun.expect_nothing_left()
        group.rmdir()


def test_a_failure_in_the_middle_of_a_flood_is_found_at_its_end(hvlrun: Launcher) -> None:
    code = """
        import os, sys
        sys.stdout.write("x" * 60 + "\\n" * 1)
        for n in range(20_000):
            print("line", n)
        if os.environ["RANK"] == "1":
            sys.exit("the end")
    """
    ended = hvlrun("-np", "2", *hvlrun.script(code))
    assert ended.code == 1
    assert ended.lines.count("[1]<stdout>:line 19999") == 1
    assert ended.error_text.rindex("[1]<stderr>:the end") < ended.error_text.index("hvlrun: job")

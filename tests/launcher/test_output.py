"""What arrives on the screen and in the log files, byte by byte."""

from __future__ import annotations

import fcntl
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HVLRUN, Launcher, wait_until

FLOOD = """
    import os, sys
    rank = os.environ["RANK"]
    lines = "".join(f"{rank} {number} {'x' * (number % 60)}\\n" for number in range(50_000))
    sys.stdout.write(lines)
"""


def of_rank(lines: list[str], rank: int, stream: str = "stdout") -> list[str]:
    tag = f"[{rank}]<{stream}>:"
    return [line[len(tag) :] for line in lines if line.startswith(tag)]


def test_200_000_lines_of_4_ranks_arrive_whole_and_in_order(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "4", *hvlrun.script(FLOOD))
    assert ended.code == 0
    assert len(ended.lines) == 200_000
    for rank in range(4):
        expected = [f"{rank} {number} {'x' * (number % 60)}" for number in range(50_000)]
        assert of_rank(ended.lines, rank) == expected
    assert ended.err == b""


def test_stdout_and_stderr_stay_apart(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "1", "sh", "-c", "echo out; echo err >&2")
    assert (ended.out, ended.err) == (b"[0]<stdout>:out\n", b"[0]<stderr>:err\n")


def test_a_job_that_goes_well_adds_nothing(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "3", "true")
    assert (ended.code, ended.out, ended.err) == (0, b"", b"")


def test_parts_of_lines_are_put_together(hvlrun: Launcher) -> None:
    code = """
        import os, sys, time
        rank = os.environ["RANK"]
        for number in range(100):
            for part in (rank, " part ", str(number), "\\n"):
                sys.stdout.write(part)
                sys.stdout.flush()
                time.sleep(0.0005)
    """
    ended = hvlrun("-np", "3", *hvlrun.script(code))
    for rank in range(3):
        assert of_rank(ended.lines, rank) == [f"{rank} part {number}" for number in range(100)]


def test_the_last_line_is_completed(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "2", "sh", "-c", "printf end")
    assert sorted(ended.lines) == ["[0]<stdout>:end", "[1]<stdout>:end"]
    assert ended.out.endswith(b"\n")


def test_any_byte_passes(hvlrun: Launcher) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 500)"
    ended = hvlrun("-np", "1", "--output", "none", sys.executable, "-c", code)
    assert ended.out == bytes(range(256)) * 500 + b"\n"


def test_characters_are_not_cut_in_long_lines(hvlrun: Launcher) -> None:
    code = """
        import os
        text = "\\u20ac\\U0001f600\\u00e9" * 40_000
        for at in range(0, len(text.encode()), 777):
            os.write(1, text.encode()[at : at + 777])
    """
    ended = hvlrun("-np", "2", *hvlrun.script(code))
    for rank in range(2):
        assert of_rank(ended.lines, rank) == ["\u20ac\U0001f600\u00e9" * 40_000]


def test_a_line_beyond_a_mebibyte_is_cut_but_complete(hvlrun: Launcher) -> None:
    code = "print('y' * 3_000_000)"
    ended = hvlrun("-np", "1", sys.executable, "-c", code)
    assert "".join(of_rank(ended.lines, 0)) == "y" * 3_000_000


def test_a_progress_update_passes_before_the_line_ends(hvlrun: Launcher) -> None:
    code = """
        import os, sys
        sys.stderr.write("50%\\r")
        sys.stderr.flush()
        open("go").read()
        sys.stderr.write("100%\\n")
    """
    os.mkfifo(hvlrun.folder / "go")
    running = hvlrun.start("-np", "1", *hvlrun.script(code))
    assert running.process.stderr is not None
    expected = b"[0]<stderr>:50%\r"
    assert os.read(running.process.stderr.fileno(), 100) == expected  # the rank still waits
    (hvlrun.folder / "go").write_text("")
    assert running.wait().err == b"[0]<stderr>:100%\n"


def test_only_the_ranks_of_show_are_shown(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "6", "--show", "0,3-4", "sh", "-c", "echo $RANK; echo $RANK >&2")
    assert sorted(ended.lines) == [f"[{rank}]<stdout>:{rank}" for rank in (0, 3, 4)]
    assert len(ended.error_text.splitlines()) == 3


def test_a_hidden_rank_that_fails_is_shown_in_the_summary(hvlrun: Launcher) -> None:
    ended = hvlrun(
        "-np", "2", "--show", "0", "sh", "-c", "test $RANK = 0 || { echo why >&2; exit 4; }"
    )
    assert ended.code == 4
    assert "hvlrun:   | why\n" in ended.error_text


def test_time_stamps(hvlrun: Launcher) -> None:
    for option in ("--prefix-timestamp", "-prefix-timestamp", "--prefix-output-with-timestamp"):
        ended = hvlrun("-np", "1", option, "echo", "x")
        pattern = rb"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n"
        assert re.fullmatch(pattern, ended.out), ended.out


def test_output_none_adds_no_tags_and_still_tears_no_line(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "4", "--output", "none", *hvlrun.script(FLOOD))
    assert len(ended.lines) == 200_000
    assert all(re.fullmatch(r"[0-3] \d+ x*", line) for line in ended.lines)


# --- folding --------------------------------------------------------------------------------------


def ranks_of(tag: str, count: int) -> list[int]:
    """The ranks that a tag names: "3", "0, 2-4" or "all 4"."""
    if tag == f"all {count}":
        return list(range(count))
    ranks: list[int] = []
    for part in tag.split(", "):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def unfolded(lines: list[str], count: int) -> list[list[str]]:
    """What each rank has printed to stdout."""
    of_ranks: list[list[str]] = [[] for _ in range(count)]
    for line in lines:
        found = re.fullmatch(r"\[([^]]*)\]<stdout>:(.*)", line)
        assert found, line
        for rank in ranks_of(found[1], count):
            of_ranks[rank].append(found[2])
    return of_ranks


def test_folded_lines_of_4_ranks_in_step_are_shown_once(hvlrun: Launcher) -> None:
    # A signal wakes all ranks at the same time; on a busy machine not within the window each time.
    code = """
        import os, pathlib, signal
        rank = os.environ["RANK"]
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
        pathlib.Path("ready." + rank).touch()
        while signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR1:
            print("device " + rank + "\\nepoch begins")
    """
    words = ["-np", "4", "--fold", "--log-dir", "logs", *hvlrun.script(code)]
    running = hvlrun.start(*words)
    wait_until("all ranks wait", lambda: len(list(hvlrun.folder.glob("ready.*"))) == 4)
    assert running.process.stdout is not None
    lines: list[str] = []
    rounds = 0
    while "[all 4]<stdout>:epoch begins" not in lines:
        running.signal(signal.SIGUSR1)
        rounds += 1
        assert rounds < 100, lines
        while [len(of_rank) for of_rank in unfolded(lines, 4)] != [2 * rounds] * 4:
            lines.append(running.process.stdout.readline().decode().removesuffix("\n"))
    # Each rank's own line comes before, although some printed "epoch begins" before others that.
    assert sorted(lines[-5:-1]) == [f"[{rank}]<stdout>:device {rank}" for rank in range(4)]
    running.signal(signal.SIGUSR2)
    assert running.wait().code == 0
    for rank in range(4):
        log = (hvlrun.folder / f"logs/rank.{rank}/stdout").read_text()
        assert log == f"device {rank}\nepoch begins\n" * rounds


def test_folding_loses_and_reorders_no_line_of_any_rank(hvlrun: Launcher) -> None:
    code = """
        import os, random, sys
        rank = int(os.environ["RANK"])
        choose = random.Random(rank)
        for number in range(20_000):
            print(f"only {rank} {number}" if choose.random() < 0.1 else f"all {number // 3}")
    """
    ended = hvlrun("-np", "4", "--fold", *hvlrun.script(code))
    assert (ended.code, ended.err) == (0, b"")
    for rank, lines in enumerate(unfolded(ended.lines, 4)):
        choose = random.Random(rank)
        assert lines == [
            f"only {rank} {number}" if choose.random() < 0.1 else f"all {number // 3}"
            for number in range(20_000)
        ]


def test_a_line_of_one_rank_is_shown_while_the_job_goes_on(hvlrun: Launcher) -> None:
    code = """
        import os
        if os.environ["RANK"] == "1":
            print("alone")
            open("go").read()
    """
    os.mkfifo(hvlrun.folder / "go")
    running = hvlrun.start("-np", "4", "--fold", *hvlrun.script(code))
    assert running.process.stdout is not None
    assert running.process.stdout.readline() == b"[1]<stdout>:alone\n"  # the rank still waits
    (hvlrun.folder / "go").write_text("")
    assert running.wait().out == b""


def test_all_folded_lines_come_before_the_failure_summary(hvlrun: Launcher) -> None:
    words = ["sh", "-c", "echo why >&2; echo done; exit 3"]
    ended = hvlrun("-np", "4", "--fold", *words, stderr=subprocess.STDOUT)
    assert ended.code == 3
    summary = [line.startswith("hvlrun: ") for line in ended.lines].index(True)
    before = ended.lines[:summary]
    # A rank that another one's failure has stopped may not have printed anything.
    assert any("]<stderr>:why" in line for line in before)
    assert not any("]<std" in line for line in ended.lines[summary:])
    assert "hvlrun:   | why" in ended.lines[summary:]


def test_progress_bars_are_not_folded(hvlrun: Launcher) -> None:
    code = r"import sys; sys.stderr.write('50%\r100%\n')"
    ended = hvlrun("-np", "4", "--fold", sys.executable, "-c", code)
    assert ended.code == 0
    for rank in range(4):
        assert ended.err.count(b"[%d]<stderr>:50%%\r" % rank) == 1
        assert ended.err.count(b"[%d]<stderr>:100%%\n" % rank) == 1


# --- log files ------------------------------------------------------------------------------------


@pytest.mark.trial("B80")
@pytest.mark.parametrize("option", ["--log-dir", "--output-filename"])
def test_log_files_have_the_bytes_of_each_rank(hvlrun: Launcher, option: str) -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\r\\xff\\n' * 1000); sys.stderr.write('no end')"
    folder = hvlrun.folder / "dir with space" / "deep"
    ended = hvlrun("-np", "2", option, str(folder), sys.executable, "-c", code)
    assert ended.code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rank.0", "rank.1"]
    for rank in range(2):
        assert (folder / f"rank.{rank}" / "stdout").read_bytes() == b"a\r\xff\n" * 1000
        assert (folder / f"rank.{rank}" / "stderr").read_bytes() == b"no end"
    assert ended.out.count(b"[1]<stdout>:a\r") == 1000  # the screen has it too


def test_log_files_have_the_time_of_each_line_on_request(hvlrun: Launcher) -> None:
    code = "import sys; print('one\\ntwo'); sys.stderr.write('no end')"
    words = ["--output-filename", "logs", "--prefix-timestamp", "--show", "0"]
    ended = hvlrun("-np", "2", *words, sys.executable, "-c", code)
    assert ended.code == 0
    stamp = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}: "
    for rank in range(2):
        folder = hvlrun.folder / "logs" / f"rank.{rank}"
        assert re.fullmatch(f"{stamp}one\n{stamp}two\n", (folder / "stdout").read_text())
        assert re.fullmatch(f"{stamp}no end\n?", (folder / "stderr").read_text())


def test_log_folders_have_as_many_digits_as_the_highest_rank(hvlrun: Launcher) -> None:
    assert hvlrun("-np", "11", "--log-dir", "logs", "true").code == 0
    names = sorted(path.name for path in (hvlrun.folder / "logs").iterdir())
    assert names == [f"rank.{rank:02}" for rank in range(11)]


@pytest.mark.trial("B80")
def test_the_log_of_a_rank_that_crashes_is_complete(hvlrun: Launcher) -> None:
    code = """
        import os, signal, sys
        if os.environ["RANK"] == "1":
            sys.stderr.write("last words\\n" * 5000)
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    ended = hvlrun("-np", "2", "--log-dir", "logs", *hvlrun.script(code))
    assert ended.code == 128 + 11
    assert (hvlrun.folder / "logs/rank.1/stderr").read_text() == "last words\n" * 5000
    assert "its output is in logs/rank.1\n" in ended.error_text


@pytest.mark.trial("B80")
@pytest.mark.parametrize("option", ["--log-dir", "--output-filename"])
def test_a_log_folder_that_cannot_be_made_is_an_error_before_the_start(
    hvlrun: Launcher, option: str
) -> None:
    (hvlrun.folder / "file").write_text("")
    ended = hvlrun("-np", "1", option, "file/logs", "touch", "started")
    assert ended.code == 125
    assert f"{option}: cannot make the folder file/logs/rank.0" in ended.error_text
    assert not (hvlrun.folder / "started").exists()
    assert hvlrun("-np", "1", option, "/proc/nope", "true").code == 125
    empty = hvlrun("-np", "1", option, "", "true")
    assert (empty.code, f"{option} '' names no folder" in empty.error_text) == (125, True)


def test_both_names_for_the_log_folder_at_once_are_an_error(hvlrun: Launcher) -> None:
    ended = hvlrun("-np", "1", "--log-dir", "a", "--output-filename", "b", "touch", "started")
    assert ended.code == 125
    assert "--output-filename" in ended.error_text
    assert "--log-dir" in ended.error_text
    assert not (hvlrun.folder / "started").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_log_disk_costs_the_log_and_not_the_job(hvlrun: Launcher) -> None:
    mount = "mount -t tmpfs -o size=64k tmpfs small && exec "
    (hvlrun.folder / "small").mkdir()
    code = (
        "import sys; sys.stdout.write('z' * 99 + '\\n' * 1); [print('z' * 99) for _ in range(9999)]"
    )
    prefix = ["unshare", "-m", "sh", "-c", f'{mount}"$@"', "sh"]
    ended = hvlrun(
        "-np", "1", "--log-dir", "small/logs", sys.executable, "-c", code, command_prefix=prefix
    )
    assert ended.code == 0
    assert ended.out.count(b"\n") == 10_000
    assert ended.error_text.count("No space left on device; the file ends here") == 1


def standing_still(read: Callable[[], object]) -> bool:
    """The value does not change for a while: whoever changes it waits for somebody."""
    before = read()
    time.sleep(0.3)
    return read() == before


# --- a screen that does not take everything -------------------------------------------------------


def test_a_slow_reader_slows_the_ranks_and_costs_little_memory(hvlrun: Launcher) -> None:
    code = "import os\nfor _ in range(2000): os.write(1, (b'w' * 999 + b'\\n') * 40)\n"
    running = hvlrun.start("-np", "2", *hvlrun.script(code))
    supervisor = running.supervisor()

    def memory_kib() -> int:
        status = Path(f"/proc/{supervisor}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])

    def written() -> int:
        fields = Path(f"/proc/{running.ranks(2)[0]}/io").read_text()
        return int(re.findall(r"wchar: (\d+)", fields)[0])

    wait_until("the rank waits for its reader", lambda: standing_still(written))
    assert memory_kib() < 32_000
    ended = running.wait()
    assert ended.code == 0
    assert len(ended.out) == 2 * 80_000 * (1000 + len("[0]<stdout>:"))


def test_a_reader_that_goes_away_does_not_end_the_job(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", *hvlrun.script(FLOOD))
    assert running.process.stdout is not None
    os.read(running.process.stdout.fileno(), 10)
    running.process.stdout.close()
    running.process.stdout = None
    ended = running.wait()
    assert ended.code == 0
    assert ended.error_text.count("cannot write to standard output: Broken pipe") == 1


def test_a_full_disk_behind_stdout_does_not_end_the_job(hvlrun: Launcher) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = hvlrun("-np", "1", "--log-dir", "logs", "echo", "x", stdout=full)
    assert ended.code == 0
    assert "No space left on device" in ended.error_text
    assert (hvlrun.folder / "logs/rank.0/stdout").read_text() == "x\n"


def test_an_interrupt_ends_the_wait_for_a_reader(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "1", *hvlrun.script("print('v' * 500_000)"))
    supervisor = running.supervisor()

    def has_only_the_screen_to_wait_for() -> bool:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
        return not children and running.process.poll() is None

    wait_until("the rank is gone", has_only_the_screen_to_wait_for)
    wait_until(
        "the supervisor waits",
        lambda: standing_still(lambda: Path(f"/proc/{supervisor}/schedstat").read_text()),
    )
    running.signal(2)
    running.process.wait(10)
    assert running.wait().code == 130


def test_closed_standard_streams_do_no_harm(hvlrun: Launcher) -> None:
    command = 'exec "$@" <&- >&- 2>&-'
    ended = hvlrun(
        "-np",
        "2",
        "--log-dir",
        "logs",
        "sh",
        "-c",
        "echo hello; cat; echo bye >&2",
        command_prefix=["sh", "-c", command, "sh"],
    )
    assert ended.code == 0
    assert (hvlrun.folder / "logs/rank.1/stdout").read_text() == "hello\n"
    assert (hvlrun.folder / "logs/rank.1/stderr").read_text() == "bye\n"


# --- a terminal -----------------------------------------------------------------------------------


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    import pty

    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def read_terminal(ours: int, theirs: int, running_deadline_s: float = 30) -> bytes:
    """Everything that is written until the last writer has closed the terminal."""
    os.close(theirs)
    text = b""
    give_up = time.monotonic() + running_deadline_s
    while time.monotonic() < give_up:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so instead of giving an empty read
            return text
        if not part:
            return text
        text += part
    raise AssertionError(f"still written to: {text!r}")


def seen(text: bytes) -> list[str]:
    """The lines of a terminal after it has carried out returns and erasures."""
    lines = []
    for line in text.decode().split("\n"):
        shown = ""
        for part in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\r"):
            text_part = part.removeprefix("\x1b[K")
            kept = "" if part != text_part else shown[len(text_part) :]
            shown = text_part + kept
        lines.append(shown.rstrip())
    return lines


def test_tags_are_coloured_on_a_terminal_only(hvlrun: Launcher) -> None:
    with terminal() as (ours, theirs):
        running = hvlrun.start(
            "-np", "1", "echo", "x", stdout=theirs, env={"TERM": "xterm", "NO_COLOR": ""}
        )
        assert read_terminal(ours, theirs) == b"\x1b[32m[0]<stdout>:\x1b[0mx\r\n"
        running.wait()
    with terminal() as (ours, theirs):
        running = hvlrun.start("-np", "1", "echo", "x", stdout=theirs, env={"NO_COLOR": "1"})
        assert read_terminal(ours, theirs) == b"[0]<stdout>:x\r\n"
        running.wait()


def test_a_tqdm_bar_looks_right_on_a_terminal(hvlrun: Launcher) -> None:
    pytest.importorskip("tqdm")
    code = """
        import os, sys, time
        from tqdm import tqdm
        if os.environ["RANK"] == "0":
            for step in tqdm(range(40), mininterval=0, ncols=60):
                time.sleep(0.01)
            print("trained")
        else:
            for number in range(5):
                time.sleep(0.07)
                print("note", number)
    """
    with terminal() as (ours, theirs):
        running = hvlrun.start(
            "-np", "2", *hvlrun.script(code), stdout=theirs, stderr=theirs, env={"TERM": "xterm"}
        )
        text = read_terminal(ours, theirs)
        assert running.wait().code == 0
    lines = [line for line in seen(text) if line]
    bars = [line for line in lines if line.startswith("[0]<stderr>:")]
    assert len(bars) == 1, lines
    assert "100%" in bars[0]
    assert "40/40" in bars[0]
    assert of_rank(lines, 1) == [f"note {number}" for number in range(5)]
    assert of_rank(lines, 0) == ["trained"]
    # Each update was shown when it was made, not when the next one came.
    assert text.count(b"[0]<stderr>:") >= 40


def test_a_long_tqdm_bar_fits_the_terminal_beside_its_tag(hvlrun: Launcher) -> None:
    pytest.importorskip("tqdm")
    code = """
        from tqdm import tqdm
        for step in tqdm(range(5), mininterval=0, desc="epoch 1 of 3", postfix="loss=0.123 " * 3):
            pass
    """
    with terminal() as (ours, theirs):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
        running = hvlrun.start("-np", "1", *hvlrun.script(code), stdout=theirs, stderr=theirs)
        text = read_terminal(ours, theirs)
        assert running.wait().code == 0
    shown = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*m", "", text.decode()))
    assert "100%" in shown[-2]
    assert max(map(len, shown)) <= 70


def test_a_tqdm_bar_in_a_file_tears_no_line(hvlrun: Launcher) -> None:
    pytest.importorskip("tqdm")
    code = """
        import os, time
        from tqdm import tqdm
        for step in tqdm(range(50), mininterval=0):
            time.sleep(0.002)
            print("step", step)
    """
    ended = hvlrun("-np", "2", *hvlrun.script(code), stderr=subprocess.STDOUT)
    pieces = re.split(r"[\r\n]+", ended.out.decode())
    assert all(re.match(r"\[[01]\]<std(out|err)>:", piece) for piece in pieces if piece)
    for rank in range(2):
        assert of_rank(pieces, rank) == [f"step {step}" for step in range(50)]
        updates = of_rank(pieces, rank, "stderr")
        assert "100%" in updates[-1]


# --- standard input -------------------------------------------------------------------------------


def test_ranks_read_nothing_by_default(hvlrun: Launcher) -> None:
    running = hvlrun.start("-np", "2", "cat", stdin=subprocess.PIPE)
    ended = running.wait()  # although nobody closes the pipe before
    assert (ended.code, ended.out) == (0, b"")


def test_stdin_goes_to_the_chosen_rank(hvlrun: Launcher) -> None:
    (hvlrun.folder / "in").write_text("one\ntwo\n")
    with (hvlrun.folder / "in").open() as source:
        ended = hvlrun("-np", "3", "--stdin", "1", "cat", stdin=source)
    assert ended.lines == ["[1]<stdout>:one", "[1]<stdout>:two"]


def test_a_prompt_is_seen_before_it_is_answered(hvlrun: Launcher) -> None:
    code = """
        import os
        if os.environ["RANK"] == "0":
            print("hello", input("Name? "))
    """
    running = hvlrun.start("-np", "2", "--stdin", "0", *hvlrun.script(code), stdin=subprocess.PIPE)
    assert running.process.stdout is not None
    assert running.process.stdin is not None
    assert os.read(running.process.stdout.fileno(), 100) == b"[0]<stdout>:Name? "
    running.process.stdin.write(b"you\n")
    running.process.stdin.flush()
    ended = running.wait()
    assert (ended.code, ended.out) == (0, b"hello you\n")


def test_the_chosen_rank_reads_the_terminal_and_its_settings_are_put_back(hvlrun: Launcher) -> None:
    code = """
        import os, signal, sys, tty
        if os.environ["RANK"] == "0":
            assert os.isatty(0)
            print("read", input())
            tty.setraw(0)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    """
    import pty

    command = [str(HVLRUN), "-np", "2", "--stdin", "0", *hvlrun.script(code)]
    pid, ours = pty.fork()
    if pid == 0:
        os.execve(command[0], command, hvlrun.env({"NO_COLOR": "1"}))
    before = termios.tcgetattr(ours)
    os.write(ours, b"typed\n")
    text = b""
    while not text.count(b"exit code 137"):
        text += os.read(ours, 4096)
    assert b"[0]<stdout>:read typed" in text
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 137
    assert termios.tcgetattr(ours) == before
    os.close(ours)

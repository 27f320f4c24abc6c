"""Static checks: format, clang-tidy, headers that compile alone, ruff, mypy."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import joined, needs
from .build import TREES, configure, jobs
from .joined import Unit
from .ui import ROOT, Tally, attempt, say, step

FOLDERS = ("csrc", "launcher", "python", "tests")
TYPED_PATHS = ("horovodlite", "tests/devlib", "tests/tidy")
PYTHON_PATHS = ("horovodlite", "tests", "docs", "setup.py")


def tool(name: str) -> str:
    return str(needs.VENV / "bin" / name)


def sources(*suffixes: str) -> list[Path]:
    """Files of ours with these suffixes, in a fixed order."""
    found: list[Path] = []
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sorted(found)


def cache_folder() -> Path:
    """Results of checks that passed, by content: shared between clones, safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "horovodlite-lint"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Includes:
    """What a file includes from this tree, directly and indirectly."""

    def __init__(self) -> None:
        self._direct: dict[Path, list[Path]] = {}

    def _read(self, path: Path) -> list[Path]:
        if path not in self._direct:
            text = path.read_text(encoding="utf-8")
            names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE)
            roots = (ROOT, ROOT / "csrc" / "include")
            places = [root / name for name in names for root in roots]
            self._direct[path] = [place for place in places if place.is_file()]
        return self._direct[path]

    def closure(self, path: Path) -> list[Path]:
        seen: set[Path] = set()
        open_paths = [path]
        while open_paths:
            current = open_paths.pop()
            if current not in seen:
                seen.add(current)
                open_paths += self._read(current)
        return sorted(seen)


@dataclass(frozen=True)
class Check:
    """One command about one file; `key` names all that its outcome depends on."""

    title: str
    command: tuple[str, ...]
    directory: Path
    key: str
    stdin: str | None = None


def key_of(parts: Iterable[str], paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.replace(str(ROOT), "").encode() + b"\0")
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_checks(name: str, checks: Sequence[Check]) -> Tally:
    """Runs the checks that have not passed before with the same content."""
    cache = cache_folder()
    fresh = [check for check in checks if not (cache / check.key).exists()]
    tally = Tally(passed=len(checks) - len(fresh))

    def one(check: Check) -> str:
        done = subprocess.run(
            check.command,
            cwd=check.directory,
            input=check.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return done.stdout.strip() or f"status {done.returncode}"
        (cache / check.key).touch()
        return ""

    cached = f" ({tally.passed} known from before)" if tally.passed else ""
    with step(f"{name}: {len(checks)} files{cached}"), ThreadPoolExecutor(jobs()) as pool:
        for count, (check, problem) in enumerate(zip(fresh, pool.map(one, fresh)), start=1):
            if problem:
                print(f"{problem}\n")
                tally.add(Tally(failed=1, failures=[f"{name}: {check.title}"]))
            else:
                tally.passed += 1
            if count % 25 == 0:
                say(f"{name}: {count} of {len(fresh)}")
    return tally


def compile_commands() -> dict[Path, tuple[list[str], Path]]:
    """Source file -> (compiler arguments without the launcher, directory)."""
    database = json.loads((TREES["release"].path / "compile_commands.json").read_text())
    commands: dict[Path, tuple[list[str], Path]] = {}
    for entry in database:
        words = shlex.split(entry["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        commands[Path(entry["file"])] = (words, Path(entry["directory"]))
    return commands


def check_together(checks: Mapping[Unit, Check]) -> None:
    """Notes which of the checks would pass, where many are due, with less work than one by one."""
    cache = cache_folder()
    due = [unit for unit, check in checks.items() if not (cache / check.key).exists()]
    groups = [group for group in joined.groups(due) if len(group) > 1]
    folder = TREES["release"].path / "clang-tidy"
    paths = joined.write(groups, folder)

    def one(path: Path, group: Sequence[Unit]) -> None:
        command = [tool("clang-tidy"), "--quiet", "-p", str(folder), str(path)]
        if attempt(command, capture=True).returncode == 0:
            for unit in group:
                (cache / checks[unit].key).touch()

    count = sum(map(len, groups))
    title = f"clang-tidy: {count} files, joined to {len(groups)}"
    with step(title), ThreadPoolExecutor(jobs()) as pool:
        list(pool.map(one, paths, groups))


def clang_tidy() -> Tally:
    """clang-tidy over every translation unit of the build."""
    includes = Includes()
    version = attempt([tool("clang-tidy"), "--version"], capture=True).stdout
    configs = sorted({ROOT / ".clang-tidy", *ROOT.glob("tests/**/.clang-tidy")})
    checks = {}
    for path, (words, directory) in sorted(compile_commands().items()):
        if not path.is_relative_to(ROOT) or path.name == "fmt.cc":  # {fmt}'s code, not ours
            continue
        key = key_of([version, *words], [*configs, *includes.closure(path)])
        command = (tool("clang-tidy"), "--quiet", "-p", str(TREES["release"].path), str(path))
        check = Check(str(path.relative_to(ROOT)), command, directory, key)
        checks[Unit(path, tuple(words), directory)] = check
    check_together(checks)
    return run_checks("clang-tidy", list(checks.values()))


def header_flags(path: Path, commands: dict[Path, tuple[list[str], Path]]) -> list[str]:
    """The include and language options of a source near the header."""
    near = [source for source in commands if source.parent == path.parent]
    source = near[0] if near else next(iter(commands))
    words = commands[source][0]
    keep = [
        word
        for last, word in zip(["", *words], words)
        if word.startswith(("-I", "-D", "-std", "-isystem", "-W")) or last == "-isystem"
    ]
    return [words[0], *keep]


def is_first_include(header: Path, commands: dict[Path, tuple[list[str], Path]]) -> bool:
    """Whether a source of the build that has its name begins with it, and so shows that it can."""
    source = header.with_suffix(".cc")
    if source not in commands:
        return False
    first = re.search(r'^#include\s+["<](.*)[">]', source.read_text(), re.MULTILINE)
    return first is not None and first[1] == str(header.relative_to(ROOT))


def headers_alone() -> Tally:
    """Every header compiles on its own, with the warnings of the build."""
    includes = Includes()
    commands = compile_commands()
    version = attempt(["c++", "--version"], capture=True).stdout
    checks = []
    for path in sources(".h"):
        if is_first_include(path, commands):
            continue
        flags = header_flags(path, commands)
        name = str(path.relative_to(ROOT))
        text = f'#include "{name}"\n'
        command = (*flags, f"-I{ROOT}", "-fvisibility=hidden", "-fsyntax-only", "-x", "c++", "-")
        key = key_of([version, *command, text], includes.closure(path))
        checks.append(Check(name, command, ROOT, key, stdin=text))
    return run_checks("headers compile alone", checks)


def simple(name: str, command: Sequence[str], fix: str) -> Tally:
    """A tool that judges the whole tree at once."""
    with step(name):
        done = attempt(command, env=needs.environment())
    if done.returncode == 0:
        return Tally(passed=1)
    return Tally(failed=1, failures=[f"{name}: see above{fix}"])


def clang_format(*options: str) -> Tally:
    files = [str(path) for path in sources(".cc", ".h", ".inc")]
    command = [tool("clang-format"), *(options or ("--dry-run", "--Werror")), *files]
    return simple("clang-format", command, "; cure: tests/dev lint --fix")


def python_paths() -> list[str]:
    return [path for path in PYTHON_PATHS if (ROOT / path).exists()]


def ruff_format(*options: str) -> Tally:
    command = [tool("ruff"), "format", *(options or ("--check",)), *python_paths()]
    return simple("ruff format", command, "; cure: tests/dev lint --fix")


def ruff_check(*options: str) -> Tally:
    return simple("ruff check", [tool("ruff"), "check", *options, *python_paths()], "")


def mypy() -> Tally:
    paths = [path for path in TYPED_PATHS if (ROOT / path).exists()]
    return simple("mypy", [tool("mypy"), *paths], "")


def lint(*, fix: bool) -> Tally:
    """All static checks; `fix` first lets the formatters rewrite the files."""
    configure(TREES["release"])
    tally = Tally()
    if fix:
        clang_format("-i")
        ruff_check("--fix")
        ruff_format("--quiet")
    checks: tuple[Callable[[], Tally], ...] = (
        clang_format,
        ruff_format,
        ruff_check,
        mypy,
        headers_alone,
        clang_tidy,
    )
    for check in checks:
        tally.add(check())
    return tally

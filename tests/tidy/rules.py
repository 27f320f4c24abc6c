"""The house rules that a program can check, one function each.

A rule takes the tree as {path: text} and yields one sentence per breach, starting with the place.
`test_tree.py` applies all rules to this tree; `test_rules.py` shows that each of them can fail.
"""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

Files = Mapping[str, str]
Rule = Callable[[Files], Iterator[str]]

MAX_LINE_COLUMNS = 100
MAX_FUNCTION_LINES = 70
ROOM_MAP = "csrc/README.md"


def cpp_files(files: Files, *folders: str) -> Iterator[tuple[str, str]]:
    for path, text in sorted(files.items()):
        if path.endswith((".cc", ".h", ".inc")) and path.startswith(folders or ("",)):
            yield path, text


def numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def blank_comments(text: str) -> str:
    """C++ text with comments, strings and characters blanked out; lines stay lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    tokens = (
        r'R"(\w*)\(.*?\)\1"'  # raw string
        r"|//[^\n]*|/\*.*?\*/"
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # not the separators of 1'000'000
    )
    return re.sub(tokens, blank, text, flags=re.DOTALL)


# --- arrows between rooms -------------------------------------------------------------------------


def room_map(text: str) -> dict[str, set[str]]:
    """Which rooms each room may use, read from the table of csrc/README.md.

    Names that are no rooms (std, fmt, public API) add no arrow; the public API is open to all.
    """
    allowed: dict[str, set[str]] = {}
    for row in re.findall(r"^\|[^|\n]*\|([^|\n]*`[^|\n]*)\|[^|\n]*\|([^|\n]*)\|$", text, re.M):
        name = re.findall(r"`(?:\.\./)?(\w+)`", row[0])[0]
        uses: set[str] = set()
        for word in re.split(r",\s*", row[1].strip()):
            if word == "all of the above":
                uses |= set(allowed)
            elif word not in ("std", "fmt", "public API", "nothing"):
                uses.add(word)
        allowed[name] = uses
    return allowed


def room_of(path: str) -> str | None:
    """The room that a file belongs to: csrc/<room>/..., launcher/..., python/..."""
    parts = path.split("/")
    if parts[0] == "csrc" and len(parts) > 2 and parts[1] not in ("cmake", "include"):
        return parts[1]
    return parts[0] if parts[0] in ("launcher", "python") and len(parts) > 1 else None


def arrows(files: Files) -> Iterator[str]:
    """An include points only to a room that the room map allows."""
    allowed = room_map(files[ROOM_MAP])
    for path, text in cpp_files(files, "csrc/", "launcher/", "python/"):
        room = room_of(path)
        public = path.startswith("csrc/include/")
        if room is not None and room not in allowed:
            yield f"{path}: the room '{room}' is not in the table of {ROOM_MAP}"
            continue
        for number, line in numbered(text):
            include = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            target = room_of(include[1]) if include else None
            if target is None or target == room:
                continue
            if public:
                yield f"{path}:{number}: the public API may not include the room '{target}'"
            elif target not in allowed[room or ""]:
                uses = ", ".join(sorted(allowed[room or ""])) or "no other room"
                yield f"{path}:{number}: '{room}' may not use '{target}' ({ROOM_MAP} allows {uses})"


def linked_rooms(files: Files) -> Iterator[str]:
    """The CMake target of a room links only rooms that the room map allows."""
    allowed = room_map(files[ROOM_MAP])
    for path, text in sorted(files.items()):
        for call in re.findall(r"^hvl_room\((.*?)\)", text, re.M | re.S):
            if not path.endswith("CMakeLists.txt"):
                continue
            words = re.sub(r"#[^\n]*", "", call).split()
            room = words[0]
            used = words[words.index("USES") + 1 :] if "USES" in words else []
            for name in used:
                if name.isupper():
                    break
                if name not in allowed.get(room, set()):
                    yield f"{path}: '{room}' may not link '{name}' ({ROOM_MAP})"


FRAMEWORKS = r"(torch|ATen|c10|tensorflow|tensor|jax|pybind11|cuda\w*|nccl\w*|mpi)(/|\.h)|Python\.h"

PLUGINS = "csrc/plugins/"  # each is there for one of these


def no_framework(files: Files) -> Iterator[str]:
    """The core, the launcher and the public API see no framework, vendor or Python header."""
    for path, text in cpp_files(files, "csrc/", "launcher/"):
        if path.startswith(PLUGINS):
            continue
        for number, line in numbered(text):
            if re.match(rf"\s*#\s*include\s*[\"<](?:{FRAMEWORKS})", line):
                yield f"{path}:{number}: the core may not include {line.split()[-1]}"


# --- the environment ------------------------------------------------------------------------------

ENV_SOURCE = "csrc/config/env_source.cc"


def one_getenv(files: Files) -> Iterator[str]:
    """The process environment is read and changed in one C++ file only."""
    for path, text in cpp_files(files, "csrc/", "launcher/", "python/"):
        if path == ENV_SOURCE:
            continue
        for number, line in numbered(blank_comments(text)):
            found = re.search(r"\b(secure_getenv|getenv|setenv|unsetenv|putenv|environ)\b", line)
            if found:
                yield f"{path}:{number}: {found[1]} outside {ENV_SOURCE}"


def no_os_environ(files: Files) -> Iterator[str]:
    """The Python package reads no environment: knobs are parsed by the core.

    But one file makes the environments of the jobs that Python starts.
    """
    for path, text in sorted(files.items()):
        if path == "horovodlite/_environment.py":
            continue
        if path.startswith("horovodlite/") and path.endswith(".py"):
            for number, line in numbered(text):
                if re.search(r"\bos\.(environ|getenv|putenv)\b|from os import.*\benviron\b", line):
                    yield f"{path}:{number}: the package may not touch os.environ"


# --- form -----------------------------------------------------------------------------------------


def line_length(files: Files) -> Iterator[str]:
    """A line has at most 100 columns (tables and prose excepted)."""
    for path, text in sorted(files.items()):
        if path.endswith((".cc", ".h", ".inc", ".py", ".pyi", ".cmake", "CMakeLists.txt")):
            for number, line in numbered(text):
                if len(line) > MAX_LINE_COLUMNS:
                    yield f"{path}:{number}: {len(line)} columns, at most {MAX_LINE_COLUMNS}"


GROUPING_HEAD = r"\b(namespace|class|struct|enum|union|extern)\b[^()=]*$|=\s*$"


def cpp_blocks(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of every outermost block that is no namespace, class, enum or data."""
    code = blank_comments(text)
    code = re.sub(r"^\s*#.*?(?<!\\)$", "", code, flags=re.M | re.S)  # macros have no blocks
    stack: list[tuple[bool, int]] = []  # (does it only group declarations?, line)
    head, line = "", 1
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            groups = re.search(GROUPING_HEAD, head)
            stack.append((groups is not None, line))
        elif char == "}" and stack:
            grouping, begin = stack.pop()
            if not grouping and all(outer for outer, _ in stack):
                yield begin, line
        head = "" if char in "{};" else head + char


def function_length(files: Files) -> Iterator[str]:
    """A function has at most 70 lines, in C++ and in Python (docstrings not counted)."""
    for path, text in cpp_files(files):
        for begin, end in cpp_blocks(text):
            if end - begin + 1 > MAX_FUNCTION_LINES:
                yield f"{path}:{begin}: {end - begin + 1} lines, at most {MAX_FUNCTION_LINES}"
    for path, text in sorted(files.items()):
        if path.endswith(".py") or path == "tests/dev":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    lines -= len((ast.get_docstring(node, clean=False) or "").splitlines())
                    if lines > MAX_FUNCTION_LINES:
                        yield f"{path}:{node.lineno}: {node.name} has {lines} lines"


def pragma_once(files: Files) -> Iterator[str]:
    """A header starts with #pragma once, after at most a comment."""
    for path, text in cpp_files(files):
        if path.endswith(".h"):
            code = [line for line in blank_comments(text).splitlines() if line.strip()]
            if not code or code[0].strip() != "#pragma once":
                yield f"{path}: the first line after the file's comment must be '#pragma once'"


def file_comment(files: Files) -> Iterator[str]:
    """A header says in its first lines what it is for."""
    for path, text in cpp_files(files, "csrc/", "launcher/", "python/"):
        if path.endswith(".h") and not text.startswith("//"):
            yield f"{path}: starts without a comment that says what the file is for"


def rooted_includes(files: Files) -> Iterator[str]:
    """Our own headers are included by their path from the root of the repository."""
    for path, text in cpp_files(files):
        for number, line in numbered(text):
            include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if include is None:
                continue
            name = include[1]
            if name not in files and f"csrc/include/{name}" not in files:
                yield f"{path}:{number}: '{name}' is no path from the root of the repository"


def todo_topic(files: Files) -> Iterator[str]:
    """A TODO names its topic: TODO(topic): sentence. No other marks of unfinished work."""
    for path, text in sorted(files.items()):
        if path.startswith(("tests/tidy/", "docs/")):  # which quote the marks
            continue
        for number, line in numbered(text):
            if re.search(r"\bTODO\b(?!\([\w -]+\): \S)", line) or re.search(
                r"\b(FIXME|XXX)\b", line
            ):
                yield f"{path}:{number}: write TODO(topic): sentence"


# --- the build ------------------------------------------------------------------------------------


def all_in_build(files: Files) -> Iterator[str]:
    """Every .cc is named by the CMakeLists.txt of its folder: what is not built rots."""
    for path, _ in cpp_files(files, "csrc/", "launcher/", "python/", "tests/"):
        folder, _, name = path.rpartition("/")
        if not name.endswith(".cc"):
            continue
        listing = files.get(f"{folder}/CMakeLists.txt", "")
        words = re.sub(r"\$\{\w+\}", "*", listing).replace("(", " ").replace(")", " ").split()
        if not any(fnmatch.fnmatchcase(name, word) for word in words):
            yield f"{path}: not named in {folder}/CMakeLists.txt"


def install_line(files: Files) -> Iterator[str]:
    """The README's line of Debian packages is the list that the build checks."""
    listed = re.findall(r"^build +(\S+)", files["csrc/cmake/packages.txt"], re.M)
    line = f"apt-get install -y {' '.join(listed)}"
    if line not in files["README.md"]:
        yield f"README.md: must contain the line '{line}' (csrc/cmake/packages.txt)"


def links(files: Files) -> Iterator[str]:
    """A relative link in a page leads to a file of this tree."""
    for path, text in sorted(files.items()):
        if not path.endswith(".md"):
            continue
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", prose):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if place not in files and not any(name.startswith(f"{place}/") for name in files):
                yield f"{path}: the link to {target} leads nowhere"


RULES: tuple[Rule, ...] = (
    all_in_build,
    arrows,
    file_comment,
    function_length,
    install_line,
    line_length,
    links,
    linked_rooms,
    no_framework,
    no_os_environ,
    one_getenv,
    pragma_once,
    rooted_includes,
    todo_topic,
)

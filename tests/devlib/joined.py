"""Source files joined to one, so that clang-tidy reads the headers that they share only once.

That is two thirds of its work on a file. What it says of files alone is what counts: joined files
without a finding are known to be good, and those with one are checked again, each alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .ui import ROOT

MOST_FILES = 12  # enough to make the headers cheap, and few to check again after a finding
INCLUDE = re.compile(r'^#include (["<].*\.h(?:pp)?[">]|<[^.>]*>)')


@dataclass(frozen=True)
class Unit:
    """A file of the build, with the compiler's words and the folder that they are run in."""

    path: Path
    words: tuple[str, ...]
    directory: Path

    def flags(self) -> tuple[str, ...]:
        """The words that do not name its files."""
        named = {place + 1 for place, word in enumerate(self.words) if word in ("-o", "-c")}
        return tuple(word for place, word in enumerate(self.words) if place not in named)


def groups(units: Sequence[Unit]) -> list[list[Unit]]:
    """The units that can be joined: of one folder, compiled alike. Nothing is left out."""
    alike: dict[tuple[Path, tuple[str, ...]], list[Unit]] = {}
    for unit in units:
        alike.setdefault((unit.path.parent, unit.flags()), []).append(unit)
    found = []
    for group in alike.values():
        count = -(-len(group) // MOST_FILES)  # of about the same size
        found += [group[number::count] for number in range(count)]
    return found


def text_of(path: Path, number: int) -> str:
    """The file's text; a test is moved into a namespace, as others have helpers of its names."""
    text = path.read_text(encoding="utf-8")
    if not path.name.endswith("_test.cc"):
        return text
    return re.sub(r"^(namespace hvl[\w:]*) {$", rf"\1::file{number} {{", text, flags=re.MULTILINE)


def joined(texts: Sequence[str]) -> str:
    """The texts after each other; what one includes is not included by the next ones again."""
    included: set[str] = set()
    lines = []
    for text in texts:
        here: set[str] = set()
        for line in text.splitlines():
            found = INCLUDE.match(line)
            # Twice in one file is a finding.
            repeated = found is not None and found[1] in included and found[1] not in here
            if found is not None:
                here.add(found[1])
            lines.append("" if repeated else line)
        included |= here
    return "\n".join(lines) + "\n"


def write(found: Sequence[Sequence[Unit]], folder: Path) -> list[Path]:
    """Writes a file for each group, in folders like theirs, and how each is compiled."""
    shutil.rmtree(folder, ignore_errors=True)
    paths, database = [], []
    for number, group in enumerate(found):
        place = folder / group[0].path.parent.relative_to(ROOT)
        place.mkdir(parents=True, exist_ok=True)
        texts = [text_of(unit.path, number) for number, unit in enumerate(group)]
        path = place / f"joined_{number}.cc"
        path.write_text(joined(texts), encoding="utf-8")
        words = [*group[0].flags(), str(path)]  # the last of the flags is "-c"
        directory = str(group[0].directory)
        database.append({"directory": directory, "arguments": words, "file": str(path)})
        paths.append(path)
    for config in ROOT.glob("tests/**/.clang-tidy"):
        target = folder / config.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(config, target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
    return paths

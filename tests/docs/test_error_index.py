"""Each message that docs/troubleshooting.md explains is one that the program can still give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "troubleshooting.md"

# A heading is in bold; a row of a table begins with messages. Others are prose about symptoms.
HEADING = re.compile(r"^\*\*`.*`\*\*", re.MULTILINE)
ROW = re.compile(r"^\| (`.*?`) \|", re.MULTILINE)
PLACEHOLDER = "…"
SHORTEST = 4  # letters of a piece that is looked for; shorter ones occur anywhere


def messages(page: str) -> list[str]:
    """What the page quotes as messages, in its order."""
    places = sorted(
        [(found.start(), found[0]) for found in HEADING.finditer(page)]
        + [(found.start(), found[1]) for found in ROW.finditer(page)]
    )
    return [text for _, line in places for text in re.findall(r"`([^`]+)`", line)]


def pieces(message: str) -> list[str]:
    """The parts between its names and numbers that are long enough to be told apart."""
    parts = [part.strip(" ,;:.'()[]=?`") for part in message.split(PLACEHOLDER)]
    return [part for part in parts if len(re.sub(r"[^a-zA-Z]", "", part)) >= SHORTEST]


def python_texts(source: str) -> Iterator[str]:
    """Its literals; those of an f-string as one, with a placeholder for each value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            yield "".join(PLACEHOLDER if part is None else str(part) for part in parts)


def cpp_texts(source: str) -> Iterator[str]:
    """Its literals, neighbours as one."""
    literal = r'"((?:[^"\\\n]|\\.)*)"'
    code = re.sub(r"^\s*(//|#include).*$", "", source, flags=re.MULTILINE)
    for found in re.finditer(rf"{literal}(?:\s*{literal})*", code):
        text = "".join(part for part in re.findall(literal, found[0]))
        yield re.sub(r"\{[^}]*\}", PLACEHOLDER, text.replace('\\"', '"').replace("\\n", " "))


def sources() -> str:
    """All texts that the program has, one per line."""
    texts: list[str] = []
    for folder in ("csrc", "python", "launcher", "horovodlite"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py":
                texts += python_texts(path.read_text(encoding="utf-8"))
            elif path.suffix in (".cc", ".h", ".def", ".inc"):
                texts += cpp_texts(path.read_text(encoding="utf-8"))
    return "\n".join(" ".join(text.split()) for text in texts)


@pytest.fixture(scope="module")
def known() -> str:
    return sources()


def test_every_message_of_the_index_is_one_of_the_program(known: str) -> None:
    page = INDEX.read_text(encoding="utf-8")
    found = messages(page)
    assert len(found) > 150
    gone = [
        (message, piece) for message in found for piece in pieces(message) if piece not in known
    ]
    assert gone == []
    assert [message for message in found if not pieces(message)] == []


def test_no_message_is_explained_twice() -> None:
    found = messages(INDEX.read_text(encoding="utf-8"))
    assert sorted({text for text in found if found.count(text) > 1}) == []


def test_a_message_that_is_gone_is_noticed(known: str) -> None:
    assert pieces("rank … was eaten by …, say") == ["rank", "was eaten by"]
    assert "was eaten by" not in known
    assert messages("**`a b`**, **`c`** (a warning)\nwhy `x`\n| `d`, `e` | `f` |\n") == [
        *("a b", "c", "d", "e"),
    ]

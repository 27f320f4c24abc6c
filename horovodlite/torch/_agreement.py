"""Bytes from every rank, and a check that all ranks describe the same thing before they act."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite._sites import caller_site
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, members, set_id
from horovodlite.torch._tensors import DTYPE_NUMBERS, ROW_MAJOR, dimensions_in_order, layout_of


def gather_bytes(
    payload: bytearray, name: str = "", process_set: ProcessSet | None = None
) -> list[memoryview]:
    """Every rank's payload, in rank order. Collective; blocks. No limit of size, no padding."""
    source = torch.frombuffer(payload, dtype=torch.uint8) if payload else torch.empty(0)
    number = DTYPE_NUMBERS[torch.uint8]
    argument = (source.data_ptr(), 0, number, (len(payload),), ROW_MAJOR)
    current = session()
    gathered = current.run(
        _core.ALLGATHER,
        name,
        [argument],
        keep=source,
        process_set=set_id(process_set),
        site=caller_site() if (current.debug if name else current.checks_sites) else "",
    )
    memory, _, _, lengths = gathered[0]
    joined, parts, start = memoryview(memory), [], 0
    for length in lengths:
        parts.append(joined[start : start + length])
        start += length
    return parts


def printable(text: str) -> str:
    """The text with escapes for what UTF-8 cannot hold, as names of files may."""
    return text.encode("utf-8", "backslashreplace").decode()


def require_same(what: str, rows: Sequence[str], process_set: ProcessSet | None = None) -> None:
    """Raises on every rank alike when the ranks' rows differ. Collective; blocks.

    Costs one gather of 32 bytes while all is well.

    Raises:
        HorovodInternalError: The message names the first row that differs, and on which ranks.
    """
    text = "\n".join(printable(row).replace("\n", r"\n") for row in rows)
    digest = bytearray(hashlib.sha256(text.encode()).digest())
    digests = gather_bytes(digest, process_set=process_set)
    if all(digest == digests[0] for digest in digests):
        return
    parts = gather_bytes(bytearray(text.encode()), process_set=process_set)
    texts = {rank: bytes(part).decode() for rank, part in zip(members(process_set), parts)}
    raise HorovodInternalError(_difference(what, texts), code="Mismatch")


def _difference(what: str, texts: dict[int, str]) -> str:
    tables = {rank: text.split("\n") for rank, text in texts.items()}
    for index in range(max(map(len, tables.values()))):
        cells = {
            rank: table[index] if index < len(table) else "nothing"
            for rank, table in tables.items()
        }
        if len(set(cells.values())) > 1:
            listed = sides(cells)
            return f"The ranks disagree about {what}, entry {index}: {listed}. Nothing was changed."
    return f"The ranks disagree about {what}."


def sides(texts: dict[int, str]) -> str:
    """Which text is on which ranks."""
    by_text: dict[str, list[int]] = {}
    for rank, text in texts.items():
        by_text.setdefault(text, []).append(rank)
    return "; ".join(f"{text} on {_ranks(ranks)}" for text, ranks in by_text.items())


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def describe(name: Any, tensor: torch.Tensor) -> str:
    """A row for require_same()."""
    layout, order = layout_of(tensor) or ROW_MAJOR, ""
    if layout != ROW_MAJOR:
        order = f" with memory order {dimensions_in_order(layout)}"
    return f"'{name}' {tensor.dtype} {tuple(tensor.shape)}{order}"

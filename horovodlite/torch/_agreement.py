"""Bytes from every rank, and a check that all ranks describe the same thing before they act."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch._tensors import DTYPE_NUMBERS, ROW_MAJOR, dimensions_in_order, layout_of
from horovodlite.world import session


def gather_bytes(payload: bytearray, name: str = "") -> list[memoryview]:
    """Every rank's payload, by rank. Collective; blocks. No limit of size, no padding."""
    source = torch.frombuffer(payload, dtype=torch.uint8) if payload else torch.empty(0)
    number = DTYPE_NUMBERS[torch.uint8]
    argument = (source.data_ptr(), 0, number, (len(payload),), ROW_MAJOR)
    gathered = session().run(_core.ALLGATHER, name, [argument], keep=source)
    memory, _, _, lengths = gathered[0]
    joined, parts, start = memoryview(memory), [], 0
    for length in lengths:
        parts.append(joined[start : start + length])
        start += length
    return parts


def printable(text: str) -> str:
    """The text with escapes for what UTF-8 cannot hold, as names of files may."""
    return text.encode("utf-8", "backslashreplace").decode()


def require_same(what: str, rows: Sequence[str]) -> None:
    """Raises on every rank alike when the ranks' rows differ. Collective; blocks.

    Costs one gather of 32 bytes while all is well.

    Raises:
        HorovodInternalError: The message names the first row that differs, and on which ranks.
    """
    text = "\n".join(printable(row).replace("\n", r"\n") for row in rows)
    digests = gather_bytes(bytearray(hashlib.sha256(text.encode()).digest()))
    if all(digest == digests[0] for digest in digests):
        return
    texts = [bytes(part).decode() for part in gather_bytes(bytearray(text.encode()))]
    raise HorovodInternalError(_difference(what, texts), code="Mismatch")


def _difference(what: str, texts: list[str]) -> str:
    tables = [text.split("\n") for text in texts]
    for index in range(max(map(len, tables))):
        cells = [table[index] if index < len(table) else "nothing" for table in tables]
        if len(set(cells)) > 1:
            sides: dict[str, list[int]] = {}
            for rank, cell in enumerate(cells):
                sides.setdefault(cell, []).append(rank)
            listed = "; ".join(f"{cell} on {_ranks(ranks)}" for cell, ranks in sides.items())
            return f"The ranks disagree about {what}, entry {index}: {listed}. Nothing was changed."
    return f"The ranks disagree about {what}."


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def describe(name: Any, tensor: torch.Tensor) -> str:
    """A row for require_same()."""
    layout, order = layout_of(tensor) or ROW_MAJOR, ""
    if layout != ROW_MAJOR:
        order = f" with memory order {dimensions_in_order(layout)}"
    return f"'{name}' {tensor.dtype} {tuple(tensor.shape)}{order}"

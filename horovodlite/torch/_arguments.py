"""Checks of arguments that many operations share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from horovodlite import _core
from horovodlite.process_sets import ProcessSet, members, set_id

Average: int = _core.AVERAGE
Sum: int = _core.SUM
Adasum: int = _core.ADASUM
Min: int = _core.MIN
Max: int = _core.MAX
Product: int = _core.PRODUCT

_REDUCE_OPS = frozenset({Average, Sum, Adasum, Min, Max, Product})


def reduce_op(op: int | None, average: bool | None = None) -> int:
    """The reduction that `op` and the deprecated `average` ask for.

    Raises:
        ValueError: Both are given, or `op` is no reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        warnings.warn(
            "Parameter `average` has been replaced with `op`: pass op=hvd.Average or op=hvd.Sum.",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    if not hasattr(op, "__index__") or op not in _REDUCE_OPS:
        raise ValueError(
            f"op={op!r} is no reduction: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max, "
            "hvd.Product or hvd.Adasum"
        )
    return op


def number(value: Any, what: str) -> float:
    """An argument that is a number: also a numpy one, or a tensor of one element.

    Raises:
        TypeError: It is none.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a number, not {value!r}") from None


def scales(prescale_factor: Any, postscale_factor: Any) -> tuple[float, float]:
    """What inputs and results are multiplied by.

    Raises:
        TypeError: One of them is no number.
    """
    return number(prescale_factor, "prescale_factor"), number(postscale_factor, "postscale_factor")


def check_compression(compression: Any) -> None:
    """Raises TypeError for what cannot compress."""
    if not all(callable(getattr(compression, part, None)) for part in ("compress", "decompress")):
        raise TypeError(
            f"compression={compression!r} has no compress() and decompress(): use "
            "hvd.Compression.none, fp16 or bf16, or a hvd.Compressor of your own"
        )


def check_complex(op: int, tensors: Iterable[torch.Tensor]) -> None:
    """Raises ValueError for complex tensors that are to be more than added up."""
    if op not in (Average, Sum) and any(
        isinstance(tensor, torch.Tensor) and tensor.is_complex() for tensor in tensors
    ):
        raise ValueError("complex tensors can only be added up: use op=hvd.Average or op=hvd.Sum")


def as_list(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group.

    Raises:
        TypeError: Not several tensors, but one, or none at all.
    """
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise TypeError(
            f"a grouped operation needs a list of tensors, not a {type(tensors).__name__}"
        )
    return list(tensors)


def check_name(name: str) -> str:
    """The name, which travels as UTF-8.

    Raises:
        ValueError: It has lone surrogates, as what Python makes of file names may.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name {name!r} has a lone surrogate, which cannot be sent to other ranks: use "
            "valid Unicode, for example name.encode('utf-8', 'backslashreplace').decode()"
        ) from None
    return name


def check_weight(weight: float) -> float:
    """The weight as a number.

    Raises:
        ValueError: It is negative or not finite.
    """
    value = number(weight, "weight")
    if not 0.0 <= value < math.inf:
        raise ValueError(f"a weight is a finite number >= 0, not {weight!r}")
    return value


def check_root(
    root_rank: int, process_set: ProcessSet | None = None, what: str = "broadcast"
) -> None:
    """Raises ValueError when `root_rank` is no rank of the process set."""
    ranks = members(process_set)
    if hasattr(root_rank, "__index__") and root_rank in ranks:
        return
    if set_id(process_set):
        raise ValueError(
            f"{what} received invalid root rank {root_rank!r} for provided process set: its ranks "
            f"are {ranks}"
        )
    raise ValueError(
        f"{what} received invalid root rank {root_rank!r}: ranks are 0 to {len(ranks) - 1}"
    )

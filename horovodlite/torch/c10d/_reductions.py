"""What torch.distributed's reductions are for the core."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist

from horovodlite.torch._arguments import Average, Max, Min, Product, Sum

_Kind: Any = dist.ReduceOp.RedOpType
_NUMBERS = {
    _Kind.SUM: Sum,
    _Kind.AVG: Average,
    _Kind.MIN: Min,
    _Kind.MAX: Max,
    _Kind.PRODUCT: Product,
}
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _Kind.BAND: torch.bitwise_and,
    _Kind.BOR: torch.bitwise_or,
    _Kind.BXOR: torch.bitwise_xor,
}
# On truth values the sum is "any" and the product "all", as with Gloo, which adds them as bytes.
_OF_BOOL = {Sum: Max, Product: Min, Max: Max, Min: Min}
_OF_COMPLEX = frozenset({Sum, Average})


@dataclass(frozen=True)
class Reduction:
    """A reduction that the core does, or one that is folded from the ranks' tensors."""

    op: int
    prescale: float = 1.0
    fold: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def folded(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The reduction of the ranks' tensors, here."""
        assert self.fold is not None
        return functools.reduce(self.fold, parts)


def _factor(op: Any) -> float:
    """Of PREMUL_SUM."""
    factor = op.factor
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise ValueError(
            f"PREMUL_SUM with a factor of shape {tuple(factor.shape)} is not supported: pass a "
            "number, or multiply the tensor before"
        )
    return float(factor)


def _kind_of(op: Any) -> Any:
    return op.op if hasattr(op, "op") else op


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """What to do with tensors of `dtype`.

    Raises:
        ValueError: There is no such reduction of this type.
    """
    kind = _kind_of(op)
    if kind in _BITWISE:
        if dtype.is_floating_point or dtype.is_complex:
            raise ValueError(f"Cannot use ReduceOp.{kind.name} with {dtype}: bits are of integers")
        return Reduction(Sum, fold=_BITWISE[kind])
    if kind == _Kind.PREMUL_SUM:
        if dtype is torch.bool:
            raise ValueError("Cannot use ReduceOp.PREMUL_SUM with torch.bool")
        return Reduction(Sum, prescale=_factor(op))
    number = _NUMBERS.get(kind)
    if number is None:
        raise ValueError(f"{op} is not supported: it is no reduction that this backend knows")
    if dtype is torch.bool:
        if number not in _OF_BOOL:
            raise ValueError("Cannot use ReduceOp.AVG with torch.bool: use SUM, MIN or MAX")
        return Reduction(_OF_BOOL[number])
    if dtype.is_complex and number not in _OF_COMPLEX:
        raise ValueError(f"all_reduce does not support {kind.name} on complex tensors")
    return Reduction(number)

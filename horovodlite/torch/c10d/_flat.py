"""Tensors as rows of numbers that travel, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovodlite.torch._tensors import DTYPE_NUMBERS, as_numbers, check_supported


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values in row-major order as one dimension of a type that the core can move.

    It shares the memory of a contiguous tensor. Complex numbers are pairs; what the core does not
    know (float8, uint16, ...) are bytes.

    Raises:
        TypeError, ValueError, NotImplementedError: As check_supported(): no dense CPU tensor.
    """
    tensor = tensor.detach()
    if tensor.dtype not in DTYPE_NUMBERS and not tensor.is_complex():
        check_supported(tensor.new_empty(0, dtype=torch.uint8))  # the device and the layout
        return tensor.contiguous().view(-1).view(torch.uint8)
    check_supported(tensor)
    return as_numbers(tensor).contiguous().view(-1)


def flat_count(tensor: torch.Tensor) -> int:
    """How many elements flat() has, without making it."""
    if tensor.dtype in DTYPE_NUMBERS:
        return tensor.numel()
    return tensor.numel() * (2 if tensor.is_complex() else tensor.element_size())


def put(numbers: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies what flat() has made of a tensor of the same type and size into `tensor`.

    Raises:
        ValueError: The size differs.
    """
    if numbers.numel() != flat_count(tensor):
        raise ValueError(
            f"{numbers.numel()} elements came for a tensor of shape {tuple(tensor.shape)}, which "
            f"holds {flat_count(tensor)}: ranks passed tensors of different sizes"
        )
    target = tensor.detach()
    if target.is_complex() and not target.is_conj() and not target.is_neg():
        target = torch.view_as_real(target)
    elif target.is_complex():
        numbers = torch.view_as_complex(numbers.view(-1, 2))
    elif numbers.dtype is not target.dtype:
        numbers = numbers.view(target.dtype)
    target.copy_(numbers.view(target.shape))


def cut(tensor: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Views of so many elements each, one after the other."""
    return list(tensor.split(list(counts)))  # type: ignore[no-untyped-call]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """flat() of several tensors, one after the other; no copy where there is only one."""
    flats = [flat(tensor) for tensor in tensors]
    return flats[0] if len(flats) == 1 else torch.cat(flats)

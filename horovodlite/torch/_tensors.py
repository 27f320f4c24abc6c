"""Tensors as the core sees them: an address, a dtype, a shape and the order of the dimensions."""

from __future__ import annotations

from typing import Any

import torch

from horovodlite import _core

TensorArg = tuple[int, int, int, tuple[int, ...], int]
"""Input address, output address, dtype number, shape, layout."""

# Every dtype of the core that this torch has too.
DTYPE_NUMBERS: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in _core.DTYPES.items() if hasattr(torch, name)
}
DTYPES: dict[int, torch.dtype] = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}

_COMPLEX = frozenset({torch.complex64, torch.complex128})

ROW_MAJOR = 0
_MAX_LAYOUT_DIMENSIONS = 8  # four bits per dimension in 32 bits


def layout_of(tensor: torch.Tensor) -> int | None:
    """The order of the dimensions in memory as a number, or None when there are holes or overlaps.

    0 is row-major. Otherwise four bits per dimension, slowest first, hold its index plus one.
    Dimensions of one element have no place in memory and are left out, so equal orders give equal
    numbers whatever strides torch has chosen for them.
    """
    if tensor.is_contiguous():
        return ROW_MAJOR
    order = sorted(
        (dim for dim, extent in enumerate(tensor.shape) if extent != 1),
        key=tensor.stride,
        reverse=True,
    )
    expected_stride = 1
    for dim in reversed(order):
        if tensor.stride(dim) != expected_stride:
            return None
        expected_stride *= tensor.shape[dim]
    if max(order) >= _MAX_LAYOUT_DIMENSIONS:
        return None
    layout = 0
    for dim in order:
        layout = layout << 4 | (dim + 1)
    return layout


def dimensions_in_order(layout: int) -> list[int]:
    """The dimensions that a layout other than row-major names, slowest first."""
    dims = []
    while layout:
        dims.append((layout & 0xF) - 1)
        layout >>= 4
    return dims[::-1]


def check_supported(tensor: object) -> None:
    """Raises what is wrong with a tensor that the core cannot work on.

    Raises:
        TypeError: Not a tensor.
        ValueError: The dtype or the kind of storage is not supported.
        NotImplementedError: The tensor is not in host memory.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, not {type(tensor).__name__}")
    is_known = tensor.dtype in DTYPE_NUMBERS or tensor.dtype in _COMPLEX
    if tensor.is_cpu and tensor.layout is torch.strided and is_known and not tensor.is_nested:
        return
    if tensor.is_nested:
        raise ValueError("Nested tensors are not supported: pass tensor.to_padded_tensor(0.0).")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"Tensor layout {tensor.layout} is not supported here; use sparse_allreduce_async() or "
            "tensor.to_dense()."
        )
    if not is_known:
        raise ValueError(f"Tensor type {tensor.dtype} is not supported.")
    raise NotImplementedError(
        f"Tensors on device {tensor.device} are not supported yet; pass tensor.cpu()."
    )


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the core knows it: complex numbers are pairs, in one more dimension.

    It is in the same memory, but for views whose sign or conjugate is applied when they are read.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def like(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What came back from the core, in the type of what as_numbers() was given. No copy."""
    return torch.view_as_complex(numbers) if tensor.is_complex() else numbers


def in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """as_numbers() and their layout; a row-major copy when the memory has holes or overlaps.

    Raises:
        As check_supported.
    """
    check_supported(tensor)
    numbers = as_numbers(tensor)
    layout = layout_of(numbers)
    if layout is None:
        return numbers.contiguous(), ROW_MAJOR
    return numbers, layout


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """as_numbers(), copied if they are not row-major, without a history.

    Raises:
        As check_supported.
    """
    check_supported(tensor)
    return as_numbers(tensor.detach()).contiguous()


def tensor_arg(source: torch.Tensor, target: torch.Tensor | None, layout: int) -> TensorArg:
    """Describes an operation from `source` to `target`, which have the same shape and layout."""
    output = 0 if target is None else target.data_ptr()
    return source.data_ptr(), output, DTYPE_NUMBERS[source.dtype], source.shape, layout


def from_memory(
    memory: _core.Memory, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """A row-major tensor on the runtime's memory, which it keeps alive. No copy."""
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:  # frombuffer refuses empty buffers
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def result_tensor(gathered: tuple[Any, ...], own: torch.Tensor) -> torch.Tensor:
    """A result that the runtime has allocated, as a tensor like the one that was submitted."""
    memory, dtype, shape, _ = gathered
    return like(from_memory(memory, DTYPES[dtype], shape), own)

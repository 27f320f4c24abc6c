"""The memory in which gradients are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from horovodlite import _core
from horovodlite.torch._tensors import ROW_MAJOR, as_numbers, from_memory, layout_of

_ALIGNMENT = 64  # bytes: no two buckets share a cache line


class Form(NamedTuple):
    """What a bucket is made for."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class Bucket(NamedTuple):
    """Memory of one gradient; its own storage, so that saving a gradient saves nothing else."""

    tensor: torch.Tensor
    address: int
    layout: int
    memory: _core.Memory


def padded(nbytes: int) -> int:
    """What a bucket of so many bytes takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def allocate(session: _core.Session, forms: Sequence[Form]) -> list[Bucket]:
    """One block of memory for all, in the given order. Local.

    A bucket has the strides of its form if these leave no holes, so that a gradient keeps the
    memory format of its parameter; else it is row-major.
    """
    sizes = [form.shape.numel() * form.dtype.itemsize for form in forms]
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += padded(size)
    memory = session.allocate(total)
    buckets = []
    for form, offset in zip(forms, offsets):
        flat = from_memory(memory, form.dtype, (form.shape.numel(),), offset)
        pattern = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        layout = layout_of(as_numbers(pattern))
        if layout is None:
            tensor, layout = flat.view(form.shape), ROW_MAJOR
        else:
            tensor = flat.as_strided(form.shape, form.stride)
        buckets.append(Bucket(tensor, tensor.data_ptr(), layout, memory))
    return buckets

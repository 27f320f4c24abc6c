"""Compression: casts of floating-point tensors, and nothing else."""

from __future__ import annotations

import pytest
import torch

from horovodlite.torch import Compression

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("compression", "wire"), [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]
)
def test_floats_are_cast_and_cast_back(
    dtype: torch.dtype, compression: type, wire: torch.dtype
) -> None:
    tensor = torch.tensor([0.5, -2.0], dtype=dtype)
    small, context = compression.compress(tensor)
    assert small.dtype == wire
    back = compression.decompress(small, context)
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("compression", [Compression.fp16, Compression.bf16, Compression.none])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_other_types_are_left_alone(compression: type, dtype: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=dtype)
    small, context = compression.compress(tensor)
    assert small.dtype == dtype
    assert torch.equal(compression.decompress(small, context), tensor)


def test_none_does_not_copy() -> None:
    tensor = torch.ones(3)
    assert Compression.none.compress(tensor)[0] is tensor
    assert Compression.none.decompress(tensor, None) is tensor

"""Compression of tensors before they are sent: a cast to a narrower type, or nothing."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Compression", "Compressor"]


class Compressor:
    """How a tensor is made smaller for the way. Subclass it to bring your own."""

    wire_dtype: torch.dtype | None = None
    """Set when compressing is nothing but a cast of floating-point tensors to this type."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the compressed tensor, and what decompress() needs to know. Local.

        Args:
            tensor: Any tensor; must not be changed.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the reduced tensor in its original type. Local.

        Args:
            tensor: What came back from the operation.
            ctx: What compress() returned on this rank.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004
        """Returns the tensor itself."""
        return tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype]:
    """Only floating-point tensors become narrower; masks and counters stay what they are."""
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor), tensor.dtype


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16: half the bytes, range up to 65504."""

    wire_dtype = torch.float16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Casts to float16."""
        return _cast(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Casts back."""
        return tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16: half the bytes, the range of float32, 8 bits."""

    wire_dtype = torch.bfloat16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Casts to bfloat16."""
        return _cast(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Casts back."""
        return tensor.to(ctx)


class Compression:
    """The compressors to choose from. Sums are taken in float32 whatever the type on the way.

    Source: ``horovod.torch.Compression``; ``bf16`` is an addition.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.full((2,), 0.5), compression=hvd.Compression.fp16)
        tensor([0.5000, 0.5000])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

"""One parameter's gradient, and the three ways in which it may travel."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

import torch

from horovodlite import _core
from horovodlite.process_sets import ProcessSet, global_process_set, set_id
from horovodlite.torch._buckets import Bucket, Form
from horovodlite.torch._handles import synchronize
from horovodlite.torch._tensors import (
    DTYPE_NUMBERS,
    ROW_MAJOR,
    TensorArg,
    as_numbers,
    layout_of,
    tensor_arg,
)
from horovodlite.torch.compression import Compression, Compressor
from horovodlite.torch.ops import grouped_allreduce_async_, sparse_allreduce_async


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    op: int
    compression: type[Compressor]
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet = global_process_set

    @property
    def scales(self) -> tuple[float, float]:
        """Prescale and postscale."""
        return 1.0 / self.predivide_factor, self.predivide_factor

    @property
    def uses_buckets(self) -> bool:
        """Whether a cast into the bucket is all that compression does."""
        return self.compression is Compression.none or self.wire_dtype is not None

    @property
    def wire_dtype(self) -> torch.dtype | None:
        """What compressing casts to, if that is all it does; a user's compressor need not say."""
        return getattr(self.compression, "wire_dtype", None)

    @property
    def shares(self) -> bool:
        """Whether small gradients may share an operation."""
        return self.uses_buckets and not self.sparse_as_dense

    def bucket_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which a gradient is reduced."""
        wire_dtype = self.wire_dtype
        return wire_dtype if wire_dtype is not None and dtype.is_floating_point else dtype


class Slot(_core.calls.SlotState):
    """One parameter's gradient: where it is reduced, and how far it has come in this step.

    What begins anew with each step:
        used: Whether backward has reached the parameter.
        passes: How often, not counting passes inside no_sync().
        packed: Whether the gradient is where its carrier takes it from.
        sparse: What travels instead of the bucket.
        loose: What a user's compressor is to pack.
    """

    __slots__ = ("_delivered", "_form", "name", "number", "settings")

    def __init__(
        self, parameter: torch.nn.Parameter, name: str, number: int, settings: Settings
    ) -> None:
        self.parameter = parameter
        self.name = name
        self.number = number
        self.settings = settings
        self.nbytes = parameter.numel() * parameter.element_size()
        self.bucket: Bucket | None = None  # None when a user's compressor brings its own memory
        self._form: Form | None = None  # of the parameter when the bucket was made
        self._view: torch.Tensor | None = None  # the bucket, as the parameter's gradient
        self._sparse_dims = 0  # > 0 while the latest gradient seen was sparse
        self._delivered: Callable[[], torch.Tensor | None] = lambda: None  # weak: users let go

    def form(self) -> Form:
        """Dtype, shape and strides of the parameter now."""
        parameter = self.parameter
        return Form(parameter.dtype, parameter.shape, parameter.stride())

    def fits(self) -> bool:
        """Whether the bucket suits the parameter still.

        Not after model.half(), for example; nor after model.share_memory(), which moves gradients,
        and with them the bucket's tensor, out of the memory that is reduced.
        """
        bucket = self.bucket
        moved = bucket is not None and bucket.tensor.data_ptr() != bucket.address
        return not moved and self.form() == self._form

    def set_bucket(self, bucket: Bucket | None) -> None:
        """Gives the slot its memory. What has been packed already moves there."""
        if self.packed and bucket is not None and self.bucket is not None:
            bucket.tensor.copy_(self.bucket.tensor)
        self.bucket, self._form, self._view = bucket, self.form(), None
        _core.calls.bucket_made(self)

    def in_bucket(self, gradient: torch.Tensor | None) -> bool:
        """Whether a gradient lies in the bucket already."""
        bucket = self.bucket
        return (
            gradient is not None
            and bucket is not None
            and gradient.layout is torch.strided
            and gradient.data_ptr() == bucket.address
            and gradient.stride() == bucket.tensor.stride()
        )

    def deliver(self, gradient: torch.Tensor) -> None:
        """Makes a reduced gradient the parameter's; sparse again if it was that."""
        if self._sparse_dims and gradient.layout is torch.strided:
            gradient = gradient.to_sparse(self._sparse_dims)
        self.parameter.grad = gradient
        self._delivered = weakref.ref(gradient)
        self._shows = gradient is self._view

    def is_brought(self) -> bool:
        """Whether the gradient is one that the user has put there, and not left from a step."""
        gradient = self.parameter.grad
        ours = gradient is None or gradient is self._delivered() or self.in_bucket(gradient)
        return not ours

    def pack(self, computed: torch.Tensor | None = None, weight: float = 1.0) -> None:
        """Brings the gradient to where it is reduced; zeros if there is none.

        Args:
            computed: The gradient, if ``parameter.grad`` is still to get it.
            weight: What it is multiplied by.
        """
        self.packed = True
        gradient = self.parameter.grad if computed is None else computed
        if gradient is not None:
            is_sparse = gradient.layout is torch.sparse_coo
            self._sparse_dims = gradient.sparse_dim() if is_sparse else 0
        if not self.settings.sparse_as_dense and not self.unit.is_shared:
            self.sparse = self._sparse_or_none(gradient)
        if self.sparse is not None:
            self.sparse = scaled(self.sparse, weight)
        elif self.bucket is None:
            plain = torch.zeros_like(self.parameter) if gradient is None else _dense(gradient)
            self.loose = scaled(plain, weight)
        else:
            self._fill(self.bucket.tensor, gradient)
            if weight != 1.0:
                self.bucket.tensor.mul_(weight)
            shows = self._holds(self.bucket.tensor) and not self._sparse_dims
            if self.used and computed is None and shows:
                self.show()  # already now: what was copied can be freed

    def _fill(self, target: torch.Tensor, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            target.zero_()
        elif not self.in_bucket(gradient):
            target.copy_(_dense(gradient))

    def _holds(self, reduced: torch.Tensor) -> bool:
        """Whether a bucket's content can be the gradient without a cast."""
        parameter: torch.nn.Parameter = self.parameter
        return reduced.dtype == parameter.dtype

    def _sparse_or_none(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient if it is sparse; an empty one if there is none but there was before."""
        if self._sparse_dims == 0:
            return None
        if gradient is not None:
            return gradient.detach()
        shape = self.parameter.shape
        indices = torch.empty((self._sparse_dims, 0), dtype=torch.int64)
        values = torch.empty((0, *shape[self._sparse_dims :]), dtype=self.parameter.dtype)
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)

    def show(self) -> None:
        """Makes the bucket's content the parameter's gradient."""
        if self.bucket is None:
            return
        reduced = self.bucket.tensor
        if not self._holds(reduced):
            self.show_copy(reduced)
        elif not self.in_bucket(self.parameter.grad):
            if self._view is None or self._view.data_ptr() != self.bucket.address:
                self._view = reduced.view_as(reduced)  # an alias: the bucket's tensor stays ours
            self.deliver(self._view)

    def show_copy(self, reduced: torch.Tensor) -> None:
        """Makes the values of `reduced` the parameter's gradient."""
        gradient = self.parameter.grad
        if gradient is None or not _is_plain(gradient):
            gradient = reduced.to(self.parameter.dtype, copy=True)
        else:
            gradient.copy_(reduced)
        self.deliver(gradient)

    def save_stale(self) -> None:
        """Before an unused gradient takes part: keeps what restore() brings back."""
        gradient = self.parameter.grad
        if gradient is not None and self.in_bucket(gradient):
            self._stale = gradient.clone()

    def restore(self) -> None:
        """After nobody has used the parameter: leaves the gradient as it was."""
        if self._stale is not None and self.bucket is not None:
            self.bucket.tensor.copy_(self._stale)


def scaled(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """The gradient times a factor; itself if that is 1."""
    return gradient if factor == 1.0 else gradient * factor


def _is_plain(gradient: torch.Tensor) -> bool:
    """Whether values can be written into a gradient; not when its elements overlap, for example."""
    strided = gradient.layout is torch.strided and not gradient.requires_grad
    return strided and layout_of(gradient) is not None


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


class Carrier(Protocol):
    """Takes packed gradients to the other ranks and brings the reduced ones back."""

    def start(self, wake: bool) -> None:
        """Submits the operation. Never blocks on a peer.

        Args:
            wake: Whether it is worth a thread's waking up now; else more will follow soon.
        """

    def wait(self) -> None:
        """Blocks until it is done; raises what went wrong."""

    def deliver(self, slot: Slot, factor: float) -> None:
        """After wait(): makes the reduced gradient, times a factor, the parameter's."""


def _argument(bucket: Bucket) -> TensorArg:
    numbers = as_numbers(bucket.tensor)
    return tensor_arg(numbers, numbers, bucket.layout)


def _joint_argument(buckets: Sequence[Bucket]) -> TensorArg:
    """Buckets of one dtype, one after the other, and what is between them, as one tensor."""
    numbers, end = as_numbers(buckets[-1].tensor), buckets[-1].address
    start = buckets[0].address
    count = (end - start) // numbers.element_size() + numbers.numel()
    return start, start, DTYPE_NUMBERS[numbers.dtype], (count,), ROW_MAJOR


class BucketCarrier:
    """Reduces buckets in place. What the operation is, is worked out once."""

    def __init__(
        self,
        current: _core.Session,
        name: str,
        buckets: Sequence[Bucket],
        settings: Settings,
        is_shared: bool = False,
    ) -> None:
        """Describes the operation.

        Args:
            current: The session that the memory is from.
            name: Whose gradients they are.
            buckets: Where they are reduced.
            settings: How.
            is_shared: Whether the buckets are one after the other, with zeros between them, and may
                be reduced as one tensor. Every rank says the same.
        """
        # Not if some parameter has got another dtype since: on a single rank, that is an error.
        dtypes = {bucket.tensor.dtype if bucket.tensor.nbytes else None for bucket in buckets}
        joint = is_shared and len(dtypes) == 1
        arguments = [_joint_argument(buckets)] if joint else [_argument(one) for one in buckets]
        kind = "allreduce" if len(arguments) == 1 else "grouped_allreduce"
        kind = "shared_allreduce" if is_shared else kind
        self.operation = _core.Prepared(
            current,
            _core.ALLREDUCE,
            f"{kind}.{name}",
            arguments,
            settings.op,
            *settings.scales,
            keep=[bucket.memory for bucket in buckets],
            process_set=set_id(settings.process_set),
        )

    def start(self, wake: bool) -> None:
        """Submits the reduction of the buckets."""
        self.operation.start(wake)

    def wait(self) -> None:
        """Waits for it."""
        self.operation.wait()

    def deliver(self, slot: Slot, factor: float) -> None:
        """The gradient becomes a view of the bucket, or a cast of it."""
        if factor != 1.0 and slot.bucket is not None:
            slot.bucket.tensor.mul_(factor)
        slot.show()


class SparseCarrier:
    """Gathers and merges one sparse gradient."""

    def __init__(self, slot: Slot, name: str) -> None:
        self._slot = slot
        self._name = name
        self._wait: Callable[[], torch.Tensor]

    def start(self, wake: bool) -> None:  # noqa: ARG002  (rare enough to wake somebody each time)
        """Submits the gathering of indices and values."""
        gradient, settings = self._slot.sparse, self._slot.settings
        assert gradient is not None
        self._wait = sparse_allreduce_async(gradient, self._name, settings.op, settings.process_set)

    def wait(self) -> None:
        """Waits and merges."""
        self._slot.sparse = self._wait()

    def deliver(self, slot: Slot, factor: float) -> None:
        """The gradient becomes the merged one."""
        assert slot.sparse is not None
        slot.deliver(scaled(slot.sparse, factor))


class CompressorCarrier:
    """Reduces what a user's compressor makes of the gradients."""

    def __init__(self, slots: Sequence[Slot], name: str, settings: Settings) -> None:
        self._slots = slots
        self._name = name
        self._settings = settings
        self._handle: int
        self._reduced: dict[int, torch.Tensor] = {}  # by number of the slot

    def start(self, wake: bool) -> None:  # noqa: ARG002  (compressing costs more than waking)
        """Compresses, and submits the results as one group."""
        settings = self._settings
        gradients = [slot.loose for slot in self._slots if slot.loose is not None]
        packed = [settings.compression.compress(gradient) for gradient in gradients]
        self._contexts: list[Any] = [context for _, context in packed]
        tensors = [tensor.clone() for tensor, _ in packed]
        prescale, postscale = settings.scales
        self._handle = grouped_allreduce_async_(
            tensors,
            name=self._name,
            op=settings.op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=settings.process_set,
        )

    def wait(self) -> None:
        """Waits and decompresses."""
        results = zip(self._slots, synchronize(self._handle), self._contexts)
        decompress = self._settings.compression.decompress
        self._reduced = {slot.number: decompress(tensor, ctx) for slot, tensor, ctx in results}

    def deliver(self, slot: Slot, factor: float) -> None:
        """The gradient gets the decompressed values."""
        slot.show_copy(scaled(self._reduced.pop(slot.number), factor))

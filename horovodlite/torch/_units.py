"""Which gradients travel together.

A *unit* is what is submitted as one operation: the slots of a group, small slots that *share* a
unit, or one slot. Sharing is for speed only: an operation costs some microseconds, however few
bytes it has.

Who shares is agreed by all ranks, with no message more. In the first step of a session every
gradient travels alone, under its parameter's name; so different models are found out then, and the
flags of the step tell all ranks the same about the parameters: those that every rank has used, with
dense gradients, share units from the next step on. Later steps only take members away: one that
some rank has frozen or not used, so that nobody waits for it. It travels alone from then on, since
each change costs new memory and new operations. After a join, which ranks reach after different
numbers of steps, all is agreed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from horovodlite import _core
from horovodlite.torch._buckets import Bucket, padded
from horovodlite.torch._slots import (
    BucketCarrier,
    Carrier,
    CompressorCarrier,
    Slot,
    SparseCarrier,
)
from horovodlite.torch._tensors import from_memory

# Most bytes of a shared unit. Small gradients are submitted without waking anybody until as much
# has gathered (kWakeBytes in python/gradient_step.cc), so none starts later for sharing.
_MOST_SHARED = 256 << 10


class Unit(_core.calls.UnitState):
    """The slots that travel in one operation."""

    def __init__(self, slots: Sequence[Slot], is_group: bool = False) -> None:
        """Makes it the unit of its slots.

        Args:
            slots: In the order in which gradients become ready.
            is_group: Whether it is the user's wish that they travel together.
        """
        self.is_group = is_group
        self.is_shared = not is_group and len(slots) > 1
        more = f"+{len(slots) - 1}" if self.is_shared else ""
        self.name = slots[0].name + more
        self.slots: tuple[Slot, ...] = tuple(slots)
        for slot in slots:
            slot.unit = self
        self.in_flight: Carrier | None = None
        self._unpacked = len(slots)
        self._full_name: str
        self._dense: Carrier

    @property
    def may_share(self) -> bool:
        """Whether it is small, and of one slot by chance."""
        return not self.is_group and sum(slot.nbytes for slot in self.slots) <= _MOST_SHARED

    def set_buckets(self, current: _core.Session, buckets: Sequence[Bucket], suffix: str) -> None:
        """Gives the slots their memory, and what has been packed already moves there.

        Args:
            current: The session that the memory is from.
            buckets: One per slot, one after the other in one block of memory, or none when a
                compressor brings its own memory.
            suffix: Makes the name unique among the optimizers of this session.
        """
        settings = self.slots[0].settings
        self._full_name = self.name + suffix
        if self.is_shared:
            _clear(buckets)  # what is between them travels too
        for index, slot in enumerate(self.slots):
            slot.set_bucket(buckets[index] if buckets else None)
        if buckets:
            self._dense = BucketCarrier(current, self._full_name, buckets, settings, self.is_shared)
            self._prepared = self._dense.operation
        else:
            self._dense = CompressorCarrier(self.slots, self._full_name, settings)

    def start(self, wake: bool) -> None:
        """Submits the operation; every slot is packed. Never blocks on a peer."""
        sparse = [slot for slot in self.slots if slot.sparse is not None]
        if not sparse:
            carrier = self._dense
        elif len(self.slots) == 1:
            carrier = SparseCarrier(sparse[0], self._full_name)
        else:
            raise ValueError(
                f"The gradient of '{sparse[0].name}' is sparse, which a group cannot hold: pass "
                "sparse_as_dense=True, or leave the parameter out of groups."
            )
        carrier.start(wake)
        self.in_flight = carrier

    def start_without_the_rest(self) -> None:
        """Submits the operation with zeros for slots that are not packed. Never blocks on a peer.

        Their parameters' gradients are as before after restore().
        """
        for slot in self.slots:
            if not slot.packed and slot.bucket is not None:
                slot.save_stale()
                slot.bucket.tensor.zero_()
        self.start(wake=False)


def _clear(buckets: Sequence[Bucket]) -> None:
    memory = buckets[0].memory
    places = [(one.address, one.address + one.tensor.nbytes) for one in buckets if one.address]
    start, end = min(places, default=(0, 0))[0], max(places, default=(0, 0))[1]
    from_memory(memory, torch.uint8, (end - start,), start - memory.address).zero_()


def share(slots: Sequence[Slot], sharers: Collection[int]) -> list[list[Slot]]:
    """The slots of each unit, in the order of their first slots. Local.

    Args:
        slots: Those in no group. They have the buckets in which they have just been reduced, so
            that every rank decides alike.
        sharers: Numbers of those that may share.
    """
    units: list[list[Slot]] = []
    latest: dict[torch.dtype, list[Slot]] = {}  # units that may get more members, and their bytes
    sizes: dict[torch.dtype, int] = {}
    for slot in slots:
        bucket = slot.bucket
        nbytes = 0 if bucket is None else padded(bucket.tensor.nbytes)
        if bucket is None or slot.number not in sharers or not 0 < nbytes <= _MOST_SHARED:
            units.append([slot])
            continue
        dtype = bucket.tensor.dtype
        if dtype not in latest or sizes[dtype] + nbytes > _MOST_SHARED:
            latest[dtype], sizes[dtype] = [], 0
            units.append(latest[dtype])
        latest[dtype].append(slot)
        sizes[dtype] += nbytes
    return units

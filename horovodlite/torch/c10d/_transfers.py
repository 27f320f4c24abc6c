"""From one rank to another: send, recv and recv_anysource, and the ends of it.

A message is an allgather of two ranks to which the receiver gives nothing, so the receiver need not
know what comes, and may wait for it before anybody sends. It begins with a header, so that what
does not fit is told. Sends are copied: they are through at once, and both sides may send first.
"""

from __future__ import annotations

import collections
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Union

import torch

from horovodlite import _core
from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch._tensors import ROW_MAJOR, from_memory, tensor_arg
from horovodlite.torch.c10d._flat import flat, put
from horovodlite.torch.c10d._work import Done, Pending, wait_until

_NAME_BYTES, _HEADER_BYTES = 24, 32  # dtype, then the size: what follows is aligned for all types
_POLL_SECONDS = 0.002

Tag = Union[int, str]


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor as bytes, behind a header."""
    body = flat(tensor).view(torch.uint8)
    message = torch.empty(_HEADER_BYTES + body.numel(), dtype=torch.uint8)
    name = str(tensor.dtype).partition(".")[2].encode().ljust(_NAME_BYTES)
    header = name + tensor.numel().to_bytes(_HEADER_BYTES - _NAME_BYTES, "little")
    message[:_HEADER_BYTES] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    message[_HEADER_BYTES:] = body
    return message


def unpack(message: torch.Tensor, tensor: torch.Tensor, source: int) -> None:
    """Puts what pack() has made into `tensor`.

    Raises:
        ValueError: It is of another type or size.
    """
    header = bytes(message[:_HEADER_BYTES].tolist())
    dtype = header[:_NAME_BYTES].decode().strip()
    count = int.from_bytes(header[_NAME_BYTES:], "little")
    wanted = str(tensor.dtype).partition(".")[2]
    if (dtype, count) != (wanted, tensor.numel()):
        raise ValueError(
            f"recv expects {tensor.numel()} elements of {wanted} from rank {source} of the group, "
            f"which has sent {count} of {dtype}"
        )
    like = flat(tensor[:0] if tensor.dim() else tensor.new_empty(0)).dtype
    put(message[_HEADER_BYTES:].view(like), tensor)


class Message:
    """One that is on its way here; what it takes are the bytes."""

    def __init__(self, handle: _core.Handle) -> None:
        self._handle = handle
        self.done = handle.done
        self.wait_for = handle.wait_for

    def take(self) -> torch.Tensor:
        memory, _, shape, _ = self._handle.wait_gathered()[0]
        return from_memory(memory, torch.uint8, shape)


class OwnMessage:
    """One from this rank to itself."""

    def __init__(self) -> None:
        self._sent = threading.Event()
        self._bytes: torch.Tensor | None = None

    def send(self, message: torch.Tensor) -> None:
        self._bytes = message
        self._sent.set()

    def done(self) -> bool:
        return self._sent.is_set()

    def wait_for(self, seconds: float) -> bool:
        return self._sent.wait(seconds)

    def take(self) -> torch.Tensor:
        assert self._bytes is not None
        return self._bytes


class Transfers:
    """The messages of one group.

    Messages of one sender and tag arrive in the order in which they were sent.

    Args:
        session: Of the whole world.
        ranks: The group's ranks of the world, in the order of the group.
        rank: This rank of the group.
        prefix: Of the names of operations, the same on all ranks of the group.
    """

    def __init__(
        self, session: _core.Session, ranks: Sequence[int], rank: int, prefix: str
    ) -> None:
        self._session = session
        self._ranks = list(ranks)
        self._rank = rank
        self._prefix = prefix
        self._lock = threading.Lock()
        self._counts: collections.Counter[tuple[str, int, Tag]] = collections.Counter()
        self._sends: collections.deque[_core.Handle] = collections.deque()
        # Begun for recv_anysource, and not used by it, by source and tag.
        self._begun: dict[tuple[int, Tag], collections.deque[Pending]] = {}
        self._own: dict[tuple[Tag, int], OwnMessage] = {}

    def _start(self, way: str, peer: int, tag: Tag, message: torch.Tensor) -> _core.Handle:
        source, target = (self._rank, peer) if way == "to" else (peer, self._rank)
        number = self._counts[way, peer, tag]
        self._counts[way, peer, tag] += 1
        return self._session.submit(
            _core.ALLGATHER,
            f"{self._prefix}.send.{tag}.{number}",
            [tensor_arg(message, None, ROW_MAJOR)],
            keep=message,
            process_set=_core.pair_set(self._ranks[source], self._ranks[target]),
        )

    def _own_message(self, way: str, tag: Tag) -> OwnMessage:
        """Of this number, by whichever side comes first."""
        key = way, self._rank, tag
        place = tag, self._counts[key]
        self._counts[key] += 1
        message = self._own.pop(place, None)
        if message is None:
            message = self._own[place] = OwnMessage()
        return message

    def send(self, tensor: torch.Tensor, target: int, tag: Tag) -> Pending:
        """Copies and sends; it is through when this returns."""
        message = pack(tensor)
        with self._lock:
            if target == self._rank:
                self._own_message("to", tag).send(message)
                return Done()
            while self._sends and self._sends[0].done():
                self._sends.popleft()
            self._sends.append(self._start("to", target, tag, message))
        return Done()

    def _receive(self, source: int, tag: Tag) -> Pending:
        if source == self._rank:
            return self._own_message("from", tag)
        return Message(self._start("from", source, tag, torch.empty(0, dtype=torch.uint8)))

    def receive(self, source: int, tag: Tag) -> Pending:
        """The next message of a rank of the group."""
        with self._lock:
            begun = self._begun.get((source, tag))
            return begun.popleft() if begun else self._receive(source, tag)

    def receive_any(self, tag: Tag) -> AnyMessage:
        """The next message of whichever rank."""
        return AnyMessage(self, tag)

    def first_done(self, tag: Tag) -> tuple[int, Pending] | None:
        """A message that has arrived and that nobody has asked for yet, and its source."""
        with self._lock:
            for source, begun in self._waiting(tag):
                if begun[0].done():
                    return source, begun.popleft()
        return None

    def any_waiting(self, tag: Tag) -> list[Pending]:
        """The next message of each rank."""
        with self._lock:
            return [begun[0] for _, begun in self._waiting(tag)]

    def _waiting(self, tag: Tag) -> Iterator[tuple[int, collections.deque[Pending]]]:
        for source in range(len(self._ranks)):
            if source == self._rank:
                continue
            begun = self._begun.setdefault((source, tag), collections.deque())
            if not begun:
                begun.append(self._receive(source, tag))
            yield source, begun

    def drain(self, seconds: float) -> None:
        """Blocks until all that was sent has been received, at most so long."""
        deadline = time.monotonic() + seconds
        with self._lock:
            sends = list(self._sends)
            self._sends.clear()
        left = [handle for handle in sends if not wait_until_done(handle, deadline)]
        if left:
            warnings.warn(
                f"{len(left)} messages of group {self._prefix} have been sent, but not received "
                f"within {seconds:g} s: every send() needs a recv() on the other rank, before that "
                "or this rank destroys the group",
                RuntimeWarning,
                stacklevel=4,
            )


def wait_until_done(handle: _core.Handle, deadline: float) -> bool:
    """Blocks until a send has ended or the time is over; whether the message has arrived."""
    while not handle.wait_for(min(3600.0, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    try:
        handle.wait()
    except HorovodInternalError:
        return False  # the receiver has gone
    return True


class AnyMessage:
    """The next message of whichever rank; `source` tells of which, once it is done."""

    def __init__(self, transfers: Transfers, tag: Tag) -> None:
        self._transfers = transfers
        self._tag = tag
        self._lock = threading.Lock()
        self._message: Pending | None = None
        self.source = -1

    def done(self) -> bool:
        with self._lock:
            if self._message is None:
                found = self._transfers.first_done(self._tag)
                if found is not None:
                    self.source, self._message = found
            return self._message is not None

    def wait_for(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() >= deadline:
                return False
            for message in self._transfers.any_waiting(self._tag):
                if wait_until(message, min(deadline, time.monotonic() + _POLL_SECONDS)):
                    break
        return True

    def take(self) -> Any:
        assert self._message is not None
        return self._message.take()

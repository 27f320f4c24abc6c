"""From one rank to another: send and recv."""

from __future__ import annotations

from typing import Any

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import ProcessSet
from horovodlite.torch._calls import Call, elementwise, named, rooted
from horovodlite.torch._handles import Handle


def _transfer(
    tensor: torch.Tensor, source: int, target: int, name: str | None, *, in_place: bool
) -> Call:
    """A broadcast among two ranks, in the process set of this pair and direction."""
    size = session().size
    for rank in (source, target):
        if not hasattr(rank, "__index__") or not 0 <= rank < size:
            raise ValueError(f"{rank!r} is no rank: ranks are 0 to {size - 1}")
    if source == target:
        raise ValueError(f"rank {source} cannot send to itself")
    pair = ProcessSet([source, target])
    pair.process_set_id = _core.pair_set(source, target)
    numbers = rooted(source)
    call = elementwise(
        _core.BROADCAST,
        named("send", name),
        (tensor,),
        numbers,
        pair,
        in_place=in_place,
        single=True,
    )
    call.from_one_place = False
    return call


def send(tensor: torch.Tensor, target: int, name: str | None = None) -> None:
    """Sends `tensor` to another rank, which calls recv().

    Blocks, without the GIL, until it has been received. Only the two ranks take part. Without names
    what one rank sends to another is received in the order in which it was sent.

    Args:
        tensor: Any supported dtype and shape.
        target: A rank of the world.
        name: The same in recv(), not in flight already between the two ranks.

    Raises:
        ValueError: Not initialised; `target` is no rank, or this one.
        HorovodInternalError: The other rank expects another shape or dtype, or a peer is gone.
    """
    call = _transfer(tensor, session().rank, target, name, in_place=False)
    call.run()


def send_async(tensor: torch.Tensor, target: int, name: str | None = None) -> Handle:
    """Starts sending and returns a handle; `tensor` must not change before synchronize()."""
    return _transfer(tensor, session().rank, target, name, in_place=False).submit()


def recv(tensor: torch.Tensor, source: int, name: str | None = None) -> torch.Tensor:
    """Overwrites `tensor` with what another rank sends, and returns it.

    Blocks, without the GIL, until it is there. Only the two ranks take part.

    Args:
        tensor: Of the shape and dtype that is sent.
        source: A rank of the world.
        name: The same as in send().

    Raises:
        ValueError: Not initialised; `source` is no rank, or this one.
        HorovodInternalError: Another shape or dtype is sent, or a peer is gone.
    """
    received: Any = _transfer(tensor, source, session().rank, name, in_place=True).run()
    result: torch.Tensor = received
    return result


def recv_async(tensor: torch.Tensor, source: int, name: str | None = None) -> Handle:
    """Starts receiving and returns a handle; synchronize() gives `tensor` back."""
    return _transfer(tensor, source, session().rank, name, in_place=True).submit()

"""The backend "horovodlite" of torch.distributed. Importing this registers it.

Example:
    >>> import torch, torch.distributed as dist
    >>> import horovodlite.torch.c10d
    >>> dist.init_process_group("horovodlite", rank=0, world_size=1, store=dist.HashStore())
    >>> tensor = torch.ones(2)
    >>> dist.all_reduce(tensor)
    >>> tensor
    tensor([1., 1.])
    >>> dist.destroy_process_group()
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from horovodlite.torch.c10d._group import ProcessGroup
from horovodlite.torch.c10d._hooks import bfloat16_hook
from horovodlite.torch.c10d._identity import NAME
from horovodlite.torch.c10d._world import announce_groups, create

__all__ = ["NAME", "ProcessGroup", "bfloat16_hook", "monitored_barrier"]


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """``torch.distributed.monitored_barrier``, which refuses all backends but Gloo by name.

    Blocks until all ranks of the group have called it.

    Args:
        group: One of this backend; None is the world.
        timeout: How long; None is the group's time limit.
        wait_all_ranks: Whether rank 0 tells all ranks that have not come, or only the first.

    Raises:
        HorovodInternalError: Some rank has not come; the message of the group's rank 0 says which.
        TypeError: The group is of another backend.
    """
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroup):
        raise TypeError(f"monitored_barrier() needs a group of backend {NAME!r}, not {chosen!r}")
    chosen.monitored_barrier(timeout, wait_all_ranks)


if NAME.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    announce_groups()

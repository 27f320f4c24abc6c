"""Process groups of torch.distributed in the ranks of a RankPool."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

import horovodlite.torch.c10d  # noqa: F401  (registers the backend)


def free_port() -> int:
    """One that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def world(port: int, backend: str = "horovodlite", seconds: float = 60.0) -> Iterator[Any]:
    """torch.distributed's world of the ranks that call it; rank 0 serves at `port`."""
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=int(os.environ["HVL_RANK"]),
        world_size=int(os.environ["HVL_SIZE"]),
        timeout=dt.timedelta(seconds=seconds),
    )
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()

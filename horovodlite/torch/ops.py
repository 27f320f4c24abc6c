"""Collective operations on torch tensors.

Every function here is collective: all ranks, or those of its process set, have to call it, with the
same name if there is a name, else in the same order among the unnamed operations of its kind, and
from the same line of the program. Tensors are in host memory. They may have any strides; where
memory has holes or overlaps, a copy is made. Results keep the memory format. The asynchronous
functions keep their tensors alive, but they must not be changed, and the tensor of an in-place one
not be read, before synchronize().
"""

from __future__ import annotations

from horovodlite.torch._allgather import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from horovodlite.torch._allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from horovodlite.torch._alltoall import (
    alltoall,
    alltoall_async,
    gather,
    gather_async,
    scatter,
    scatter_async,
)
from horovodlite.torch._broadcast import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from horovodlite.torch._reduce import (
    reduce,
    reduce_async,
)
from horovodlite.torch._reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horovodlite.torch._sending import (
    recv,
    recv_async,
    send,
    send_async,
)
from horovodlite.torch._sparse import (
    sparse_allreduce_async,
)
from horovodlite.torch._waiting import (
    barrier,
    join,
)

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "sparse_allreduce_async",
]

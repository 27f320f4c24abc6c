"""Data-parallel training with PyTorch. A drop-in for ``horovod.torch``.

Example:
    >>> import horovodlite.torch as hvd
    >>> hvd.init()
    >>> hvd.size() >= 1
    True
"""

from __future__ import annotations

from typing import NoReturn

from horovodlite.exceptions import HorovodInternalError
from horovodlite.torch import elastic
from horovodlite.torch._arguments import Average, Max, Min, Product, Sum
from horovodlite.torch._handles import poll, synchronize
from horovodlite.torch.compression import Compression, Compressor
from horovodlite.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovodlite.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from horovodlite.torch.optimizer import DistributedOptimizer
from horovodlite.torch.sync_batch_norm import SyncBatchNorm
from horovodlite.world import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

# Horovod's names that belong to later work. They are not there, and say so.
_NOT_YET = frozenset(
    {
        "Adasum",
        "ProcessSet",
        "add_process_set",
        "alltoall",
        "alltoall_async",
        "global_process_set",
        "grouped_reducescatter",
        "grouped_reducescatter_async",
        "join",
        "reducescatter",
        "reducescatter_async",
        "remove_process_set",
    }
)


def __getattr__(name: str) -> NoReturn:
    """Says of Horovod's names that are missing here that they are known and not supported yet."""
    why = "is not supported yet" if name in _NOT_YET else "does not exist"
    raise AttributeError(f"horovodlite.torch.{name} {why}")

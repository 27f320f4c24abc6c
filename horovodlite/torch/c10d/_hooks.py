"""Communication hooks for DistributedDataParallel that torch has for GPUs only.

DDP compares the annotations of a hook with the types, so here they must not be text; and it refuses
hooks of the names of its own ones.
"""

# ruff: noqa: FA100

from typing import Any, Optional

import torch
import torch.distributed as dist


def bfloat16_hook(
    process_group: Optional[dist.ProcessGroup],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """For ``DDP.register_comm_hook(None, hook)``: averages gradients in bfloat16, on CPUs as well.

    It halves the bytes. Sums are added up in float32 and rounded once.

    Args:
        process_group: Of this backend; None is the world.
        bucket: DDP's, of floating-point gradients.

    Returns:
        A future of the averaged bucket, in its own type.

    Source: ``torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook``, which
    refuses the CPU.
    """
    group = process_group if process_group is not None else dist.group.WORLD
    assert group is not None
    gradients: torch.Tensor = bucket.buffer()
    small = gradients.to(torch.bfloat16)
    work = group.allreduce([small], dist.ReduceOp.AVG)

    def back(future: Any) -> torch.Tensor:
        return gradients.copy_(future.value()[0])

    return work.get_future().then(back)

"""A sampler that deals out again, after a reset, what has not been processed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from horovodlite.world import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals a dataset out to the ranks; samples that were recorded are not dealt again.

    Put it into a TorchState, call record_batch() after each batch, and set_epoch() at the end of
    each epoch (at its beginning it would forget what an interrupted epoch has done). When the
    samples left are no multiple of the ranks, some are dealt twice, so that all ranks have as many.

    Args:
        dataset: Has a length that does not change.
        shuffle: Whether samples are dealt in random order, another one in each epoch.
        seed: Of that order; the same on all ranks.

    Attributes:
        epoch: Which order.
        processed_num: Samples of this epoch that have been recorded, on all ranks together.
        num_replicas: Ranks that it was dealt out to.
        rank: This one.
        remaining_indices: What was left when it was dealt out, in order.

    The order for a seed is that of Horovod's sampler.

    Source: ``horovod.torch.elastic.ElasticSampler``.

    Example:
        >>> import horovodlite.torch as hvd
        >>> hvd.init()
        >>> sampler = hvd.elastic.ElasticSampler(range(4 * hvd.size()), shuffle=False)
        >>> len(sampler)
        4
        >>> sampler.record_batch(0, 3)
        >>> sampler.reset()
        >>> len(sampler)
        1
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch with all samples. Local."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002
        """After a batch: every rank has processed so many samples. Local.

        Args:
            batch_idx: Changes nothing.
            batch_size: Samples of this rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Returns how far this epoch has come. Local."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to where a state_dict() was taken, and deals out what is left there. Local."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals out what is left among the ranks there are now. Local.

        Raises:
            ValueError: Outside init() ... shutdown().
        """
        self.num_replicas = size()
        self.rank = rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """The samples of this rank."""
        dealt = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(dealt, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        """How many samples this rank gets."""
        return self.num_samples

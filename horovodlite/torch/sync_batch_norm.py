"""Batch normalisation over the batches of all ranks.

Terms. Per channel: *count* n, *mean*, and *M2*, the sum of squared distances from the mean. A rank
works out its own three; one allgather brings those of all ranks to each, which merges them by

    mean = sum(n_r mean_r) / n        M2 = sum(M2_r + n_r (mean_r - mean)^2)

(Chan, Golub and LeVeque 1979: no difference of large sums, so nothing cancels). Backward needs, of
all ranks together, the sum of the gradients and the sum of gradient times distance from the mean:
one allreduce of two numbers per channel. A rank whose batch is empty takes part with zeros.

A layer in eval mode asks nobody. If it is in eval mode on some ranks only, those go on and the
others wait for them. So a rank that has gone backward through a layer in eval mode says so when its
optimizer reduces gradients, under the name of the gather that others may be waiting in: that is a
disagreement, which ends the wait on all of them.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar, NoReturn

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovodlite import _core
from horovodlite._session import current_session, session
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, global_process_set, members, set_id
from horovodlite.torch._arguments import Sum
from horovodlite.torch._handles import synchronize
from horovodlite.torch._hooks import is_compiling
from horovodlite.torch.ops import allgather, allgather_async, allreduce

__all__ = ["SyncBatchNorm"]


class _Names:
    """Gives each layer a number in the order of their first use, which is the same on all ranks.

    Not in the order in which they are made: one rank may have loaded or copied a model more often.
    """

    _session: _core.Session | None = None
    _numbers: weakref.WeakKeyDictionary[torch.nn.Module, int]
    _next: dict[int, int]  # by process set

    @classmethod
    def of(cls, layer: torch.nn.Module, process_set: ProcessSet) -> str:
        """The layer's name in the session that runs now."""
        current = session()
        if current is not cls._session:
            cls._session = current
            cls._numbers, cls._next = weakref.WeakKeyDictionary(), {}
        number = cls._numbers.get(layer)
        if number is None:
            group = set_id(process_set)
            number = cls._numbers[layer] = cls._next.get(group, 0)
            cls._next[group] = number + 1
        return f"sync_batch_norm.{number}"


class _Evaluated:
    """Layers in eval mode that backward has gone through since gradients were last reduced."""

    _passes = itertools.count()  # of forward, whose order gives layers their numbers
    _layers: ClassVar[weakref.WeakKeyDictionary[SyncBatchNorm, int]] = weakref.WeakKeyDictionary()

    @classmethod
    def watch(cls, layer: SyncBatchNorm, result: torch.Tensor) -> None:
        """Notes the layer when backward reaches this result of it."""
        number, watched = next(cls._passes), weakref.ref(layer)

        def reached(_: torch.Tensor) -> None:
            alive = watched()
            if alive is not None:
                cls._layers[alive] = number

        result.register_hook(reached)  # type: ignore[no-untyped-call]

    @classmethod
    def forget(cls, layer: SyncBatchNorm) -> None:
        cls._layers.pop(layer, None)

    @classmethod
    def take(cls) -> list[SyncBatchNorm]:
        """Those there are, in the order of forward, and forgets them."""
        layers = sorted(cls._layers, key=cls._layers.__getitem__)
        cls._layers.clear()
        return layers


def agree_on_modes() -> None:
    """Raises if a layer that this rank trains with in eval mode is not so on all ranks.

    Collective where there are such layers; blocks then.
    """
    handles = []
    for layer in _Evaluated.take():
        name = f"{_Names.of(layer, layer.process_set)}.statistics"
        mark = torch.zeros((1, 1), dtype=torch.uint8)  # statistics are float64
        handles.append(allgather_async(mark, name, layer.process_set))
    try:
        for handle in handles:
            synchronize(handle)
    except HorovodInternalError as error:
        _explain(error)


def _explain(error: HorovodInternalError) -> NoReturn:
    """Raises it again; a disagreement with what it means."""
    if error.code != "Mismatch":
        raise error
    raise HorovodInternalError(
        "SyncBatchNorm: a layer is in training mode (float64) on some ranks and in eval mode "
        "(uint8) on others, or has different numbers of channels. Cure: call train() or eval() "
        f"alike on all ranks. {error}",
        code=error.code,
    ) from error


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A vector of one value per channel, in a shape that fits the input's."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _statistics(
    values: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Count, mean and M2 of all ranks' values together. Collective."""
    channels = values.shape[1]
    others = [dim for dim in range(values.dim()) if dim != 1]
    own = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=values.device)
    count = values.numel() // channels if channels else 0
    if count:
        mean = values.mean(others)
        own[0] = count
        own[1 : 1 + channels] = mean
        own[1 + channels :] = (values - _per_channel(mean, values)).square().sum(others)
    try:
        rows = allgather(own.unsqueeze(0), name=f"{name}.statistics", process_set=process_set)
    except HorovodInternalError as error:
        _explain(error)
    counts, means, squares = rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
    total = counts.sum()
    mean = (counts * means).sum(0) / total.clamp(min=1)
    return total, mean, (squares + counts * (means - mean).square()).sum(0)


class _Normalize(torch.autograd.Function):
    """The normalised input; mean and variance come from all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        total: torch.Tensor,
        mean: torch.Tensor,
        inverse: torch.Tensor,
        how: tuple[str, ProcessSet],
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight, total, mean, inverse)
        ctx.how = how
        scale = inverse if weight is None else inverse * weight
        distance = values.to(mean.dtype) - _per_channel(mean, values)
        result = distance * _per_channel(scale, values)
        if bias is not None:
            result += _per_channel(bias, values)
        return result.to(values.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        values, weight, total, mean, inverse = ctx.saved_tensors
        name, process_set = ctx.how
        wide = gradient.to(mean.dtype)
        distance = values.to(mean.dtype) - _per_channel(mean, values)
        others = [dim for dim in range(values.dim()) if dim != 1]
        sums = torch.stack([wide.sum(others), (wide * distance).sum(others)])
        for_weight = (sums[1] * inverse).to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        for_input = None
        if ctx.needs_input_grad[0]:
            sums = allreduce(sums, name=f"{name}.gradient", op=Sum, process_set=process_set)
            sums = sums / total.to(sums.dtype).clamp(min=1)
            along = distance * _per_channel(sums[1] * inverse.square(), values)
            scale = inverse if weight is None else inverse * weight
            for_input = (wide - _per_channel(sums[0], values) - along) * _per_channel(scale, values)
            for_input = for_input.to(values.dtype)
        return for_input, for_weight, for_bias, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics are those of all ranks' batches together.

    In training it is BatchNorm over the joined batch, and so are the gradients of its input. In
    eval mode it is BatchNorm, and asks nobody. Any device, any layout, float16 to float64; the
    ranks' batches may differ in size and be empty. All ranks have to call the layers in the same
    order. They also have to be in the same mode when they train: otherwise the ranks in training
    mode wait for the others, until one of these reduces gradients with a DistributedOptimizer after
    a backward pass through the layer; that is an error on all of them. One rank alone may evaluate.

    Args:
        num_features: Channels: the input's second dimension, of at least two.
        eps: Added to the variance.
        momentum: Of the running statistics; None averages over all batches so far.
        affine: Whether there are weight and bias. Their gradients are this rank's share, which
            DistributedOptimizer averages like any others.
        track_running_stats: Whether eval mode uses running statistics; else those of the batch,
            which are then synchronised too.
        process_set: The ranks whose batches are joined; only they use the layer in training.

    Raises:
        ValueError: The input has fewer than two dimensions; there is but one value per channel on
            all ranks together; outside init() ... shutdown().
        HorovodInternalError: From forward or backward: the ranks disagree, or a peer is gone.

    Source: ``horovod.torch.SyncBatchNorm``; Ioffe and Szegedy, arXiv:1502.03167.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> layer = hvd.SyncBatchNorm(2)
        >>> layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).round().tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  (torch's name)
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (torch's name)
        """Returns the normalised input. Collective in training; blocks without the GIL.

        Args:
            input: Batch x channels x anything.
        """
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch:
            return self._evaluate(input)
        _Evaluated.forget(self)
        if self._is_alone():
            alone: torch.Tensor = super().forward(input)
            return alone
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels (got {input.shape[1]})")
        name = _Names.of(self, self.process_set)
        wide = input if input.dtype == torch.float64 else input.float()
        with torch.no_grad():
            total, mean, squares = _statistics(wide.detach(), name, self.process_set)
            if self.training and total == 1:
                raise ValueError(
                    "SyncBatchNorm: expected more than 1 value per channel when training, on all "
                    f"ranks together; this rank's input has shape {tuple(input.shape)}"
                )
            if self.training and total > 0:
                self._track(mean, squares / (total - 1))
            inverse = torch.rsqrt(squares / total.clamp(min=1) + self.eps)
            mean, inverse = mean.to(wide.dtype), inverse.to(wide.dtype)
        how = (name, self.process_set)
        arguments = (input, self.weight, self.bias, total, mean, inverse, how)
        normalized: torch.Tensor = _Normalize.apply(*arguments)  # type: ignore[no-untyped-call]
        return normalized

    def _evaluate(self, values: torch.Tensor) -> torch.Tensor:
        """Eval mode, with running statistics."""
        result: torch.Tensor = super().forward(values)
        watched = result.requires_grad and not is_compiling()
        if watched and current_session() is not None and not self._is_alone():
            _Evaluated.watch(self, result)
        return result

    def _is_alone(self) -> bool:
        """Whether there is nobody to join batches with."""
        return len(members(self.process_set)) == 1

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Moves the running statistics towards those of a batch; the variance is the unbiased."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)

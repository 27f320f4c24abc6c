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

import bisect
import functools
import hashlib
import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Callable, ClassVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovodlite import _core
from horovodlite._session import current_session, session
from horovodlite._sites import caller_site
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import ProcessSet, global_process_set, members, set_id
from horovodlite.torch._agreement import gather_bytes, printable, sides
from horovodlite.torch._arguments import Sum
from horovodlite.torch._claims import name_of
from horovodlite.torch._handles import Handle, synchronize
from horovodlite.torch._hooks import is_compiling
from horovodlite.torch.ops import allgather, allgather_async, allreduce

__all__ = ["SyncBatchNorm"]


@dataclass(frozen=True)
class _Identity:
    """Which layer it is, in words and numbers that are the same on all ranks."""

    number: int  # in the order of first use, within the process set
    code: float  # a whole number that no other layer has, but for chance
    text: str


class _Used:
    """The layers that have been used in a session, by process set.

    Ranks meet in the order in which they call layers. So that no layer ever meets another one, each
    is told by what must be the same on all ranks: the name that DistributedOptimizer has for its
    weight, the line that has made it, how many layers have been used before it, and how many of
    those are older. Not by how many had been made before it: a rank may load or copy a model more
    often. So layers that one line has made, and no optimizer has, are told apart only from the
    second one on that is used.
    """

    _session: weakref.ref[_core.Session] | None = None
    _layers: weakref.WeakKeyDictionary[SyncBatchNorm, _Identity]
    _births: dict[int, list[int]]  # by process set: of the layers used so far, ascending

    @classmethod
    def identity(cls, layer: SyncBatchNorm) -> _Identity:
        """The layer's in the session that runs now."""
        current = session()
        if cls._session is None or cls._session() is not current:
            cls._session = weakref.ref(current)
            cls._layers, cls._births = weakref.WeakKeyDictionary(), {}
        known = cls._layers.get(layer)
        if known is None:
            births = cls._births.setdefault(set_id(layer.process_set), [])
            known = cls._layers[layer] = cls._identity(layer, births)
            bisect.insort(births, layer.birth)
        return known

    @staticmethod
    def _identity(layer: SyncBatchNorm, births: list[int]) -> _Identity:
        text = f"number {len(births)}, {_words(layer)}"
        older = bisect.bisect_right(births, layer.birth)
        if older < len(births):
            text += f", before {len(births) - older} of the layers that have been used earlier"
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
        return _Identity(len(births), float(int.from_bytes(digest[:6], "big")), text)


def _words(layer: SyncBatchNorm) -> str:
    name = name_of(layer.weight).removesuffix(".weight")
    named = f"layer '{name}'" if name else "a layer"
    made = f", made at {layer.made_at}" if layer.made_at else ""
    return f"{named} with {layer.num_features} channels{made}"


_STATISTICS, _GRADIENT = "statistics", "gradient"


def _name_of(what: str) -> str:
    """Of the operation in which all layers of a process set meet."""
    return f"sync_batch_norm.{what}"


_turns: dict[tuple[str, int], threading.Lock] = {}
"""Of threads that use layers at the same time: one after the other, by operation and set."""


def _meet(
    operation: Callable[..., torch.Tensor],
    what: str,
    values: torch.Tensor,
    layer: tuple[_Identity, ProcessSet],
    are_same: Callable[[torch.Tensor], bool],
) -> torch.Tensor:
    """An operation in which all ranks have to be at the same layer. Collective.

    Raises:
        HorovodInternalError: They are not; the message names the layers of all ranks.
    """
    identity, process_set = layer
    name = _name_of(what)
    with _turns.setdefault((what, set_id(process_set)), threading.Lock()):
        try:
            result = operation(values, name=name, process_set=process_set)
        except HorovodInternalError as error:
            if error.code == "Mismatch":  # other numbers of channels: on all ranks alike
                _refuse_different(name, identity.text, process_set)
            raise
        if not are_same(result):
            _refuse_different(name, identity.text, process_set)
        return result


def _refuse_different(name: str, text: str, process_set: ProcessSet) -> None:
    """Raises when ranks are at different layers. Collective; none of them is used then."""
    payload = bytearray(printable(text).encode())
    parts = gather_bytes(payload, f"allgather.{name}.layers", process_set)
    texts = {rank: bytes(part).decode() for rank, part in zip(members(process_set), parts)}
    if len(set(texts.values())) > 1:
        raise HorovodInternalError(
            f"Ranks have come to different SyncBatchNorm layers: {sides(texts)}. Cure: use the "
            "layers in the same order on all ranks, and each in the same mode: in eval mode it "
            "asks nobody.",
            code="Mismatch",
        )


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
    layers = {set_id(layer.process_set): layer for layer in reversed(_Evaluated.take())}
    handles = []
    for layer in layers.values():
        mark = torch.zeros((1, 1), dtype=torch.uint8)  # statistics are float64
        handles.append(allgather_async(mark, _name_of(_STATISTICS), layer.process_set))
    for layer, handle in zip(layers.values(), handles):
        _wait_for_mode(layer, handle)


def _wait_for_mode(layer: SyncBatchNorm, handle: Handle) -> None:
    try:
        synchronize(handle)
    except HorovodInternalError as error:
        if error.code == "Mismatch":
            text = f"{_words(layer)}, in eval mode"
            _refuse_different(_name_of(_STATISTICS), text, layer.process_set)
        raise


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A vector of one value per channel, in a shape that fits the input's."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _statistics(
    values: torch.Tensor, layer: tuple[_Identity, ProcessSet]
) -> tuple[torch.Tensor, ...]:
    """Count, mean and M2 of all ranks' values together, in host memory. Collective."""
    channels = values.shape[1]
    others = [dim for dim in range(values.dim()) if dim != 1]
    own = torch.zeros(2 + 2 * channels, dtype=torch.float64)
    own[0] = layer[0].code
    count = values.numel() // channels if channels else 0
    if count:
        mean = values.mean(others)
        own[1] = count
        own[2 : 2 + channels] = mean
        own[2 + channels :] = (values - _per_channel(mean, values)).square().sum(others)

    def are_same(rows: torch.Tensor) -> bool:
        return bool((rows[:, 0] == own[0]).all())

    rows = _meet(allgather, _STATISTICS, own.unsqueeze(0), layer, are_same)
    counts, means, squares = rows[:, 1:2], rows[:, 2 : 2 + channels], rows[:, 2 + channels :]
    total = counts.sum()
    mean = (counts * means).sum(0) / total.clamp(min=1)
    return total, mean, (squares + counts * (means - mean).square()).sum(0)


def _sum_of_all(sums: torch.Tensor, layer: tuple[_Identity, ProcessSet]) -> torch.Tensor:
    """The sums of all ranks together, in host memory. Collective."""
    number, ranks = layer[0].number, len(members(layer[1]))
    # Numbers are equal if and only if their sum and that of their squares are as if they were.
    check = torch.tensor([number, number**2], dtype=torch.float64)
    own = torch.cat([sums.cpu().double().flatten(), check])

    def are_same(reduced: torch.Tensor) -> bool:
        total, squares = reduced[-2:].tolist()
        return bool(ranks * squares == total**2)

    reduced = _meet(functools.partial(allreduce, op=Sum), _GRADIENT, own, layer, are_same)
    return reduced[:-2].view(sums.shape)


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
        layer: tuple[_Identity, ProcessSet],
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight, total, mean, inverse)
        ctx.layer = layer
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
        wide = gradient.to(mean.dtype)
        distance = values.to(mean.dtype) - _per_channel(mean, values)
        others = [dim for dim in range(values.dim()) if dim != 1]
        sums = torch.stack([wide.sum(others), (wide * distance).sum(others)])
        for_weight = (sums[1] * inverse).to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        for_input = None
        if ctx.needs_input_grad[0]:
            mean_sums = _sum_of_all(sums, ctx.layer) / total.clamp(min=1)
            sums = mean_sums.to(mean.dtype).to(mean.device)
            along = distance * _per_channel(sums[1] * inverse.square(), values)
            scale = inverse if weight is None else inverse * weight
            for_input = (wide - _per_channel(sums[0], values) - along) * _per_channel(scale, values)
            for_input = for_input.to(values.dtype)
        return for_input, for_weight, for_bias, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics are those of all ranks' batches together.

    In training it is BatchNorm over the joined batch, and so are the gradients of its input. In
    eval mode it is BatchNorm, and asks nobody. Any device (what travels, a few numbers per channel,
    goes through host memory), any layout, float16 to float64; the ranks' batches may differ in size
    and be empty.

    Every call in training meets one of every other rank: all have to call the same layers in the
    same order, forward and backward, each in the same mode. When ranks come to different layers it
    is an error on all of them. A rank that comes to none, because its layers are in eval mode,
    keeps the others waiting in ``allgather.sync_batch_norm.statistics`` until it reduces gradients
    with a DistributedOptimizer after a backward pass through such a layer; that is an error on all
    of them too. One rank alone may evaluate. Threads of a process take turns, so only one of them
    can use layers of the same process set.

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

    _births = itertools.count()
    birth, made_at = 0, ""  # of layers in older pickles

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
        self.made_at = caller_site()
        self.birth = next(self._births)  # of copies it is the same

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  (torch's name)
        if not isinstance(input, torch.Tensor) or not input.is_floating_point():
            got = input.dtype if isinstance(input, torch.Tensor) else type(input).__name__
            raise TypeError(f"expected a floating-point tensor (got {got})")
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
        layer = _Used.identity(self), self.process_set
        wide = input if input.dtype == torch.float64 else input.float()
        with torch.no_grad():
            total, mean, squares = _statistics(wide.detach(), layer)
            if self.training and total == 1:
                raise ValueError(
                    "SyncBatchNorm: expected more than 1 value per channel when training, on all "
                    f"ranks together; this rank's input has shape {tuple(input.shape)}"
                )
            if self.training and total > 0:
                self._track(mean, squares / (total - 1))
            inverse = torch.rsqrt(squares / total.clamp(min=1) + self.eps)
            mean, inverse = (v.to(wide.dtype).to(wide.device) for v in (mean, inverse))
        arguments = (input, self.weight, self.bias, total, mean, inverse, layer)
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
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(value.to(running.dtype).to(running.device), weight)

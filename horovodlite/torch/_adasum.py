"""What a DistributedOptimizer does around step() for Adasum: what has changed travels.

Adasum combines updates so that parallel ones are averaged and orthogonal ones added up (Maleki et
al., Scaling Distributed Training with Adaptive Summation, 2020). What it combines are the changes
that the optimizer makes, not the gradients, so that a learning rate for one process fits.

Every rank steps, or none: whether a parameter is frozen has to be the same on all ranks, and a
gradient scaler that finds an overflow on one rank is made to find it on all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import torch

from horovodlite._session import session
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import members
from horovodlite.torch._allreduce import allreduce, allreduce_async_
from horovodlite.torch._arguments import Adasum, Max, Sum
from horovodlite.torch._claims import Claim, Named
from horovodlite.torch._handles import Handle, synchronize
from horovodlite.torch._scaling import refuse_unseen
from horovodlite.torch._slots import Settings


class CombinedChanges:
    """Gradients stay this rank's own, and step() combines how far all ranks have come."""

    def __init__(self, parameters: Named, settings: Settings, passes: int) -> None:
        self.settings = settings
        self.passes = passes
        self._parameters = list(parameters)
        self._claim = Claim(self, parameters)
        self._seen = False  # a scaler has read the gradients since the last step

    def set_passes(self, passes: int) -> None:
        """Changes nothing: gradients are added up until step(). Local."""
        self.passes = passes

    def set_weight(self, weight: float) -> None:
        """Never returns: Adasum does not average."""
        raise ValueError(f"set_weight({weight}) is for averages: this optimizer has op=hvd.Adasum")

    def synchronize(self) -> None:
        """Does nothing: gradients do not travel. Local."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Never returns."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Changes nothing: gradients are added up on this rank until step(). Local."""
        return nullcontext()

    def _begin(self) -> bool:
        """Before meeting the other ranks: whether there are any."""
        self._claim.require_current()
        current = session()
        self._claim.renew()
        ranks = members(self.settings.process_set)
        return len(ranks) > 1 and current.rank in ranks

    def _name(self, what: str) -> str:
        """Of an operation that concerns all these parameters."""
        last = self._parameters[-1][0] if self._parameters else "nothing"
        return f"adasum.{last}{self._claim.suffix}.{what}"

    def before_unscaling(self) -> None:
        """A gradient scaler is about to read the gradients. Collective.

        Where some rank's are not finite, no rank's are afterwards: so all scalers skip the step,
        and lower their scale alike.
        """
        self._seen = True
        if not self._begin():
            return
        with torch.no_grad():
            gradients = [_scaled_values(p) for _, p in self._parameters if p.grad is not None]
            overflow = not all(bool(torch.isfinite(values).all()) for values in gradients)
            anywhere = allreduce(
                torch.tensor(float(overflow)),
                name=self._name("overflow"),
                op=Max,
                process_set=self.settings.process_set,
            )
            if anywhere.item() and not overflow:
                for values in gradients:
                    values.fill_(float("nan"))

    def step(self, own_step: Callable[..., Any], closure: Callable[[], Any] | None) -> Any:
        """Takes this rank's own step, and replaces its changes by those of all. Collective."""
        arguments = () if closure is None else (closure,)
        if not self._seen:
            refuse_unseen(sys._getframe(2))
        self._seen = False
        if not self._begin():
            return own_step(*arguments)
        trained = [(name, p) for name, p in self._parameters if p.requires_grad]
        starts = [parameter.detach().clone() for _, parameter in trained]
        counts = self._count_trained()  # travels meanwhile
        result = own_step(*arguments)
        with torch.no_grad():
            self._require_same(counts, [parameter for _, parameter in trained], starts)
            self._combine(trained, starts)
        return result

    def _count_trained(self) -> Handle:
        """Starts to count on how many ranks each parameter is not frozen."""
        flags = torch.tensor([float(p.requires_grad) for _, p in self._parameters])
        name, process_set = self._name("trained"), self.settings.process_set
        return allreduce_async_(flags, name=name, op=Sum, process_set=process_set)

    def _require_same(
        self,
        counts: Handle,
        trained: Sequence[torch.nn.Parameter],
        starts: Sequence[torch.Tensor],
    ) -> None:
        """Raises on all ranks when some have frozen what others train.

        Nothing has been combined then, and the parameters are as before the step.
        """
        ranks = len(members(self.settings.process_set))
        found = zip(self._parameters, synchronize(counts).tolist())
        names = [f"'{name}'" for (name, _), count in found if 0 < count < ranks]
        if not names:
            return
        for parameter, start in zip(trained, starts):
            parameter.copy_(start)
        raise HorovodInternalError(
            f"Parameters are frozen on some ranks and not on others: {', '.join(names)}. Cure: set "
            "requires_grad alike on all ranks.",
            code="Mismatch",
        )

    def _combine(self, trained: Named, starts: Sequence[torch.Tensor]) -> None:
        compression = self.settings.compression
        sent = []
        for (name, parameter), start in zip(trained, starts):
            delta, context = compression.compress(parameter.detach() - start)
            full_name = f"adasum.{name}{self._claim.suffix}"
            handle = allreduce_async_(
                delta, name=full_name, op=Adasum, process_set=self.settings.process_set
            )
            sent.append((handle, context))
        for (_, parameter), start, (handle, context) in zip(trained, starts, sent):
            delta = compression.decompress(synchronize(handle), context)
            parameter.copy_(start.add_(delta))

    def discard(self) -> None:
        """The gradients are being zeroed: nothing of them is in flight. Local."""

    def drain(self) -> None:
        """The optimizer's state is being replaced: nothing is in flight. Local."""

    def require_idle(self) -> None:
        """Raises RuntimeError when a newer optimizer has the parameters."""
        self._claim.require_current()

    def add_parameters(self, parameters: Named) -> None:
        """Parameters that join later. Local."""
        self._claim.add(parameters)
        self._parameters += parameters

    def be_replaced(self) -> None:
        """A newer optimizer has got some of the parameters: nothing of them is in flight."""

    def release(self) -> None:
        """The optimizer is gone: nothing of it is anywhere else."""


def _scaled_values(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The numbers of a gradient that a scaler looks at, where it does."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is not torch.sparse_coo:
        return gradient
    if gradient.dtype is torch.float16:  # duplicates may overflow when they are added up
        gradient = parameter.grad = gradient.coalesce()
    return gradient._values()

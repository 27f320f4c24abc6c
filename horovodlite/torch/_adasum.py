"""The optimizer for Adasum: ranks step on their own, and combine how far they have come.

Adasum combines updates so that parallel ones are averaged and orthogonal ones added up (Maleki et
al., Scaling Distributed Training with Adaptive Summation, 2020). What it combines are the changes
that the optimizer makes, not the gradients, so that a learning rate for one process fits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from horovodlite import _core
from horovodlite._session import session
from horovodlite.process_sets import members
from horovodlite.torch._allreduce import allreduce_async_
from horovodlite.torch._arguments import Adasum
from horovodlite.torch._handles import synchronize
from horovodlite.torch._names import NameClaim

if TYPE_CHECKING:
    from horovodlite.torch._slots import Settings


class DeltaReducer:
    """Combines the changes of some parameters over the ranks. One per optimizer."""

    def __init__(
        self, parameters: Sequence[tuple[str, torch.nn.Parameter]], settings: Settings
    ) -> None:
        self.parameters = list(parameters)
        self.settings = settings
        self._names = NameClaim([name for name, _ in parameters])
        self._session: _core.Session | None = None

    def around(self, step: Callable[[], Any]) -> Any:
        """Takes a local step and replaces what it changed by what all ranks have changed.

        Collective; blocks without the GIL.
        """
        current = session()
        if self._session is not None and self._session is not current:
            self._names.renew()
        self._session = current
        ranks = members(self.settings.process_set)
        if len(ranks) == 1 or current.rank not in ranks:
            return step()
        trained = [(name, p) for name, p in self.parameters if p.requires_grad]
        starts = [parameter.detach().clone() for _, parameter in trained]
        result = step()
        with torch.no_grad():
            self._combine(trained, starts)
        return result

    def _combine(
        self, trained: list[tuple[str, torch.nn.Parameter]], starts: list[torch.Tensor]
    ) -> None:
        compression = self.settings.compression
        sent = []
        for (name, parameter), start in zip(trained, starts):
            delta, context = compression.compress(parameter.detach() - start)
            full_name = f"adasum.{name}{self._names.suffix}"
            handle = allreduce_async_(
                delta, name=full_name, op=Adasum, process_set=self.settings.process_set
            )
            sent.append((handle, context))
        for (_, parameter), start, (handle, context) in zip(trained, starts, sent):
            delta = compression.decompress(synchronize(handle), context)
            parameter.copy_(start.add_(delta))


class _Wrapping:
    """What a wrapped optimizer knows besides its own things."""

    def __init__(
        self,
        inner_class: type[torch.optim.Optimizer],
        patched_step: Callable[..., Any] | None,
        named: list[tuple[str, torch.nn.Parameter]],
        settings: Settings,
    ) -> None:
        self.inner_class = inner_class
        self.patched_step = patched_step  # of the instance; LR schedulers put one there
        self.reducer = DeltaReducer(named, settings)


class DistributedAdasum:
    """What DistributedOptimizer(op=Adasum) puts in front of an optimizer's own class."""

    _hvl: _Wrapping

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Steps with this rank's gradients, then combines the changes of all ranks.

        Collective; blocks.

        Raises:
            HorovodInternalError: The ranks disagree, or a peer is gone.
        """
        inner_step = self._hvl.patched_step or super().step  # type: ignore[misc]
        return self._hvl.reducer.around(lambda: inner_step(closure, *args, **kwargs))

    step.hooked = True  # type: ignore[attr-defined]  # as in optimizer.py

    def synchronize(self) -> None:
        """Does nothing: gradients stay this rank's own. Local."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Never returns.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Changes nothing: gradients are added up on this rank until step(). Local."""
        return nullcontext()

    def set_weight(self, weight: float) -> None:
        """Never returns: Adasum does not average.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"set_weight({weight}) is for averages: this optimizer has op=hvd.Adasum")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Does nothing: gradients are added up until step(). Local."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own. All ranks must do the same."""
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.__dict__["param_groups"]
        added = enumerate(groups[-1]["params"])
        prefix = f"noname.{len(groups) - 1}"
        self._hvl.reducer.parameters += [(f"{prefix}.{index}", p) for index, p in added]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A copy is a DistributedOptimizer of the copied parameters, with the same settings."""
        wrapping = self._hvl
        plain = wrapping.inner_class.__new__(wrapping.inner_class)
        plain.__dict__.update(vars(self))
        del plain.__dict__["_hvl"]
        plain.__dict__.pop("step", None)
        return _wrap_copy, (plain, wrapping.reducer.parameters, wrapping.reducer.settings)


def _wrap_copy(
    plain: torch.optim.Optimizer,
    named: list[tuple[str, torch.nn.Parameter]],
    settings: Settings,
) -> torch.optim.Optimizer:
    return wrap_adasum(plain, type(plain), None, named, settings)


@functools.cache
def _class_of(inner_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """One class per kind of optimizer, under its name."""
    body = {"__module__": inner_class.__module__, "__doc__": inner_class.__doc__}
    return type(inner_class.__name__, (DistributedAdasum, inner_class), body)


def wrap_adasum(
    optimizer: torch.optim.Optimizer,
    inner_class: type[torch.optim.Optimizer],
    patched_step: Callable[..., Any] | None,
    named: list[tuple[str, torch.nn.Parameter]],
    settings: Settings,
) -> torch.optim.Optimizer:
    """Makes an optimizer a DistributedOptimizer with op=Adasum. Local."""
    optimizer.__class__ = _class_of(cast(Any, inner_class))
    optimizer.__dict__["_hvl"] = _Wrapping(inner_class, patched_step, named, settings)
    return optimizer

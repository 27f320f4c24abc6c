"""What DistributedOptimizer() puts in front of an optimizer's own class."""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Callable, NoReturn, Protocol, SupportsIndex, cast

import torch

from horovodlite.torch._claims import Named
from horovodlite.torch._scaling import scaler_near
from horovodlite.torch._slots import Settings


class Strategy(Protocol):
    """What travels, and when: gradients before a step, or what the step has changed.

    The methods are those of Wrapped, without the optimizer's own part.
    """

    @property
    def settings(self) -> Settings:
        """What the user chose."""

    @property
    def passes(self) -> int:
        """How many backward passes are added up before gradients are reduced."""

    def set_passes(self, passes: int) -> None:
        """Changes that."""

    def set_weight(self, weight: float) -> None:
        """How often this rank's gradients count in averages."""

    def synchronize(self) -> None:
        """Waits for all reductions of gradients."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Inside it, step() takes the gradients as they are."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside it, backward() adds to this rank's gradients only."""

    def before_unscaling(self) -> None:
        """A gradient scaler is about to read the gradients: all ranks are to decide alike."""

    def step(self, own_step: Callable[..., Any], closure: Callable[[], Any] | None) -> Any:
        """Calls the optimizer's own step, with a closure if there is one."""

    def discard(self) -> None:
        """The gradients are being zeroed."""

    def drain(self) -> None:
        """The optimizer's state is being replaced."""

    def require_idle(self) -> None:
        """Raises RuntimeError when no parameters can be added now."""

    def add_parameters(self, parameters: Named) -> None:
        """Parameters that join later. What it raises has changed nothing."""

    def release(self) -> None:
        """The optimizer is gone. Keeps no reference to it before."""


@dataclass
class Wrapping:
    """What a wrapped optimizer knows besides its own things."""

    inner_class: type[torch.optim.Optimizer]
    patched_step: Callable[..., Any] | None  # of the instance; LR schedulers put one there
    named: list[tuple[str, torch.nn.Parameter]]
    groups: list[list[torch.nn.Parameter]]  # of parameters that travel together
    strategy: Strategy
    end: weakref.finalize[Any, Any]  # what is done when the optimizer is gone
    steps: bool = False  # the optimizer's own step() is running

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around the optimizer's own step()."""
        self.steps = True
        try:
            yield
        finally:
            self.steps = False


class Wrapped:
    """One class for all that may travel, so that wrapping anew changes no method."""

    _hvl: Wrapping

    def __init_subclass__(cls, wraps: bool = False, **how: Any) -> None:
        """Lets only wrap() make subclasses.

        Raises:
            TypeError: Somebody else makes one, of Horovod's `_DistributedOptimizer`.
        """
        if not wraps:
            raise TypeError(
                f"class {cls.__name__}: _DistributedOptimizer is for isinstance and type hints, "
                "not to derive from. Derive from the torch.optim.Optimizer, and pass an instance "
                "to DistributedOptimizer()"
            )
        super().__init_subclass__(**how)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups, as in any optimizer."""
        wrapping = self._hvl
        if not wrapping.steps and scaler_near(sys._getframe(1)) is not None:
            wrapping.strategy.before_unscaling()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """Names by parameter, as Horovod's users find them."""
        return {parameter: name for name, parameter in self._hvl.named}

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; ``parameter.grad`` then holds the results.

        Collective; blocks without the GIL. For clipping or unscaling before ``step()``, which then
        belongs inside ``skip_synchronize()``. With Adasum it does nothing: gradients stay this
        rank's own.

        Raises:
            HorovodInternalError: The ranks disagree, or a peer is gone.
        """
        self._hvl.strategy.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Inside it, step() takes the gradients as synchronize() has left them. Local.

        Raises:
            AssertionError: The optimizer has op=Adasum.
        """
        return self._hvl.strategy.skip_synchronize()

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside it, backward() adds to the gradients of this rank only. Local.

        Any number of passes; they do not count as backward_passes_per_step. The next pass outside,
        or else step(), reduces the sums. All ranks need not make as many passes inside, but each
        parameter's passes outside come after.

        Example:
            >>> import torch, horovodlite.torch as hvd
            >>> hvd.init()
            >>> w = torch.nn.Parameter(torch.zeros(()))
            >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0))
            >>> with optimizer.no_sync():
            ...     (2 * w).backward()
            >>> (3 * w).backward()
            >>> optimizer.step()
            >>> w.item()
            -5.0
        """
        return self._hvl.strategy.no_sync()

    def set_weight(self, weight: float) -> None:
        """Makes averages count this rank's gradients `weight` times, until the next call. Local.

        For batches that differ between ranks: call it before backward() with the number of samples,
        on every rank (1 counts where it is not called). If each rank's loss is the mean over its
        samples, the reduced gradient is then the mean over all samples. 0 is for a rank without a
        batch. Gradients are multiplied by the weight on the way: with float16, samples divided by
        the usual number of samples keep them in range.

        Args:
            weight: At least 0.

        Raises:
            ValueError: The weight is negative or not finite, or gradients are not averaged.
            RuntimeError: Gradients are being reduced.

        Example:
            >>> import torch, horovodlite.torch as hvd
            >>> hvd.init()
            >>> model = torch.nn.Linear(3, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            >>> batch = torch.randn(5 if hvd.rank() == 0 else 2, 3)
            >>> optimizer.set_weight(len(batch))
            >>> model(batch).mean().backward()
            >>> optimizer.step()
        """
        self._hvl.strategy.set_weight(weight)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are added up before gradients are reduced. Local."""
        self._hvl.strategy.set_passes(positive(passes))

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Steps with gradients that are reduced; with Adasum, combines what the steps have changed.

        Collective; blocks. With a closure, the gradients that it computes are reduced each time it
        is called. LBFGS, which decides by the loss how often that is, gets the loss reduced too, so
        that all ranks decide alike.

        Returns:
            What the optimizer's own step() returns.

        Raises:
            HorovodInternalError: The ranks disagree, or a peer is gone.
            RuntimeError: A newer DistributedOptimizer has some of the parameters; gradients are
                still being reduced inside skip_synchronize(); a gradient scaler has not looked at
                reduced gradients.
        """
        wrapping = self._hvl
        inner_step = wrapping.patched_step or super().step  # type: ignore[misc]

        def own_step(*closures: Callable[[], Any]) -> Any:
            with wrapping.stepping():
                return inner_step(*closures, *args, **kwargs)

        return wrapping.strategy.step(own_step, closure)

    # Optimizer.__setstate__ wraps step() in the calls of step hooks unless it finds this mark; the
    # inner step() is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. Backward passes counted so far are forgotten as well. Local.

        Raises:
            AssertionError: Gradients are being reduced at this moment.
        """
        self._hvl.strategy.discard()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. Gradients in flight are waited for and forgotten."""
        self._hvl.strategy.drain()
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the new parameters are reduced too. All ranks must do the same.

        Raises:
            RuntimeError: Gradients are being reduced, or a newer DistributedOptimizer has some of
                the parameters that were here before.
            ValueError, NotImplementedError: A parameter cannot be reduced.

        The group has not been added when it raises.
        """
        wrapping = self._hvl
        wrapping.strategy.require_idle()
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.__dict__["param_groups"]
        named = numbered(len(groups) - 1, groups[-1]["params"])
        try:
            wrapping.strategy.add_parameters(named)
        except Exception:
            groups.pop()  # it would be trained and not reduced
            raise
        wrapping.named += named

    def __copy__(self) -> NoReturn:
        """Never returns: two optimizers cannot have the same parameters.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "copy.copy() of a DistributedOptimizer would be a second one over the same parameters. "
            "Use copy.deepcopy() of the model and the optimizer together, or state_dict()."
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A copy is a DistributedOptimizer of the copied parameters, with the same settings."""
        from horovodlite.torch.optimizer import wrap_copy

        wrapping = self._hvl
        plain = wrapping.inner_class.__new__(wrapping.inner_class)
        plain.__dict__.update(vars(self))
        del plain.__dict__["_hvl"]
        plain.__dict__.pop("step", None)
        settings = wrapping.strategy.settings
        arguments = {
            "named_parameters": wrapping.named,
            "compression": settings.compression,
            "backward_passes_per_step": wrapping.strategy.passes,
            "op": settings.op,
            "gradient_predivide_factor": settings.predivide_factor,
            "groups": wrapping.groups or None,
            "sparse_as_dense": settings.sparse_as_dense,
            "process_set": settings.process_set,
        }
        return wrap_copy, (plain, arguments)


@functools.cache
def _class_of(inner_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """One class per kind of optimizer, under its name."""
    body = {"__module__": inner_class.__module__, "__doc__": inner_class.__doc__}
    return type(inner_class.__name__, (Wrapped, inner_class), body, wraps=True)


def inner_class_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The optimizer's own class, also of one that is wrapped already."""
    if isinstance(optimizer, Wrapped):
        return optimizer._hvl.inner_class
    return type(optimizer)


def wrap(
    optimizer: torch.optim.Optimizer,
    named: list[tuple[str, torch.nn.Parameter]],
    groups: list[list[torch.nn.Parameter]],
    strategy: Strategy,
) -> None:
    """Makes an optimizer a distributed one, or another one if it is that already. Local."""
    inner_class = inner_class_of(optimizer)
    if isinstance(optimizer, Wrapped):
        patched_step = optimizer._hvl.patched_step
        optimizer._hvl.end.detach()
    else:
        patched_step = optimizer.__dict__.pop("step", None)
        if patched_step is not None:
            optimizer.__dict__["step"] = _relay(weakref.ref(optimizer), patched_step)
    optimizer.__class__ = _class_of(cast(Any, inner_class))
    end = weakref.finalize(optimizer, strategy.release)
    end.atexit = False
    optimizer.__dict__["_hvl"] = Wrapping(inner_class, patched_step, named, groups, strategy, end)


def _relay(
    optimizer: weakref.ref[torch.optim.Optimizer], patched_step: Callable[..., Any]
) -> Callable[..., Any]:
    """Stands where an LR scheduler has put its own step(), looks like it, and calls ours."""

    @functools.wraps(patched_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        target = optimizer()
        assert target is not None
        return type(target).step(target, *args, **kwargs)

    return step


def positive(passes: int) -> int:
    """The number of passes.

    Raises:
        ValueError: It is no number above 0.
    """
    if not isinstance(passes, SupportsIndex) or operator.index(passes) <= 0:
        raise ValueError(f"backward_passes_per_step must be an integer > 0, not {passes!r}")
    return operator.index(passes)


def numbered(group: int, parameters: Sequence[Any]) -> list[tuple[str, torch.nn.Parameter]]:
    """Numbers as names, for the parameters of a group."""
    return [(f"noname.{group}.{index}", p) for index, p in enumerate(parameters)]

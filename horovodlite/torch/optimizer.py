"""DistributedOptimizer: an optimizer whose step() uses gradients reduced over all ranks."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, cast

import torch

from horovodlite.process_sets import ProcessSet, global_process_set
from horovodlite.torch._adasum import DistributedAdasum, wrap_adasum
from horovodlite.torch._arguments import (
    Adasum,
    Average,
    Sum,
    check_name,
    check_weight,
    reduce_op,
)
from horovodlite.torch._gradients import GradientReducer
from horovodlite.torch._slots import Settings
from horovodlite.torch.compression import Compression, Compressor
from horovodlite.torch.ops import allreduce

__all__ = ["DistributedOptimizer"]


class _Distributed:
    """What DistributedOptimizer() puts in front of an optimizer's own class."""

    _hvl: _Wrapping

    # GradScaler reads the gradients itself, first thing in unscale_() and step(). All that it
    # touches of an optimizer before is `param_groups`, so this is where reductions are finished.
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups, as in any optimizer."""
        if sys._getframe(1).f_code.co_name == "_unscale_grads_":
            self._hvl.before_unscaling()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; ``parameter.grad`` then holds the results.

        Collective; blocks without the GIL. For clipping or unscaling before ``step()``, which then
        belongs inside ``skip_synchronize()``.

        Raises:
            HorovodInternalError: The ranks disagree, or a peer is gone.
        """
        self._hvl.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside it, step() takes the gradients as synchronize() has left them. Local."""
        self._hvl.skips = True
        try:
            yield
        finally:
            self._hvl.skips = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
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
        reducer = self._hvl.reducer
        before, reducer.keeps_local = reducer.keeps_local, True
        try:
            yield
        finally:
            reducer.keeps_local = before

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
        if self._hvl.reducer.settings.op != Average:
            raise ValueError("set_weight() is for averages: this optimizer has another op")
        self._hvl.reducer.set_weight(check_weight(weight))

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """Names by parameter, as Horovod's users find them."""
        return {parameter: name for name, parameter in self._hvl.named}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are added up before gradients are reduced. Local."""
        self._hvl.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Waits for the reduced gradients, then steps.

        Collective; blocks. With a closure, the gradients that it computes are reduced each time it
        is called. LBFGS, which decides by the loss how often that is, gets the loss reduced too, so
        that all ranks decide alike.

        Returns:
            What the optimizer's own step() returns.

        Raises:
            HorovodInternalError: The ranks disagree, or a peer is gone.
        """
        inner_step = self._hvl.patched_step or super().step  # type: ignore[misc]
        if closure is None:
            self._hvl.before_step()
            return inner_step(*args, **kwargs)
        return inner_step(self._hvl.reducing(closure), *args, **kwargs)

    # Optimizer.__setstate__ wraps step() in the calls of step hooks unless it finds this mark; the
    # inner step() is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. Backward passes counted so far are forgotten as well. Local.

        Raises:
            AssertionError: Gradients are being reduced at this moment.
        """
        self._hvl.reducer.discard()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. Gradients in flight are waited for and forgotten."""
        self._hvl.reducer.drain()
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the new gradients are reduced too. All ranks must do the same.

        Raises:
            RuntimeError: Gradients are being reduced; the group has not been added then.
        """
        self._hvl.reducer.require_idle()  # before the group is there: it would stay, unreduced
        super().add_param_group(param_group)  # type: ignore[misc]
        index = len(self.__dict__["param_groups"]) - 1
        self._hvl.add(_unnamed(index, self.__dict__["param_groups"][index]["params"]))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A copy is a DistributedOptimizer of the copied parameters, with the same settings."""
        return self._hvl.reduce(self)


class _Wrapping:
    """What a wrapped optimizer knows besides its own things."""

    def __init__(
        self,
        inner_class: type[torch.optim.Optimizer],
        patched_step: Callable[..., Any] | None,
        named: list[tuple[str, torch.nn.Parameter]],
        groups: list[list[torch.nn.Parameter]],
        reducer: GradientReducer,
    ) -> None:
        self.inner_class = inner_class
        self.patched_step = patched_step  # of the instance; LR schedulers put one there
        self.reducer = reducer
        self.skips = False
        self.named = named
        self._groups = groups
        self._asked_to = False  # the last synchronize() was the user's own

    def synchronize(self) -> None:
        self.reducer.synchronize()
        self._asked_to = True

    def before_unscaling(self) -> None:
        if not self.reducer.synchronized:
            self.reducer.synchronize()
            self._asked_to = False

    def before_step(self) -> None:
        reducer = self.reducer
        if self.skips:
            if reducer.in_flight:
                raise RuntimeError(
                    "step() was called inside skip_synchronize() while gradients are being "
                    "reduced: call synchronize() first"
                )
        elif not reducer.synchronized:
            reducer.synchronize()
        elif self._asked_to:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): the gradients are not reduced a second time. Put step() "
                "inside skip_synchronize() to show that this is meant.",
                stacklevel=3,
            )
        reducer.synchronized = False

    def reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by the reduction of the gradients that it has computed."""
        reducer = self.reducer
        if reducer.in_flight:  # from before: the closure is about to zero them
            reducer.synchronize()
        decides_by_loss = issubclass(self.inner_class, torch.optim.LBFGS)

        def reduced() -> Any:
            loss = closure()
            if not self.skips and not reducer.synchronized:
                reducer.synchronize()
            reducer.synchronized = False
            if not decides_by_loss or not reducer.settings.process_set.included():
                return loss
            loss = torch.as_tensor(loss).detach()
            op = reducer.settings.op
            return allreduce(
                loss,
                name=f"{reducer.label}.loss",
                op=op,
                process_set=reducer.settings.process_set,
                weight=reducer.weight if op == Average else None,
            )

        return reduced

    def set_passes(self, passes: int) -> None:
        self.reducer.passes_per_step = _positive(passes)

    def add(self, named: list[tuple[str, torch.nn.Parameter]]) -> None:
        self.reducer.add_parameters(named)
        self.named += named

    def reduce(self, optimizer: Any) -> tuple[Any, ...]:
        """What copy and pickle need: the plain optimizer and the arguments to wrap it again."""
        plain = self.inner_class.__new__(self.inner_class)
        plain.__dict__.update(vars(optimizer))
        del plain.__dict__["_hvl"]
        plain.__dict__.pop("step", None)
        settings = self.reducer.settings
        arguments = {
            "named_parameters": self.named,
            "compression": settings.compression,
            "backward_passes_per_step": self.reducer.passes_per_step,
            "op": settings.op,
            "gradient_predivide_factor": settings.predivide_factor,
            "groups": self._groups or None,
            "sparse_as_dense": settings.sparse_as_dense,
            "process_set": settings.process_set,
        }
        return _wrap_copy, (plain, arguments)


def _wrap_copy(plain: torch.optim.Optimizer, arguments: dict[str, Any]) -> Any:
    return DistributedOptimizer(plain, **arguments)


@functools.cache
def _distributed_class(inner_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """One class per kind of optimizer, under its name."""
    body = {"__module__": inner_class.__module__, "__doc__": inner_class.__doc__}
    return type(inner_class.__name__, (_Distributed, inner_class), body)


if TYPE_CHECKING:

    class WrappedOptimizer(_Distributed, torch.optim.Optimizer):
        """An optimizer with synchronize() and skip_synchronize()."""


def DistributedOptimizer(  # noqa: N802  (the name is Horovod's)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> WrappedOptimizer:
    """Makes an optimizer reduce its gradients over all ranks, during backward, before it steps.

    Local: the first backward is the first time that ranks meet. The optimizer itself becomes the
    distributed one: the object that is returned is `optimizer`, of a class that is made from its
    own, so that schedulers made before or after see the same groups, and state_dict() is what it
    was. Wrapping it again, or wrapping another optimizer of the same parameters, replaces the
    earlier wrapping. deepcopy and pickle give a DistributedOptimizer of the copied parameters.

    Gradients become views of memory that peers read directly. They are valid after step(), also
    after shutdown(). ``zero_grad(set_to_none=True)`` lets go of them, which costs one copy per
    step; replacing ``parameter.grad`` is allowed.

    Args:
        optimizer: Any torch.optim.Optimizer. Its parameters are in host memory.
        named_parameters: ``model.named_parameters()``: names for messages and the timeline. They
            must cover the optimizer's parameters; others are ignored. Without them parameters are
            numbered. The same on all ranks.
        compression: Type used on the way; see Compression.
        backward_passes_per_step: Backward passes whose gradients are added up locally, as sums,
            before they are reduced. step() may come earlier: it reduces what there is.
        op: Average, Sum or Adasum. With Adasum every rank takes its own step, and what travels, in
            step(), is by how much that changed the parameters.
        gradient_predivide_factor: With Average, gradients are divided by it before they are added
            up, and multiplied by it after: against overflow in narrow types.
        num_groups: Deprecated name of an integer `groups`.
        groups: Gradients that are to travel together: a number of groups of equal length, or lists
            of parameters. The others travel as they become ready, fused with whatever else is.
        sparse_as_dense: Reduce sparse gradients as dense ones; the optimizer gets sparse ones.
        process_set: Whose ranks share their gradients; other ranks train alone.

    A parameter that has a gradient on some rank is reduced with zeros from the ranks where it has
    none. One that has no gradient on any rank keeps None (Horovod: gets zeros), so weight decay and
    momentum leave it alone, as in a single process.

    Raises:
        TypeError: `optimizer` is no torch.optim.Optimizer, `process_set` no ProcessSet.
        ValueError: Names missing or used twice (the message lists them), or an argument out of
            range.
        NotImplementedError: A parameter that is not in host memory.

    Source: ``horovod.torch.DistributedOptimizer``; gradients as views of buckets as in PyTorch's
    DistributedDataParallel (Li et al., VLDB 2020).

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> loss = model(torch.ones(2, 3)).sum()
        >>> loss.backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"DistributedOptimizer needs a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set must be a ProcessSet, not a {type(process_set).__name__}")
    settings = _settings(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    passes = _positive(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = _named(optimizer, named_parameters)
    members = _groups([parameter for _, parameter in named], groups)
    inner_class, patched_step = _unwrapped(optimizer)
    if op == Adasum:
        wrap_adasum(optimizer, inner_class, patched_step, named, settings)
    else:
        reducer = GradientReducer(named, members, settings, passes)
        optimizer.__class__ = _distributed_class(cast(Any, inner_class))
        wrapping = _Wrapping(inner_class, patched_step, named, members, reducer)
        optimizer.__dict__["_hvl"] = wrapping
        weakref.finalize(optimizer, reducer.release).atexit = False
    if patched_step is not None:
        optimizer.__dict__["step"] = _relay(weakref.ref(optimizer), patched_step)
    return cast("WrappedOptimizer", optimizer)


def _unwrapped(
    optimizer: torch.optim.Optimizer,
) -> tuple[type[torch.optim.Optimizer], Callable[..., Any] | None]:
    """The optimizer's own class, and the step() that somebody has put on the instance, if any."""
    if isinstance(optimizer, (_Distributed, DistributedAdasum)):
        wrapping = optimizer._hvl
        return wrapping.inner_class, wrapping.patched_step
    return type(optimizer), optimizer.__dict__.pop("step", None)


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


def _settings(
    compression: type[Compressor],
    op: int,
    predivide_factor: float,
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> Settings:
    if reduce_op(op) not in (Average, Sum, Adasum):
        raise ValueError(
            "DistributedOptimizer supports op=hvd.Average, op=hvd.Sum and op=hvd.Adasum only"
        )
    if predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not predivide_factor > 0.0:
        raise ValueError(f"gradient_predivide_factor must be > 0, not {predivide_factor}")
    return Settings(op, compression, float(predivide_factor), bool(sparse_as_dense), process_set)


def _positive(passes: int) -> int:
    if not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be an integer > 0, not {passes!r}")
    return passes


def _unnamed(group: int, parameters: Sequence[Any]) -> list[tuple[str, torch.nn.Parameter]]:
    return [(f"noname.{group}.{index}", p) for index, p in enumerate(parameters)]


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """Every parameter of the optimizer with its name, in the optimizer's order."""
    unnamed = [
        entry
        for index, group in enumerate(optimizer.param_groups)
        for entry in _unnamed(index, group["params"])
    ]
    if named_parameters is None:
        return unnamed
    entries = list(named_parameters)
    if not all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        for entry in entries
    ):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    names = [check_name(name) for name, _ in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique: {', '.join(twice)}")
    name_of: dict[int, str] = {}
    for name, parameter in entries:
        name_of.setdefault(id(parameter), name)  # a shared parameter goes by its first name
    missing = [f"{n} of shape {tuple(p.shape)}" for n, p in unnamed if id(p) not in name_of]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            + "; ".join(missing)
        )
    return [(name_of[id(parameter)], parameter) for _, parameter in unnamed]


def _groups(
    parameters: list[torch.nn.Parameter], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> list[list[torch.nn.Parameter]]:
    """The parameters that travel together."""
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int) and groups > 0:
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        count = min(groups, len(trainable))
        bounds = [len(trainable) * index // count for index in range(count + 1)] if count else []
        return [trainable[first:last] for first, last in zip(bounds, bounds[1:])]
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple)) for group in groups
    ):
        raise ValueError("groups should be a non-negative integer or a list of list of tensors")
    known = {id(parameter): parameter for parameter in parameters}
    chosen = [[known.get(id(tensor)) for tensor in group] for group in groups if group]
    flat = [parameter for group in chosen for parameter in group]
    if any(parameter is None for parameter in flat):
        raise ValueError("groups contains a tensor that is no parameter of the optimizer")
    if len({id(parameter) for parameter in flat}) != len(flat):
        raise ValueError("A tensor can only appear once in groups.")
    return [[parameter for parameter in group if parameter is not None] for group in chosen]

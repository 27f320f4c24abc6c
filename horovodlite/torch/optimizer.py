"""DistributedOptimizer: an optimizer whose step() uses what all ranks have computed."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import torch

from horovodlite.process_sets import ProcessSet, global_process_set
from horovodlite.torch._adasum import CombinedChanges
from horovodlite.torch._arguments import (
    Adasum,
    Average,
    Sum,
    check_compression,
    check_name,
    number,
    reduce_op,
)
from horovodlite.torch._gradients import GradientReducer
from horovodlite.torch._reduced import ReducedGradients
from horovodlite.torch._slots import Settings
from horovodlite.torch._wrapped import Strategy, Wrapped, inner_class_of, numbered, positive, wrap
from horovodlite.torch.compression import Compression, Compressor

__all__ = ["DistributedOptimizer"]


if TYPE_CHECKING:

    class WrappedOptimizer(Wrapped, torch.optim.Optimizer):
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
    after shutdown(); between backward() and step() (or synchronize()) their values mean nothing.
    ``zero_grad(set_to_none=True)`` lets go of them, which costs one copy per step; replacing
    ``parameter.grad`` is allowed.

    Args:
        optimizer: Any torch.optim.Optimizer. Its parameters are in host memory.
        named_parameters: ``model.named_parameters()``: names for messages and the timeline. They
            must cover the optimizer's parameters; others are ignored. Without them parameters are
            numbered. The same on all ranks.
        compression: Type used on the way; see Compression.
        backward_passes_per_step: Backward passes whose gradients are added up locally, as sums,
            before they are reduced. step() may come earlier: it reduces what there is.
        op: Average, Sum or Adasum. With Adasum every rank takes its own step, and what travels, in
            step(), is by how much that changed the parameters. Gradients do not travel then, but
            are added up until step(): `backward_passes_per_step`, `groups` and `sparse_as_dense`
            change nothing.
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
        TypeError: `optimizer` is no torch.optim.Optimizer, `process_set` no ProcessSet,
            `compression` cannot compress.
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
    passes = positive(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = _named(optimizer, named_parameters)
    together = _groups([parameter for _, parameter in named], groups)
    strategy: Strategy
    if settings.op == Adasum:
        strategy = CombinedChanges(named, settings, passes)
    else:
        reducer = GradientReducer(named, together, settings, passes)
        decides_by_loss = issubclass(inner_class_of(optimizer), torch.optim.LBFGS)
        strategy = ReducedGradients(reducer, decides_by_loss)
    wrap(optimizer, named, together, strategy)
    return cast("WrappedOptimizer", optimizer)


# Horovod's name for what the class of a wrapped optimizer is made of; for isinstance, type hints.
_DistributedOptimizer = Wrapped


def wrap_copy(plain: torch.optim.Optimizer, arguments: dict[str, Any]) -> Any:
    """What copy and pickle call to make a copy."""
    return DistributedOptimizer(plain, **arguments)


def _settings(
    compression: type[Compressor],
    op: int,
    predivide_factor: float,
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> Settings:
    check_compression(compression)
    op = reduce_op(op)
    if op not in (Average, Sum, Adasum):
        raise ValueError(
            "DistributedOptimizer supports op=hvd.Average, op=hvd.Sum and op=hvd.Adasum only"
        )
    factor = number(predivide_factor, "gradient_predivide_factor")
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not 0.0 < factor < math.inf:
        raise ValueError(f"gradient_predivide_factor must be > 0 and finite, not {factor}")
    return Settings(op, compression, factor, bool(sparse_as_dense), process_set)


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """Every parameter of the optimizer with its name, in the optimizer's order."""
    unnamed = [
        entry
        for index, group in enumerate(optimizer.param_groups)
        for entry in numbered(index, group["params"])
    ]
    if named_parameters is None:
        return unnamed
    entries = list(named_parameters) if isinstance(named_parameters, Iterable) else [None]
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
    if isinstance(groups, SupportsIndex) and operator.index(groups) > 0:
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        count = min(operator.index(groups), len(trainable))
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

"""The state of PyTorch training: models, optimizers and samplers, and any other object."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Callable

import torch

from horovodlite.elastic import ObjectState
from horovodlite.torch.elastic.sampler import ElasticSampler
from horovodlite.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovodlite.world import rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Saves, restores and syncs one object. Your own kind is a subclass, and registered."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps the object's present state in memory. Local."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings it back to what was saved. Local."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes it that of rank 0. Collective."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Takes care of another object from now on. Local."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """For objects that have a state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Copies the state_dict()."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Loads the copy."""
        # Copied again: optimizers keep what they load, and the next step would change it.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """A model: its parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        """Broadcasts them, and saves them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """An optimizer: its state and options."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        """Broadcasts them, and saves them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """A sampler: how far its epoch has come."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def sync(self) -> None:
        """Takes rank 0's, deals out what is left, and saves that."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


Registry = Iterable[tuple[type, Callable[[Any], StateHandler]]]


class _Registered:
    """Which handler takes care of which type; the first that fits."""

    handlers: Registry = (
        (torch.nn.Module, ModelStateHandler),
        (torch.optim.Optimizer, OptimizerStateHandler),
        (ElasticSampler, SamplerStateHandler),
    )


def get_handler_registry() -> list[tuple[type, Callable[[Any], StateHandler]]]:
    """Returns the (type, handler) pairs that TorchState goes through. Local."""
    return list(_Registered.handlers)


def set_handler_registry(registry: Registry) -> None:
    """Replaces the (type, handler) pairs. Local; for states made afterwards."""
    _Registered.handlers = tuple(registry)


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _Registered.handlers:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """The state of PyTorch training, for ``elastic.run``.

    Args:
        model: A model, or None.
        optimizer: Its optimizer, plain or made by DistributedOptimizer, or None.
        kwargs: More models, optimizers and samplers, and any other objects. All become attributes;
            what has a handler is synced by it, the rest is pickled.

    Assigning another model, optimizer or sampler to its attribute makes that one the state.

    Source: ``horovod.torch.elastic.TorchState``.

    Example:
        >>> import torch, horovodlite.torch as hvd
        >>> hvd.init()
        >>> state = hvd.elastic.TorchState(torch.nn.Linear(2, 1), epoch=4)
        >>> state.sync()
        >>> state.epoch = 5
        >>> state.restore()
        >>> state.epoch
        4
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        self.__dict__["_handlers"] = {}
        plain = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = _handler_of(value)
            if handler is None:
                plain[name] = value
            else:
                self.__dict__[name] = value
                self._handlers[name] = handler
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def save(self) -> None:
        """Keeps copies of everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Brings everything back to what was saved."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes everything that of rank 0, and saves it. Collective."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        """Hands another model, optimizer or sampler to its handler."""
        handler = self._handlers.get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)

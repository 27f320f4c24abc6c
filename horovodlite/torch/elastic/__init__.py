"""Elastic training with PyTorch: state that survives the loss of ranks, and a sampler that fits.

Example:
    >>> import torch, horovodlite.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.epoch < 3:
    ...         state.epoch += 1
    ...         state.commit()
    ...     return state.epoch
    >>> train(state)
    3
"""

from __future__ import annotations

from typing import Callable, TypeVar

from horovodlite.elastic import ObjectState, State, run_fn
from horovodlite.torch.elastic.sampler import ElasticSampler
from horovodlite.torch.elastic.state import TorchState
from horovodlite.world import init, shutdown

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes a training function survive the loss of ranks.

    The function's first argument is the State. It is synced before each call. When a rank is lost,
    the state goes back to its last commit; when hosts come or go, it is kept; then this process
    leaves the world, joins the new one, and calls the function again.

    The function must not be called by some ranks only, and collective operations belong inside it.

    Raises:
        HorovodInternalError: From the function, when the ranks disagree (``code == "Mismatch"``),
            which another round would only repeat; or when no new world comes about.

    Source: ``horovod.torch.elastic.run``.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()

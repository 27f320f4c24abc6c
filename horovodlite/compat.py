"""What scripts import from Horovod's ``common.basics`` and ``common.util``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from horovodlite import world
from horovodlite.runner.env import env

__all__ = [
    "HorovodBasics",
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]

_T = TypeVar("_T")

# Horovod computes these answers once, in another process, and so has a cache that users borrow.
_cache = functools.cache


class HorovodBasics:
    """The functions of a session as methods; Horovod's scripts make one of these for themselves.

    Source: ``horovod.common.basics.HorovodBasics``.
    """

    def __init__(self, *_: Any) -> None:
        """Takes what names Horovod's extension, and needs nothing of it."""

    def __getattr__(self, name: str) -> Any:
        """A function of :mod:`horovodlite.world`."""
        if name in world.__all__:
            return getattr(world, name)
        raise AttributeError(f"HorovodBasics.{name} does not exist in horovodlite")


def _as_question(answer: Callable[[], _T]) -> Callable[..., _T]:
    """A question of the session's as one of Horovod's: with an argument that changes nothing."""

    @functools.wraps(answer)
    def ask(verbose: bool = False) -> _T:  # noqa: ARG001
        return answer()

    return ask


mpi_built = _as_question(world.mpi_built)
gloo_built = _as_question(world.gloo_built)
nccl_built = _as_question(world.nccl_built)
ddl_built = _as_question(world.ddl_built)
ccl_built = _as_question(world.ccl_built)
cuda_built = _as_question(world.cuda_built)
rocm_built = _as_question(world.rocm_built)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001
    """Returns whether a framework has support here and is installed. Local.

    Args:
        ext_base_name: ``torch``, ``tensorflow``, ``mxnet``.
        verbose: Changes nothing.
    """
    if ext_base_name != "torch":
        return False
    try:
        import horovodlite.torch  # noqa: F401
    except ImportError:
        return False
    return True


def check_extension(
    ext_name: str,
    ext_env_var: str,  # noqa: ARG001
    pkg_path: str,  # noqa: ARG001
    *args: str,  # noqa: ARG001
) -> None:
    """Returns when a framework has support here and is installed. Local.

    Args:
        ext_name: A package of Horovod's, such as ``horovod.torch``.
        ext_env_var: Changes nothing; Horovod's build had an environment variable for each.
        pkg_path: Changes nothing.
        *args: Change nothing; names of compiled modules.

    Raises:
        ImportError: It has none, or is not installed.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"{ext_name} is not available: horovodlite supports torch, which has to be installed"
        )


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether a framework that has support here sees a GPU. Local."""
    if not extension_available(ext_base_name, verbose):
        return False
    import torch

    return torch.cuda.is_available()


def is_iterable(value: object) -> bool:
    """Returns whether iter() takes a value. Local."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether a number of ranks is a power of two. Local."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """Returns `count` parts of a list, of lengths that differ by one at most, longer first. Local.

    Example:
        >>> split_list([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    length, longer = divmod(len(values), count)
    bounds = [index * length + min(index, longer) for index in range(count + 1)]
    return [values[first:last] for first, last in zip(bounds, bounds[1:])]

"""What scripts import from Horovod's ``common.basics`` and ``common.util``."""

from __future__ import annotations

import functools
import importlib.machinery
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Protocol, TypeVar

from horovodlite import _core, world
from horovodlite._environment import env
from horovodlite.exceptions import HorovodVersionMismatchError, get_version_mismatch_message

__all__ = [
    "EXTENSIONS",
    "HorovodBasics",
    "HorovodVersionMismatchError",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]

_T = TypeVar("_T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
"""The frameworks that Horovod asks for; of these torch is supported here."""

# Horovod computes these answers once, in another process, and so has a cache that users borrow.
_cache = functools.cache


class HorovodBasics:
    """The functions of a session as methods, and the numbers of the reductions.

    Horovod's scripts make one of these for themselves.

    Source: ``horovod.common.basics.HorovodBasics``.
    """

    Average = _core.AVERAGE
    Sum = _core.SUM
    Adasum = _core.ADASUM
    Min = _core.MIN
    Max = _core.MAX
    Product = _core.PRODUCT

    def __init__(self, pkg_path: str = "", *args: str) -> None:
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


def get_ext_suffix() -> str:
    """Returns the ending of compiled modules' names, such as ``.cpython-311-x86_64.so``. Local."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Returns the path that a compiled module of Horovod's would have. Local.

    Args:
        pkg_path: A file of the package.
        *args: Folders below that file's folder, and the module's name without its ending.
    """
    *folders, module = args
    return str(Path(pkg_path).parent.joinpath(*folders, module + get_ext_suffix()))


def check_installed_version(
    name: str,  # noqa: ARG001
    version: str,  # noqa: ARG001
    exception: Exception | None = None,
) -> None:
    """Returns without a word: one build serves every version of a framework. Local.

    Args:
        name: Of the framework.
        version: The one that runs.
        exception: Why its compiled module could not be loaded, in Horovod; raised as it is.
    """
    if exception is not None:
        raise exception


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether a version is another one or a later one. Local.

    Raises:
        ValueError: One is no text, or `target` is not like ``1.2.3``.

    Example:
        >>> is_version_greater_equal_than("2.10.0+cpu", "2.9.0")
        True
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are text, not {ver!r} and {target!r}")
    if target.count(".") != 2:
        raise ValueError(f"expected a version of the form major.minor.patch, not {target!r}")
    from torch.torch_version import TorchVersion  # what it brings to compare versions of any kind

    return TorchVersion(ver) >= TorchVersion(target)


class _HasReductions(Protocol):
    """Where the numbers of reductions are found: Horovod passes its HorovodBasics."""

    Average: Any
    Sum: Any


def get_average_backwards_compatibility_fun(
    reduce_ops: _HasReductions,
) -> Callable[[Any, bool | None], Any]:
    """Returns a function of `op` and `average` that gives the reduction they stand for. Local.

    The function raises ValueError when both are given, and warns of `average`.
    """

    def reduction(op: Any, average: bool | None) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        warnings.warn(
            "average is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=2
        )
        return reduce_ops.Average if average else reduce_ops.Sum

    return reduction


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

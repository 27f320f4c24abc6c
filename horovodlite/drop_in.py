"""Lets scripts that ``import horovod`` run on horovodlite, unchanged.

``import horovodlite.drop_in`` before the first ``import horovod``, or ``hvlrun --drop-in``, which
does the same for all ranks. After it ``horovod.torch`` *is* ``horovodlite.torch``: the same module
object in ``sys.modules``, so that patching one patches the other.

Source: the layout of Horovod 0.28's packages.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Callable

from horovodlite._environment import set_default

__all__ = ["ALIASES", "HOROVOD_VERSION", "install"]

HOROVOD_VERSION = "0.28.1"
"""``horovod.__version__``: the release whose names are offered."""

# Horovod's module -> ours. Packages that only hold others need no line.
ALIASES = {
    "horovod.common.basics": "horovodlite.compat",
    "horovod.common.elastic": "horovodlite.elastic",
    "horovod.common.exceptions": "horovodlite.exceptions",
    "horovod.common.process_sets": "horovodlite.process_sets",
    "horovod.common.util": "horovodlite.compat",
    "horovod.data": "horovodlite.data",
    "horovod.data.data_loader_base": "horovodlite.data",
    "horovod.runner": "horovodlite.runner",
    "horovod.runner.common.util.config_parser": "horovodlite.runner.options",
    "horovod.runner.common.util.env": "horovodlite._environment",
    "horovod.runner.common.util.host_hash": "horovodlite.runner.hosts",
    "horovod.runner.common.util.hosts": "horovodlite.runner.hosts",
    "horovod.runner.common.util.safe_shell_exec": "horovodlite.runner.shell",
    "horovod.runner.common.util.secret": "horovodlite.runner.secret",
    "horovod.runner.common.util.settings": "horovodlite.runner.settings",
    "horovod.runner.common.util.timeout": "horovodlite.runner.settings",
    "horovod.runner.common.util.tiny_shell_exec": "horovodlite.runner.tiny_shell",
    "horovod.runner.gloo_run": "horovodlite.runner.launch",
    "horovod.runner.js_run": "horovodlite.runner.other_launchers",
    "horovod.runner.launch": "horovodlite.runner.launch",
    "horovod.runner.mpi_run": "horovodlite.runner.other_launchers",
    "horovod.runner.util.threads": "horovodlite.runner.threads",
    "horovod.torch": "horovodlite.torch",
    "horovod.torch.compression": "horovodlite.torch.compression",
    "horovod.torch.elastic": "horovodlite.torch.elastic",
    "horovod.torch.elastic.sampler": "horovodlite.torch.elastic.sampler",
    "horovod.torch.elastic.state": "horovodlite.torch.elastic.state",
    "horovod.torch.functions": "horovodlite.torch.functions",
    "horovod.torch.mpi_ops": "horovodlite.torch",
    "horovod.torch.optimizer": "horovodlite.torch.optimizer",
    "horovod.torch.sync_batch_norm": "horovodlite.torch.sync_batch_norm",
}

# The parts of Horovod that are not here, by the beginning of their names: the longest that fits.
_ABSENT = {
    "horovod": "is no module that horovodlite has",
    "horovod._keras": "is Horovod's Keras support, which is not part of horovodlite",
    "horovod.keras": "is Horovod's Keras support, which is not part of horovodlite",
    "horovod.mxnet": "is Horovod's MXNet support, which is not part of horovodlite",
    "horovod.ray": "is Horovod's Ray support, which is not part of horovodlite",
    "horovod.runner": "belongs to Horovod's own launcher, whose place hvlrun takes",
    "horovod.runner.util.lsf": "is Horovod's LSF support, which is not part of horovodlite",
    "horovod.spark": "is Horovod's Spark support, which is not part of horovodlite",
    "horovod.tensorflow": "is Horovod's TensorFlow support, which is not part of horovodlite",
}


def _absence(name: str) -> str:
    """What to say of a module of Horovod that is not here."""
    known = [part for part in _ABSENT if name == part or name.startswith(f"{part}.")]
    return f"{name} {_ABSENT[max(known, key=len)]} (horovodlite stands in for Horovod here)"


def _is_package(name: str) -> bool:
    """Whether a name of Horovod's only holds others that are here."""
    return any(alias.startswith(f"{name}.") for alias in ALIASES)


def _is_here(name: str) -> bool:
    """Whether a name of Horovod's can be imported."""
    return name in ALIASES or _is_package(name)


def _import_parts(name: str) -> None:
    """Imports what is directly in a module of Horovod's, as Horovod's own modules do."""
    inside = [alias.removeprefix(f"{name}.") for alias in ALIASES if alias.startswith(f"{name}.")]
    for part in dict.fromkeys(alias.partition(".")[0] for alias in inside):
        importlib.import_module(f"{name}.{part}")


class _AliasLoader(Loader):
    """Gives our module under Horovod's name."""

    def __init__(self, alias: str, target: str) -> None:
        self._alias = alias
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        """The module itself; imported now if it has not been."""
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs again; the import system has put the alias's spec in, which goes."""
        module.__spec__ = self._own_spec
        _import_parts(self._alias)


class _PackageLoader(Loader):
    """Makes the packages in between, which have no code of their own."""

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system's own empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Sets what the package offers besides its modules."""
        name = module.__name__

        def missing(attribute: str) -> ModuleType:
            wanted = f"{name}.{attribute}"
            if _is_here(wanted):
                return importlib.import_module(wanted)
            raise AttributeError(_absence(wanted))

        module.__dict__["__getattr__"] = missing
        if name == "horovod":  # its parts wait until they are asked for: some need torch
            from horovodlite.runner import run

            module.__dict__.update(run=run, __version__=HOROVOD_VERSION)
        else:
            _import_parts(name)


def _is_import(frame: FrameType | None) -> bool:
    """Whether Python's import machinery calls a finder from here in order to import.

    It calls from `_find_spec`, which is called by `_find_and_load_unlocked`; `importlib.util`,
    which only looks whether a module is there, calls it from elsewhere.
    """
    while frame is not None and frame.f_code.co_name in ("find_spec", "_find_spec"):
        if frame.f_globals.get("__name__") == "importlib.util":
            return False
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_find_and_load_unlocked"


class _Finder(MetaPathFinder):
    """Answers for everything called horovod, so that no other finder does."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """How to make the module, None if it is not here.

        Raises:
            ModuleNotFoundError: A part of Horovod that is not here is being imported: it says more
                than Python would.
        """
        if fullname.partition(".")[0] != "horovod":
            return None
        if fullname in ALIASES:
            return ModuleSpec(fullname, _AliasLoader(fullname, ALIASES[fullname]), is_package=True)
        if _is_package(fullname):
            return ModuleSpec(fullname, _PackageLoader(), is_package=True)
        if _is_import(sys._getframe(1)):
            # Without its `name`: `from horovod import spark` would swallow one that has it.
            raise ModuleNotFoundError(_absence(fullname))
        return None


FINDER = _Finder()


def install(find: Callable[[str], ModuleSpec | None] = PathFinder.find_spec) -> None:
    """Makes ``import horovod`` find horovodlite in this process. Local; done by importing this.

    Sets ``HVL_UNNAMED_SITES=warn`` where that variable is absent, for this process and those that
    it starts: what Horovod runs is to run, under ``hvlrun --drop-in`` and under other launchers.

    Args:
        find: How to see whether Horovod itself is installed.

    Raises:
        ImportError: Horovod itself has been imported already.

    Example:
        >>> import horovodlite.drop_in
        >>> import horovod.torch as hvd
        >>> hvd.__name__
        'horovodlite.torch'
    """
    if FINDER in sys.meta_path:
        return
    loaded = sys.modules.get("horovod")
    if loaded is not None:
        raise ImportError(
            f"horovod has been imported already, from {getattr(loaded, '__file__', None)}: import "
            "horovodlite.drop_in first, or uninstall Horovod"
        )
    installed = find("horovod")
    if installed is not None and installed.origin is not None:
        warnings.warn(
            f"Horovod is installed too, at {installed.origin}; `import horovod` gives horovodlite "
            "in this process. Uninstall Horovod to be rid of this warning.",
            RuntimeWarning,
            stacklevel=2,
        )
    sys.meta_path.insert(0, FINDER)
    set_default("HVL_UNNAMED_SITES", "warn")


install()

"""Makes ``import horovod`` find horovodlite in every Python that has this folder on PYTHONPATH.

``hvlrun --drop-in`` puts the folder first there, for the ranks and what they start. Python runs
this file when it starts, unless it is told not to read the environment or the site (-E, -I, -S).
Nothing is imported before somebody asks for horovod; a sitecustomize that this one hides is run
after it.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any


class _FirstImport(MetaPathFinder):
    """Loads the real finder when the first name of Horovod's is imported, and leaves."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """How to make a module of Horovod's."""
        if fullname.partition(".")[0] != "horovod":
            return None
        sys.meta_path.remove(self)
        from horovodlite.drop_in import FINDER

        return FINDER.find_spec(fullname, path, target)


def _run_hidden() -> None:
    """Runs the sitecustomize that would have run without this one."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _FirstImport())
_run_hidden()

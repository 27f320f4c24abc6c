"""The ``hvlrun`` command: becomes the launcher that the package brings along."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

LAUNCHER = Path(__file__).resolve().parent / "bin" / "hvlrun"


def main() -> NoReturn:
    """Replaces this process by the bundled ``hvlrun``, with the same arguments.

    Raises:
        SystemExit: The package was built without the launcher.
    """
    if not os.access(LAUNCHER, os.X_OK):
        sys.exit(f"hvlrun: {LAUNCHER} is missing; this package was built without the launcher")
    os.execv(LAUNCHER, ["hvlrun", *sys.argv[1:]])

"""``python -m horovodlite`` is ``hvlrun``, for when scripts are not on the PATH.

``python -m horovodlite --cmake-dir`` prints where CMake finds the package for C++ programs:
``cmake -Dhorovodlite_DIR="$(python -m horovodlite --cmake-dir)"``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from horovodlite._hvlrun import main

CMAKE_DIR = Path(__file__).resolve().parent / "cmake"

if __name__ == "__main__":
    if sys.argv[1:] == ["--cmake-dir"]:
        if not CMAKE_DIR.is_dir():
            sys.exit(f"horovodlite: {CMAKE_DIR} is missing; this package was built without it")
        sys.stdout.write(f"{CMAKE_DIR}\n")
    else:
        main()

"""``python -m horovodlite`` is ``hvlrun``, for when scripts are not on the PATH."""

from __future__ import annotations

from horovodlite._hvlrun import main

if __name__ == "__main__":
    main()

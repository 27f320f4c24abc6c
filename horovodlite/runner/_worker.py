"""One rank of a job of ``horovodlite.run()``: calls the function, leaves its result in a file."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Reads the work, does it, and writes ``<folder>/<rank>``."""
    job = folder / "job"
    if not job.exists():
        sys.exit(
            f"horovodlite.run(): {job} is not on this host. With ranks on several hosts, set "
            "TMPDIR to a folder that all of them see."
        )
    with job.open("rb") as file:
        setup = pickle.load(file)
        # This file's own folder came first; where the caller finds its modules, so does the rank.
        sys.path[:] = setup["path"]
        if setup["drop_in"]:
            import horovodlite.drop_in  # noqa: F401
        func, args, kwargs = pickle.load(file)
    import cloudpickle  # type: ignore[import-untyped]

    try:
        value = cloudpickle.dumps(func(*args, **kwargs))
    except BaseException as error:
        leave(folder, failure(error))
        raise
    leave(folder, {"value": value})


def failure(error: BaseException) -> dict[str, Any]:
    """What is told of an exception: its traceback below this file, and itself if it can be."""
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(error)
    except Exception:
        pickled = None
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    lines = traceback.format_exception(type(error), error, below)
    return {
        "traceback": "".join(lines),
        "error": pickled,
        "time": time.monotonic(),
        "is_consequence": getattr(error, "code", None) in ("Unavailable", "Aborted"),
    }


def leave(folder: Path, outcome: dict[str, Any]) -> None:
    """Writes the outcome, whole or not at all."""
    from horovodlite._environment import get_env_rank_and_size

    rank, _ = get_env_rank_and_size()
    partial = folder / f"{rank}.partial"
    partial.write_bytes(pickle.dumps(outcome))
    partial.replace(folder / str(rank))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""PyTorch's own tests of a backend, which its wheel has, on ranks that run already.

``torch.testing._internal.distributed.distributed_test`` starts processes for each test, which takes
longer than the test. Here a pool of ranks runs the bodies one after the other. What Gloo would
skip is skipped; all else runs.

    python tests/py/c10d/upstream.py                    all tests, with horovodlite
    python tests/py/c10d/upstream.py --backend gloo     with Gloo, for comparison
    python tests/py/c10d/upstream.py -k all_to_all      those whose names have this in them
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

WORLD_SIZE = 3
SECONDS = 120.0
_MODULE = "torch.testing._internal.distributed.distributed_test"

# Tests that pass with Gloo and cannot with this backend, and why.
EXCLUDED: dict[str, str] = {}


class _AsGloo(str):
    """The name of a backend that tests take for Gloo when they ask what to do."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or super().__eq__(other)

    def __hash__(self) -> int:
        return hash("gloo")


def _load(backend: str) -> Any:
    """The module; its decorators think of Gloo, its functions use `backend`."""
    import torch.distributed as dist

    import horovodlite.torch.c10d  # noqa: F401  (registers the backend)

    name = f"upstream_{backend}"
    if name not in sys.modules:
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD_SIZE), MASTER_ADDR="127.0.0.1")
        assert dist.is_gloo_available()
        spec = importlib.util.find_spec(_MODULE)
        assert spec is not None
        assert spec.origin is not None
        again = importlib.util.spec_from_file_location(name, spec.origin)
        assert again is not None
        assert again.loader is not None
        module = importlib.util.module_from_spec(again)
        sys.modules[name] = module
        again.loader.exec_module(module)
        module.BACKEND = _AsGloo(backend)
        made: Any = module
        made.Case = type("Case", (made.TestDistBackend, made.DistributedTest._DistTestBase), {})
    return sys.modules[name]


def names(backend: str) -> list[str]:
    """Of all tests that need no GPU, in a rank."""
    return [
        name
        for name in dir(_load(backend).Case)
        if name.startswith("test_") and not re.search("cuda|nccl|gpu", name, re.IGNORECASE)
    ]


def _monitored_barrier(backend: str) -> Any:
    """torch's, which asks for Gloo by name before it asks the group; else ours."""
    import torch.distributed as dist

    import horovodlite.torch.c10d

    return dist.monitored_barrier if backend == "gloo" else horovodlite.torch.c10d.monitored_barrier


def run_one(backend: str, name: str, folder: str) -> tuple[str, str]:
    """Runs a test in this rank: ("pass" | "skip" | "fail", details)."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    module = _load(backend)
    os.environ.update(TEMP_DIR=folder, WORLD_SIZE=str(WORLD_SIZE), BACKEND=backend)
    module.Barrier.barrier_id = 0
    case = module.Case(name)
    case.rank = int(os.environ["HVL_RANK"])
    case.file_name = f"{folder}/store"
    seconds = module.CUSTOM_PG_TIMEOUT.get(name, SECONDS)
    try:
        dist.init_process_group(
            backend,
            init_method=case.init_method,
            world_size=WORLD_SIZE,
            rank=case.rank,
            timeout=timedelta(seconds=seconds),
        )
        case._barrier()
        common_utils.set_rng_seed()
        with mock.patch.object(dist, "monitored_barrier", _monitored_barrier(backend)):
            getattr(case, name)()
        case._barrier()
    except (unittest.SkipTest, SystemExit) as reason:
        return "skip", str(reason)
    except Exception:
        return "fail", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "pass", ""


def run_on(pool: Any, backend: str, name: str) -> tuple[str, str]:
    """Runs a test on all ranks of a RankPool; the worst outcome."""
    from support.groups import free_port

    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            Path(folder, part).mkdir()
        outcomes = pool.outcomes(
            run_one,
            backend,
            name,
            folder,
            size=WORLD_SIZE,
            env={"MASTER_PORT": str(free_port()), "HVL_START_TIMEOUT": str(SECONDS)},
            initialize=False,
            deadline=2 * SECONDS,
        )
    results = [
        value if kind == "value" else ("fail", f"{kind}: {value}") for kind, value in outcomes
    ]
    for wanted in ("fail", "pass", "skip"):
        details = [details for outcome, details in results if outcome == wanted]
        if details:
            return wanted, "\n".join(f"rank: {text}" for text in details if text)
    raise AssertionError("no ranks")


def main() -> None:
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[1]), str(here.parents[3])]
    from support.ranks import RankPool

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="horovodlite")
    parser.add_argument("-k", default="", help="only tests with this in their names")
    parser.add_argument("--json", help="writes outcome, seconds and details of each test there")
    chosen = parser.parse_args()
    import time

    pool = RankPool(WORLD_SIZE)
    table = {}
    for name in pool.run(names, chosen.backend, size=1, initialize=False, deadline=300)[0]:
        if chosen.k not in name:
            continue
        pool.mend()
        begin = time.monotonic()
        outcome, details = run_on(pool, chosen.backend, name)
        table[name] = (outcome, round(time.monotonic() - begin, 2), details)
        print(f"{outcome:5} {time.monotonic() - begin:6.1f} s {name}", flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(table, indent=1))
    pool.close()
    counts = [sum(row[0] == outcome for row in table.values()) for outcome in ("pass", "fail")]
    print(f"{counts[0]} passed, {counts[1]} failed, {len(table) - sum(counts)} skipped")


if __name__ == "__main__":
    main()

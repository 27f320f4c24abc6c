"""Run by `tests/dev wheel` where only the wheel is installed: no torch, no numpy, no compiler."""

from __future__ import annotations

import array
import sys

import horovodlite
from horovodlite import _core, world

COUNT = 1000


def main() -> None:
    assert "torch" not in sys.modules
    assert "numpy" not in sys.modules
    assert len(horovodlite.knobs()) > 10
    world.init()
    rank, size = world.rank(), world.size()
    values = array.array("f", [rank + 1.0] * COUNT)
    address, _ = values.buffer_info()
    tensor = (address, address, _core.DTYPES["float32"], (COUNT,), 0)
    world.session().run(_core.ALLREDUCE, "smoke", [tensor], _core.SUM)
    assert list(values) == [size * (size + 1) / 2.0] * COUNT
    world.shutdown()
    print(f"wheel works: version {horovodlite.__version__}, rank {rank} of {size}", flush=True)


if __name__ == "__main__":
    main()

"""What the examples show of a training, on rank 0 only: a progress bar, at the end a picture.

Where `tests/dev` has not installed them, the examples need: pip install tqdm matplotlib mlxtend
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

# Throughput is that of the last so many steps: one step alone jumps too much to be read.
WINDOW = 20


class Progress:
    """Counts steps; shows them, the loss and the throughput of all ranks together.

    Args:
        steps: how many there will be.
        examples_per_step: what all ranks together process in one step.
        unit: what an example is called, in the plural.
        show: False on the ranks that stay silent; they do nothing here.
    """

    def __init__(self, steps: int, examples_per_step: int, unit: str, *, show: bool) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []
        self._examples = examples_per_step
        self._unit = unit
        self._show = show
        self._ends = deque([time.perf_counter()], maxlen=WINDOW + 1)
        self._bar = tqdm(total=steps, unit="step", disable=not show, dynamic_ncols=True)

    def step(self, loss: float) -> None:
        """To be called after each step with its loss on this rank."""
        if not self._show:
            return
        self._ends.append(time.perf_counter())
        rate = self._examples * (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])
        self.losses.append(loss)
        self.rates.append(rate)
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} {self._unit}/s", refresh=False)
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def save_plot(self, path: Path, title: str) -> None:
        """Draws loss and throughput by step."""
        if not self._show:
            return
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(9, 6))
        top.plot(self.losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
        top.plot(smooth(self.losses), color="tab:blue", label=f"mean of {WINDOW} steps")
        top.set(ylabel="loss", title=title)
        top.legend()
        bottom.plot(self.rates, color="tab:green")
        bottom.set(xlabel="step", ylabel=f"{self._unit} per second", ylim=(0, None))
        for axes in (top, bottom):
            axes.grid(visible=True, alpha=0.3)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)
        print(f"loss and throughput: {path}")


def smooth(values: list[float]) -> list[float]:
    """The mean of the last WINDOW values, at each place."""
    means = []
    window: deque[float] = deque(maxlen=WINDOW)
    for value in values:
        window.append(value)
        means.append(sum(window) / len(window))
    return means

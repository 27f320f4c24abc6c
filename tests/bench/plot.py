"""The picture: time of an allreduce by size, and the cost of many tensors and of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import size_text
from .report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"near": "-", "far": "--"}
COLOURS = {
    "ours C++": "#d62728",
    "ours C++ arena": "#ff7f0e",
    "ours Python": "#8c564b",
    "Open MPI": "#1f77b4",
    "Gloo": "#2ca02c",
    "ours tcp C++": "#e377c2",
    "ours tcp": "#9467bd",
    "Open MPI tcp": "#17becf",
    "limit": "#7f7f7f",
    "no communication": "#bcbd22",
}


def save(rows: Sequence[Row], path: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 7), width_ratios=(3, 2))
    figure.suptitle(title)
    draw_sizes(left, [row for row in rows if row.case.group == "allreduce"])
    draw_bars(right, [row for row in rows if row.case.group != "allreduce"])
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_sizes(axes: Axes, rows: Sequence[Row]) -> None:
    for name, colour in COLOURS.items():
        label = name  # of the first line only: the style tells the regime
        for regime, style in STYLES.items():
            points = [
                (row.case.payload_bytes, row.cells[name].seconds)
                for row in rows
                if row.regime == regime and name in row.cells
            ]
            if points:
                sizes, seconds = zip(*points)
                axes.plot(sizes, seconds, style, marker="o", color=colour, label=label)
                label = "_"
    axes.set(xscale="log", yscale="log", xlabel="bytes per rank", ylabel="seconds (median)")
    sizes_shown = sorted({row.case.payload_bytes for row in rows})
    axes.set_xticks(sizes_shown, [size_text(size) for size in sizes_shown], rotation=30)
    axes.minorticks_off()
    axes.set_title("allreduce in place, float32 sum; near solid, far dashed; lower is better")
    axes.grid(True, alpha=0.3)
    axes.legend()


def draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    rows = [row for row in rows if row.regime in STYLES]
    names = [name for name in COLOURS if any(name in row.cells for row in rows)]
    labels = [f"{row.case.name}, {row.regime}" for row in rows]
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        present = [(place, row.cells[name]) for place, row in enumerate(rows) if name in row.cells]
        places = [place + (index - (len(names) - 1) / 2) * width for place, _ in present]
        heights = [cell.seconds * 1e3 for _, cell in present]
        axes.bar(places, heights, width, color=COLOURS[name], label=name)
    axes.set_xticks(range(len(rows)), labels, rotation=90)
    axes.set(yscale="log", ylabel="milliseconds (median)")
    axes.set_title("fresh gradients; many tensors; a training step")
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_ylim(top=axes.get_ylim()[1] * 50)  # room for the legend
    axes.legend(fontsize="small", loc="upper center", ncols=3)

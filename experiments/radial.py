"""Radial convergence of bridges: the angle of Eq. (12) to the token over time, by schedule and by dimension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from rdlm.process.bridge import Bridge, masked_start
from rdlm.process.normal import radial_paths
from rdlm.process.schedule import Cosine, Geometric, Grid, Linear, Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_PAPER: Final = Geometric()
SCHEDULES: Final[dict[str, Schedule]] = {
    "geometric, rising (the paper's)": _PAPER,
    "constant": Linear(_PAPER.total, _PAPER.total),
    "cosine": Cosine(_PAPER.total),
    "geometric, falling": Geometric(_PAPER.last, _PAPER.first),
}
DIMENSIONS: Final = (4, 28, 256, 30522)


def fine_grid(total: float, steps: int = 3000) -> Grid:
    """Return a grid that is uniform in the remaining noise at first, and in its logarithm towards the end."""
    even = total * torch.linspace(1, 0.01, steps // 2, dtype=torch.float64)
    late = total * torch.logspace(-2, -6, steps - steps // 2 + 1, dtype=torch.float64)[1:]
    return Grid(torch.cat([even, late, late.new_zeros(1)]))


def radial_quantiles(dimension: int, grid: Grid, paths: int, generator: torch.Generator) -> Tensor:
    """Return the 10%, 50% and 90% quantiles [levels, 3] of the angle of Eq. (12), from the mask's vertex."""
    bridge = Bridge(masked_start(dimension - 1), grid.total, "logarithm")
    wanted = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    return torch.stack([radius.quantile(wanted) for radius in radial_paths(bridge, grid, paths, generator)])


def run(out: Path, paper_scale: bool = False, seed: int = 0) -> list[dict[str, object]]:
    """Return quantiles of the angle at five times of the paper's schedule for each dimension, and plot them."""
    found = plot_radial(out / "radial.png", seed, 5000 if paper_scale else 500)
    grid = fine_grid(_PAPER.total)
    rows: list[dict[str, object]] = []
    for dimension, quantiles in found.items():
        for time in (0.1, 0.3, 0.5, 0.7, 0.9):
            level = int((grid.remaining > _PAPER.remaining(time)).sum())
            low, median, high = quantiles[level].tolist()
            rows.append({"dimension": dimension, "time": time, "10%": low, "median": median, "90%": high})
    return rows


def plot_radial(path: Path, seed: int = 0, paths: int = 500) -> dict[int, Tensor]:
    """Plot the angle to the token over time: by schedule, over the noise spent, and by dimension.

    Returns the quantiles of each dimension on the fine grid.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    generator = torch.Generator().manual_seed(seed)
    grid = fine_grid(_PAPER.total)
    quantiles = {d: radial_quantiles(d, grid, paths, generator) for d in DIMENSIONS}
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4.4), sharey=True, layout="constrained")
    for name, schedule in SCHEDULES.items():
        _draw(left, schedule.time(grid.remaining), quantiles[28], name)
    _draw(middle, 1 - grid.remaining / grid.total, quantiles[28], "all schedules")
    for dimension, values in quantiles.items():
        _draw(right, _PAPER.time(grid.remaining), values, f"d = {dimension}")
    for axis, title, label in (
        (left, "d = 28, one total noise, four schedules", "time t"),
        (middle, "d = 28, over the noise spent", "noise spent / S"),
        (right, "the paper's schedule, four dimensions", "time t"),
    ):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(label)
        # Below the axes, because the curves cover all corners.
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    left.set_ylabel("angle to the token (median, 10% to 90%)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return quantiles


def _draw(axis: Axes, time: Tensor, quantiles: Tensor, label: str) -> None:
    low, median, high = quantiles.T
    (line,) = axis.plot(time, median, label=label)
    axis.fill_between(time, low, high, alpha=0.2, color=line.get_color(), linewidth=0)

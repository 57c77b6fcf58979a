"""Figures in one style, with matplotlib (extra `viz`), and the figure of a comparison of methods."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdlm.errors import InputError
from rdlm.storage.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d")
"""Line colours that can be distinguished in print and by most colour-blind readers."""


@contextmanager
def canvas(path: Path, columns: int = 1, width: float = 5.2, height: float = 3.6) -> Iterator[list[Axes]]:
    """Yield the axes of a figure, which is written to `path` (PNG or SVG by its suffix) if no exception occurs."""
    try:
        import matplotlib
    except ImportError as missing:
        raise InputError("figures need matplotlib: pip install 'rdlm[viz]'") from missing
    matplotlib.use("Agg")
    from cycler import cycler  # a dependency of matplotlib
    from matplotlib import pyplot

    style: dict[Any, object] = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 9,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, columns, figsize=(width * columns, height), squeeze=False)
        try:
            yield list(axes.flat)
            figure.tight_layout()
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix.lstrip(".") or "png", dpi=130)
            write_atomic(path, content.getvalue())
        finally:
            pyplot.close(figure)


def draw_comparison(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the bound of every method and order, and the divergence of the samples of each method, with 95% intervals.

    The intervals of bounds are over seeds where there are several. Hollow: not a bound; diamond: the best order.
    """
    colours = dict(zip(dict.fromkeys(row["method"] for row in rows), cycle(COLOURS)))
    sampled = [row for row in rows if row["best"]]
    with canvas(path, columns=2, height=max(3.6, 1.2 + 0.28 * len(rows))) as (left, right):
        for place, row in enumerate(rows):
            style = {"fmt": "D" if row["best"] else "o", "color": colours[row["method"]], "capsize": 2}
            face = colours[row["method"]] if row["claims_bound"] else "white"
            reach = [[row["bound"] - row["low"]], [row["high"] - row["bound"]]]
            left.errorbar(row["bound"], place, xerr=reach, markerfacecolor=face, **style)
        for place, row in enumerate(sampled):
            metric = row["quality"]["bigram_divergence"]
            style = {"fmt": "D", "color": colours[row["method"]], "capsize": 2}
            right.errorbar(metric["value"], place, xerr=1.96 * metric["stderr"], **style)
        floor = sampled[0]["quality"]["bigram_divergence_of_data"]["value"]
        right.axvline(floor, color="black", linestyle="--", linewidth=0.8)
        left.set(xlabel=f"{rows[0]['unit']}, {rows[0]['calls']} calls\n{_legend(rows)}")
        right.set(xlabel="bigram divergence of samples in the best order, bits\n(dashed: data)")
        for axis, shown in ((left, rows), (right, sampled)):
            axis.set_yticks(range(len(shown)), [label_of(row) for row in shown])
            axis.set_ylim(len(shown) - 0.5, -0.5)


def label_of(row: dict[str, Any]) -> str:
    """Return method and order of a row."""
    return " ".join(filter(None, (row["method"], row["order"])))


def _legend(rows: Sequence[dict[str, Any]]) -> str:
    """Return the meaning of markers and intervals, as far as they occur."""
    seeds = rows[0]["seeds"]
    parts = [f"95% intervals over {f'{seeds} seeds' if seeds > 1 else 'sequences and noise'}"]
    parts += ["diamond: best order"] if not all(row["best"] for row in rows) else []
    parts += ["hollow: not a bound"] if not all(row["claims_bound"] for row in rows) else []
    return f"({'; '.join(parts)})"

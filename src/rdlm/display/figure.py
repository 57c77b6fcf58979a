"""Figures in one style, with matplotlib (extra `viz`)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdlm.errors import InputError
from rdlm.storage.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d")
"""Line colours that can be distinguished in print and by most colour-blind readers."""


@contextmanager
def canvas(
    path: Path, columns: int = 1, rows: int = 1, width: float = 5.2, height: float = 3.6
) -> Iterator[list[Axes]]:
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
        figure, axes = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
        try:
            yield list(axes.flat)
            figure.tight_layout()
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix.lstrip(".") or "png", dpi=130)
            write_atomic(path, content.getvalue())
        finally:
            pyplot.close(figure)

"""A still picture of a sample while it sharpens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rdlm.figure import canvas
from rdlm.sampler.trace import Frame

SHOWN_ROWS = 16
"""Moments of a picture, the sample itself not counted."""
SHOWN_LETTERS = 64
"""Tokens of a row."""


def draw(frames: Sequence[Frame], path: Path) -> None:
    """Draw the first tokens at moments spread over the walk, darker where more certain, and the sample below."""
    calls = len(frames) - 1  # the last frame is the sample
    moments = np.linspace(0, calls - 1, min(SHOWN_ROWS, calls)).round().astype(int).tolist()
    rows = [(f"{m + 1}", frames[m]) for m in moments] + [("sample", frames[-1])]
    columns = min(SHOWN_LETTERS, len(frames[-1].tokens))
    with canvas(path, width=0.155 * columns + 0.8, height=0.24 * len(rows) + 0.7) as (axis,):
        shades = np.array([frame.certainty[:columns] for _, frame in rows])
        axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for y, (_, frame) in enumerate(rows):
            for x in range(columns):
                colour = "white" if shades[y, x] > 0.75 else "black"
                axis.text(x, y, frame.tokens[x], ha="center", va="center", fontsize=7, family="monospace", color=colour)
        axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        axis.set_xticks([])
        axis.grid(False)
        axis.set_ylabel("network call")
        axis.set_title("the likeliest letter of each position, darker where more certain", fontsize=8)

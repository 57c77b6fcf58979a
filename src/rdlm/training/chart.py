"""A line chart as SVG that takes its colours from the page around it."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

Series = Sequence[tuple[float, float, float]]
"""Points with half the height of their error bars: (x, y, margin)."""

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 30, 34


def chart(title: str, series: Series) -> str:
    """Return one curve with axes and error bars as an `<svg>` element; points that are not finite are left out."""
    points = [(x, y, e if math.isfinite(e) else 0.0) for x, y, e in series if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return ""
    xs = ticks(min(p[0] for p in points), max(p[0] for p in points))
    ys = ticks(min(y - e for _, y, e in points), max(y + e for _, y, e in points))

    def across(x: float) -> float:
        return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM)

    grid = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}" stroke="currentColor" '
        f'opacity=".15"/><text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        for y in ys
    ]
    feet = [f'<text x="{across(x):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{x:.6g}</text>' for x in xs]
    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y, _ in points)
    bars = [
        f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{down(y - e):.1f}" y2="{down(y + e):.1f}" '
        'stroke="var(--mark)" opacity=".6"/>'
        for x, y, e in points
        if e > 0
    ]
    dots = [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2" fill="var(--mark)"/>' for x, y, _ in points]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-size="11" fill="currentColor" role="img" '
        f'aria-label="{html.escape(title)}"><text x="{LEFT}" y="16" font-size="13">{html.escape(title)}</text>'
        f'{"".join(grid)}{"".join(feet)}<polyline points="{line}" fill="none" stroke="var(--mark)" stroke-width="1.6"/>'
        f"{''.join(bars)}{''.join(dots) if len(points) < 60 else ''}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers, about five, whose first and last enclose [low, high]."""
    if high <= low:
        low, high = low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]

"""How the cost grows with the dimension of a state, with the length of a sequence, and with the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.draw import law_of, places
from benchmarks.fixtures import LETTERS, ONE_SPHERE, PLAIN, SMALL_TABLE, TINY, method, tokens, training_step
from benchmarks.measure import Figure, Work, alternate, at_most
from rdlm.config import RunConfig
from rdlm.display.figure import canvas

LINEAR, QUADRATIC = at_most(1.1), at_most(2.0)
"""Limits of exponents; slightly above 1 is allowed for linear cost, because large tensors do not fit the cache."""


@dataclass(frozen=True)
class Curve(Figure):
    """A figure whose ratios are exponents of growth, with the median seconds at each size."""

    axis: str = ""
    points: tuple[tuple[int, float], ...] = ()

    def row(self) -> dict[str, object]:
        """Return the figure with its points."""
        return super().row() | {"axis": self.axis, "points": [list(point) for point in self.points]}


def growth(quick: bool) -> list[Curve]:
    """Measure exponents of growth, 1 being linear; attention alone is the reference for the length."""
    turns = 2 if quick else 3
    dimensions = [4, 28, 256, 2048] if quick else [4, 28, 256, 2048, 8192, 30522]
    lengths = [64, 256, 1024] if quick else [64, 128, 256, 512, 1024, 2048]
    batches = [1, 4, 16] if quick else [1, 2, 4, 8, 16, 32, 64]
    attention = _curve("attention alone", "length", lengths, _attention, turns)
    return [
        _curve("draw from the exact law", "d", dimensions, _draw, turns, LINEAR),
        _curve("training step", "d", dimensions, _step_in_dimension, turns, LINEAR),
        _curve("training step", "length", lengths, partial(_step, 1), turns, QUADRATIC),
        attention,
        _curve("training step", "batch", batches, lambda batch: _step(batch, 64), turns, LINEAR),
    ]


def _draw(dimension: int) -> Work:
    token, remaining = places(dimension, (4, 64))
    return partial(law_of(dimension, "logarithm", 32, 256).draw, token, remaining, torch.Generator().manual_seed(0))


def _step_in_dimension(dimension: int) -> Work:
    config = RunConfig(process=replace(ONE_SPHERE, pairs=256), denoiser=PLAIN, model=TINY)
    return training_step(method(config, dimension - 1), tokens(dimension - 1, 2, 32))


def _step(batch: int, length: int) -> Work:
    return training_step(method(RunConfig(process=SMALL_TABLE, model=TINY), LETTERS), tokens(LETTERS, batch, length))


def _attention(length: int) -> Work:
    query = torch.randn(1, TINY.heads, length, TINY.width // TINY.heads, requires_grad=True)

    def work() -> None:
        for _ in range(TINY.layers):
            functional.scaled_dot_product_attention(query, query, query).sum().backward()

    return work


def _curve(
    name: str, axis: str, sizes: Sequence[int], make: Callable[[int], Work], turns: int, target: object = None
) -> Curve:
    works = {str(size): make(size) for size in sizes}
    taken = alternate(works, turns)
    points = tuple((size, sorted(taken[str(size)])[turns // 2]) for size in sizes)
    slopes = [exponent({size: taken[str(size)][turn] for size in sizes}) for turn in range(turns)]
    limit = target if isinstance(target, type(LINEAR)) else None
    return Curve(f"growth of the {name} in {axis}", "exponent", slopes, limit, None, "", axis, points)


def exponent(seconds: Mapping[int, float]) -> float:
    """Return the slope of log seconds over log size, fitted to the larger half of the sizes."""
    sizes = sorted(seconds)[len(seconds) // 2 - 1 :]
    x, y = [math.log(size) for size in sizes], [math.log(seconds[size]) for size in sizes]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def plot(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Plot the curves among the rows, one panel per axis."""
    curves = [row for row in rows if row.get("points")]
    axes_names = list(dict.fromkeys(str(row["axis"]) for row in curves))
    with canvas(path, columns=len(axes_names), width=3.9, height=3.4) as axes:
        for axis, name in zip(axes, axes_names, strict=True):
            for row in curves:
                if row["axis"] == name:
                    _draw_curve(axis, row)
            axis.set(xscale="log", yscale="log", xlabel=name, ylabel="processor seconds")
            axis.legend()


def _draw_curve(axis: object, row: Mapping[str, object]) -> None:
    points = row["points"]
    assert isinstance(points, list)
    x, y = zip(*points, strict=True)
    label = str(row["name"]).removeprefix("growth of the ").rpartition(" in ")[0]
    axis.plot(x, y, "o-", label=f"{label}: exponent {row['ratio']:.2f}")  # type: ignore[attr-defined]

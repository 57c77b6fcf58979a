"""Draws from the exact law against a pass of normal numbers and against a simulation, and the cost of its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.fixtures import LETTERS
from benchmarks.measure import Figure, Work, alternate, at_least, at_most, within
from rdlm.process.bridge import Bridge, BridgeKind, masked_start
from rdlm.process.exact import ExactLaw, tabulate
from rdlm.process.law import SimulatedLaw
from rdlm.process.normal import precompute
from rdlm.process.schedule import Geometric, uniform_in_time
from rdlm.random import normals

SCHEDULE = Geometric()
CASES: tuple[tuple[int, BridgeKind, tuple[int, int]], ...] = (
    (28, "brownian", (16, 256)),
    (30522, "logarithm", (2, 64)),
)
STEPS = 500
"""Steps of the simulation that training would need without the exact law."""
TABLES = {
    "exact law, d = 28": (28, 256, 5.0),
    "exact law, d = 30522": (30522, 256, 10.0),
    "normal law, d = 4": (4, 10_000, 20.0),
}
"""Dimension, levels, and the limit in seconds for 16,384 pairs."""


def law_of(dimension: int, kind: BridgeKind, levels: int = 256, pairs: int = 4096) -> ExactLaw:
    """Return an exact law on the paper's schedule."""
    bridge = Bridge(masked_start(dimension - 1), SCHEDULE.total, kind)
    return tabulate(bridge, uniform_in_time(SCHEDULE, levels), pairs, torch.Generator().manual_seed(0))


def places(dimension: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return random tokens, and the remaining noise at uniform times."""
    generator = torch.Generator().manual_seed(1)
    time = torch.rand(shape, generator=generator)
    return torch.randint(dimension - 1, shape, generator=generator), SCHEDULE.remaining(time)


def one_pass(shape: tuple[int, ...], generator: torch.Generator) -> Work:
    """Return the least work of any draw: normal numbers for the whole state, scaled and shifted by position."""
    scale, shift = torch.rand(*shape[:-1], 1), torch.rand(*shape[:-1], 1)
    return lambda: torch.randn(shape, generator=generator).mul_(scale).add_(shift)


def numbers(quick: bool) -> list[Figure]:
    """Measure torch's normal numbers over counter-based ones, which are the same on every device."""
    count, key, generator = 10_000 if quick else 1_000_000, torch.tensor([0]), torch.Generator().manual_seed(0)
    works: dict[str, Work] = {
        "torch": lambda: torch.randn(count, generator=generator),
        "counter-based": lambda: normals(key, count),
    }
    taken = alternate(works, 5 if quick else 15)
    return [Figure.of("normal numbers of torch", "counter-based ones", taken["torch"], taken["counter-based"])]


def draw(quick: bool) -> list[Figure]:
    """Measure the draw over one pass of normal numbers with a multiply-add."""
    figures = []
    for dimension, kind, shape in CASES:
        law, generator = law_of(dimension, kind, 64 if quick else 256), torch.Generator().manual_seed(2)
        token, remaining = places(dimension, shape)
        works: dict[str, Work] = {
            "draw": partial(law.draw, token, remaining, generator),
            "pass": one_pass((*shape, dimension), generator),
        }
        taken = alternate(works, 5 if quick else 15)
        name = f"draw from the exact law, d = {dimension}"
        against = "normal numbers and a multiply-add"
        figures.append(Figure.of(name, against, taken["draw"], taken["pass"], at_most(2.0)))
    return figures


def simulation(quick: bool) -> list[Figure]:
    """Measure how many times faster a draw is than the 500-step simulation that it replaces."""
    shape, generator = (4, 64) if quick else (16, 256), torch.Generator().manual_seed(2)
    law = law_of(LETTERS + 1, "brownian")
    simulated = SimulatedLaw(law.bridge, uniform_in_time(SCHEDULE, STEPS))
    token, remaining = places(LETTERS + 1, shape)
    works: dict[str, Work] = {
        "simulation": partial(simulated.draw, token, remaining, generator),
        "draw": partial(law.draw, token, remaining, generator),
    }
    taken = alternate(works, 2 if quick else 5)
    name = "500-step simulation, d = 28"
    return [Figure.of(name, "a draw from the exact law", taken["simulation"], taken["draw"], at_least(200.0))]


def tables(quick: bool) -> list[Figure]:
    """Measure building each table over drawing the random numbers in it."""
    pairs = 1024 if quick else 16384
    figures = []
    for name, (dimension, levels, limit) in TABLES.items():
        levels = levels // 8 if quick else levels
        build = _normal if name.startswith("normal") else _exact
        works: dict[str, Work] = {"table": build(dimension, levels, pairs), "numbers": _numbers(levels, pairs)}
        taken = alternate(works, 2)
        target = None if quick else within(limit)
        label = f"table of the {name}"
        figures.append(Figure.of(label, "its normal numbers", taken["table"], taken["numbers"], target))
    return figures


def _exact(dimension: int, levels: int, pairs: int) -> Callable[[], object]:
    return lambda: law_of(dimension, "logarithm", levels, pairs)


def _normal(dimension: int, levels: int, pairs: int) -> Callable[[], object]:
    bridge = Bridge(masked_start(dimension - 1), SCHEDULE.total, "logarithm")
    return lambda: precompute(bridge, uniform_in_time(SCHEDULE, levels), pairs)


def _numbers(levels: int, pairs: int) -> Work:
    def work() -> None:
        for _ in range(2 * levels):
            torch.randn(pairs, dtype=torch.float64)

    return work

"""Timing in turn: the workloads that are compared alternate in one process, and ratios are taken within a turn."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Work = Callable[[], object]
Clock = Callable[[], float]

LEAST = 0.02
"""Least seconds of a turn; short workloads are repeated within it."""


def children_time() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alternate(
    works: Mapping[str, Work], turns: int, clock: Clock = time.process_time, least: float = LEAST
) -> dict[str, list[float]]:
    """Return the seconds per call of each workload in every turn, after a warm-up that is not counted.

    Every other turn runs in reverse order, so that a drift of the machine affects all workloads equally. Processor
    time, the default, does not depend on the load of the machine as long as one thread does the work.
    """
    counts = {name: _repeats(work, clock, least) for name, work in works.items()}
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns):
        for name in list(works)[:: 1 if turn % 2 == 0 else -1]:
            begin = clock()
            for _ in range(counts[name]):
                works[name]()
            taken[name].append((clock() - begin) / counts[name])
    return taken


def _repeats(work: Work, clock: Clock, least: float) -> int:
    """Return the number of calls that fill a turn; this also warms the workload up."""
    for _ in range(2):
        begin = clock()
        work()
        seconds = clock() - begin
        if seconds >= least:
            return 1
    return math.ceil(least / max(seconds, 1e-6))


@dataclass(frozen=True)
class Target:
    """The limit of a ratio, or of the seconds themselves."""

    relation: Literal["at most", "at least"]
    value: float
    in_seconds: bool = False

    def holds(self, found: float) -> bool:
        """Return whether a measured value meets the target."""
        return found <= self.value if self.relation == "at most" else found >= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}{' s' if self.in_seconds else ''}"


def at_most(value: float) -> Target:
    """Return an upper limit of a ratio."""
    return Target("at most", value)


def at_least(value: float) -> Target:
    """Return a lower limit of a ratio."""
    return Target("at least", value)


def within(seconds: float) -> Target:
    """Return an upper limit in seconds, for what a person waits for."""
    return Target("at most", seconds, in_seconds=True)


@dataclass(frozen=True)
class Figure:
    """One figure: a ratio for every turn, and its target."""

    name: str
    against: str
    """The denominator of the ratio."""
    ratios: Sequence[float]
    target: Target | None = None
    seconds: float | None = None
    """Median seconds of the numerator, where they are of interest."""
    note: str = ""

    @staticmethod
    def of(
        name: str,
        against: str,
        upper: Sequence[float],
        lower: Sequence[float],
        target: Target | None = None,
        note: str = "",
    ) -> Figure:
        """Return the figure of `upper` over `lower` times of the same turns; `seconds` is the median of `upper`."""
        ratios = [a / b for a, b in zip(upper, lower, strict=True)]
        return Figure(name, against, ratios, target, statistics.median(upper), note)

    @property
    def ratio(self) -> float:
        """The median over turns."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile over turns."""
        if len(self.ratios) < 2:
            return self.ratio, self.ratio
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def ok(self) -> bool | None:
        """Whether the median meets the target; None without a target."""
        if self.target is None:
            return None
        return self.target.holds(self.seconds or 0.0 if self.target.in_seconds else self.ratio)

    def row(self) -> dict[str, object]:
        """Return the figure as a row of a table or of JSON."""
        return {
            "name": self.name,
            "ratio": self.ratio,
            "spread": list(self.spread),
            "against": self.against,
            "target": None if self.target is None else str(self.target),
            "ok": self.ok,
            "seconds": self.seconds,
            "turns": len(self.ratios),
            "note": self.note,
        }

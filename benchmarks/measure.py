"""Timing by turns: what is compared runs alternately in one process, and what counts is the ratio within a turn."""

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
"""Seconds that a turn lasts at least: short works are repeated within it."""


def children_time() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alternate(
    works: Mapping[str, Work], turns: int, clock: Clock = time.process_time, least: float = LEAST
) -> dict[str, list[float]]:
    """Return the seconds of one call of each work in every turn, after one that is not counted.

    Every other turn goes backwards, so that a drift of the machine falls on all of them alike. The processor's own
    time, the default, is that of an idle machine as long as one thread does the work.
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
    """Return how many calls fill a turn; the work is warm afterwards."""
    for _ in range(2):
        begin = clock()
        work()
        seconds = clock() - begin
        if seconds >= least:
            return 1
    return math.ceil(least / max(seconds, 1e-6))


@dataclass(frozen=True)
class Target:
    """What a ratio, or the seconds themselves, should be."""

    relation: Literal["at most", "at least"]
    value: float
    in_seconds: bool = False

    def holds(self, found: float) -> bool:
        """Return whether what was found meets it."""
        return found <= self.value if self.relation == "at most" else found >= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}{' s' if self.in_seconds else ''}"


def at_most(value: float) -> Target:
    """Return the target of something that must not cost more."""
    return Target("at most", value)


def at_least(value: float) -> Target:
    """Return the target of something that must save so much."""
    return Target("at least", value)


def within(seconds: float) -> Target:
    """Return the target of something that a person waits for."""
    return Target("at most", seconds, in_seconds=True)


@dataclass(frozen=True)
class Figure:
    """One figure: a ratio in every turn, and what it should be."""

    name: str
    against: str
    """What the ratio is to."""
    ratios: Sequence[float]
    target: Target | None = None
    seconds: float | None = None
    """Median seconds of what was measured, where a person may want to know."""
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
        """Return the figure of times over other times of the same turns; `seconds` are those of the first."""
        ratios = [a / b for a, b in zip(upper, lower, strict=True)]
        return Figure(name, against, ratios, target, statistics.median(upper), note)

    @property
    def ratio(self) -> float:
        """Return the median over turns."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Return the lower and the upper quartile over turns."""
        if len(self.ratios) < 2:
            return self.ratio, self.ratio
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def ok(self) -> bool | None:
        """Return whether the median meets the target; None without one."""
        if self.target is None:
            return None
        return self.target.holds(self.seconds or 0.0 if self.target.in_seconds else self.ratio)

    def row(self) -> dict[str, object]:
        """Return the figure for a table or for JSON."""
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

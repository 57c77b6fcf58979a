"""The measuring code itself: turns, ratios, quartiles and targets."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.growth import exponent
from benchmarks.measure import Figure, alternate, at_least, at_most, within


class Machine:
    """A clock that only works move, slower with every turn."""

    def __init__(self) -> None:
        self.now, self.calls, self.pace = 0.0, [], 1.0

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds * self.pace
        self.pace *= 1.001


def test_works_take_turns_and_every_other_turn_goes_backwards() -> None:
    machine = Machine()
    works = {name: lambda name=name: machine.work(name, 1.0) for name in "ab"}
    taken = alternate(works, 3, machine.clock)
    assert "".join(machine.calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(times) for times in taken.values()] == [3, 3]


def test_short_works_fill_a_turn_and_seconds_are_those_of_one_call() -> None:
    machine = Machine()
    taken = alternate({"short": lambda: machine.work("s", 0.001)}, 2, machine.clock, least=0.1)
    assert len(machine.calls) == pytest.approx(2 + 2 * 100, abs=2)
    assert statistics.median(taken["short"]) == pytest.approx(0.001, rel=0.5)


def test_a_drifting_machine_leaves_ratios_alone() -> None:
    machine = Machine()
    works = {"slow": lambda: machine.work("slow", 3.0), "fast": lambda: machine.work("fast", 2.0)}
    taken = alternate(works, 200, machine.clock)
    figure = Figure.of("slow", "fast", taken["slow"], taken["fast"])
    assert taken["slow"][-1] > 1.2 * taken["slow"][0]
    assert figure.ratio == pytest.approx(1.5, rel=0.002)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20))
def test_the_median_lies_between_the_quartiles(ratios: list[float]) -> None:
    figure = Figure("x", "y", ratios)
    low, high = figure.spread
    assert min(ratios) - 1e-12 <= low <= figure.ratio <= high <= max(ratios) + 1e-12


def test_targets_judge_ratios_or_seconds() -> None:
    upper, lower = [2.0, 2.2, 2.4], [1.0, 1.0, 1.0]
    assert Figure.of("x", "y", upper, lower).ok is None
    assert [Figure.of("x", "y", upper, lower, target).ok for target in (at_most(2.1), at_most(2.3))] == [False, True]
    assert [Figure.of("x", "y", upper, lower, target).ok for target in (at_least(2.1), at_least(2.3))] == [True, False]
    assert [Figure.of("x", "y", upper, [9.0] * 3, within(t)).ok for t in (2.0, 2.3)] == [False, True]
    row = Figure.of("x", "y", upper, lower, within(2.3)).row()
    assert row["target"] == "at most 2.3 s" and row["spread"] == [2.1, 2.3] and row["ratio"] == 2.2


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_large_sizes(power: float) -> None:
    sizes = [4, 16, 64, 256, 1024]
    assert exponent({size: 3 * size**power + (5 if size < 16 else 0) for size in sizes}) == pytest.approx(power)

"""Grids: the identities of the flat bridge's coefficients, and levels that are refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.process.schedule import Geometric, Grid, schedule, uniform_in_log_remaining, uniform_in_time

GRIDS = [
    uniform_in_time(Geometric(), 1),
    uniform_in_time(Geometric(), 8),
    uniform_in_time(Geometric(), 400),
    uniform_in_time(schedule("cosine", 0.2), 33),
    Grid(torch.tensor([0.1, 0.09, 0.08, 0.03, 0.0], dtype=torch.float64)),
    uniform_in_log_remaining(0.03756, 64),
    uniform_in_log_remaining(0.03756, 1),
]

every_grid = pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.steps}-{g.total:.3g}")


@every_grid
def test_coefficients_are_those_of_the_flat_bridge(grid: Grid) -> None:
    before, after = grid.remaining[:-1], grid.remaining[1:]
    torch.testing.assert_close(grid.gain, 1 - after / before, rtol=1e-13, atol=0)
    torch.testing.assert_close(grid.variance, after * (before - after) / before, rtol=1e-11, atol=0)
    inner = slice(0, grid.steps - 1)
    natural = 1 / after[inner] - 1 / before[inner]
    torch.testing.assert_close(grid.gain[inner] ** 2 / grid.variance[inner], natural, rtol=1e-9, atol=0)


@every_grid
def test_last_step_decodes(grid: Grid) -> None:
    assert grid.gain[-1].item() == 1 and grid.variance[-1].item() == 0
    assert bool((grid.gain[:-1] < 1).all()) and bool((grid.variance[:-1] > 0).all())


@every_grid
def test_a_flat_bridge_started_at_the_total_ends_where_it_should(grid: Grid) -> None:
    """On a line the chain's variance about its mean is B (S - B) / S at every level, that of the bridge."""
    mean, variance = 1.0, 0.0
    for level, gain, added in zip(grid.remaining[1:], grid.gain, grid.variance, strict=True):
        mean, variance = (1 - gain) * mean, (1 - gain) ** 2 * variance + added
        assert float(mean) == pytest.approx(float(level) / grid.total, rel=1e-9)
        assert float(variance) == pytest.approx(float(level * (grid.total - level)) / grid.total, rel=1e-9)


@settings(max_examples=30)
@given(steps=st.integers(1, 300), total=st.floats(1e-4, 1))
def test_builders_start_at_the_total_and_end_in_zero(steps: int, total: float) -> None:
    for grid in (uniform_in_time(schedule("geometric", total), steps), uniform_in_log_remaining(total, steps)):
        assert grid.steps == steps and grid.remaining.dtype == torch.float64
        assert grid.total == pytest.approx(total) and grid.remaining[-1].item() == 0


def test_log_noise_has_equal_ratios() -> None:
    grid = uniform_in_log_remaining(0.1, 11, last=1e-4)
    assert grid.gain[:-1].tolist() == pytest.approx([1 - 10**-0.4] * 10)
    assert grid.remaining[-2].item() == pytest.approx(1e-5)


def test_uniform_in_time_evaluates_the_schedule_at_even_times() -> None:
    schedule, grid = Geometric(), uniform_in_time(Geometric(), 10)
    assert grid.remaining.tolist() == pytest.approx([schedule.remaining(m / 10).item() for m in range(11)], abs=1e-15)


def test_moving_to_a_device_keeps_the_levels() -> None:
    grid = uniform_in_log_remaining(0.1, 5)
    assert torch.equal(grid.to("cpu").remaining, grid.remaining)


@pytest.mark.parametrize(
    "levels",
    [[0.1, 0.2, 0.0], [0.1, 0.1, 0.0], [0.2, 0.1, 0.05], [0.1, -0.1, 0.0], [math.nan, 0.0], [0.2, math.nan, 0.0]],
)
def test_levels_that_do_not_fall_to_zero_are_refused(levels: list[float]) -> None:
    with pytest.raises(InputError, match="not monotone"):
        Grid(torch.tensor(levels))


@pytest.mark.parametrize("levels", [torch.zeros(1), torch.zeros(0), torch.ones(2, 3)], ids=str)
def test_too_few_levels_are_refused(levels: torch.Tensor) -> None:
    with pytest.raises(InputError, match="at least two noise levels"):
        Grid(levels)


def test_no_step_is_refused() -> None:
    for build in (lambda: uniform_in_time(Geometric(), 0), lambda: uniform_in_log_remaining(0.1, 0)):
        with pytest.raises(InputError, match="at least one step, got 0"):
            build()

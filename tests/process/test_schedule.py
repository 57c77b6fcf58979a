"""Schedules: against numerical integration of their rates, their inverses, and invalid parameters."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from rdlm.errors import InputError
from rdlm.process.schedule import Cosine, Geometric, Linear, Schedule, schedule

SCHEDULES = [
    Geometric(),
    Geometric(0.2, 1e-3),
    Geometric(0.05, 0.05),
    Linear(0.01, 0.3),
    Linear(0.3, 0.01),
    Linear(0.1, 0.1),
    Cosine(0.04),
]
NAMES = ("geometric", "constant", "linear", "cosine")

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
times = st.floats(0, 1)


@every_schedule
@pytest.mark.parametrize("time", [0.0, 0.13, 0.5, 0.77, 0.99])
def test_remaining_noise_is_the_integral_of_the_rate(schedule: Schedule, time: float) -> None:
    integral, _ = integrate.quad(lambda t: schedule.rate(t).item(), time, 1)
    assert schedule.remaining(time).item() == pytest.approx(integral, rel=1e-9)


@every_schedule
def test_ends_are_exact(schedule: Schedule) -> None:
    assert schedule.remaining(0.0).item() == pytest.approx(schedule.total, rel=1e-14)
    assert schedule.remaining(1.0).item() == 0
    assert schedule.time(0.0).item() == 1
    assert schedule.time(schedule.total).item() == pytest.approx(0, abs=1e-7)


@every_schedule
@settings(max_examples=30)
@given(time=times)
def test_time_inverts_remaining(schedule: Schedule, time: float) -> None:
    remaining = schedule.remaining(time)
    assert schedule.remaining(schedule.time(remaining)).item() == pytest.approx(remaining.item(), rel=1e-9, abs=1e-18)
    # The rate of the cosine schedule is 0 at both ends: there the time is lost to rounding of the noise.
    assert schedule.time(remaining).item() == pytest.approx(time, abs=2e-8)


@every_schedule
@settings(max_examples=30)
@given(time=times, other=times)
def test_noise_falls_with_time(schedule: Schedule, time: float, other: float) -> None:
    early, late = sorted((time, other))
    assert schedule.remaining(early).item() >= schedule.remaining(late).item()


@every_schedule
def test_rate_is_the_derivative_of_the_remaining_noise(schedule: Schedule) -> None:
    time, step = torch.linspace(0.01, 0.99, 9, dtype=torch.float64), 1e-6
    numeric = (schedule.remaining(time - step) - schedule.remaining(time + step)) / (2 * step)
    torch.testing.assert_close(schedule.rate(time), numeric, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("total", [1e-3, 0.03756, 2.0])
def test_named_schedules_are_scaled_to_their_total(name: str, total: float) -> None:
    named = schedule(name, total)
    assert named.total == pytest.approx(total, rel=1e-12)
    spread = named.remaining(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert spread[0].item() == pytest.approx(total) and spread[-1].item() == 0
    assert bool((spread.diff() < 0).all())


@settings(max_examples=30)
@given(time=times, first=st.sampled_from(NAMES), second=st.sampled_from(NAMES))
def test_equal_total_noise_is_a_change_of_time_only(time: float, first: str, second: str) -> None:
    """Any remaining noise of one schedule is reached by another of equal total, at another time."""
    one, other = schedule(first, 0.03756), schedule(second, 0.03756)
    remaining = one.remaining(time)
    found = other.time(remaining)
    rounding = 2**-52 * other.rate(found).item()  # of a time near 1
    assert other.remaining(found).item() == pytest.approx(remaining.item(), rel=1e-9, abs=rounding + 1e-18)


def test_dtype_of_a_tensor_is_kept_and_numbers_are_float64() -> None:
    assert all(c.remaining(torch.rand(3)).dtype == torch.float32 for c in SCHEDULES)
    assert all(c.remaining(0.5).dtype == torch.float64 for c in SCHEDULES)


@every_schedule
@pytest.mark.parametrize("time", [-0.01, 1.01, math.nan, math.inf])
def test_time_outside_the_unit_interval_is_refused(schedule: Schedule, time: float) -> None:
    for method in (schedule.rate, schedule.remaining):
        with pytest.raises(InputError, match=r"time must lie in \[0, 1\]"):
            method(torch.tensor([0.5, time]))


@every_schedule
def test_noise_outside_the_total_is_refused(schedule: Schedule) -> None:
    for remaining in (-0.1 * schedule.total, 1.1 * schedule.total):
        with pytest.raises(InputError, match=r"remaining noise must lie in \[0, "):
            schedule.time(remaining)


def test_no_times_at_all_are_fine() -> None:
    assert Geometric().remaining(torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("total", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_total_noise_must_be_positive(name: str, total: float) -> None:
    with pytest.raises(InputError, match="total must be a positive number"):
        schedule(name, total)


@pytest.mark.parametrize("kind", [Geometric, Linear])
@pytest.mark.parametrize("rates", [(0.0, 0.1), (0.1, -0.1), (math.nan, 0.1)])
def test_rates_must_be_positive(kind: type[Geometric] | type[Linear], rates: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="must be a positive number"):
        kind(*rates)


def test_unknown_schedule_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        schedule("cosin", 0.1)

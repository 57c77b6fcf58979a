"""Estimates: their arithmetic, and a stratified curve whose mean and error are known in advance."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from rdlm.data.sources import skewed
from rdlm.errors import InputError
from rdlm.likelihood.estimate import (
    CONFIDENCE,
    Curve,
    Estimate,
    pair_strata,
    sample_mean,
    stratified,
    student,
    sum_over_rows,
)
from rdlm.likelihood.estimators import RowSampler
from rdlm.process.kernel import Chain
from rdlm.process.path import joint_posterior, masked_path
from rdlm.process.schedule import Geometric, uniform_in_time
from tests.likelihood.source_curve import curve_of_source

S = Geometric().total


def test_interval_is_the_normal_one() -> None:
    estimate = Estimate(2.0, 0.1)
    assert (estimate.low, estimate.high) == pytest.approx((2 - 0.196, 2 + 0.196))
    assert math.erf(CONFIDENCE / math.sqrt(2)) == pytest.approx(0.95, abs=1e-3)


def test_independent_estimates_add_and_scale() -> None:
    total = Estimate(1.0, 0.3) + Estimate(2.0, 0.4)
    assert (total.value, total.stderr, total.claims_bound) == pytest.approx((3.0, 0.5, True))
    halved = total * -0.5
    assert (halved.value, halved.stderr) == pytest.approx((-1.5, 0.25))


def test_a_sum_with_something_that_is_no_bound_is_none() -> None:
    estimate = Estimate(1.0, 0.1) + Estimate(1.0, 0.1, claims_bound=False) * 2
    assert not estimate.claims_bound


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3, 5, 10, 50, 99, 100, 1e9])
def test_few_degrees_of_freedom_widen_the_interval(freedom: float) -> None:
    level = stats.norm.cdf(CONFIDENCE)
    assert student(freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-4)
    assert student(freedom, 4.0) == pytest.approx(stats.t.ppf(stats.norm.cdf(4.0), freedom), rel=0.02)
    estimate = Estimate(1.0, 0.1, freedom=freedom)
    assert estimate.high - 1 == pytest.approx(1 - estimate.low) == pytest.approx(0.1 * student(freedom))


def test_degrees_of_freedom_add_as_satterthwaite_has_them() -> None:
    alike = Estimate(0.0, 0.1, freedom=9) + Estimate(0.0, 0.1, freedom=9)
    assert alike.freedom == pytest.approx(18)
    led = Estimate(0.0, 1.0, freedom=4) + Estimate(0.0, 1e-4, freedom=100)
    assert led.freedom == pytest.approx(4, rel=1e-3)
    sure = Estimate(1.0, 0.0) + Estimate(1.0, 0.0)
    assert sure.low == sure.high == 2.0


def test_sample_mean_is_the_textbook_one() -> None:
    found = sample_mean(torch.tensor([1.0, 2.0, 4.0]))
    assert (found.value, found.stderr, found.freedom) == pytest.approx((7 / 3, math.sqrt(7 / 3 / 3), 2))
    assert not sample_mean(torch.tensor([1.0, 2.0]), claims_bound=False).claims_bound


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_value_has_no_interval(count: int) -> None:
    with pytest.raises(InputError, match=f"at least 2 values, got {count}"):
        sample_mean(torch.zeros(count))


@pytest.mark.parametrize("strata", [1, 7, 300])
def test_strata_of_known_means_are_recovered(strata: int) -> None:
    """Stratum i has mean and standard deviation i + 1, so the sum and about the best standard error are known."""
    generator = torch.Generator().manual_seed(4)
    drawn: list[int] = []

    def measure(stratum: Tensor) -> tuple[Tensor, None]:
        drawn.append(len(stratum))
        return (stratum + 1) * (1 + torch.randn(len(stratum), generator=generator)), None

    curve = stratified(measure, strata, 30_000, rows_at_once=1000)
    assert max(drawn) <= 1000 and 24_000 <= sum(drawn) <= 36_000
    total = curve.total
    assert total.value == pytest.approx(strata * (strata + 1) / 2, abs=4 * total.stderr)
    best = strata * (strata + 1) / 2 / math.sqrt(30_000)  # Neyman's, were nothing spent on the pilot
    assert total.stderr == pytest.approx(best, rel=0.3)


def test_curve_adds_up() -> None:
    total = Curve(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.01, 0.02, 0.06])).total
    assert (total.value, total.stderr) == pytest.approx((3.5, 0.3))


def indifferent(state: Tensor, remaining: Tensor) -> Tensor:
    """Return the posterior of a model that never learns anything."""
    return torch.full((*state.shape[:-1], 3), -math.log(3.0), dtype=state.dtype)


def test_curve_of_a_constant_model_ends_in_its_decoder() -> None:
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 5), "drift")
    curve = curve_of_source(indifferent, chain, skewed(3).draw, 500, torch.Generator().manual_seed(0))
    assert curve.mean.shape == (5,) and curve.mean.dtype == torch.float64
    assert curve.mean[-1].item() == pytest.approx(math.log(3), abs=1e-6)
    assert curve.variance[-1].item() == pytest.approx(0, abs=1e-12)
    assert bool((curve.mean > 0).all())


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Sixty small estimates against one large one: 95% intervals hold for 52 to 60 of them."""
    source, path = skewed(3), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 6))

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        return joint_posterior(path, source.log_joint, state, remaining)

    generator = torch.Generator().manual_seed(1)
    truth = curve_of_source(posterior, chain, source.draw, 200_000, generator).total
    small = [curve_of_source(posterior, chain, source.draw, 1200, generator).total for _ in range(60)]
    hits = sum(e.low - truth.stderr <= truth.value <= e.high + truth.stderr for e in small)
    assert 52 <= hits <= 60
    mean = sum(e.value for e in small) / 60
    error = math.sqrt(sum(e.stderr**2 for e in small)) / 60
    assert mean == pytest.approx(truth.value, abs=4 * math.hypot(error, truth.stderr))


def test_steps_that_vary_get_more_of_the_work() -> None:
    """The pilot moves evaluations to the spread: the same work gives a smaller error than even shares would."""
    source, path = skewed(3), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 40))
    seen = torch.zeros(41, dtype=torch.long)

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        level = torch.searchsorted(-chain.grid.remaining, -remaining[:, 0].double() - 1e-9)
        seen.index_add_(0, level, torch.ones_like(level))
        return joint_posterior(path, source.log_joint, state, remaining)

    curve = curve_of_source(posterior, chain, source.draw, 20_000, torch.Generator().manual_seed(2))
    work = seen[:-1]
    assert work.max() > 2 * work.min()
    spread = (curve.variance * (work - 100).clamp_min(1)).sqrt()
    even = math.sqrt(float((spread.square() / (work.sum() / 40)).sum()))
    assert curve.total.stderr < even


def test_same_generator_same_curve() -> None:
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 4))
    first, second = (
        curve_of_source(indifferent, chain, skewed(3).draw, 400, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first.mean, second.mean) and torch.equal(first.variance, second.variance)


def test_a_sum_over_many_rows_has_the_error_of_its_draws_alone() -> None:
    """Rows far apart and draws of different kinds: neither widens the interval, and 95% of a hundred hold the sum."""
    generator = torch.Generator().manual_seed(0)
    rows, kinds = 50 * torch.rand(40, generator=generator), torch.tensor([[9.0], [0.0], [-9.0]])
    remaining = torch.tensor([[2.0], [1.0], [0.5]])  # the kinds may be noisy each in its way
    truth, error = float(rows.sum()), float((40 * remaining.square().mean() / 3).sqrt())
    found = [sum_over_rows(rows + kinds + remaining * torch.randn(3, 40, generator=generator)) for _ in range(100)]
    assert 90 <= sum(one.low <= truth <= one.high for one in found) <= 99
    assert sum(one.stderr for one in found) / 100 == pytest.approx(error, rel=0.1)
    assert found[0].freedom == 2 * 39


def test_the_errors_of_few_rows_add_up() -> None:
    value = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    each = [sample_mean(column) for column in value.T]
    found = sum_over_rows(value, claims_bound=False)
    assert found.value == pytest.approx(float(value.mean(0).sum()))
    assert found.stderr == pytest.approx(math.sqrt(sum(one.stderr**2 for one in each))) and not found.claims_bound


def paired_draws(generator: torch.Generator, draws: int, rows: int, noise: float) -> Tensor:
    """Return draws of strata whose means differ, with a jump, far more than the draws of one stratum do."""
    place = pair_strata(draws) / draws * 2
    curve = 40 * torch.exp(-((place - 0.6) ** 2) / 0.02) + 100 * (place > 0.5)
    scale = noise * (0.2 + place)
    return curve[:, None] + scale[:, None] * torch.randn(draws, rows, generator=generator)


@pytest.mark.parametrize(("draws", "rows"), [(32, 1), (33, 4), (8, 40), (9, 1), (64, 2)])
def test_intervals_of_paired_draws_are_neither_too_narrow_nor_too_wide(draws: int, rows: int) -> None:
    """Three hundred repetitions: the standard error is that of the spread, and 91% to 99% of the intervals hold."""
    generator = torch.Generator().manual_seed(draws + rows)
    found = [sum_over_rows(paired_draws(generator, draws, rows, 5.0), paired=True) for _ in range(300)]
    truth = float(paired_draws(generator, draws, 1, 0.0).mean()) * rows
    spread = math.sqrt(sum((one.value - truth) ** 2 for one in found) / 300)
    claimed = math.sqrt(sum(one.stderr**2 for one in found) / 300)
    assert 0.87 < claimed / spread < 1.15
    assert 273 <= sum(one.low <= truth <= one.high for one in found) <= 297


def test_differences_between_strata_are_no_error_of_paired_draws() -> None:
    value = paired_draws(torch.Generator().manual_seed(0), 64, 1, 1.0)
    wrong, right = sum_over_rows(value), sum_over_rows(value, paired=True)
    assert right.value == pytest.approx(wrong.value) and right.stderr < 0.1 * wrong.stderr


@pytest.mark.parametrize(
    ("draws", "strata"), [(3, [0, 1, 2]), (8, [0, 0, 1, 1, 2, 2, 3, 3]), (9, [0, 0, 1, 1, 2, 2, 3, 3, 3])]
)
def test_many_draws_are_paired(draws: int, strata: list[int]) -> None:
    assert pair_strata(draws).tolist() == strata


@pytest.mark.parametrize("rare", [1.0, 0.3])
def test_stratified_intervals_hold_with_few_evaluations(rare: float) -> None:
    """Terms that are mostly zero, as of a good posterior, in strata of unequal means: most intervals hold the sum."""
    generator = torch.Generator().manual_seed(7)
    mean = torch.exp(-(((torch.arange(20) - 12) / 3.0) ** 2) / 2)
    mean /= mean.sum()

    def measure(stratum: Tensor) -> tuple[Tensor, None]:
        hit = torch.rand(len(stratum), generator=generator) < rare
        return mean[stratum] * hit / rare * -torch.rand(len(stratum), generator=generator).log(), None

    found = [stratified(measure, 20, 400).total for _ in range(150)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 132
    spread = math.sqrt(sum((one.value - 1) ** 2 for one in found) / 150)
    claimed = math.sqrt(sum(one.stderr**2 for one in found) / 150)
    assert 0.75 < claimed / spread < 1.3
    assert all(2 <= one.freedom < 400 for one in found)


@pytest.mark.parametrize(("sequences", "least"), [(40, 0.85), (400, 0.85), (4000, 0.75)])
def test_intervals_hold_for_the_source_of_sequences_that_are_used_many_times(sequences: int, least: float) -> None:
    """Sequences of different difficulty in twenty strata, each used ten times, about once, or not at all."""
    generator = torch.Generator().manual_seed(3)

    def estimate() -> Estimate:
        effect = torch.randn(sequences, generator=generator, dtype=torch.float64)
        order = RowSampler(sequences, generator)

        def measure(stratum: Tensor) -> tuple[Tensor, Tensor]:
            row = order.take(len(stratum))
            return effect[row] + torch.randn(len(stratum), generator=generator), row

        return stratified(measure, 20, 400).total

    found = [estimate() for _ in range(150)]
    assert sum(one.low <= 0 <= one.high for one in found) >= 134
    spread = math.sqrt(sum(one.value**2 for one in found) / 150)
    claimed = math.sqrt(sum(one.stderr**2 for one in found) / 150)
    assert least < claimed / spread < 1.3

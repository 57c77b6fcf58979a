"""Estimates: their arithmetic, and a stratified curve whose mean and error are known in advance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rdlm.data.source import skewed
from rdlm.likelihood import CONFIDENCE, Curve, Estimate, curve_of_source
from rdlm.process.chain import Chain
from rdlm.process.clock import Geometric
from rdlm.process.evidence import joint_posterior
from rdlm.process.grid import uniform_in_time
from rdlm.process.path import masked_path

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


def test_curve_adds_up() -> None:
    total = Curve(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.01, 0.02, 0.06])).total
    assert (total.value, total.stderr) == pytest.approx((3.5, 0.3))


def indifferent(state: Tensor, noise: Tensor) -> Tensor:
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

    def posterior(state: Tensor, noise: Tensor) -> Tensor:
        return joint_posterior(path, source.log_joint, state, noise)

    generator = torch.Generator().manual_seed(1)
    truth = curve_of_source(posterior, chain, source.draw, 200_000, generator, pairs=200_000).total
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

    def posterior(state: Tensor, noise: Tensor) -> Tensor:
        level = torch.searchsorted(-chain.grid.noise, -noise[:, 0].double() - 1e-9)
        seen.index_add_(0, level, torch.ones_like(level))
        return joint_posterior(path, source.log_joint, state, noise)

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

"""Dirichlet flow matching: its evidence, the speed of its flow, its estimate and its samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exact_network import known
from scipy import special, stats

from rdlm.config import DirichletFlowConfig, RunConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.dirichlet_flow import DirichletFlow, speed_table, speeds

SMALL = RunConfig(model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))


@pytest.mark.parametrize("states", [3, 4, 27, 256])
@pytest.mark.parametrize("concentration", [1.0, 1.5, 4.0, 8.0])
def test_the_speed_moves_the_beta_law_of_the_own_coordinate(states, concentration):
    """C (1 - b) times the density is minus the derivative of the distribution function with respect to a."""
    share, others, eps = torch.logspace(-4, -0.01, 60, dtype=torch.float64), states - 1, 1e-4
    difference = [special.betainc(concentration + sign * eps, others, share.numpy()) for sign in (1, -1)]
    slope = (difference[0] - difference[1]) / (2 * eps)
    density = stats.beta.pdf(share.numpy(), concentration, others)
    reliable = density > 1e-5  # elsewhere the oracle divides rounding by rounding
    expected = -slope[reliable] / density[reliable] / (1 - share.numpy()[reliable])
    found = speed_table(share, concentration, others).numpy()
    assert reliable.sum() > 10
    np.testing.assert_allclose(found[reliable], expected, rtol=2e-3, atol=1e-6)


def test_the_table_is_interpolated_smoothly():
    point = torch.rand(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    direct = torch.stack([speed_table(row, 3.0, 4) for row in point])
    torch.testing.assert_close(speeds(point, 3.0), direct, rtol=1e-4, atol=1e-6)


def test_points_are_dirichlet_and_the_evidence_is_their_likelihood():
    method = DirichletFlow(SMALL, 4)
    concentration = torch.full((50_000,), 3.0)
    point = method.points(torch.full((50_000, 1), 2), concentration, torch.Generator().manual_seed(1))[:, 0]
    assert stats.kstest(point[:, 2].numpy(), "beta", (3.0, 3)).pvalue > 1e-3
    assert stats.kstest(point[:, 0].numpy(), "beta", (1.0, 5)).pvalue > 1e-3
    x = point[:5][:, None]
    law = method.log_probs(x, concentration[:5])  # an untrained network has equal logits
    exact = [[stats.dirichlet.logpdf(row[0].numpy(), 1 + 2 * np.eye(4)[k]) for k in range(4)] for row in x]
    torch.testing.assert_close(law[:, 0], torch.log_softmax(torch.tensor(np.array(exact)), -1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("source", [sources.skewed(3), sources.markov()])
def test_the_estimate_with_the_exact_posterior_is_near_the_entropy(source):
    method = known("dirichlet_flow", source, divergence="exact")
    token = source.draw(1500, torch.Generator().manual_seed(1))
    excess = method.bound(Batch(token), 60, torch.Generator().manual_seed(2)) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(token))
    assert abs(float(excess.mean())) < 0.03 * source.entropy + 4 * stderr
    assert stderr < 0.03 * source.entropy
    assert not method.claims_bound


def test_hutchinsons_estimator_has_the_mean_of_the_exact_trace():
    method, other = (known("dirichlet_flow", sources.skewed(3), divergence=kind) for kind in ("exact", "hutchinson"))
    point = method.points(torch.zeros(1, 1, dtype=torch.long), torch.full((1,), 2.0), torch.Generator().manual_seed(3))
    (exact,) = method._divergence(point, 2.0, None, None)[1]
    many = other._divergence(point.repeat(4000, 1, 1), 2.0, None, torch.Generator().manual_seed(4))[1]
    assert float(many.mean()) == pytest.approx(float(exact), abs=5 * float(many.std()) / 63 + 1e-6)


def test_samples_follow_the_source():
    source = sources.skewed(3)
    drawn = known("dirichlet_flow", source).generate(4000, 1, 60, torch.Generator().manual_seed(5))
    law = source.log_joint.exp()
    assert stats.chisquare(torch.bincount(drawn[:, 0], minlength=3), 4000 * law).pvalue > 1e-3


def test_the_last_concentration_is_above_the_first():
    with pytest.raises(InputError, match=r"dirichlet_flow\.last must lie in"):
        DirichletFlowConfig(last=1.0)
    with pytest.raises(InputError, match="at most 1024 tokens, got 30522"):
        DirichletFlow(SMALL, 30_522)

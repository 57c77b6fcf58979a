"""Jacobi diffusion of the simplex: its exact law, its evidence, its estimate and its samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exact_network import known
from scipy import stats

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.ddsm import DDSM, LATEST, LINEAGES, evidence_of, lineages, reverse_step
from rdlm.methods.dirichlet_flow import dirichlet_points

SMALL = RunConfig(model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))


@pytest.mark.parametrize("states", [3, 27, 256])
def test_lineages_have_a_law_whose_mean_share_decays_exactly(states: int) -> None:
    """The mean of m / (m + V) is that of (V x_k - 1) / (V - 1) by duality, an eigenfunction of rate V / 2."""
    time = LATEST / states * torch.tensor([0.0, 0.01, 0.1, 0.5], dtype=torch.float64)
    weight = lineages(time, states)
    torch.testing.assert_close(weight.sum(1), torch.ones(4, dtype=torch.float64), atol=1e-9, rtol=0)
    m = torch.arange(LINEAGES + 1, dtype=torch.float64)
    share = (weight * m / (m + states)).sum(1)
    torch.testing.assert_close(share, LINEAGES / (LINEAGES + states) * (-states / 2 * time).exp(), atol=1e-9, rtol=0)


def test_points_have_the_law_of_the_simulated_diffusion() -> None:
    """Without a score the reversed diffusion is the diffusion itself: 400 Euler steps, against exact draws."""
    count, states, time = 20_000, 3, 0.2
    generator, token = torch.Generator().manual_seed(1), torch.full((20_000, 1), 1)
    point = dirichlet_points(token, torch.full(token.shape, 1.0 + LINEAGES, dtype=torch.float64), states, generator)
    for _ in range(400):
        point = reverse_step(point, torch.zeros_like(point), time / 400, generator)
    weight = lineages(torch.tensor([time]), states).expand(count, -1)
    exact = DDSM(SMALL, states).points(token, weight, generator)
    for coordinate in (0, 1):
        assert stats.ks_2samp(point[:, 0, coordinate], exact[:, 0, coordinate]).pvalue > 1e-3
    early = DDSM(SMALL, states).points(token, lineages(torch.tensor([0.8 * time]), states).expand(count, -1), generator)
    assert stats.ks_2samp(point[:, 0, 1], early[:, 0, 1]).pvalue < 1e-3  # the test sees another time


def test_the_evidence_is_the_mixture_of_dirichlet_densities() -> None:
    weight = lineages(torch.tensor([0.05, 0.3]), 4)
    point = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((2, 3))
    evidence, slope = evidence_of(point, weight)
    for b in range(2):
        for i in range(3):
            for token in range(4):
                one = np.eye(4)[token]
                ratio = [stats.dirichlet.pdf(point[b, i].numpy(), 1 + m * one) / 6 for m in range(LINEAGES + 1)]
                assert float(evidence[b, i, token]) == pytest.approx(math.log(weight[b].numpy() @ ratio), abs=1e-8)
    moved = (evidence_of(point + 1e-6, weight)[0] - evidence_of(point - 1e-6, weight)[0]) / 2e-6
    torch.testing.assert_close(slope, moved, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "source", [sources.skewed(3), sources.skewed(27), sources.markov()], ids=lambda source: source.name
)
def test_the_estimate_with_the_exact_posterior_is_near_the_entropy(source: sources.Source) -> None:
    method = known("ddsm", source)
    token = source.draw(60_000, torch.Generator().manual_seed(1))
    excess = method.bound(Batch(token), 64, torch.Generator().manual_seed(2)) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(token))
    assert stderr < 0.03 * source.entropy
    assert -4 * stderr < float(excess.mean()) < 0.01 * source.entropy + 4 * stderr
    assert not method.claims_bound


def test_a_forgotten_half_is_seen() -> None:
    """Mutation: with half of the score's error, or without the decoding, the value is below the entropy."""
    source = sources.skewed(3)
    method, token = known("ddsm", source), source.draw(60_000, torch.Generator().manual_seed(1))
    value = method.bound(Batch(token), 64, torch.Generator().manual_seed(2))
    decode = method._decode(token, None, torch.Generator().manual_seed(3)).sum(-1)
    halved = float(((value - decode) / 2 + decode).mean())
    assert halved < 0.9 * source.entropy


def test_samples_follow_the_source() -> None:
    source = sources.skewed(3)
    drawn = known("ddsm", source).generate(4000, 1, 60, torch.Generator().manual_seed(5))
    law = source.log_joint.exp()
    assert stats.chisquare(torch.bincount(drawn[:, 0], minlength=3), 4000 * law).pvalue > 1e-3


def test_many_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="ddsm needs at most 1024 tokens, got 30522"):
        DDSM(SMALL, 30_522)

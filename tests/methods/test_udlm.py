"""Uniform-state diffusion: Bayes' rule of a step, the floor, the limit and the sampler."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_network import known
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.nn import functional

from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.methods.udlm import kl_divergence, marginal, posterior


@settings(max_examples=30)
@given(now=st.floats(0, 0.9), more=st.floats(0.01, 1), states=st.integers(2, 6))
def test_a_step_is_bayes_rule(now, more, states):
    """Against the joint law of both states, written down entry by entry."""
    later = now + more * (1 - now)
    keep = now / later
    token = torch.arange(states).repeat_interleave(states)
    state = torch.arange(states).repeat(states)
    forward = keep * torch.eye(states, dtype=torch.float64) + (1 - keep) / states  # [less noisy, noisier]
    first = later * torch.eye(states, dtype=torch.float64)[token] + (1 - later) / states
    joint = first * forward[:, state].T
    whole = joint.sum(-1, keepdim=True)
    known = whole[:, 0] > 1e-12  # a state that cannot arise has no past
    truth = functional.one_hot(token, states).double()[:, None]
    levels = torch.tensor([later, keep], dtype=torch.float64)
    found = posterior(marginal(truth, levels[0]), state[:, None], levels[1])[:, 0]
    torch.testing.assert_close(found[known], (joint / whole)[known], atol=1e-9, rtol=0)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
@pytest.mark.parametrize("states", [3, 27])
def test_an_independent_source_meets_its_entropy_for_every_m(schedule, states):
    source = sources.skewed(states)
    method = known("udlm", source, schedule=schedule)
    generator = torch.Generator().manual_seed(7)
    token = source.draw(60_000, generator)
    excess = method.bound(Batch(token), 4, generator) + source.log_joint[token[:, 0]]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    assert abs(float(excess.mean())) < 4 * stderr
    assert stderr < 0.01 * source.entropy


def test_a_dependent_source_costs_more_where_tokens_decode_together():
    source = sources.markov()
    method = known("udlm", source)
    generator = torch.Generator().manual_seed(1)
    token = source.draw(100_000, generator)
    excess = {nfe: method.bound(Batch(token), nfe, generator) + source.log_joint[tuple(token.T)] for nfe in (1, 2, 32)}
    independent = float(sources.markov().log_prior.exp().mul(sources.markov().log_prior).sum().neg())
    assert float(excess[1].mean()) + source.entropy == pytest.approx(independent, rel=0.02)
    assert float(excess[1].mean()) > float(excess[2].mean()) > 0.03
    stderr = float(excess[32].std()) / math.sqrt(len(token))
    assert -4 * stderr < float(excess[32].mean()) < 0.03 * source.entropy + 3 * stderr


def test_the_limit_is_that_of_many_steps():
    """By quadrature of the integrand, since the estimate of one random time has a heavy tail."""
    source = sources.skewed(3)
    method = known("udlm", source)
    points = torch.linspace(-9, 9, 181, dtype=torch.float64)
    times = torch.sigmoid(points)
    total = 0.0
    generator = torch.Generator().manual_seed(4)
    for time, point in zip(times, points, strict=True):
        token = source.draw(4000, generator)
        rate = method.integrand(token, time.repeat(4000), None, generator).mean()
        total += float(rate) * float(torch.sigmoid(point) * torch.sigmoid(-point)) * 0.1
    assert total == pytest.approx(source.entropy, rel=0.02)
    estimate = method.limit(Batch(source.draw(100_000, generator)), generator)
    assert float(estimate.mean()) == pytest.approx(source.entropy, abs=5 * float(estimate.std()) / math.sqrt(100_000))


def test_divergence_allows_impossible_states():
    q = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert float(kl_divergence(q, torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64))) == pytest.approx(
        0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    )


@pytest.mark.parametrize(("source", "nfe"), [(sources.skewed(27), 8), (sources.markov(), 200)])
def test_samples_follow_the_source(source, nfe):
    drawn = known("udlm", source).generate(6000, source.length, nfe, torch.Generator().manual_seed(11))
    law = source.log_joint.exp().flatten()
    codes = [sum(int(t) * source.states**i for i, t in enumerate(reversed(row))) for row in drawn.tolist()]
    assert chisquare(torch.bincount(torch.tensor(codes), minlength=len(law)), 6000 * law).pvalue > 1e-3


def test_codes_cover_the_joint_law():
    law = sources.markov().log_joint.exp()
    assert [float(law[c]) for c in itertools.product(range(3), repeat=2)] == law.flatten().tolist()

"""Gaussian diffusion of learned vectors: the floor, what is learned, and the two losses."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare

from rdlm.config import PlaidConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.plaid import DiffusionLM, Plaid
from rdlm.random import Draw
from rdlm.train.optimizer import Optimizer

SMALL = RunConfig(model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))


def excess_of(name, source, nfe, count=20_000):
    torch.manual_seed(0)
    method = known(name, source)
    generator = torch.Generator().manual_seed(7)
    token = source.draw(count, generator)
    values = method.bound(Batch(token), nfe, generator) + source.log_joint[tuple(token.T)]
    return float(values.mean()) / source.entropy, float(values.std()) / math.sqrt(count) / source.entropy


@pytest.mark.parametrize("name", ["plaid", "diffusion_lm"])
def test_the_slack_falls_with_the_number_of_calls_and_the_bound_is_never_below_the_entropy(name):
    few, many = excess_of(name, sources.skewed(27), 64), excess_of(name, sources.skewed(27), 1024)
    assert many[0] > -4 * many[1] and few[0] > many[0] - 4 * many[1]
    assert many[0] < 0.03 + 4 * many[1]


@pytest.mark.parametrize("kind", [Plaid, DiffusionLM])
def test_strengths_grow_from_nothing(kind):
    method = kind(SMALL, 5)
    strength = method.strength(method.times(50))
    assert strength[0] == 0 and (strength.diff() > 0).all() and strength[-1] > 20


def test_the_weight_is_half_the_rate_of_the_strength():
    method, time = Plaid(SMALL, 5), torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    rate = (method.strength(time + 1e-6) - method.strength(time - 1e-6)) / 2e-6
    torch.testing.assert_close(method.weight(time), rate / 2, rtol=1e-5, atol=0)
    assert (DiffusionLM(SMALL, 5).weight(time) == 1).all()


def test_the_loss_of_plaid_is_its_bound_in_continuous_time():
    source = sources.skewed(3)
    torch.manual_seed(0)
    method = known("plaid", source)
    losses = []
    for step in range(30):
        token = source.draw(2000, torch.Generator().manual_seed(step))
        losses.append(method.loss(Batch(token), Draw(0, step)).item())
    mean, error = sum(losses) / 30, torch.tensor(losses).std().item() / math.sqrt(30)
    assert mean == pytest.approx(source.entropy, abs=4 * error + 2e-3) and error < 0.02 * source.entropy


def test_the_vectors_learn_and_stay_of_length_one():
    torch.manual_seed(0)
    method = Plaid(SMALL, 5)
    optimizer = Optimizer(method.network, TrainingConfig(codes_lr=0.05))
    before = method.learned.weight.detach().clone()
    method.loss(Batch(torch.randint(5, (32, 4))), Draw(0, 0)).backward()
    optimizer.update(200, optimizer.norm())
    assert (method.learned.weight - before).abs().max() > 1e-3
    torch.testing.assert_close(method.learned.weight.norm(dim=-1), torch.ones(5))
    assert "codes.weight" in method.network.state_dict()


def test_the_output_prior_is_the_likelihood_of_the_state():
    method = Plaid(SMALL, 5)
    state = torch.randn(2, 3, 16)
    law = method.log_probs(state, torch.full((2,), 0.5))  # an untrained network has equal logits
    torch.testing.assert_close(law, torch.log_softmax(state @ method.codes(state).T, -1))
    other = DiffusionLM(SMALL, 5).log_probs(state, torch.full((2,), 0.5))
    torch.testing.assert_close(other, torch.full_like(other, -math.log(5)))


def test_samples_follow_the_source():
    torch.manual_seed(0)
    source = sources.skewed(3)
    drawn = known("plaid", source).generate(3000, 1, 150, torch.Generator().manual_seed(5))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=3), 3000 * source.log_joint.exp()).pvalue > 1e-3


def test_vectors_need_three_coordinates():
    with pytest.raises(InputError, match=r"plaid\.dimension must lie in"):
        PlaidConfig(2)

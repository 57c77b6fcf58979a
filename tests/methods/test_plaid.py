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
from rdlm.methods.plaid import DiffusionLM, LearnedSchedule, Plaid
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


def test_the_schedule_is_learned_without_a_change_of_the_bound():
    """Slopes do not move the integral; they minimise the spread of the terms, and the last strength the bound."""
    source = sources.markov()
    torch.manual_seed(0)
    method = known("plaid", source)
    schedule = method.schedule
    optimizer = torch.optim.Adam(schedule.parameters(), lr=0.03)
    losses = []
    for step in range(300):
        loss = method.loss(Batch(source.draw(256, torch.Generator().manual_seed(step))), Draw(0, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        level, rate = schedule.level(torch.linspace(0, 1, 65, dtype=torch.float64))
    assert level[0] == 0 and float(level[-1]) == pytest.approx(1)
    assert (rate > 0).all() and float(rate.max() / rate.min()) > 3
    early, late = torch.tensor(losses[:60]), torch.tensor(losses[-60:])
    assert late.std() < 0.8 * early.std()
    error = float((early.var() + late.var()).div(60).sqrt())
    assert float(late.mean()) == pytest.approx(float(early.mean()), abs=4 * error + 0.02)


def test_the_levels_are_the_integral_of_their_derivative():
    schedule = LearnedSchedule()
    with torch.no_grad():
        schedule.slopes.copy_(torch.randn(64, generator=torch.Generator().manual_seed(0)))
    middle = (torch.arange(64 * 50, dtype=torch.float64) + 0.5) / (64 * 50)
    total = schedule.level(middle)[1].cumsum(0) / len(middle)
    after = torch.arange(1, 64 * 50, dtype=torch.float64) / (64 * 50)
    torch.testing.assert_close(schedule.level(after)[0], total[:-1], rtol=0, atol=1e-12)


def test_the_gradient_of_the_slopes_is_that_of_half_the_squares_of_sequence_losses():
    torch.manual_seed(0)
    method, batch = known("plaid", sources.skewed(3)), Batch(torch.randint(3, (16, 1)))
    method.loss(batch, Draw(0, 1)).backward()
    slopes = method.schedule.slopes

    @torch.no_grad()
    def shifted(piece: int, step: float) -> float:
        draw = Draw(0, 1)
        slopes[piece] += step
        squares = (
            method.loss_terms(batch.ids, draw.quantiles(len(batch.ids)), None, draw.generator())
            .double()
            .mean(-1)
            .square()
            / 2
        )
        slopes[piece] -= step
        return float(squares.mean())

    chosen = torch.arange(0, 64, 9)
    differences = torch.tensor([(shifted(piece, 0.01) - shifted(piece, -0.01)) / 0.02 for piece in chosen.tolist()])
    assert differences.abs().max() > 1e-3
    torch.testing.assert_close(slopes.grad[chosen], differences, rtol=0.02, atol=1e-4)


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

"""Schedules that depend on the token: the floor, the special case of equal schedules, and one mask rate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare
from test_mdlm import LENGTH, STATES, Table, mean_over_orders, within

from rdlm.config import DiscreteConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.diffusion_bert import DiffusionBert
from rdlm.methods.mdlm import MDLM, RATE, BertMouth
from rdlm.random import Draw


def spindle_of(source, **choices):
    """Return the method with a schedule from early to late tokens, and its exact network."""
    method = known("diffusion_bert", source, **choices)
    method.core.frequency.copy_(torch.linspace(0.45, -0.45, source.states))
    method.network.frequency = method.core.frequency.double()
    return method


def test_weights_are_logarithms_of_counts():
    method = DiffusionBert(RunConfig(), 3)
    method.fit(lambda: torch.tensor([[0] * 99, [1] * 9 + [0] * 90], dtype=torch.uint8))
    weight = torch.tensor([189, 9, 0]).log1p() / math.log(190)
    torch.testing.assert_close(method.core.frequency, weight - weight.mean())


def test_frequent_tokens_are_revealed_first_and_none_is_masked_again():
    method = spindle_of(sources.skewed(27))
    alpha = method.alpha(torch.linspace(0, 1, 101))
    assert (alpha.diff(dim=0) > 0).all() and alpha[0].abs().max() < 1e-12 and (alpha[-1] - 1).abs().max() < 1e-12
    assert alpha[50, 0] > alpha[50, 26] + 0.1
    rate = (alpha[51] - alpha[49]) / 0.02
    torch.testing.assert_close(method.alpha_rate(torch.tensor(0.5)), rate, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("source", "nfe"), [(sources.skewed(3), 1), (sources.skewed(27), 6), (sources.markov(), 40)])
def test_an_exact_network_meets_the_entropy(source, nfe):
    method = spindle_of(source)
    generator = torch.Generator().manual_seed(7)
    token = source.draw(60_000, generator)
    excess = method.bound(Batch(token), nfe, generator) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    late = 0.03 * source.entropy if source.length > 1 else 0.0  # two tokens may be revealed in one step
    assert -4 * stderr - 1e-6 < float(excess.mean()) < late + 4 * stderr + 1e-6


def test_the_limit_meets_the_entropy_and_ignoring_the_evidence_of_masks_costs():
    source = sources.skewed(27)
    method = spindle_of(source)
    token = source.draw(60_000, torch.Generator().manual_seed(1))
    values = [method.limit(Batch(token), torch.Generator().manual_seed(2))]
    excess = values[0] + source.log_joint[token[:, 0]]
    assert abs(float(excess.mean())) < 4 * float(excess.std()) / math.sqrt(len(token))
    method.network.frequency = torch.zeros(27, dtype=torch.float64)
    cost = method.limit(Batch(token), torch.Generator().manual_seed(2)) - values[0]
    assert float(cost.mean()) > 4 * float(cost.std()) / math.sqrt(len(token))


def test_equal_schedules_are_masked_diffusion():
    method, masked = DiffusionBert(RunConfig(), STATES), MDLM(RunConfig(), STATES)
    method.network = masked.network = Table(LENGTH)
    batch = Batch(torch.randint(STATES, (500, LENGTH), generator=torch.Generator().manual_seed(1)))
    for measure in ("bound", "limit"):
        arguments = (batch, 5) if measure == "bound" else (batch,)
        values = [getattr(m, measure)(*arguments, torch.Generator().manual_seed(9)) for m in (method, masked)]
        torch.testing.assert_close(values[0], values[1])


def test_samples_follow_the_source():
    source = sources.skewed(27)
    drawn = spindle_of(source).generate(6000, 1, 5, torch.Generator().manual_seed(5))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=27), 6000 * source.log_joint.exp()).pvalue > 1e-3


def test_the_bound_holds_for_any_network():
    """The law of one position, step by step."""
    method = DiffusionBert(RunConfig(), STATES)
    method.core.frequency.copy_(torch.tensor([0.4, 0.0, -0.4]))
    method.network = Table(1)
    law, open_mass = torch.zeros(STATES, dtype=torch.float64), 1.0
    for step in range(4):
        p = method.log_probs(torch.tensor([[STATES]]), torch.tensor([step / 4]))[0, 0].exp()
        reveal = method.reveal_probability(torch.tensor(step), 4)
        law += open_mass * p * reveal
        open_mass *= 1 - float((p * reveal).sum())
    assert float(law.sum()) == pytest.approx(1)
    for token in range(STATES):
        values = method.bound(Batch(torch.full((20_000, 1), token)), 4, torch.Generator().manual_seed(3))
        assert float(values.mean()) + 4 * float(values.std()) / 141 >= -math.log(float(law[token]))


def test_the_schedule_is_saved_with_the_network():
    method = spindle_of(sources.skewed(3))
    assert "frequency" in DiffusionBert(RunConfig(), 3).network.state_dict()
    assert method.core.state_dict()["frequency"].equal(method.core.frequency)
    with pytest.raises(InputError, match=r"discrete\.spindle must lie in"):
        DiscreteConfig(spindle=0.5)


def test_one_mask_rate_is_trained_and_every_rate_is_scored():
    method = BertMouth(RunConfig(), STATES)
    method.network = Table(LENGTH)
    token = torch.tensor([2, 0, 1])
    expected = mean_over_orders(method, token)
    values = method.limit(Batch(token.repeat(100_000, 1)), torch.Generator().manual_seed(3))
    assert within(values, expected)
    masked = MDLM(RunConfig(), STATES)
    masked.network = method.network
    batch = Batch(token.repeat(50, 1))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert method.bound(batch, 4, generators[0]).equal(masked.bound(batch, 4, generators[1]))
    # the loss is the mean over sets of masked positions at the one rate
    total = 0.0
    for hidden in itertools.product([False, True], repeat=LENGTH):
        chance = math.prod(RATE if one else 1 - RATE for one in hidden)
        total += chance * float(method.masked_cross_entropy(token[None], torch.tensor([hidden]), None)) / RATE
    losses = [float(method.loss(Batch(token.repeat(4000, 1)), Draw(0, step))) for step in range(8)]
    assert sum(losses) / 8 == pytest.approx(total / LENGTH, rel=0.05)

"""Masked diffusion: any order, M steps, its sampler and its cache."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare
from torch import nn

from rdlm.config import DiscreteConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.mdlm import MDLM, unmask_probability

STATES, LENGTH = 3, 3


class Table(nn.Module):
    """An arbitrary law for every pattern of visible tokens; such laws agree with no joint distribution."""

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__()
        patterns = (STATES + 1) ** length
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(patterns, length, STATES, generator=generator, dtype=torch.float64)
        self.place = (STATES + 1) ** torch.arange(length)

    def forward(self, ids, time, condition=None):
        return self.logits[(ids * self.place).sum(-1)]


def method_of(length: int = LENGTH, schedule: str = "log_linear") -> MDLM:
    method = MDLM(RunConfig(method="mdlm", discrete=DiscreteConfig(schedule)), STATES)
    method.network = Table(length)
    return method


def surprise(method: MDLM, token: torch.Tensor, hidden: tuple[int, ...]) -> torch.Tensor:
    """-log p of every token given those that are not hidden."""
    visible = token.clone()
    visible[list(hidden)] = method.mask
    law = method.log_probs(visible[None])[0]
    return -law.gather(-1, token[:, None])[:, 0]


def mean_over_orders(method: MDLM, token: torch.Tensor) -> float:
    total = 0.0
    orders = list(itertools.permutations(range(len(token))))
    for order in orders:
        for rank, position in enumerate(order):
            total += float(surprise(method, token, order[rank:])[position])
    return total / len(orders)


def within(values: torch.Tensor, expected: float) -> bool:
    return abs(float(values.mean()) - expected) < 4 * float(values.std()) / math.sqrt(len(values))


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
def test_the_limit_is_the_mean_over_orders_of_the_autoregressive_likelihood(schedule):
    method, token = method_of(schedule=schedule), torch.tensor([2, 0, 1])
    values = method.limit(Batch(token.repeat(200_000, 1)), torch.Generator().manual_seed(3))
    assert within(values, mean_over_orders(method, token))
    assert float(values.std()) / math.sqrt(len(values)) < 0.1


def test_for_an_exact_posterior_every_order_gives_the_likelihood():
    source = sources.markov()
    method = known("mdlm", source)
    for code in itertools.product(range(3), repeat=2):
        token = torch.tensor(code)
        assert mean_over_orders(method, token) == pytest.approx(-float(source.log_joint[code]), abs=1e-9)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
@pytest.mark.parametrize("nfe", [1, 4])
def test_the_bound_of_m_steps_is_its_sum_over_hidden_sets(schedule, nfe):
    method, token = method_of(schedule=schedule), torch.tensor([1, 1, 0])
    grid = discrete.alpha_grid(schedule, nfe)
    expected = 0.0
    for alpha, reveal in zip(grid[:-1], unmask_probability(grid), strict=True):
        for size in range(1, LENGTH + 1):
            weight = (1 - alpha) ** size * alpha ** (LENGTH - size)
            for hidden in itertools.combinations(range(LENGTH), size):
                expected += float(reveal * weight * surprise(method, token, hidden)[list(hidden)].sum())
    values = method.bound(Batch(token.repeat(40_000, 1)), nfe, torch.Generator().manual_seed(5))
    assert float(values.std()) / 200 < 0.03
    assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / 200 + 1e-9


def sampler_law(method: MDLM, nfe: int) -> torch.Tensor:
    """The exact law [3, 3] of two positions after all steps, by following every state of the sampler."""
    now = torch.zeros(4, 4, dtype=torch.float64)
    now[3, 3] = 1.0
    for reveal in unmask_probability(discrete.alpha_grid(method.schedule, nfe)):
        after = torch.zeros_like(now)
        for state in itertools.product(range(4), repeat=2):
            law = method.log_probs(torch.tensor([state]))[0].exp()
            moves = []
            for place, token in enumerate(state):
                stay = torch.zeros(4, dtype=torch.float64)
                stay[token] = 1.0
                drawn = torch.cat((law[place], torch.zeros(1, dtype=torch.float64)))
                moves.append(stay if token < 3 else (1 - reveal) * stay + reveal * drawn)
            after += now[state] * torch.outer(*moves)
        now = after
    return now[:3, :3]


@pytest.mark.parametrize("nfe", [1, 2, 5])
def test_the_bound_holds_for_the_sampler_that_runs(nfe):
    method = method_of(length=2)
    law = sampler_law(method, nfe)
    assert float(law.sum()) == pytest.approx(1)
    for code in itertools.product(range(3), repeat=2):
        values = method.bound(Batch(torch.tensor(code).repeat(4000, 1)), nfe, torch.Generator().manual_seed(1))
        assert float(values.mean() + 4 * values.std() / math.sqrt(4000)) >= -float(law[code].log()) - 1e-9
    drawn = method.generate(20_000, 2, nfe, torch.Generator().manual_seed(2))
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)
    assert chisquare(counts, 20_000 * law.flatten()).pvalue > 1e-3


@pytest.mark.parametrize("nfe", [3, 5])
def test_a_strided_order_with_a_step_for_each_token_is_the_mean_over_orders(nfe):
    method, token = method_of(), torch.tensor([2, 0, 1])
    method.order = "strided"
    values = method.bound(Batch(token.repeat(40_000, 1)), nfe, torch.Generator().manual_seed(6))
    assert within(values, mean_over_orders(method, token))
    assert float(values.std()) / 200 < 0.1


def test_strided_samples_follow_the_distribution_of_the_bound():
    method = known("mdlm", sources.markov())
    method.order = "strided"
    drawn = method.generate(20_000, 2, 2, torch.Generator().manual_seed(7))  # a call for each token loses nothing
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)
    assert chisquare(counts, 20_000 * sources.markov().log_joint.exp().flatten()).pvalue > 1e-3


def test_a_strided_order_needs_equal_steps():
    with pytest.raises(InputError, match=r"order strided needs discrete\.schedule log_linear"):
        DiscreteConfig("cosine", order="strided")


def test_a_sequence_in_which_nothing_changed_is_not_evaluated_again():
    method = known("mdlm", sources.markov())
    drawn = method.generate(50, 2, 400, torch.Generator().manual_seed(0))
    assert drawn.max() < 3
    assert 50 < method.network.nfe <= 50 * 3


def test_needs_a_step():
    with pytest.raises(InputError, match="at least one network call"):
        method_of().generate(1, LENGTH, 0)
    with pytest.raises(InputError, match="at least one network call"):
        method_of().bound(Batch(torch.zeros(1, LENGTH, dtype=torch.long)), 0)

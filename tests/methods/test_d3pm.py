"""D3PM: its matrices, its floor, and the methods that it has as special cases and limits."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare
from test_mdlm import LENGTH, STATES, Table

from rdlm.config import D3PMConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.d3pm import D3PM, Multinomial, chain_levels, forward_matrices, logistic_logits
from rdlm.methods.mdlm import MDLM
from rdlm.methods.udlm import kl_divergence, marginal, posterior
from rdlm.random import Draw

CPU = torch.device("cpu")
CHOICES = [
    {"matrix": "uniform", "steps": 12},
    {"matrix": "absorbing", "steps": 12},
    {"matrix": "gauss", "steps": 12, "betas": (0.004, 0.02)},
]
every_matrix = pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: choices["matrix"])


@every_matrix
def test_rows_are_probabilities_and_levels_compose(choices):
    options = D3PMConfig(**choices)
    single = forward_matrices(options, 5)
    assert single.min() >= 0
    torch.testing.assert_close(single.sum(-1), torch.ones(single.shape[:2], dtype=torch.float64))
    fine, coarse = chain_levels(options, 5, 12, CPU), chain_levels(options, 5, 5, CPU)
    torch.testing.assert_close(fine.jump.flip(0), single)
    at = [round(12 * (1 - m / 5)) for m in range(6)]
    torch.testing.assert_close(coarse.marginal, fine.marginal[[12 - t for t in at]])
    torch.testing.assert_close(coarse.marginal[1:] @ coarse.jump, coarse.marginal[:-1])


def test_gauss_is_doubly_stochastic_and_prefers_neighbours():
    matrices = forward_matrices(D3PMConfig("gauss", steps=10), 27)
    torch.testing.assert_close(matrices, matrices.mT)
    assert (matrices[-1, 13, 13:].diff() <= 0).all()
    # the variance of all steps together does not depend on their number
    place = torch.arange(257, dtype=torch.float64) - 128
    totals = []
    for steps in (10, 40):
        end = chain_levels(D3PMConfig("gauss", steps=steps, betas=(1e-5, 1e-4)), 257, steps, CPU).marginal[0, 128]
        totals.append(float((end * place.square()).sum()))
    assert totals[0] == pytest.approx(totals[1], rel=0.02)


@every_matrix
@pytest.mark.parametrize("states", [3, 27])
def test_an_independent_source_meets_its_entropy_plus_the_prior(choices, states):
    source = sources.skewed(states)
    method = known("d3pm", source, **(choices | ({"betas": (0.5, 3.0)} if states == 3 and "betas" in choices else {})))
    law = source.log_joint.exp()
    bound = sum(float(law[x]) * expected_bound(method, torch.tensor([x]), 4) for x in range(states))
    # The sampler starts from uniform tokens, the forward process ends a little off: KL(E q(x_T | x) || uniform).
    end = law @ method._levels(4, law).marginal[0, :states]
    slack = 0.0 if choices["matrix"] == "absorbing" else float(kl_divergence(end, torch.full_like(end, 1 / len(end))))
    assert bound == pytest.approx(source.entropy + slack, abs=1e-6)
    assert -1e-9 < slack < 0.03 * source.entropy


@every_matrix
def test_samples_follow_the_source(choices):
    source = sources.skewed(27)
    method = known("d3pm", source, **(choices | {"betas": (0.02, 0.05)} if choices["matrix"] == "gauss" else choices))
    drawn = method.generate(6000, 1, 6, torch.Generator().manual_seed(5))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=27), 6000 * source.log_joint.exp()).pvalue > 1e-3


def expected_bound(method: D3PM, token: torch.Tensor, steps: int) -> float:
    """The exact sum over steps and states, by enumeration of all states of the sequence."""
    levels, total = method._levels(steps, token), float(method.prior(token[None], steps))
    states = torch.cartesian_prod(*[torch.arange(method.size)] * len(token)).view(-1, len(token))
    for m in range(steps):
        weight = torch.stack([levels.marginal[m, x, states[:, i]] for i, x in enumerate(token.tolist())]).prod(0)
        row = token.expand(len(states), -1)
        step = torch.full((len(states),), m)
        log_probs = method.log_probs(states, method.time(step, steps))
        terms = method.terms(log_probs, row, states, step, steps, None)
        total += float((weight * terms.nan_to_num().sum(-1)).sum())
    return total


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_absorbing_is_masked_diffusion_with_m_steps(steps):
    method = D3PM(RunConfig(d3pm=D3PMConfig("absorbing", steps=6)), STATES)
    masked = MDLM(RunConfig(), STATES)
    method.network = masked.network = Table(LENGTH)
    token = torch.tensor([2, 0, 1])
    found = expected_bound(method, token, steps)
    grid = discrete.alpha_grid("log_linear", steps)
    direct = masked.bound(Batch(token.repeat(40_000, 1)), steps, torch.Generator().manual_seed(1))
    assert float(grid[1]) == pytest.approx(1 / steps)
    assert abs(float(direct.mean()) - found) < 4 * float(direct.std()) / 200 + 1e-9


def test_absorbing_tends_to_continuous_masked_diffusion():
    from test_mdlm import mean_over_orders

    token, errors = torch.tensor([2, 0, 1]), []
    limit = mean_over_orders(_masked(), token)
    for steps in (4, 16, 64):
        method = D3PM(RunConfig(d3pm=D3PMConfig("absorbing", steps=steps)), STATES)
        method.network = Table(LENGTH)
        errors.append(abs(expected_bound(method, token, steps) - limit))
    assert errors[1] < errors[0] / 3 and errors[2] < errors[1] / 3  # the error is of the order 1 / T


def _masked() -> MDLM:
    method = MDLM(RunConfig(), STATES)
    method.network = Table(LENGTH)
    return method


def test_multinomial_is_uniform_d3pm_and_its_steps_are_those_of_uniform_diffusion():
    options = D3PMConfig("uniform", steps=8)
    method = D3PM(RunConfig(d3pm=options), 4)
    other = Multinomial(RunConfig(d3pm=D3PMConfig("gauss", steps=8)), 4)
    assert other.options.matrix == "uniform" and other.options.hybrid == 0
    other.network = method.network
    token = torch.randint(4, (50, 3), generator=torch.Generator().manual_seed(1))
    values = [m.bound(Batch(token), 8, torch.Generator().manual_seed(2)) for m in (method, other)]
    assert values[0].equal(values[1])
    # against the formula of udlm, which has no matrices
    levels, step = method._levels(8, token), torch.arange(50) % 8
    alpha = 1 - 4 * levels.marginal[:, 0, 1]
    state = method.noisy(token, step, 8, torch.Generator().manual_seed(3))
    log_probs = method.log_probs(state, levels.time[step])
    true = torch.nn.functional.one_hot(token, 4).double()
    q, p = (
        posterior(marginal(x, alpha[step + 1]), state, (alpha[:-1] / alpha[1:])[step]) for x in (true, log_probs.exp())
    )
    terms = method.terms(log_probs, token, state, step, 8, None)
    torch.testing.assert_close(terms, kl_divergence(q, p), atol=1e-9, rtol=0)


class Wild(torch.nn.Module):
    """Logits that are those of nothing."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.table = 2 * torch.randn(states + 1, states, generator=torch.Generator().manual_seed(1)).double()

    def forward(self, ids, time, condition=None):
        return self.table[ids] * (1 + time[:, None, None])


@every_matrix
def test_the_bound_holds_for_any_network(choices):
    method = D3PM(RunConfig(d3pm=D3PMConfig(**choices)), 4)
    method.network = Wild(4)
    levels, law = method._levels(4, torch.zeros(1)), torch.full((method.size,), 1 / method.size, dtype=torch.float64)
    if choices["matrix"] == "absorbing":
        law = torch.eye(5, dtype=torch.float64)[4]
    for m in range(4):
        after = torch.zeros_like(law)
        for state in range(method.size):
            p = method.log_probs(torch.tensor([[state]]), levels.time[[m]])[0, 0].exp()
            weight = levels.jump[m, :, state] * sum(p[k] * levels.marginal[m + 1, k] for k in range(4))
            after += law[state] * (weight / weight.sum() if law[state] else 0.0)
        law = after
    for token in range(4):
        assert expected_bound(method, torch.tensor([token]), 4) >= -math.log(float(law[token])) - 1e-9
    drawn = method.generate(20_000, 1, 4, torch.Generator().manual_seed(4))[:, 0]
    assert chisquare(torch.bincount(drawn, minlength=4), 20_000 * law[:4]).pvalue > 1e-3


def test_the_logistic_head_has_the_masses_of_bins():
    output = torch.tensor([[[0.3, 1.0]]], dtype=torch.float64)
    state = torch.tensor([[6]])
    found = torch.softmax(logistic_logits(output, state, 9), -1)[0, 0]
    location, steepness = math.tanh(0.3 + 2 * 6 / 8 - 1), math.exp(1.0)
    edges = torch.linspace(-1 - 1 / 8, 1 + 1 / 8, 10, dtype=torch.float64)
    mass = torch.sigmoid(steepness * (edges - location)).diff()
    torch.testing.assert_close(found, mass / mass.sum())
    far = logistic_logits(torch.tensor([[[0.0, -60.0]]], dtype=torch.float64), state, 9)
    assert far.max().isfinite() and not far.isnan().any()


def test_the_hybrid_loss_adds_cross_entropy_and_its_gradient_is_finite():
    token = Batch(torch.randint(4, (16, 3), generator=torch.Generator().manual_seed(0)))
    losses = []
    for hybrid in (0.0, 0.5):
        method = D3PM(RunConfig(d3pm=D3PMConfig("absorbing", steps=6, hybrid=hybrid)), 4)
        loss = method.loss(token, Draw(0, 0))
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in method.network.parameters())
        losses.append(loss.item())
    assert losses[1] - losses[0] == pytest.approx(6 * 0.5 * math.log(4), rel=1e-5)  # an untrained network is uniform


def test_matrices_that_are_too_large_are_refused():
    with pytest.raises(InputError, match="use at most 672 steps"):
        D3PM(RunConfig(d3pm=D3PMConfig("absorbing")), 315)
    with pytest.raises(InputError, match="use mdlm or udlm"):
        D3PM(RunConfig(d3pm=D3PMConfig(steps=2)), 30_522)
    with pytest.raises(InputError, match=r"d3pm\.betas must be positive"):
        D3PMConfig(betas=(0.0, 1.0))

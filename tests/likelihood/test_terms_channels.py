"""Channels that have other names elsewhere: erasure is masked diffusion, Gaussian observations are BFN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.sources import skewed, uniform
from rdlm.likelihood.continuous import continuous
from rdlm.likelihood.estimators import PROBABILITIES, Problem, path_terms
from rdlm.likelihood.terms import drift_error, mixture_excess, step_terms
from rdlm.methods.mdlm import MDLM
from rdlm.process.exact import fresh_law
from rdlm.process.kernel import Chain, step_log_density
from rdlm.process.order import Order, TokenSteps
from rdlm.process.path import joint_posterior, masked_path
from rdlm.process.schedule import Geometric, Grid, uniform_in_time
from rdlm.process.tokens import Codes

S = Geometric().total


# -- erasure -----------------------------------------------------------------------------------------------------------

V, LENGTH = 5, 6


class Network(nn.Module):
    """Logits in float64 that depend on all visible ids; the id V is the mask."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(LENGTH, V + 1, LENGTH, V, generator=generator, dtype=torch.float64)

    def forward(self, ids: Tensor, *others: object) -> Tensor:
        """Return the sum over positions of what each id says about all others."""
        parts = self.table[torch.arange(LENGTH), ids]  # [B, L, L, V]
        return parts.sum(1)


def masked_diffusion() -> MDLM:
    made = MDLM(RunConfig(model=TransformerConfig(width=8, layers=1, heads=2)), V)
    made.network = Network()
    return made


@pytest.mark.parametrize("codes", [None, Codes(V, 3, torch.Generator().manual_seed(1))], ids=["vertices", "codes"])
@pytest.mark.parametrize("order", ["random", "strided", "left_to_right"])
@pytest.mark.parametrize("nfe", [1, 4, 8])
def test_one_step_per_position_is_masked_diffusion(order: Order, nfe: int, codes: Codes | None) -> None:
    """Along a path, the sum of the terms is that of `-log p(token | visible tokens)` of the masked network, to 1e-9."""
    steps, mdlm = TokenSteps(nfe, 1, order), masked_diffusion()
    path = masked_path(V, S, "brownian", codes)
    chain = Chain(path, uniform_in_time(Geometric(), 1), "mixture", steps)
    token = torch.randint(V, (7, LENGTH), generator=torch.Generator().manual_seed(2))

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        waiting = (state[..., -1] - 1).abs() < 1e-6
        ids = torch.where(waiting, V, path.bridge.tokens.cosines(state).argmax(-1))
        return torch.log_softmax(mdlm.network(ids) + path.bridge.log_likelihood(state, remaining), -1)

    found = path_terms(posterior, chain, token, torch.Generator().manual_seed(3), torch.float64)
    offsets = steps.offsets(7, LENGTH, torch.Generator().manual_seed(3))
    for step in range(nfe):
        log_probs = mdlm.log_probs(torch.where(offsets < step, token, V))
        expected = -log_probs.gather(-1, token[..., None])[..., 0] * (offsets == step)
        torch.testing.assert_close(found[step], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_step_of_the_bound_has_the_weight_of_masked_diffusion(step: int) -> None:
    """One stratum of the two estimators, with the same positions masked: 1/(M - m) times the masked cross-entropy."""
    steps, mdlm, path = TokenSteps(4, 1, "strided"), masked_diffusion(), masked_path(V, S)
    chain = Chain(path, uniform_in_time(Geometric(), 1), "mixture", steps)
    token = torch.randint(V, (3, LENGTH), generator=torch.Generator().manual_seed(4))

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        ids = torch.where(state[..., -1] > 0.5, V, state[..., :V].argmax(-1))
        return torch.log_softmax(mdlm.network(ids), -1)

    law = fresh_law(path, chain.grid)
    found = step_terms(posterior, chain, law, token, torch.full((3,), step), torch.Generator().manual_seed(5)).sum(-1)
    masked = steps.offsets(3, LENGTH, torch.Generator().manual_seed(5)) >= step
    expected = mdlm.masked_cross_entropy(token, masked, None) / (4 - step)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


# -- Bayesian flow networks --------------------------------------------------------------------------------------------

K, BETA = 4, 3.0
"""Classes, and the accuracy beta(1) of the quadratic schedule beta(t) = beta(1) t^2."""


def bfn_output(theta: Tensor) -> Tensor:
    """Return log p_O(. | theta), some function of the logits of the input distribution, as a network would give it."""
    turn = torch.randn(K, K, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    return torch.log_softmax(theta + torch.tanh(torch.softmax(theta, -1) @ turn), -1)


def bfn_paths(n: int, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return classes, sender samples y_1 .. y_n and n-step losses, as the paper defines them, and -log p_O at t = 1.

    The sender is N(alpha (K e_x - 1), alpha K I) with alpha_i = beta(1) (2 i - 1) / n^2; the receiver is the mixture of
    the senders under p_O; the loss is their divergence, here by the sample.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(K, (count,), generator=generator)
    sender_means = K * torch.eye(K, dtype=torch.float64) - 1
    theta = torch.zeros(count, K, dtype=torch.float64)
    samples, losses = [], []
    for i in range(1, n + 1):
        alpha = BETA * (2 * i - 1) / n**2
        noise = torch.randn(count, K, generator=generator, dtype=torch.float64)
        y = alpha * sender_means[x] + math.sqrt(alpha * K) * noise
        log_senders = -(y[:, None] - alpha * sender_means).square().sum(-1) / (2 * alpha * K)  # [count, K]
        own = log_senders.gather(-1, x[:, None])[:, 0]
        losses.append(own - torch.logsumexp(log_senders + bfn_output(theta), -1))
        theta = theta + y
        samples.append(y)
    reconstruction = -bfn_output(theta).gather(-1, x[:, None])[:, 0]
    return x, torch.stack(samples), torch.stack(losses), reconstruction


def bfn_grid(n: int) -> Grid:
    """Return the grid whose strengths are K beta(i / n)."""
    strength = K * BETA * (torch.arange(n + 1, dtype=torch.float64) / n).square()
    return Grid(torch.cat([1 / (strength + 1 / S), torch.zeros(1, dtype=torch.float64)]))


def posterior(state: Tensor, remaining: Tensor) -> Tensor:
    return bfn_output(state / remaining[..., None])


@pytest.mark.parametrize("n", [1, 2, 10])
def test_terms_are_the_n_step_losses_of_bayesian_flow_networks(n: int) -> None:
    """With the same observations, step by step, to 1e-9; theta differs from u by a constant, which cancels."""
    token, samples, losses, reconstruction = bfn_paths(n, 50, seed=7)
    chain = Chain(masked_path(K, S, "gaussian"), bfn_grid(n))
    alpha = BETA * (2 * torch.arange(1, n + 1, dtype=torch.float64) - 1) / n**2
    u = torch.zeros(50, K, dtype=torch.float64)
    for step in range(n):
        state = chain.grid.remaining[step] * u
        u = u + samples[step] + alpha[step]  # the sender's mean is alpha K e_x - alpha
        after = chain.grid.remaining[step + 1] * u
        coefficients = chain.coefficients(torch.full((50,), step), state)
        density = step_log_density(chain.path.bridge, state, after - state, coefficients)
        log_probs = posterior(state, torch.full((50,), float(chain.grid.remaining[step]), dtype=torch.float64))
        torch.testing.assert_close(mixture_excess(density, log_probs, token), losses[step], rtol=1e-9, atol=1e-9)
    last = posterior(after, torch.full((50,), float(chain.grid.remaining[n]), dtype=torch.float64))
    torch.testing.assert_close(-last.gather(-1, token[:, None])[:, 0], reconstruction, rtol=1e-9, atol=1e-9)


def test_the_bound_of_the_chain_is_their_loss() -> None:
    """In the mean, by the estimator of paths."""
    n, count = 5, 20_000
    token, _, losses, reconstruction = bfn_paths(n, count, seed=8)
    theirs = losses.sum(0) + reconstruction
    chain = Chain(masked_path(K, S, "gaussian"), bfn_grid(n))
    found = path_terms(posterior, chain, token[:, None], torch.Generator().manual_seed(9), torch.float64)
    ours = found.sum((0, 2))
    error = math.sqrt((float(theirs.var()) + float(ours.var())) / count)
    assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=4 * error)
    assert error < 0.02


@pytest.mark.parametrize("time", [0.1, 0.5, 1.0])
def test_the_continuous_time_loss_is_the_integrand_of_drift_errors(time: float) -> None:
    """K beta(1) t |e_x - e_hat|^2 dt = |.|^2 da / 2 with a = K beta(1) t^2, at the same states."""
    generator = torch.Generator().manual_seed(10)
    u = torch.randn(30, K, generator=generator, dtype=torch.float64)
    x = torch.randint(K, (30,), generator=generator)
    remaining = torch.full((30,), 1 / (K * BETA * time**2 + 1 / S), dtype=torch.float64)
    state = remaining[:, None] * u
    log_probs = posterior(state, remaining)
    theirs = K * BETA * time * (torch.eye(K).double()[x] - log_probs.exp()).square().sum(-1)
    chain = Chain(masked_path(K, S, "gaussian"), bfn_grid(4), "drift")
    error = drift_error(chain, state, x, remaining, log_probs)
    torch.testing.assert_close(error / 2 * 2 * K * BETA * time, theirs, rtol=1e-9, atol=1e-12)


def test_n_step_losses_tend_to_the_continuous_time_loss() -> None:
    """The difference to L_inf = K beta(1) E t |e_x - e_hat|^2 falls like 1/n."""
    count, nodes = 60_000, 400
    generator = torch.Generator().manual_seed(11)
    limit = 0.0
    for time in (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes:
        x = torch.randint(K, (count // 20,), generator=generator)
        strength = K * BETA * float(time) ** 2
        noise = torch.randn(len(x), K, generator=generator, dtype=torch.float64)
        u = strength * torch.eye(K).double()[x] + math.sqrt(strength) * noise
        error = (torch.eye(K).double()[x] - bfn_output(u).exp()).square().sum(-1).mean()
        limit += float(K * BETA * time * error) / nodes
    gaps = [float(bfn_paths(n, count, seed=12)[2].sum(0).mean()) - limit for n in (2, 8, 64)]
    assert abs(gaps[2]) < 0.02 and abs(gaps[1]) < 0.6 * abs(gaps[0]), gaps


# -- area theorem ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [None, Codes(27, 8, torch.Generator().manual_seed(13))], ids=["vertices", "codes"])
def test_the_bound_is_half_the_area_under_the_restoration_error(codes: Codes | None) -> None:
    """With the exact posterior, `1/2 int E |c_k - sum_l p_l c_l|^2 da` is the entropy, by `continuous` and by hand."""
    source, path = skewed(27), masked_path(27, S, "gaussian", codes)
    token = source.draw(400, torch.Generator().manual_seed(14)).expand(-1, 2)
    log_prior = source.log_prior[0].expand(1, 27)

    def model(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        evidence = path.bridge.log_likelihood(state, remaining)
        return torch.log_softmax(evidence + log_prior.to(evidence), -1)

    problem = Problem(token, (Chain(path, uniform_in_time(Geometric(), 64)),), (1.0,), model)
    found = continuous(problem, 20_000, torch.Generator().manual_seed(15)).total
    area = _area(path.bridge.tokens.at(torch.arange(27), torch.zeros(27, path.bridge.dimension)), source.log_prior[0])
    surprise = -float(source.log_prior[0][token].mean())  # of these sequences
    assert found.value / 2 == pytest.approx(surprise, abs=2 * found.stderr + 0.02)
    assert area == pytest.approx(source.entropy, rel=0.02)


def _area(points: Tensor, log_prior: Tensor, draws: int = 2000) -> float:
    """Return the area by the trapezoidal rule in log-strength, from definitions alone."""
    generator = torch.Generator().manual_seed(16)
    strengths = torch.logspace(-3, 3, 160, dtype=torch.float64)
    points, total, values = points.double(), 0.0, []
    for strength in strengths:
        k = torch.multinomial(log_prior.exp(), draws, replacement=True, generator=generator)
        noise = torch.randn(draws, points.shape[1], generator=generator, dtype=torch.float64)
        u = strength * points[k] + strength.sqrt() * noise
        mean = torch.softmax(log_prior + u @ points.T, -1) @ points
        values.append(float((points[k] - mean).square().sum(-1).mean()))
    for one, other, left, right in zip(values, values[1:], strengths, strengths[1:], strict=False):
        total += (one + other) / 2 * float(right - left) / 2
    return total + values[0] * float(strengths[0]) / 2


def test_a_gaussian_chain_of_one_token_is_exact() -> None:
    """With the exact posterior every path's sum is `-log p(token)`: no slack at all with the mixture kernel."""
    source, path = uniform(3), masked_path(3, S, "gaussian", Codes(3, 5, torch.Generator().manual_seed(17)))
    token = source.draw(200, torch.Generator().manual_seed(18))
    chain = Chain(path, uniform_in_time(Geometric(), 6))

    def exact(state: Tensor, remaining: Tensor) -> Tensor:
        return joint_posterior(path, source.log_joint, state, remaining)

    found = path_terms(exact, chain, token, torch.Generator().manual_seed(19), torch.float64).sum((0, 2))
    torch.testing.assert_close(found, torch.full((200,), math.log(3), dtype=torch.float64), rtol=1e-6, atol=0)


def test_sequences_of_a_large_vocabulary_are_evaluated_a_few_at_a_time() -> None:
    """Sequences whose log-probabilities take gigabytes together are not in memory together."""
    path = masked_path(30_522, S, "gaussian", Codes(30_522, 16, torch.Generator().manual_seed(1)))
    many = Problem(
        torch.zeros(400, 64, dtype=torch.long), (Chain(path, uniform_in_time(Geometric(), 64)),), (1.0,), _no
    )
    assert 1 <= many.rows_at_once * 64 * 30_522 <= PROBABILITIES
    longer = replace(many, token=torch.zeros(4, 512, dtype=torch.long))
    assert longer.rows_at_once == 1
    few = replace(many, chains=(Chain(masked_path(27, S, "gaussian"), uniform_in_time(Geometric(), 64)),))
    assert few.rows_at_once >= 16


def _no(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
    raise AssertionError("no network is needed")

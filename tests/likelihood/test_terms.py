"""The bound's terms: against dense closed forms and quadrature, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rdlm.geometry import sphere
from rdlm.likelihood.terms import kernel_terms, mixture_excess, position_terms, renoise, step_terms
from rdlm.process.bridge import Bridge, BridgeKind
from rdlm.process.kernel import Chain, step_log_density, token_step_parts
from rdlm.process.layout import Layout
from rdlm.process.order import TokenSteps
from rdlm.process.path import masked_path, switching_path
from rdlm.process.schedule import Geometric, StepCoefficients, uniform_in_time

S = Geometric().total
KINDS: tuple[BridgeKind, ...] = ("brownian", "logarithm")
every_kind = pytest.mark.parametrize("kind", KINDS)
STEP = 2


def dense_pulls(bridge: Bridge, state: Tensor, remaining: float) -> Tensor:
    """Return every token's pull [n, v, d] by the sphere's own logarithm, rescaled to the bridge's length."""
    vertices = torch.eye(bridge.dimension, dtype=state.dtype)[: bridge.vocabulary]
    logarithm = sphere.logarithm(state[:, None].expand(-1, bridge.vocabulary, -1), vertices.expand(len(state), -1, -1))
    angle = logarithm.norm(dim=-1, keepdim=True)
    return logarithm * bridge.pull(angle, remaining) / angle


def situation(vocabulary: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return states, tokens and log-probabilities, none of them special."""
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((count,), vocabulary + 1, generator, torch.float64)
    logits = torch.randn(count, vocabulary, generator=generator, dtype=torch.float64)
    return state, torch.arange(count) % vocabulary, torch.log_softmax(logits, -1)


@every_kind
@pytest.mark.parametrize("vocabulary", [2, 3, 6])
def test_drift_term_is_the_divergence_of_two_gaussians(vocabulary: int, kind: BridgeKind) -> None:
    chain = Chain(masked_path(vocabulary, S, kind), uniform_in_time(Geometric(), 4), "drift")
    bridge, grid = chain.path.bridge, chain.grid
    state, token, log_probs = situation(vocabulary, 12)
    found = kernel_terms(chain, state, token, torch.full((12,), STEP), log_probs)
    pulls = dense_pulls(bridge, state, grid.remaining[STEP].item())
    miss = (log_probs.exp()[..., None] * pulls).sum(1) - pulls[torch.arange(12), token]
    natural = 1 / grid.remaining[STEP + 1] - 1 / grid.remaining[STEP]  # g^2 / s2
    torch.testing.assert_close(found, natural / 2 * miss.square().sum(-1), rtol=1e-8, atol=1e-10)


def quadrature_divergence(chain: Chain, state: Tensor, token: int, log_probs: Tensor) -> float:
    """Return KL(q_k || sum_l p_l q_l) in the tangent plane at one state of S^2, by Gauss-Hermite."""
    grid, bridge = chain.grid, chain.path.bridge
    pulls = grid.gain[STEP] * dense_pulls(bridge, state[None], grid.remaining[STEP].item())[0]  # [v, 3]
    variance = grid.variance[STEP].item()
    frame = torch.linalg.qr(torch.cat([state[:, None], torch.eye(3, dtype=torch.float64)[:, :2]], 1))[0][:, 1:]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid_nodes = torch.cartesian_prod(torch.from_numpy(nodes), torch.from_numpy(nodes))
    mass = torch.cartesian_prod(torch.from_numpy(weights), torch.from_numpy(weights)).prod(-1) / (2 * math.pi)
    centres = pulls @ frame  # [v, 2]
    step = centres[token] + math.sqrt(variance) * grid_nodes
    density = -(step[:, None] - centres).square().sum(-1) / (2 * variance)
    integrand = density[:, token] - torch.logsumexp(density + log_probs, -1)
    return float((mass * integrand).sum())


@every_kind
def test_mixture_term_is_the_divergence_from_the_mixture(kind: BridgeKind) -> None:
    chain = Chain(masked_path(2, S, kind), uniform_in_time(Geometric(), 8), "mixture")
    count = 40_000
    # Near the start, where a step tells the two tokens apart, but not for certain.
    start = chain.path.bridge.start.point(torch.float64).expand(4, -1)
    near = sphere.exponential(start, 0.1 * sphere.tangent_normal(start, torch.Generator().manual_seed(1)))
    _, tokens, log_probabilities = situation(2, 4)
    for row, (state, token, log_probs) in enumerate(zip(near, tokens, log_probabilities, strict=True)):
        terms = kernel_terms(
            chain,
            state.expand(count, -1),
            token.expand(count),
            torch.full((count,), STEP),
            log_probs.expand(count, -1),
            torch.Generator().manual_seed(row),
        )
        expected = quadrature_divergence(chain, state, int(token), log_probs)
        assert 0 < expected < -0.8 * log_probs[token].item()  # better than naming the token
        error = terms.std().item() / math.sqrt(count)
        assert terms.mean().item() == pytest.approx(expected, abs=4 * error)
        assert error < 0.02 * expected


@pytest.mark.parametrize("kernel", ["mixture", "drift"])
def test_certain_and_right_costs_nothing(kernel: str) -> None:
    chain = Chain(masked_path(5, S), uniform_in_time(Geometric(), 4), "mixture" if kernel == "mixture" else "drift")
    state, token, _ = situation(5, 10)
    certain = torch.nn.functional.one_hot(token, 5).double().log()
    terms = kernel_terms(chain, state, token, torch.full((10,), STEP), certain)
    torch.testing.assert_close(terms, torch.zeros_like(terms), rtol=0, atol=1e-9)


def test_mixture_excess_by_hand() -> None:
    density = torch.tensor([[0.0, math.log(3.0)]])
    log_probs = torch.tensor([[0.25, 0.75]]).log()
    found = mixture_excess(density, log_probs, torch.tensor([1]))
    assert found.item() == pytest.approx(math.log(3 / (0.25 + 0.75 * 3)))


def test_every_position_gets_the_term_of_its_own_step() -> None:
    """Kernel before the switch, switch term, kernel after it, decode: all four in one batch."""
    grid = uniform_in_time(Geometric(), 6)
    chain = Chain(switching_path(3, S, float(grid.remaining[3])), grid, "drift")
    assert chain.switch == 2
    state, token, log_probs = situation(3, 6)
    local = torch.arange(6)
    terms = position_terms(
        chain, state[None], token[None], local[None], log_probs[None], torch.Generator().manual_seed(1)
    )[0]
    for step in (0, 1, 3, 4):
        at = slice(step, step + 1)
        alone = kernel_terms(chain, state[at], token[at], local[at], log_probs[at])
        torch.testing.assert_close(terms[at], alone)
    assert terms[5].item() == pytest.approx(-log_probs[5, token[5]].item())
    density = renoise(chain, token[2:3], state.dtype, torch.Generator().manual_seed(1))[1]
    torch.testing.assert_close(terms[2:3], mixture_excess(density, log_probs[2:3], token[2:3]))


def test_renoised_states_have_the_second_law_and_the_density_its_path() -> None:
    """The states are those of the masked chain; the density ratio has mean 1 under the other token's path."""
    grid = uniform_in_time(Geometric(), 8)
    chain = Chain(switching_path(3, S, float(grid.remaining[5])), grid)
    count, generator = 20_000, torch.Generator().manual_seed(2)
    token = torch.zeros(count, dtype=torch.long)
    state, density = renoise(chain, token, torch.float64, generator)
    drawn = chain.law(count, generator).draw_at_level(token, torch.tensor(5), generator).double()
    for moment in (lambda x: x, torch.square):
        one, other = moment(state), moment(drawn)
        error = ((one.var(0) + other.var(0)) / count).sqrt()
        assert bool(((one.mean(0) - other.mean(0)).abs() < 4.5 * error + 1e-9).all())
    ratio = (density[:, 1] - density[:, 0]).exp()
    assert ratio.mean().item() == pytest.approx(1, abs=4 * ratio.std().item() / math.sqrt(count))


def test_resting_positions_add_nothing() -> None:
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 2), asynchronous=TokenSteps(6, 2, "left_to_right"))
    law = chain.law(64)
    token = torch.zeros(6, 3, dtype=torch.long)

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        assert remaining.shape == (6, 3)
        return torch.full((6, 3, 3), -math.log(3.0))

    terms = step_terms(posterior, chain, law, token, torch.arange(6))
    # Offsets 0, 2, 4: at common step m only the position of lane m // 2 moves, and decodes at odd m.
    assert torch.equal(terms != 0, torch.eye(3, dtype=torch.bool).repeat_interleave(2, 0))
    assert terms[1::2].diagonal().tolist() == pytest.approx([math.log(3)] * 3)


def test_posterior_sees_each_position_at_its_own_noise() -> None:
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 3), asynchronous=TokenSteps(7, 3, "left_to_right"))
    seen: list[tuple[Tensor, Tensor]] = []

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        seen.append((state, remaining))
        return torch.full((1, 2, 3), -math.log(3.0))

    token = torch.tensor([[1, 2]])
    step_terms(posterior, chain, chain.law(64), token, torch.tensor([3]))
    state, remaining = seen[0]
    assert remaining.tolist()[0] == pytest.approx([0.0, S])  # the first has finished, the second waits
    torch.testing.assert_close(state[0], torch.eye(4)[[1, 3]], rtol=0, atol=1e-6)


def test_a_switch_in_the_decode_step_is_none() -> None:
    """Where the switch falls into the last step nothing is re-noised: the token is named there anyway."""
    grid = uniform_in_time(Geometric(), 4)
    chain = Chain(switching_path(3, S, float(grid.remaining[3]) / 2), grid, "drift")
    assert chain.path.switch_step(grid) == 3 and chain.switch == -1
    state, token, log_probs = situation(3, 4)
    terms = position_terms(chain, state[None], token[None], torch.full((1, 4), 3), log_probs[None])
    torch.testing.assert_close(terms[0], -log_probs[torch.arange(4), token])


def test_digits_of_a_token_move_together() -> None:
    """With a V-way head the mixture runs over whole tokens, its densities summed over their digits."""
    layout = Layout(5, 2)
    chain = Chain(masked_path(2, S), uniform_in_time(Geometric(), 4), "mixture", layout=layout)
    generator = torch.Generator().manual_seed(3)
    token = torch.arange(5)
    state = sphere.uniform((5, 3), 3, generator, torch.float64)
    log_probs = torch.log_softmax(torch.randn(5, 5, generator=generator, dtype=torch.float64), -1)
    local = torch.full((5,), STEP)
    found = kernel_terms(chain, state, token, local, log_probs, torch.Generator().manual_seed(4))
    # The same draw, by a loop over tokens and their digits.
    digit = layout.encode(token)
    coefficients = StepCoefficients(*chain.grid.coefficient_table[STEP].expand(5, 3, 3).unbind(-1))
    pull, noise = token_step_parts(chain.path.bridge, state, digit, coefficients, torch.Generator().manual_seed(4))
    expected = torch.zeros(5, dtype=torch.float64)
    for sign in (1, -1):
        density = step_log_density(chain.path.bridge, state, pull + sign * noise, coefficients)
        whole = torch.stack([sum(density[:, j, digit[k, j]] for j in range(3)) for k in range(5)], -1)
        expected += (whole.diagonal() - torch.logsumexp(whole + log_probs, -1)) / 2
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_drift_of_digits_is_that_of_their_marginals() -> None:
    layout = Layout(4, 2)
    chain = Chain(masked_path(2, S), uniform_in_time(Geometric(), 4), "drift", layout=layout)
    single = Chain(masked_path(2, S), uniform_in_time(Geometric(), 4), "drift")
    generator = torch.Generator().manual_seed(5)
    state = sphere.uniform((4, 2), 3, generator, torch.float64)
    law = torch.softmax(torch.randn(4, 4, generator=generator, dtype=torch.float64), -1)
    token, local = torch.arange(4), torch.full((4,), STEP)
    found = kernel_terms(chain, state, token, local, law.log())
    square = law.view(4, 2, 2)
    high, low = square.sum(2).log(), square.sum(1).log()
    expected = kernel_terms(single, state[:, 0], token // 2, local, high)
    expected += kernel_terms(single, state[:, 1], token % 2, local, low)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

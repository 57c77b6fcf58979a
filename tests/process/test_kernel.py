"""The chain's steps: their moments, and their densities against dense Gaussians of the tangent space."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, BridgeKind, uniform_start
from rdlm.process.kernel import (
    Chain,
    draw_token_step,
    mean_step_log_density,
    step_log_density,
    token_step_parts,
)
from rdlm.process.order import TokenSteps
from rdlm.process.path import masked_path, switching_path
from rdlm.process.schedule import Geometric, StepCoefficients, uniform_in_time

S = Geometric().total
KINDS: tuple[BridgeKind, ...] = ("brownian", "logarithm")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_size = pytest.mark.parametrize("vocabulary", [2, 3, 6])
NOISE, GAIN, VARIANCE = 0.02, 0.3, 0.011


def coefficients(count: int) -> StepCoefficients:
    return StepCoefficients(*(torch.full((count,), v, dtype=torch.float64) for v in (NOISE, GAIN, VARIANCE)))


def dense_pulls(bridge: Bridge, state: Tensor) -> Tensor:
    """Return every token's pull [n, v, d] by the sphere's own logarithm, rescaled to the bridge's length."""
    vertices = torch.eye(bridge.dimension, dtype=state.dtype)[: bridge.vocabulary]
    logarithm = sphere.logarithm(state[:, None].expand(-1, bridge.vocabulary, -1), vertices.expand(len(state), -1, -1))
    angle = logarithm.norm(dim=-1, keepdim=True)
    return logarithm * bridge.pull(angle, NOISE) / angle


def states(bridge: Bridge, count: int) -> Tensor:
    return sphere.uniform((count,), bridge.dimension, torch.Generator().manual_seed(0), torch.float64)


@every_kind
@every_size
def test_token_step_has_the_moments_of_its_bridge(vocabulary: int, kind: BridgeKind) -> None:
    bridge, count = Bridge(uniform_start(vocabulary), S, kind), 60_000
    state = states(bridge, 1).expand(count, -1)
    token = torch.full((count,), 1)
    step = draw_token_step(bridge, state, token, coefficients(count), torch.Generator().manual_seed(1))
    assert float((step * state).sum(-1).abs().max()) < 1e-12
    wanted = GAIN * dense_pulls(bridge, state[:1])[0, 1]
    error = 5 * math.sqrt(VARIANCE / count)
    torch.testing.assert_close(step.mean(0), wanted, rtol=0, atol=error)
    tangent = torch.eye(bridge.dimension, dtype=torch.float64) - torch.outer(state[0], state[0])
    covariance = (step - wanted).T @ (step - wanted) / count
    torch.testing.assert_close(covariance, VARIANCE * tangent, rtol=0, atol=5 * VARIANCE * math.sqrt(2 / count))


@every_kind
def test_mean_pull_is_the_mean_of_the_pulls(kind: BridgeKind) -> None:
    bridge = Bridge(uniform_start(4), S, kind)
    state = states(bridge, 7)
    probability = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    found = bridge.mean_pull(state, probability.expand(7, -1), coefficients(7).remaining)
    wanted = (probability[:, None] * dense_pulls(bridge, state)).sum(1)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_parts_add_up_to_the_step() -> None:
    bridge, state, token = Bridge(uniform_start(3), S), states(Bridge(uniform_start(3), S), 7), torch.arange(7) % 3
    pull, noise = token_step_parts(bridge, state, token, coefficients(7), torch.Generator().manual_seed(3))
    step = draw_token_step(bridge, state, token, coefficients(7), torch.Generator().manual_seed(3))
    torch.testing.assert_close(pull + noise, step)


def gaussian(step: Tensor, mean: Tensor) -> Tensor:
    return -(step - mean).square().sum(-1) / (2 * VARIANCE)


@every_kind
@every_size
def test_step_density_is_the_gaussian_of_the_tangent_space(vocabulary: int, kind: BridgeKind) -> None:
    bridge = Bridge(uniform_start(vocabulary), S, kind)
    state = states(bridge, 20)
    step = 0.3 * sphere.tangent_normal(state, torch.Generator().manual_seed(4))
    found = step_log_density(bridge, state, step, coefficients(20))
    dense = gaussian(step[:, None], GAIN * dense_pulls(bridge, state)) - gaussian(step, torch.zeros_like(step))[:, None]
    torch.testing.assert_close(found, dense, rtol=1e-8, atol=1e-9)


@every_kind
@every_size
def test_mean_step_density_is_the_gaussian_of_the_mean_pull(vocabulary: int, kind: BridgeKind) -> None:
    bridge = Bridge(uniform_start(vocabulary), S, kind)
    state = states(bridge, 20)
    generator = torch.Generator().manual_seed(5)
    step = 0.3 * sphere.tangent_normal(state, generator)
    probability = torch.softmax(torch.randn(20, vocabulary, generator=generator, dtype=torch.float64), -1)
    found = mean_step_log_density(bridge, state, step, probability, coefficients(20))
    mean = GAIN * (probability[..., None] * dense_pulls(bridge, state)).sum(1)
    dense = gaussian(step, mean) - gaussian(step, torch.zeros_like(step))
    torch.testing.assert_close(found, dense, rtol=1e-8, atol=1e-9)


@every_kind
def test_both_densities_agree_on_a_certain_token(kind: BridgeKind) -> None:
    bridge = Bridge(uniform_start(3), S, kind)
    state = states(bridge, 5)
    step = 0.1 * sphere.tangent_normal(state, torch.Generator().manual_seed(6))
    certain = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(5, -1)
    one = mean_step_log_density(bridge, state, step, certain, coefficients(5))
    torch.testing.assert_close(one, step_log_density(bridge, state, step, coefficients(5))[:, 1])


def test_nfe_is_that_of_the_token_schedule() -> None:
    grid = uniform_in_time(Geometric(), 4)
    assert Chain(masked_path(3, S), grid).nfe == 4
    chain = Chain(masked_path(3, S), grid, "drift", TokenSteps(16, 4))
    assert chain.nfe == 16 and chain.token_steps.steps == 4


def test_law_of_a_switching_chain_changes_its_start() -> None:
    grid = uniform_in_time(Geometric(), 10)
    chain = Chain(switching_path(3, S, float(grid.remaining[4]) + 1e-6), grid)
    law = chain.law(4000, torch.Generator().manual_seed(7))
    assert chain.switch == 3
    token, generator = torch.zeros(4000, dtype=torch.long), torch.Generator().manual_seed(8)
    first, last = (law.draw_at_level(token, torch.tensor(level), generator) for level in (3, 4))
    # Before the switch the mask is a coordinate like others, after it the state is near the mask's vertex.
    assert first[:, -1].mean().item() == pytest.approx(first[:, 1].mean().item(), abs=0.02)
    assert last[:, -1].mean().item() > 0.8 and abs(last[:, 1].mean().item()) < 0.02
    mixed = law.draw_at_level(token[:2], torch.tensor([3, 4]), generator)
    assert mixed[1, -1] > mixed[0, -1]


def test_token_schedule_with_other_steps_than_the_grid_is_refused() -> None:
    with pytest.raises(InputError, match="token schedule of 3 steps needs a grid of as many, got 4"):
        Chain(masked_path(3, S), uniform_in_time(Geometric(), 4), "mixture", TokenSteps(8, 3))


def test_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'mixture'"):
        Chain(masked_path(3, S), uniform_in_time(Geometric(), 4), "mixtures")  # type: ignore[arg-type]

"""Bridges: pulls against derivatives, drifts against dense sums, and the range in which the expansion holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import (
    EXPANSION_RANGE,
    Bridge,
    BridgeKind,
    masked_start,
    uniform_start,
)

S = 0.03756
KINDS: tuple[BridgeKind, ...] = ("brownian", "logarithm")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_size = pytest.mark.parametrize("vocabulary", [2, 3, 27])


def points(vocabulary: int, count: int, seed: int = 0) -> Tensor:
    """Return random states in float64."""
    return sphere.uniform((count,), vocabulary + 1, torch.Generator().manual_seed(seed), torch.float64)


def states_at(angle: Tensor, vocabulary: int) -> Tensor:
    """Return states at these angles from token 0 towards the mask."""
    state = torch.zeros(*angle.shape, vocabulary + 1, dtype=angle.dtype)
    state[..., 0], state[..., -1] = torch.cos(angle), torch.sin(angle)
    return state


@every_size
@pytest.mark.parametrize("remaining", [S, 0.01, 1e-3, 1e-4])
def test_brownian_pull_is_the_slope_of_the_evidence(vocabulary: int, remaining: float) -> None:
    """pull = - B d/dtheta log h, Eqs. (25) and (26), by autograd in float64."""
    bridge = Bridge(masked_start(vocabulary), S)
    angle = torch.linspace(0.05, 2.9, 40, dtype=torch.float64, requires_grad=True)
    evidence = bridge.log_likelihood(states_at(angle, vocabulary), remaining)[..., 0]
    (slope,) = torch.autograd.grad(evidence.sum(), angle)
    torch.testing.assert_close(bridge.pull(angle, remaining), -remaining * slope, rtol=1e-6, atol=1e-9)


@every_size
def test_brownian_pull_is_that_of_the_leading_formula_and_one_more_term(vocabulary: int) -> None:
    bridge, n = Bridge(masked_start(vocabulary), S), vocabulary
    angle = torch.linspace(0.1, 2.5, 30, dtype=torch.float64)
    leading = angle - S * (n - 1) / 2 * (1 / angle - 1 / torch.tan(angle))
    correction = (bridge.pull(angle, S) - leading).abs() / S**2
    # The next term: h (h - 1) / 2 times the slope of (theta cot theta - 1) / theta^2; nothing at n = 3.
    half = (n - 1) / 2
    curve = [(a, (a / math.tan(a) - 1) / a**2) for a in (angle - 1e-5).tolist()]
    after = [(a / math.tan(a) - 1) / a**2 for a in (angle + 1e-5).tolist()]
    slope = [(b - c) / 2e-5 for (_, c), b in zip(curve, after, strict=True)]
    expected = torch.tensor([abs(half * (half - 1) / 2 * s) for s in slope], dtype=torch.float64)
    torch.testing.assert_close(correction, expected, rtol=1e-4, atol=1e-6)


def test_logarithm_pull_is_the_angle() -> None:
    bridge = Bridge(masked_start(5), S, "logarithm")
    angle = torch.linspace(0, math.pi, 9)
    assert torch.equal(bridge.pull(angle, S), angle)


@every_kind
@every_size
def test_slope_is_pull_over_sine(kind: BridgeKind, vocabulary: int) -> None:
    bridge = Bridge(uniform_start(vocabulary), S, kind)
    angle = torch.linspace(1e-3, 3.0, 50, dtype=torch.float64)
    expected = bridge.pull(angle, 0.02) / torch.sin(angle)
    torch.testing.assert_close(bridge.slope(torch.cos(angle), 0.02), expected, rtol=1e-8, atol=0)


@every_kind
def test_slope_is_finite_at_the_token(kind: BridgeKind) -> None:
    cosine = torch.ones(1, dtype=torch.float64, requires_grad=True)
    slope = Bridge(masked_start(27), S, kind).slope(cosine, S)
    (gradient,) = torch.autograd.grad(slope.sum(), cosine)
    expected = 1.0 if kind == "logarithm" else 1 - S * 26 / 6 + S**2 * 13 * 12 / 2 * 2 / 45
    assert slope.item() == pytest.approx(expected, rel=1e-9)
    assert math.isfinite(gradient.item())


@every_size
def test_logarithm_drift_is_half_the_descent_of_the_squared_distance(vocabulary: int) -> None:
    """log_x(e_k) = - grad d(x, e_k)^2 / 2 along the sphere, by autograd of the distance."""
    bridge = Bridge(masked_start(vocabulary), S, "logarithm")
    state = points(vocabulary, 20).requires_grad_()
    token = torch.arange(20) % vocabulary
    vertex = torch.nn.functional.one_hot(token, vocabulary + 1).double()
    (slope,) = torch.autograd.grad(sphere.distance(state, vertex).square().sum() / 2, state)
    cosine = state.gather(-1, token[:, None])[:, 0]
    drift = bridge.token_direction(state, token, bridge.slope(cosine, S))
    torch.testing.assert_close(drift, -sphere.tangent(state, slope), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(drift, sphere.logarithm(state, vertex), rtol=1e-9, atol=1e-10)


@every_kind
@every_size
def test_mixture_drift_is_the_sum_of_token_drifts(kind: BridgeKind, vocabulary: int) -> None:
    bridge = Bridge(uniform_start(vocabulary), S, kind)
    state = points(vocabulary, 30, seed=1)
    slope = bridge.slope(state[..., :vocabulary], 0.01)
    weight = torch.softmax(torch.randn(30, vocabulary, dtype=torch.float64), -1) * slope
    dense = sum(bridge.token_direction(state, torch.full((30,), k), weight[:, k]) for k in range(vocabulary))
    assert isinstance(dense, Tensor)
    drift = bridge.mixture_direction(state, weight)
    torch.testing.assert_close(drift, dense, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close((drift * state).sum(-1), torch.zeros(30, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(bridge.squared_length(state, weight), drift.square().sum(-1), rtol=1e-9, atol=1e-12)


@settings(max_examples=40)
@given(vocabulary=st.integers(2, 12), seed=st.integers(0, 10_000), scale=st.floats(0, 50))
def test_any_weights_give_a_tangent_of_the_stated_length(vocabulary: int, seed: int, scale: float) -> None:
    bridge, state = Bridge(masked_start(vocabulary), S), points(vocabulary, 3, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    weight = scale * torch.randn(3, vocabulary, generator=generator, dtype=torch.float64)
    drift = bridge.mixture_direction(state, weight)
    assert float((drift * state).sum(-1).abs().max()) <= 1e-12 * (1 + scale)
    torch.testing.assert_close(bridge.squared_length(state, weight), drift.square().sum(-1), rtol=1e-8, atol=1e-9)


def test_inputs_are_left_alone() -> None:
    bridge, state, weight = Bridge(masked_start(4), S), points(4, 5), torch.ones(5, 4, dtype=torch.float64)
    before = state.clone(), weight.clone()
    bridge.mixture_direction(state, weight)
    bridge.token_direction(state, torch.zeros(5, dtype=torch.long), weight[:, 0])
    assert torch.equal(state, before[0]) and torch.equal(weight, before[1])


def test_evidence_of_a_finished_position_decides_for_its_token() -> None:
    bridge = Bridge(masked_start(3), S)
    evidence = bridge.log_likelihood(torch.eye(4)[1], torch.tensor(0.0))
    assert bool(evidence.isfinite().all())
    assert torch.softmax(evidence, -1).tolist() == [0, 1, 0]


def test_evidence_takes_one_noise_per_state() -> None:
    bridge, state = Bridge(masked_start(3), S), points(3, 2)
    both = bridge.log_likelihood(state, torch.tensor([S, 1e-3], dtype=torch.float64))
    torch.testing.assert_close(both[0], bridge.log_likelihood(state[0], S))
    torch.testing.assert_close(both[1], bridge.log_likelihood(state[1], 1e-3))


def test_equal_angles_are_no_evidence() -> None:
    for start in (masked_start(27), uniform_start(27)):
        evidence = Bridge(start, S).log_likelihood(start.point(torch.float64), S)
        assert float(evidence.max() - evidence.min()) < 1e-9


def test_too_much_noise_for_the_expansion_is_refused_with_advice() -> None:
    advice = (
        f"got S = 0.03756 with d = 256: lower the total noise to {0.99 * EXPANSION_RANGE / 254:.2g}, or leave it out"
    )
    with pytest.raises(InputError, match=advice):
        Bridge(masked_start(255), S)
    assert Bridge(masked_start(255), S, "logarithm").dimension == 256
    assert Bridge(masked_start(255), EXPANSION_RANGE / 254).dimension == 256
    with pytest.raises(InputError, match="logarithm bridge without evidence"):
        Bridge(masked_start(255), S, "logarithm").check_evidence()


@pytest.mark.parametrize("total", [0.0, -0.1, math.nan, math.inf])
@every_kind
def test_total_noise_must_be_positive(kind: BridgeKind, total: float) -> None:
    with pytest.raises(InputError, match="total noise S of a bridge must be positive"):
        Bridge(masked_start(3), total, kind)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown bridge 'brown'"):
        Bridge(masked_start(3), S, "brown")  # type: ignore[arg-type]

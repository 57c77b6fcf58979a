"""Closed-form flows: their equation of motion, discrete diffusion's probabilities, and the bridge without noise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, Start, masked_start, uniform_start
from rdlm.process.exact import tabulate
from rdlm.process.schedule import uniform_in_log_remaining


def flow(origin: Tensor, target: Tensor, kappa: float | Tensor) -> Tensor:
    """Return the point `exp_target(kappa log_target(origin))`, Eq. (15): the origin at 1, the target at 0."""
    return sphere.geodesic(target, origin, kappa)


def masked_kappa(alpha: Tensor) -> Tensor:
    """Return `2/pi arcsin sqrt(alpha)`, Eq. (16), for the flow from a token to the mask's vertex."""
    return 2 / math.pi * torch.asin(alpha.sqrt())


def uniform_kappa(alpha: Tensor, dimension: int) -> Tensor:
    """Return `1 - arcsin(sqrt(1 - alpha) sin theta_0) / theta_0`, Eq. (17), for the flow to the point of equal
    coordinates."""
    angle = math.acos(1 / math.sqrt(dimension))
    return 1 - torch.asin((1 - alpha).sqrt() * math.sin(angle)) / angle


def bridge_limit(start: Start, token: Tensor, kappa: Tensor) -> Tensor:
    """Return the bridge's states in the limit `S -> 0`, Eq. (15) with `kappa = B / S`, in float64."""
    point = start.point(torch.float64).expand(*token.shape, -1)
    return flow(point, torch.zeros_like(point).scatter(-1, token[..., None], 1.0), kappa)


@settings(deadline=None, max_examples=30)
@given(dimension=st.integers(2, 50), kappa=st.floats(0, 1), seed=st.integers(0, 10_000))
def test_closed_form_of_the_lemma(dimension, kappa, seed):
    origin, target = sphere.uniform((2,), dimension, torch.Generator().manual_seed(seed), torch.float64)
    angle = sphere.distance(origin, target).item()
    left = kappa * angle
    expected = (math.sin(angle - left) * target + math.sin(left) * origin) / math.sin(angle)
    torch.testing.assert_close(flow(origin, target, kappa), expected, atol=1e-9 / math.sin(angle), rtol=0)


def test_solves_its_equation_of_motion():
    """`dY/dt = -(d log kappa/dt) log_Y(target)`, by central differences with kappa_t = (1 - t)^2."""
    origin, target = sphere.uniform((2,), 7, torch.Generator().manual_seed(31), torch.float64)
    time, step = torch.linspace(0.05, 0.9, 30, dtype=torch.float64), 1e-5
    origin, target = origin.expand(30, -1), target.expand(30, -1)
    ahead, behind = (flow(origin, target, (1 - time - shift) ** 2) for shift in (step, -step))
    state = flow(origin, target, (1 - time) ** 2)
    drift = (2 / (1 - time))[:, None] * sphere.logarithm(state, target)
    torch.testing.assert_close((ahead - behind) / (2 * step), drift, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("dimension", [2, 4, 28, 256])
def test_masked_flow_has_the_discrete_probabilities(dimension, dtype, tolerance):
    alpha = torch.linspace(0, 1, 101, dtype=dtype)
    token, mask = torch.eye(dimension, dtype=dtype)[[0, -1]]
    state = flow(token.expand(101, -1), mask.expand(101, -1), masked_kappa(alpha))
    expected = alpha[:, None] * token + (1 - alpha)[:, None] * mask
    torch.testing.assert_close(state.square(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("dimension", [2, 4, 28, 256])
def test_uniform_flow_has_the_discrete_probabilities(dimension, dtype, tolerance):
    alpha = torch.linspace(0, 1, 101, dtype=dtype)
    token = torch.eye(dimension, dtype=dtype)[0]
    centre = torch.full((dimension,), dimension**-0.5, dtype=dtype)
    state = flow(token.expand(101, -1), centre.expand(101, -1), uniform_kappa(alpha, dimension))
    expected = ((1 - alpha) / dimension)[:, None] + alpha[:, None] * token  # 1 + (d - 1) alpha on the token
    torch.testing.assert_close(state.square(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", ["logarithm", "brownian"])
@pytest.mark.parametrize("start", [masked_start(4), uniform_start(4), Start(27, 0.3)])
def test_bridge_without_noise_is_the_flow(start, kind):
    bridge = Bridge(start, 1e-12, kind)
    law = tabulate(bridge, uniform_in_log_remaining(1e-12, 64), 16, torch.Generator().manual_seed(32))
    token = torch.arange(4).repeat(5, 1)
    kappa = torch.tensor([1.0, 0.7, 0.4, 0.05, 0.0], dtype=torch.float64)[:, None].expand(5, 4)
    state = law.draw(token, kappa * 1e-12, torch.Generator().manual_seed(33))
    torch.testing.assert_close(state.double(), bridge_limit(start, token, kappa), atol=1e-4, rtol=0)

"""The random walk in all dimensions: its drift, its levels, its projection on the pair, and the choice of laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.exact import pair_step
from rdlm.process.law import SimulatedLaw, build
from rdlm.process.schedule import Geometric, StepCoefficients, uniform_in_log_remaining, uniform_in_time

CLOCK = Geometric()


def paper_bridge(dimension, start=masked_start):
    return Bridge(start(dimension - 1), CLOCK.total, "logarithm")


@settings(deadline=None, max_examples=30)
@given(dimension=st.integers(3, 40), seed=st.integers(0, 10_000))
def test_drift_is_minus_half_the_gradient_of_the_squared_distance(dimension, seed):
    state = sphere.uniform((1,), dimension, torch.Generator().manual_seed(seed), torch.float64)
    vertex = torch.eye(dimension, dtype=torch.float64)[0]
    free = state.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sphere.distance(free, vertex).square().sum(), free)
    token = torch.zeros(1, dtype=torch.long)
    bridge = paper_bridge(dimension)
    drift = bridge.token_direction(state, token, bridge.slope(state[:, 0], 0.01))
    torch.testing.assert_close(drift, sphere.tangent(state, -gradient / 2), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(drift, sphere.logarithm(state, vertex.expand_as(state)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["logarithm", "brownian"])
@pytest.mark.parametrize("start", [masked_start, uniform_start])
def test_pair_chain_is_the_projection_of_the_walk(start, kind):
    bridge = Bridge(start(5), 0.3, kind)
    grid = uniform_in_log_remaining(0.3, 4, 0.1)  # three coarse steps: the identity holds for every step size
    count, generator = 40_000, torch.Generator().manual_seed(11)
    state = SimulatedLaw(bridge, grid).draw(torch.zeros(count, dtype=torch.long), grid.remaining[3], generator).double()
    radius = torch.full((count,), bridge.start.angle, dtype=torch.float64)
    start_cosine = torch.ones(count, dtype=torch.float64)
    for step in range(3):
        radius, start_cosine = pair_step(
            bridge, radius, start_cosine, StepCoefficients(*grid.coefficient_table[step]), generator
        )
    cosine = bridge.start.token_coordinate
    across = (bridge.start.point(torch.float64) - cosine * torch.eye(6)[0].double()) / math.sqrt(1 - cosine**2)
    walked = torch.stack([state[:, 0], state @ across], dim=1)
    paired = torch.stack([radius.cos(), radius.sin() * start_cosine], dim=1)
    for power in (walked, paired), (walked**2, paired**2), (walked.prod(1), paired.prod(1)):
        gap = (power[0].mean(0) - power[1].mean(0)).abs()
        assert bool((gap < 4 * ((power[0].var(0) + power[1].var(0)) / count).sqrt()).all())


def test_ends_are_the_start_and_the_vertex():
    bridge, grid = paper_bridge(5, uniform_start), uniform_in_time(CLOCK, 6)
    state = SimulatedLaw(bridge, grid).draw(torch.tensor([1, 1]), torch.tensor([CLOCK.total, 0.0]).double())
    torch.testing.assert_close(state, torch.stack([bridge.start.point(), torch.eye(5)[1]]), atol=1e-6, rtol=0)


def test_positions_with_less_noise_to_come_are_nearer_to_their_token():
    bridge, grid = paper_bridge(6), uniform_in_time(CLOCK, 20)
    times = torch.tensor([0.31, 0.62, 0.93])  # between the grid's levels
    token = torch.full((2000, 3), 4)
    state = SimulatedLaw(bridge, grid).draw(token, CLOCK.remaining(times), torch.Generator().manual_seed(12))
    assert bool(((state.norm(dim=-1) - 1).abs() <= 1e-4).all())
    cosine = state[..., 4].mean(0)
    assert bool((cosine[1:] > cosine[:-1] + 0.1).all())


def test_a_level_does_not_depend_on_its_company():
    bridge, grid = paper_bridge(4), uniform_in_time(CLOCK, 16)
    law, remaining = SimulatedLaw(bridge, grid), CLOCK.remaining(0.5).item()
    token = torch.zeros(30_000, 2, dtype=torch.long)
    mixed = law.draw(token, torch.tensor([remaining, 0.001]), torch.Generator().manual_seed(13))[:, 0, 0]
    alone = law.draw(token[:, 0], remaining, torch.Generator().manual_seed(14))[:, 0]
    error = ((mixed.var() + alone.var()) / len(alone)).sqrt()
    assert (mixed.mean() - alone.mean()).abs() < 4 * error


@pytest.mark.parametrize("name", ["exact", "normal", "simulated"])
def test_laws_share_one_interface(name):
    bridge, grid = paper_bridge(5), uniform_in_time(CLOCK, 8)
    law = build(name, bridge, grid, draws=64, generator=torch.Generator().manual_seed(15))
    assert law.bridge is bridge
    for remaining in (0.01, torch.tensor([0.0, 0.01, 0.03])):
        state = law.draw(torch.tensor([[0, 1, 2], [3, 0, 1]]), remaining, torch.Generator().manual_seed(16))
        assert state.shape == (2, 3, 5) and state.dtype == torch.float32
        assert bool(((state.norm(dim=-1) - 1).abs() <= 1e-4).all())
        again = law.draw(torch.tensor([[0, 1, 2], [3, 0, 1]]), remaining, torch.Generator().manual_seed(16))
        assert torch.equal(state, again)
    assert law.draw(torch.empty(0, dtype=torch.long), 0.01).shape == (0, 5)


def test_refuses_bad_input():
    with pytest.raises(InputError, match="did you mean 'exact'"):
        build("exakt", paper_bridge(5), uniform_in_time(CLOCK, 8))
    with pytest.raises(InputError, match="total noise"):
        SimulatedLaw(Bridge(masked_start(3), 0.5, "logarithm"), uniform_in_time(CLOCK, 8))
    with pytest.raises(InputError, match="at least 2 tokens"):
        build("exact", paper_bridge(2), uniform_in_time(CLOCK, 8))

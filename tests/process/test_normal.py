"""The paper's Riemannian normal: its parameters, its draws, and its error with each Kummer function."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, Start, masked_start, uniform_start
from rdlm.process.law import SimulatedLaw
from rdlm.process.normal import from_projections, kummer, match_moments, mean_projections, precompute, refined
from rdlm.process.schedule import Geometric, uniform_in_time

CLOCK = Geometric()


def paper_bridge(dimension, start=masked_start):
    return Bridge(start(dimension - 1), CLOCK.total, "logarithm")


def tangent_variance(state):
    """The mean square per direction of log_mu(X), with mu the direction of the samples' mean."""
    mean = sphere.project(state.mean(0, keepdim=True))
    return sphere.logarithm(mean, state).square().sum(-1) / (state.shape[-1] - 1)


@pytest.fixture(scope="module")
def projections():
    grid = uniform_in_time(CLOCK, 250)
    return grid, *mean_projections(paper_bridge(4), grid, 100_000, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("time", [0.3, 0.6, 0.9])
def test_variance_is_that_of_the_simulation_without_calibration(projections, time):
    bridge, remaining = paper_bridge(4), CLOCK.remaining(time)
    _, rho = from_projections(bridge, *projections).parameters(remaining)
    token = torch.zeros(100_000, dtype=torch.long)
    simulated = SimulatedLaw(bridge, projections[0]).draw(token, remaining, torch.Generator().manual_seed(2))
    square = tangent_variance(simulated.double())
    assert square.std() / math.sqrt(len(square)) < 0.003 * square.mean()  # the test can see 1%
    assert rho.square().item() == pytest.approx(square.mean().item(), rel=0.01)


@pytest.mark.parametrize("dimension", [4, 28])
def test_wrong_kummer_functions_shrink_rho_as_predicted(dimension):
    bridge, grid, n = paper_bridge(dimension), uniform_in_time(CLOCK, 100), dimension - 1
    means = mean_projections(bridge, grid, 2000, generator=torch.Generator().manual_seed(3))
    remaining = CLOCK.remaining(0.1)  # rho is 0.01 here, small enough for the first order
    rho = {
        name: from_projections(bridge, grid, *means, name).parameters(remaining)[1]
        for name in ("corrected", "printed", "coded")
    }
    assert (rho["printed"] / rho["corrected"]).item() == pytest.approx(math.sqrt(n / (n + 2)), rel=2e-3)
    assert (rho["coded"] / rho["corrected"]).item() == pytest.approx(math.sqrt(n / (n + 1)), rel=2e-3)


@settings(deadline=None, max_examples=50)
@given(vocabulary=st.integers(2, 300), spread=st.floats(0, 0.9), part=st.floats(0.01, 1), scale=st.floats(0.02, 0.7))
def test_moments_of_a_normal_give_its_parameters(vocabulary, spread, part, scale):
    bridge = Bridge(Start(vocabulary, spread), 0.01, "logarithm")
    angle, rho = part * bridge.start.angle, scale * math.pi / 2 / math.sqrt(vocabulary)
    length = kummer(vocabulary, torch.tensor([rho], dtype=torch.float64))
    on_start, on_end = length * math.cos(angle), length * math.cos(bridge.start.angle - angle)
    found = match_moments(bridge, on_end, on_start)
    assert found[0].item() == pytest.approx(angle, abs=1e-9)
    assert found[1].item() == pytest.approx(rho, rel=1e-6)
    # and alpha is that of the paper's own formula with the ratio of the projections
    psi = bridge.start.token_coordinate
    gap = (on_end / on_start - psi).item()
    assert math.sin(found[0].item()) == pytest.approx(math.sqrt(gap**2 / (1 - psi**2 + gap**2)), abs=1e-7)


@pytest.mark.parametrize("start", [masked_start, uniform_start])
def test_draws_lie_around_the_paper_mean(start):
    bridge = paper_bridge(10, start)
    law = precompute(bridge, uniform_in_time(CLOCK, 50), 500, generator=torch.Generator().manual_seed(4))
    token = torch.full((20_000,), 3)
    remaining = CLOCK.remaining(0.8)
    state = law.draw(token, remaining, torch.Generator().manual_seed(5)).double()
    assert bool(((state.norm(dim=-1) - 1).abs() <= 1e-4).all())
    alpha, rho = law.parameters(remaining)
    phi = bridge.start.angle
    along = (1 - alpha**2).sqrt() - alpha * math.cos(phi) / math.sin(phi)
    mean = along * bridge.start.point(torch.float64)
    mean[3] += alpha / math.sin(phi)
    assert mean.norm().item() == pytest.approx(1, abs=1e-9)
    error = (state.mean(0) - kummer(9, rho) * mean).abs()
    assert bool((error < 4.5 * state.std(0) / math.sqrt(len(state))).all())
    assert tangent_variance(state).mean().sqrt().item() == pytest.approx(rho.item(), rel=0.02)


def test_ends_are_the_start_and_the_vertex():
    bridge = paper_bridge(5, uniform_start)
    law = precompute(bridge, uniform_in_time(CLOCK, 20), 100, generator=torch.Generator().manual_seed(6))
    state = law.draw(torch.tensor([2, 2]), torch.tensor([0.0, CLOCK.total]))
    expected = torch.stack([torch.eye(5)[2], bridge.start.point()])
    torch.testing.assert_close(state, expected, atol=1e-6, rtol=0)


def test_noise_broadcasts_and_moves():
    bridge = paper_bridge(5)
    law = precompute(bridge, uniform_in_time(CLOCK, 20), 100, generator=torch.Generator().manual_seed(7)).to("cpu")
    assert law.draw(torch.zeros(2, 3, dtype=torch.long), 0.01).shape == (2, 3, 5)
    assert law.draw(torch.zeros(2, 3, dtype=torch.long), torch.tensor([0.01, 0.02, 0.03])).shape == (2, 3, 5)


def test_refined_grid_keeps_the_levels():
    grid = uniform_in_time(CLOCK, 7)
    fine = refined(grid, 100)
    assert fine.steps >= 100
    assert bool(torch.isin(grid.remaining, fine.remaining).all())


def test_refuses_a_grid_of_another_bridge():
    with pytest.raises(InputError, match="total noise"):
        precompute(Bridge(masked_start(3), 0.5, "logarithm"), uniform_in_time(CLOCK, 5), 10)

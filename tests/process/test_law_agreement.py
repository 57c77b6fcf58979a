"""The exact law against the simulation in all dimensions, and schedules of equal noise against each other."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.discrepancy import permutation_test
from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.exact import tabulate
from rdlm.process.law import SimulatedLaw
from rdlm.process.normal import precompute
from rdlm.process.schedule import Cosine, Geometric, uniform_in_log_remaining, uniform_in_time

CLOCK = Geometric()
TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)


def discrepancy(first, second, remaining, seed, count=700):
    generator = torch.Generator().manual_seed(seed)
    token = torch.full((count,), 1)
    return permutation_test(
        first.draw(token, remaining, generator), second.draw(token, remaining, generator), 399, generator
    )


@pytest.mark.parametrize("start", [masked_start, uniform_start])
@pytest.mark.parametrize("dimension", [4, 28, 256])
def test_exact_law_cannot_be_told_from_the_simulation(dimension, start):
    bridge, grid = Bridge(start(dimension - 1), CLOCK.total, "logarithm"), uniform_in_time(CLOCK, 32)
    exact, simulated = tabulate(bridge, grid, 16384, torch.Generator().manual_seed(41)), SimulatedLaw(bridge, grid)
    found = [discrepancy(exact, simulated, CLOCK.remaining(time), 42 + i) for i, time in enumerate(TIMES)]
    p_values = sorted(f.p_value for f in found)
    # Under equality each is uniform: of five, the smallest is below 0.005 and the median below 0.05 in 2.5%, 0.1%.
    assert p_values[0] > 0.005 and p_values[2] > 0.05, found


@pytest.mark.parametrize("dimension", [4, 28])
def test_exact_law_of_the_brownian_bridge(dimension):
    bridge, grid = Bridge(masked_start(dimension - 1), CLOCK.total, "brownian"), uniform_in_time(CLOCK, 16)
    exact, simulated = tabulate(bridge, grid, 16384, torch.Generator().manual_seed(43)), SimulatedLaw(bridge, grid)
    assert discrepancy(exact, simulated, CLOCK.remaining(0.8), 44).p_value > 0.01


def test_the_same_test_rejects_the_printed_function():
    bridge, grid = Bridge(masked_start(3), CLOCK.total, "logarithm"), uniform_in_time(CLOCK, 200)
    normal = precompute(bridge, grid, 4000, "printed", generator=torch.Generator().manual_seed(45))
    found = discrepancy(normal, SimulatedLaw(bridge, grid), CLOCK.remaining(0.5), 46, count=1500)
    assert found.p_value == 1 / 400 and found.value > 4 * found.high


def test_moments_on_the_largest_sphere():
    total = 2e-4  # S (d - 1) is 6: noise and pull both matter
    bridge, grid = Bridge(masked_start(30521), total, "logarithm"), uniform_in_log_remaining(total, 48, 0.05)
    token, generator = torch.full((32,), 7), torch.Generator().manual_seed(47)
    exact = tabulate(bridge, grid, 4096, generator)
    for level in (12, 24, 40):
        walked = SimulatedLaw(bridge, grid).draw(token, grid.remaining[level], generator)
        drawn = exact.draw(token, grid.remaining[level], generator)
        radius, start_cosine = exact.radius[level].double(), exact.start_cosine[level].double()
        for state in (walked, drawn):
            for found, expected in ((state[:, 7], radius.cos()), (state[:, -1], radius.sin() * start_cosine)):
                error = expected.std() * math.sqrt(1 / len(state) + 1 / len(expected))
                assert (found.double().mean() - expected.mean()).abs() < 4 * error
                assert 0.5 < found.double().std() / expected.std() < 1.6  # 4 errors of a spread from 32 draws
            assert (state[:, 100:200].double().square().mean(0).mean() * 30522).item() < 2


@pytest.mark.parametrize("dimension", [4, 28])
def test_schedules_of_equal_noise_give_one_law(dimension):
    bridge = Bridge(masked_start(dimension - 1), CLOCK.total, "logarithm")
    other = Cosine(CLOCK.total)
    first, second = (SimulatedLaw(bridge, uniform_in_time(schedule, 300)) for schedule in (CLOCK, other))
    for part, seed in ((0.7, 48), (0.2, 49)):
        assert discrepancy(first, second, part * CLOCK.total, seed).p_value > 0.01
    # while at one time the two are far apart
    token, generator = torch.zeros(200, dtype=torch.long), torch.Generator().manual_seed(50)
    apart = permutation_test(
        first.draw(token, CLOCK.remaining(0.5), generator), second.draw(token, other.remaining(0.5), generator), 99
    )
    assert apart.p_value == 1 / 100

"""The one-dimensional processes against the projections of the process in all dimensions."""

from __future__ import annotations

import math

import pytest
import torch

from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.exact import tabulate
from rdlm.process.law import SimulatedLaw
from rdlm.process.normal import projected_paths, radial_paths
from rdlm.process.schedule import Geometric, uniform_in_time

CLOCK = Geometric()
PATHS = 12_000


def at_level(paths, level):
    return next(state for index, state in enumerate(paths) if index == level)


def moment_gaps(found, expected):
    """Differences of mean and variance, each in standard errors."""
    pairs = [(found, expected), ((found - found.mean()) ** 2, (expected - expected.mean()) ** 2)]
    return [((a.mean() - b.mean()).abs() / (a.var() / len(a) + b.var() / len(b)).sqrt()).item() for a, b in pairs]


@pytest.mark.parametrize("time", [0.4, 0.8])
@pytest.mark.parametrize("start", [masked_start, uniform_start])
@pytest.mark.parametrize("dimension", [4, 28])
def test_projections_of_the_full_process(dimension, start, time):
    bridge, grid = Bridge(start(dimension - 1), CLOCK.total, "logarithm"), uniform_in_time(CLOCK, 200)
    level = round(200 * time)
    on_end, on_start = at_level(
        projected_paths(bridge, grid, PATHS, generator=torch.Generator().manual_seed(21)), level
    )
    state = SimulatedLaw(bridge, grid).draw(
        torch.zeros(PATHS // 2, dtype=torch.long), grid.remaining[level], torch.Generator().manual_seed(22)
    )
    full_end, full_start = state[:, 0].double(), (state @ bridge.start.point()).double()
    assert max(moment_gaps(on_end, full_end)) < 4
    assert max(moment_gaps(on_start, full_start)) < 4
    # joint: the two move together as they do in the full process
    product = moment_gaps(on_end * on_start, full_end * full_start)
    assert product[0] < 4


@pytest.mark.parametrize("kind", ["logarithm", "brownian"])
@pytest.mark.parametrize("dimension", [4, 28])
def test_radial_process_is_the_angle_of_the_exact_law(dimension, kind):
    bridge, grid = Bridge(masked_start(dimension - 1), CLOCK.total, kind), uniform_in_time(CLOCK, 300)
    table = tabulate(bridge, grid, PATHS, torch.Generator().manual_seed(23))
    radius = list(radial_paths(bridge, grid, PATHS, torch.Generator().manual_seed(24)))
    for level in (75, 180, 270):
        # Euler's own error is of the order of one step, less than half a percent of the spread here.
        assert max(moment_gaps(radius[level], table.radius[level].double())) < 5
    assert radius[-1].max() < 0.2


def test_radial_process_stays_on_the_sphere():
    grid = uniform_in_time(Geometric(1.0, 9.0), 100)
    bridge = Bridge(masked_start(3), grid.total, "logarithm")
    for radius in radial_paths(bridge, grid, 500, torch.Generator().manual_seed(25)):
        assert bool(((radius >= 0) & (radius <= math.pi)).all())


def test_independent_noises_bias_the_projection_on_the_start():
    """The paper's Algorithm 3 draws both noises independently; near the end that is seen at d = 4."""
    bridge, grid, level = Bridge(masked_start(3), CLOCK.total, "logarithm"), uniform_in_time(CLOCK, 150), 135
    table = tabulate(bridge, grid, 100_000, torch.Generator().manual_seed(26))
    truth = (table.radius[level].sin() * table.start_cosine[level]).double()  # x_0 is w for the masked start
    gaps = {}
    for coupling in ("joint", "independent"):
        paths = projected_paths(bridge, grid, 100_000, coupling, torch.Generator().manual_seed(27))
        gaps[coupling] = moment_gaps(at_level(paths, level)[1], truth)[0]
    assert gaps["joint"] < 3 < 4 < gaps["independent"]

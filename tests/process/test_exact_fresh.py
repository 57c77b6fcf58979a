"""States without a table: the same law as the table's and the simulation's, and no two positions share a draw."""

from __future__ import annotations

import math

import pytest
import torch

from rdlm.process.exact import FreshLaw, simulate_pairs, tabulate
from rdlm.process.kernel import Chain
from rdlm.process.law import SimulatedLaw
from rdlm.process.path import Path, masked_path, switching_path
from rdlm.process.schedule import Geometric, uniform_in_time

CLOCK = Geometric()
GRID = uniform_in_time(CLOCK, 12)


def z_score(first: torch.Tensor, second: torch.Tensor) -> float:
    difference = first.double().mean() - second.double().mean()
    return float(difference / (first.double().var() / len(first) + second.double().var() / len(second)).sqrt())


@pytest.mark.parametrize("level", [1, 5, 11])
def test_pairs_have_the_law_of_the_table(level: int) -> None:
    bridge, generator = masked_path(9, CLOCK.total).bridge, torch.Generator().manual_seed(level)
    radius, start_cosine = simulate_pairs(bridge, GRID, torch.full((20_000,), level), generator)
    table = tabulate(bridge, GRID, 20_000, generator)
    for ours, theirs in ((radius, table.radius[level]), (start_cosine, table.start_cosine[level])):
        assert abs(z_score(ours, theirs)) < 4
        assert abs(z_score(ours.square(), theirs.square())) < 4
    # Drawn one by one; float32 alone makes some of them equal, a table of any size would make most of them so.
    assert len(torch.stack([radius, start_cosine], 1).unique(dim=0)) > 0.99 * len(radius)


def test_levels_may_differ_and_the_last_is_the_vertex() -> None:
    bridge = masked_path(5, CLOCK.total).bridge
    level = torch.tensor([[0, 12, 3], [11, 12, 0]])
    radius, start_cosine = simulate_pairs(bridge, GRID, level, torch.Generator().manual_seed(0))
    assert radius.shape == start_cosine.shape == level.shape
    assert torch.equal(radius == 0, level == 12)
    assert radius[level == 0].tolist() == pytest.approx([math.pi / 2] * 2)
    assert (radius[level > 0] < math.pi / 2 - 1e-6).all()


def test_states_on_both_sides_of_a_switch() -> None:
    path = switching_path(5, CLOCK.total, float(CLOCK.remaining(0.5)))
    chain = Chain(path, GRID)
    level = torch.arange(13).repeat(4000, 1)
    token = torch.zeros_like(level)
    state = FreshLaw(chain.path, chain.grid).draw_at_level(token, level, torch.Generator().manual_seed(1))
    law = chain.law(20_000, torch.Generator().manual_seed(2))
    table = law.draw_at_level(token, level, torch.Generator().manual_seed(3))
    assert torch.allclose(state.norm(dim=-1), torch.ones(()), atol=1e-5)
    for step in range(1, 12):
        for coordinate in (0, 1, 5):
            assert abs(z_score(state[:, step, coordinate], table[:, step, coordinate])) < 4.5


def test_a_level_between_two_is_reached_by_one_more_step() -> None:
    bridge, generator = masked_path(4, CLOCK.total).bridge, torch.Generator().manual_seed(4)
    remaining = CLOCK.remaining(torch.tensor([0.13, 0.47, 0.92]))
    token = torch.ones(6000, 3, dtype=torch.long)
    ours = FreshLaw(Path(bridge), GRID).draw(token, remaining.expand(6000, 3), generator)
    truth = SimulatedLaw(bridge, GRID).draw(token, remaining.expand(6000, 3), generator)
    for column in range(3):
        for coordinate in range(5):
            assert abs(z_score(ours[:, column, coordinate], truth[:, column, coordinate])) < 4.5

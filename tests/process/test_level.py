"""Levels found by a table are those that a search finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.process.exact import Levels
from rdlm.process.grid import Grid, uniform_in_log_remaining, uniform_in_time
from rdlm.process.schedule import Geometric, Linear

GRIDS = {
    "one step": uniform_in_time(Geometric(), 1),
    "few": uniform_in_time(Geometric(), 12),
    "many": uniform_in_time(Geometric(), 1000),
    "linear": uniform_in_time(Linear(0.1, 0.1), 256),
    "log": uniform_in_log_remaining(0.07, 256),
    "far apart": uniform_in_log_remaining(0.07, 64, 1e-6),
}


def searched(grid: Grid, wanted: torch.Tensor) -> torch.Tensor:
    rising = grid.remaining.float().flip(0)
    return (grid.steps - torch.searchsorted(rising, wanted)).clamp_min(0)


@pytest.mark.parametrize("name", GRIDS)
def test_every_level_and_its_neighbours_are_found(name: str) -> None:
    grid = GRIDS[name]
    level = grid.remaining.float()
    beside = [torch.nextafter(level, torch.tensor(end)) for end in (0.0, 1.0)]
    anywhere = torch.rand(20_000, generator=torch.Generator().manual_seed(0)) ** 3 * grid.total
    wanted = torch.cat([level, *beside, anywhere, torch.tensor([1e-30, 1e-42])]).clamp_max(float(level[0]))
    assert torch.equal(Levels.of(grid.remaining).at(wanted), searched(grid, wanted))


@given(
    levels=st.lists(st.floats(2.0**-20, 1.0, width=32), min_size=1, max_size=40, unique=True),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_levels_of_any_grid_are_found(levels: list[float], shares: list[float]) -> None:
    grid = Grid(torch.tensor([*sorted(levels, reverse=True), 0.0], dtype=torch.float64))
    wanted = (torch.tensor(shares) * grid.total).clamp_max(float(grid.remaining[0].float()))
    assert torch.equal(Levels.of(grid.remaining).at(wanted), searched(grid, wanted))


def test_shape_is_kept_and_a_table_leaves_one_comparison() -> None:
    levels = Levels.of(uniform_in_time(Geometric(), 256).remaining)
    assert levels.at(torch.zeros(2, 3)).tolist() == [[256] * 3] * 2
    assert levels.at(torch.tensor(levels.highest)).shape == () and levels.rounds == 1

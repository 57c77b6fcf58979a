"""States of a chain without a table: every sphere walks its own pair, so that all draws are independent.

A table of pairs is an estimate itself. With `P` pairs a level, `n` sequences of `L` positions drawn from it share
its error: their mean's variance is not `v / (n L)` but up to `v / (n L) + v / P`, and since a table's levels are the
same paths, the errors of different levels add up, too. No spread between sequences shows this, so an interval would
be too narrow unless `P` were far above the positions of the whole evaluation. Walking one pair for each position
costs as many numbers as such a table would, a few per cent of a network's call, and leaves nothing to account for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.process.bridge import Bridge
from rdlm.process.exact import pair_step, place
from rdlm.process.grid import Grid, StepCoefficients
from rdlm.process.kernel import Chain
from rdlm.process.simulated import SimulatedLaw


@dataclass(frozen=True, eq=False)
class FreshLaw:
    """The exact law of a chain's states given their tokens, Eq. (20), both sides of a switch included."""

    chain: Chain

    def draw(
        self, token: Int[Tensor, ...], level: Int[Tensor, ...], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states at levels of the chain's grid (M is the vertex itself)."""
        path, level = self.chain.path, level.expand(token.shape)
        if path.second is None:
            return _place(path.bridge, token, *walk_pairs(path.bridge, self.chain.grid, level, generator), generator)
        step = path.switch_step(self.chain.grid)
        assert step is not None
        late = level > step
        first = walk_pairs(path.bridge, self.chain.grid, level.where(~late, 0), generator)
        second = walk_pairs(path.second, self.chain.grid, level.where(late, 0), generator)
        state = _place(path.bridge, token, *first, generator)
        return torch.where(late[..., None], _place(path.second, token, *second, generator), state)


@dataclass(frozen=True, eq=False)
class WalkedLaw:
    """The same law by simulation: every state at the end of its own walk in all `d` dimensions, Eq. (19)."""

    chain: Chain

    def draw(
        self, token: Int[Tensor, ...], level: Int[Tensor, ...], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states at levels of the chain's grid, both sides of a switch included."""
        path, grid = self.chain.path, self.chain.grid
        remaining = grid.remaining.to(token.device)[level.expand(token.shape)]
        state = SimulatedLaw(path.bridge, grid).draw(token, remaining, generator)
        if path.second is None:
            return state
        step = path.switch_step(grid)
        assert step is not None
        late = SimulatedLaw(path.second, grid).draw(token, remaining, generator)
        return torch.where((level.expand(token.shape) > step)[..., None], late, state)


def draw_at_remaining(
    bridge: Bridge, grid: Grid, token: Tensor, remaining: Float[Tensor, ...], generator: torch.Generator | None = None
) -> Float[Tensor, "... d"]:
    """Return states with any amount of noise still to come, Eq. (20): the last step ends on that very level."""
    levels = grid.remaining.to(token.device)
    wanted = remaining.to(levels).expand(token.shape)
    level = len(levels) - 1 - torch.searchsorted(levels.flip(0).contiguous(), wanted.contiguous())
    level = level.clamp(0, grid.steps - 1)
    radius, heading = walk_pairs(bridge, grid, level, generator)
    gain = (1 - wanted / levels[level]).clamp(0, 1)
    coefficients = StepCoefficients(levels[level], gain, wanted * gain)
    pair = pair_step(bridge, radius.double(), heading.double(), coefficients, generator)
    return _place(bridge, token, *pair, generator)


def walk_pairs(
    bridge: Bridge, grid: Grid, level: Int[Tensor, ...], generator: torch.Generator | None = None
) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
    """Return independent pairs `(r, c)` at the given levels, each by its own chain of Eq. (21)."""
    flat = level.flatten()
    steps = torch.where(flat < grid.steps, flat, 0)  # the vertex needs no walk
    steps, order = steps.sort(descending=True, stable=True)
    going = (len(steps) - torch.bincount(steps).cumsum(0))[:-1].tolist()  # how many go beyond each step
    radius = torch.full(flat.shape, bridge.start.angle, device=flat.device)
    heading = torch.ones_like(radius)
    coefficient_table = [StepCoefficients(*row) for row in grid.coefficient_table.to(radius)]
    for step, count in enumerate(going):  # those that go furthest come first
        radius[:count], heading[:count] = pair_step(
            bridge, radius[:count], heading[:count], coefficient_table[step], generator
        )
    place_of = order.argsort()
    radius, heading = radius[place_of], heading[place_of]
    radius = torch.where(flat < grid.steps, radius, 0.0)
    return radius.view(level.shape), heading.view(level.shape)


def _place(bridge: Bridge, token: Tensor, radius: Tensor, heading: Tensor, generator: torch.Generator | None) -> Tensor:
    return place(bridge, token, radius.float(), heading.float(), generator)

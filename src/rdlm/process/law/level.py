"""Levels of a grid found for many noises at once, by a table in place of a search.

A binary search takes a branch that no processor can foretell for every bit of its answer. Here equal ranges of noise
say where to begin, and few comparisons, the same ones for all, find the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

FEW: Final = 1
"""Comparisons that a table should leave."""
MOST: Final = 2**16
"""Ranges that it may have for that."""


@dataclass(frozen=True, eq=False)
class Levels:
    """The falling noise of a grid's levels, 0 at the last, and the one to look at first in each range of noises."""

    after: Float[Tensor, " levels"]
    """The noise of the next level; beyond the last one there is none, which is less than any."""
    first: Int[Tensor, " ranges"]
    highest: float
    """The noise of level 0."""
    scale: float
    """Ranges to a unit of noise."""
    rounds: int
    """Comparisons that the fullest range needs."""

    @staticmethod
    def of(noise: Float[Tensor, " levels"]) -> Levels:
        """Return the levels of a grid's noise, with as few ranges as leave `FEW` comparisons, where `MOST` allow it."""
        falling = noise.float()
        ranges = 64
        while (found := _table(falling, ranges)).rounds > FEW and ranges < MOST:
            ranges *= 2
        return found

    def at(self, wanted: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the last level with at least the wanted noise, which is between 0 and the highest."""
        flat = wanted.flatten()
        level = self.first.index_select(0, flat.mul(self.scale).int())
        for _ in range(self.rounds):
            level += self.after.index_select(0, level) >= flat
        return level.view(wanted.shape)


def _table(falling: Float[Tensor, " levels"], ranges: int) -> Levels:
    """Return the levels with so many equal ranges; a noise beside an edge may be taken for one of either side."""
    last, highest = len(falling) - 1, float(falling[0])
    scale = ranges / highest
    edge = torch.arange(ranges + 1, dtype=torch.float64, device=falling.device)
    rising = falling.double().flip(0)

    def level(places: Tensor) -> Tensor:
        return (last - torch.searchsorted(rising, (places / scale).clamp_min(0))).clamp_min_(0)

    # A product with the scale rounds by less than a hundredth, since there are few enough ranges.
    first = level(edge + 1.01)
    return Levels(
        torch.cat([falling[1:], falling.new_full((1,), -torch.inf)]), first, highest, scale,
        rounds=int((level(edge - 0.01) - first).max()),
    )  # fmt: skip

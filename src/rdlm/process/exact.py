"""The two numbers that carry the whole law of a bridge, and one step of their chain.

Write `x = cos r e_k + sin r (c w + sqrt(1 - c^2) xi)`: `r` is the angle to the token, `c` the cosine
between the direction of `x` and the direction `w` of the start, both seen from the token, and `xi` is
uniform on the unit sphere orthogonal to `e_k` and `w`. The pair `(r, c)` is a Markov chain of its own.

Levels of a grid found for many noises at once, by a table in place of a search.

A binary search takes a branch that no processor can foretell for every bit of its answer. Here equal ranges of noise
say where to begin, and few comparisons, the same ones for all, find the level.

The exact law of the bridge at any noise level, drawn from a table of pairs: no simulation in `d` dimensions.

A table holds many draws of the pair `(r, c)` at each level of a grid. A level between two of them is
reached by one more step of the pair's chain, so that a draw is exact for the chain on the grid with
that level added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm import random as numbers
from rdlm.errors import InputError
from rdlm.geometry import special, sphere
from rdlm.process.bridge import Bridge, Start
from rdlm.process.grid import Grid, StepCoefficients


class Wobble(NamedTuple):
    """The noise of a step as the pair sees it: away from the token, sideways, and the squared length of the rest."""

    outward: Tensor
    sideways: Tensor
    rest: Tensor

    @staticmethod
    def draw(dimension: int, like: Tensor, generator: torch.Generator | None = None) -> Wobble:
        """Return two normal numbers and a chi-square one of `d - 3` degrees for each of `like`, Eq. (21)."""
        return Wobble(_normal(like, generator), _normal(like, generator), _chi_square(like, dimension - 3, generator))


class Place(NamedTuple):
    """Where a state is, seen from its token: its coordinates on `e_k` and on `w`, and the length of the rest."""

    on_token: Tensor
    on_start: Tensor
    across: Tensor

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return `(r, c)`; the angle of two coordinates keeps the digits that a cosine has lost."""
        sine = torch.hypot(self.on_start, self.across)
        return torch.atan2(sine, self.on_token), self.on_start / special.positive_or_one(sine)


def pair_step(
    bridge: Bridge,
    radius: Tensor,
    heading: Tensor,
    coefficients: StepCoefficients,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the pair `(r, c)` after one step of the d-dimensional chain, exactly, Eq. (21)."""
    drift = coefficients.gain * bridge.pull(radius, coefficients.remaining)
    wobble = Wobble.draw(bridge.dimension, radius, generator)
    return place_step(radius, heading, drift, coefficients.variance, wobble).pair()


def place_step(radius: Tensor, heading: Tensor, drift: Tensor, variance: Tensor, wobble: Wobble) -> Place:
    """Return where the pair's step leads, Eq. (21); `drift` is the gain times the pull.

    A draw of states of few coordinates spends much of its time here, hence the few operations, most of them in place.
    """
    scale = variance.sqrt()
    outward = (scale * wobble.outward).sub_(drift)
    sideways = scale * wobble.sideways
    rest = variance * wobble.rest
    square = torch.addcmul(rest, outward, outward).addcmul_(sideways, sideways)
    length = square.clamp_min_(special.SMALLEST_SQUARE).sqrt_()
    shrink, keep = torch.sin(length).div_(length), torch.cos(length)
    sine, cosine = torch.sin(radius), torch.cos(radius)
    around = torch.sub(1, heading.square()).clamp_min_(0).sqrt_()
    # Coordinates of the new state on e_k, on w, and on the free direction of the old one.
    outward.mul_(shrink)
    sideways.mul_(shrink)
    ahead = torch.addcmul(keep * sine, outward, cosine)
    on_token = torch.addcmul(keep * cosine, outward, sine, value=-1)
    on_start = torch.addcmul(ahead * heading, sideways, around)
    on_free = torch.addcmul(ahead * around, sideways, heading, value=-1)
    return Place(on_token, on_start, on_free.square_().addcmul_(shrink.square_(), rest).sqrt_())


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _chi_square(like: Tensor, degrees: int, generator: torch.Generator | None) -> Tensor:
    """Return chi-square draws; without degrees of freedom (d = 3) they are 0."""
    if degrees == 0:
        return torch.zeros_like(like)
    shape = torch.full_like(like, degrees / 2)
    return 2 * torch._standard_gamma(shape, generator=generator)


def all_but_one(like: Tensor, degrees: int, generator: torch.Generator | None = None) -> Tensor:
    """Return what part of a normal vector's squared length all but one of its `degrees + 1` coordinates have, Eq. (48).

    It is independent of the length and of the direction, and 0 where there is no other coordinate (d = 3).
    """
    if degrees == 0:
        return torch.zeros_like(like)
    uniform = torch.rand(2, *like.shape, generator=generator, dtype=like.dtype, device=like.device)
    others = uniform[0].pow(2 / degrees)
    return others / (others + (1 - others) * torch.cos(math.pi * uniform[1]).square())


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
    def of(remaining: Float[Tensor, " levels"]) -> Levels:
        """Return the levels of a grid's noise, with as few ranges as leave `FEW` comparisons, where `MOST` allow it."""
        falling = remaining.float()
        ranges = 64
        while (found := _table(falling, ranges)).rounds > FEW and ranges < MOST:
            ranges *= 2
        return found

    def at(self, wanted: Float[Tensor, ...]) -> Int[Tensor, ...]:
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
        torch.cat([falling[1:], falling.new_full((1,), -torch.inf)]),
        first,
        highest,
        scale,
        rounds=int((level(edge - 0.01) - first).max()),
    )


FEW_DIMENSIONS: Final = 8
"""Below so many coordinates the free direction is often a small remainder of its draw, and is built explicitly."""

ROUNDING: Final = 1.2e-7
"""Of squared lengths of about `d` in float32; a smaller remainder means nothing."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """Draws of `X` given its token, Eq. (20), for the chain of `bridge` on `grid`.

    `table` is [M + 1, pairs, 4]: draws of the pair at every level, each with the pull that it feels there and a draw of
    what its next step needs, Eq. (48), so that a position finds all in one place. The last level is the vertex: zeros.
    """

    bridge: Bridge
    grid: Grid
    table: Tensor

    @property
    def radius(self) -> Float[Tensor, "levels pairs"]:
        """Return the draws of `r` at levels 0 to M-1."""
        return self.table[:-1, :, 0]

    @property
    def heading(self) -> Float[Tensor, "levels pairs"]:
        """Return the draws of `c` at levels 0 to M-1."""
        return self.table[:-1, :, 1]

    def draw_at_level(
        self, token: Int[Tensor, ...], level: Int[Tensor, ...], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states at grid levels (0 to M; M is the vertex itself), Eq. (20)."""
        radius, heading, _, _ = self._pairs(level.expand(token.shape), generator)
        return place(self.bridge, token, radius, heading, generator)

    def draw(
        self, token: Int[Tensor, ...], remaining: Float[Tensor, ...] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with any amount of noise still to come, between levels too, Eq. (20)."""
        levels = self._levels
        wanted = torch.as_tensor(remaining, device=token.device).to(self.table.dtype).clamp(0, levels.highest)
        level = levels.at(wanted)  # beyond the last one there is only the vertex
        inverse = self._inverse.index_select(0, level.flatten()).view(level.shape)
        gain = (1 - inverse.mul_(wanted)).clamp_min_(0)  # Eq. (18) for a step to the wanted noise
        radius, heading, pull, part = self._pairs(level.expand(token.shape), generator)
        # The direction's own numbers serve as the noise of the pair's step, too.
        free = Free.draw(self.bridge.start, token, wanted.dtype, generator)
        wobble = Wobble(free.on_token, free.on_start, free.rest * part)
        return free.at(place_step(radius, heading, gain * pull, wanted * gain, wobble))

    @cached_property
    def _levels(self) -> Levels:
        return Levels.of(self.grid.remaining)

    @cached_property
    def _inverse(self) -> Float[Tensor, " levels"]:
        """Return the inverse of the levels' noise, 0 for the last one."""
        remaining = self.grid.remaining
        return torch.where(remaining > 0, 1 / remaining, 0.0).to(self.table.dtype)

    def _pairs(self, level: Tensor, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """Return radius, heading, pull and part of a random pair of each level."""
        pairs = self.table.shape[1]
        row = torch.randint(pairs, level.shape, generator=generator, device=level.device).add_(level, alpha=pairs)
        found = self._rows.index_select(0, row.flatten())
        return found[:, None].view(self.table.dtype).view(*level.shape, 4).unbind(-1)

    @cached_property
    def _rows(self) -> Tensor:
        """Return the table as a list of rows; on a CPU each is one number of 16 bytes, found three times as fast."""
        rows = self.table.flatten(0, 1)  # [M + 1, pairs, 4] -> [n, 4]
        if rows.device.type != "cpu":
            return rows
        # Such numbers are read whole, from addresses that are multiples of their size; memory of torch's own is.
        aligned = rows if rows.data_ptr() % 16 == 0 and rows.storage_offset() % 4 == 0 else rows.clone()
        return aligned.view(torch.complex128).flatten()

    def to(self, device: torch.device | str) -> ExactLaw:
        """Return the law with its table on `device`."""
        return ExactLaw(self.bridge, self.grid.to(device), self.table.to(device))


def tabulate(bridge: Bridge, grid: Grid, pairs: int, generator: torch.Generator | None = None) -> ExactLaw:
    """Return the exact law with `pairs` fresh draws per level, by the chain of Eq. (21) in float64."""
    if pairs < 1:
        raise InputError(f"a table needs at least one pair, got {pairs}")
    if abs(grid.total - bridge.total) > 1e-6 * bridge.total:
        raise InputError(f"the grid's total noise {grid.total:g} is not the bridge's, {bridge.total:g}")
    radius = torch.full((pairs,), bridge.start.angle, dtype=torch.float64)
    heading = torch.ones(pairs, dtype=torch.float64)
    table = torch.zeros(grid.steps + 1, pairs, 4)
    for step, (remaining, gain, variance) in enumerate(grid.coefficient_table):
        pull = bridge.pull(radius, remaining)
        table[step, :, :3] = torch.stack([radius, heading, pull], -1)
        wobble = Wobble.draw(bridge.dimension, radius, generator)
        radius, heading = place_step(radius, heading, gain * pull, variance, wobble).pair()
    table[:-1, :, 3] = all_but_one(table[:-1, :, 0], bridge.dimension - 3, generator)
    return ExactLaw(bridge, grid, table)


def place(
    bridge: Bridge,
    token: Int[Tensor, ...],
    radius: Float[Tensor, ...],
    heading: Float[Tensor, ...],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return states with given pairs and a uniform direction for the rest, Eq. (20), in one pass over `d`."""
    free = Free.draw(bridge.start, token, radius.dtype, generator)
    sine, around = torch.sin(radius), torch.sqrt((1 - heading.square()).clamp_min(0))
    return free.at(Place(torch.cos(radius), sine * heading, sine * around))


class Free(NamedTuple):
    """Normal numbers `g` that will be states, with what they have along `e_k` and along `w`, the start's direction.

    Without those two parts `g` has a uniform direction `xi`; all sums needed are `|g|^2`, `sum g` and two gathers.
    """

    start: Start
    token: Int[Tensor, ...]
    normal: Float[Tensor, "... d"]
    on_token: Float[Tensor, ...]
    on_start: Float[Tensor, ...]
    rest: Float[Tensor, ...]
    """Squared length of what is left."""

    @staticmethod
    def draw(
        start: Start, token: Int[Tensor, ...], dtype: torch.dtype, generator: torch.Generator | None = None
    ) -> Free:
        """Return fresh ones."""
        shape = (*token.shape, start.dimension)
        normal = numbers.normal(shape, generator, dtype, token.device)
        on_token, on_start = normal.gather(-1, token[..., None])[..., 0], normal[..., -1]
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        if cosine > 0:  # w = (x0 - cos0 e_k) / sin0; the mask's vertex itself where the start is there
            others = normal.sum(-1) - on_start - on_token
            on_start = (start.mask_coordinate * on_start + cosine * others) / sine
        rest = torch.linalg.vector_norm(normal, dim=-1).square_()  # without a second tensor of this size
        rest.addcmul_(on_token, on_token, value=-1).addcmul_(on_start, on_start, value=-1)
        rest.clamp_min_(ROUNDING)
        return Free(start, token, normal, on_token, on_start, rest)

    def at(self, place: Place) -> Float[Tensor, "... d"]:
        """Return the states at these places, in the memory of `g`."""
        start, state = self.start, self.normal
        if start.dimension < FEW_DIMENSIONS:
            return self._explicitly(place)
        spread = place.across * self.rest.rsqrt()
        # x = spread (g - g_k e_k - g_w w) + on_token e_k + on_start w, with w in terms of the start.
        from_start = torch.addcmul(place.on_start, spread, self.on_start, value=-1)
        from_token = torch.addcmul(place.on_token, spread, self.on_token, value=-1)
        state.mul_(spread[..., None])
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        if cosine > 0:  # else w is the mask's vertex
            from_start.div_(sine)
            from_token.sub_(from_start, alpha=cosine)
            state.add_((from_start * cosine)[..., None])
        state[..., -1].add_(from_start, alpha=start.mask_coordinate - cosine)
        return state.scatter_add_(-1, self.token[..., None], from_token[..., None])

    def _explicitly(self, place: Place) -> Float[Tensor, "... d"]:
        """Return the same by Gram-Schmidt, which keeps norms where `|g|^2` minus parts does not."""
        index = self.token[..., None]
        ahead = self.start.point(self.normal.dtype, self.normal.device).expand_as(self.normal).scatter(-1, index, 0.0)
        ahead = sphere.project(ahead)  # w
        free = self.normal.scatter(-1, index, 0.0)
        for _ in range(2):  # the second pass removes the rounding of the first
            free = sphere.tangent(ahead, free)
        around = place.on_start[..., None] * ahead + place.across[..., None] * sphere.project(free)
        return around.scatter(-1, index, place.on_token[..., None])

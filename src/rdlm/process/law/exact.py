"""The exact law of the bridge at any noise level, drawn from a table of pairs: no simulation in `d` dimensions.

A table holds many draws of the pair `(r, c)` at each level of a grid. A level between two of them is
reached by one more step of the pair's chain, so that a draw is exact for the chain on the grid with
that level added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid
from rdlm.process.law.pair import Place, Wobble, all_but_one, place_step
from rdlm.process.start import Start

FEW_DIMENSIONS: Final = 8
"""Below so many coordinates the free direction is often a small remainder of its draw, and is built explicitly."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """Draws of `X` given its token, Eq. (20), for the chain of `bridge` on `grid`.

    `table` is [M + 1, pairs, 3]: draws of the pair at every level, each with the pull that it feels there, so that a
    position finds all it needs in one place. The last level is the vertex: zeros.
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
        self, token: Int[Tensor, "..."], level: Int[Tensor, "..."], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states at grid levels (0 to M; M is the vertex itself), Eq. (20)."""
        radius, heading, _ = self._pairs(level.expand(token.shape), generator)
        return place(self.bridge, token, radius, heading, generator)

    def draw(
        self, token: Int[Tensor, "..."], noise: Float[Tensor, "..."] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with any amount of noise still to come, between levels too, Eq. (20)."""
        wanted = torch.as_tensor(noise, device=token.device).to(self.table.dtype).expand(token.shape).clamp_min(0)
        rising, inverse = self._levels
        # The last level with at least the wanted noise; beyond the last one there is only the vertex.
        level = (self.grid.steps - torch.searchsorted(rising, wanted.contiguous())).clamp_min_(0)
        gain = (1 - wanted * inverse.take(level)).clamp_min_(0)  # Eq. (18) for a step that ends at the wanted noise
        radius, heading, pull = self._pairs(level, generator)
        # The direction's own numbers serve as the noise of the pair's step, too.
        free = Free.draw(self.bridge.start, token, wanted.dtype, generator)
        return free.at(place_step(radius, heading, gain * pull, wanted * gain, free.wobble(generator)))

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor]:
        """Return the noise of the levels from the last to the first, and its inverse from the first to the last."""
        noise = self.grid.noise
        inverse = torch.where(noise > 0, 1 / noise, 0.0)
        return noise.flip(0).to(self.table.dtype), inverse.to(self.table.dtype)

    def _pairs(self, level: Tensor, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """Return radius, heading and pull of a random pair of each level."""
        pairs = self.table.shape[1]
        row = torch.randint(pairs, level.shape, generator=generator, device=level.device).add_(level, alpha=pairs)
        found = self.table.flatten(0, 1).index_select(0, row.flatten())  # [M + 1, pairs, 3] -> [n, 3]
        return found.view(*level.shape, 3).unbind(-1)

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
    table = torch.zeros(grid.steps + 1, pairs, 3)
    for step, (noise, gain, variance) in enumerate(grid.strides):
        pull = bridge.pull(radius, noise)
        table[step] = torch.stack([radius, heading, pull], -1)
        wobble = Wobble.draw(bridge.dimension, radius, generator)
        radius, heading = place_step(radius, heading, gain * pull, variance, wobble).pair()
    return ExactLaw(bridge, grid, table)


def place(
    bridge: Bridge,
    token: Int[Tensor, "..."],
    radius: Float[Tensor, "..."],
    heading: Float[Tensor, "..."],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return states with given pairs and a uniform direction for the rest, Eq. (20), in one pass over `d`."""
    free = Free.draw(bridge.start, token, radius.dtype, generator)
    sine, around = torch.sin(radius), torch.sqrt((1 - heading.square()).clamp_min(0))
    return free.at(Place(torch.cos(radius), sine * heading, sine * around))


@dataclass(frozen=True, eq=False)
class Free:
    """Normal numbers `g` that will be states, with what they have along `e_k` and along `w`, the start's direction.

    Without those two parts `g` has a uniform direction `xi`; all sums needed are `|g|^2`, `sum g` and two gathers.
    """

    start: Start
    token: Int[Tensor, "..."]
    normal: Float[Tensor, "... d"]
    on_token: Float[Tensor, "..."]
    on_start: Float[Tensor, "..."]
    rest: Float[Tensor, "..."]
    """Squared length of what is left."""

    @staticmethod
    def draw(
        start: Start, token: Int[Tensor, "..."], dtype: torch.dtype, generator: torch.Generator | None = None
    ) -> Free:
        """Return fresh ones."""
        shape = (*token.shape, start.dimension)
        normal = torch.randn(shape, generator=generator, dtype=dtype, device=token.device)
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        on_token, on_start = normal.gather(-1, token[..., None])[..., 0], normal[..., -1]
        if cosine > 0:  # w = (x0 - cos0 e_k) / sin0; the mask's vertex itself where the start is there
            others = normal.sum(-1) - on_start - on_token
            on_start = (start.mask_coordinate * on_start + cosine * others) / sine
        square = torch.linalg.vector_norm(normal, dim=-1).square()  # without a second tensor of this size
        rest = square - on_token.square() - on_start.square()
        rest = torch.maximum(rest, square * torch.finfo(dtype).eps)  # below it there is only rounding
        return Free(start, token, normal, on_token, on_start, rest)

    def wobble(self, generator: torch.Generator | None = None) -> Wobble:
        """Return the noise of a pair's step, Eq. (21), made of the same numbers: independent of the direction `xi`.

        What is left of `g` has `d - 2` coordinates, and the step wants the squared length of `d - 3`.
        """
        part = all_but_one(self.rest, self.start.dimension - 3, generator)
        return Wobble(self.on_token, self.on_start, self.rest * part)

    def at(self, place: Place) -> Float[Tensor, "... d"]:
        """Return the states at these places, in the memory of `g`."""
        start, state = self.start, self.normal
        if start.dimension < FEW_DIMENSIONS:
            return self._explicitly(place)
        spread = place.across * self.rest.rsqrt()
        # x = spread (g - g_k e_k - g_w w) + on_token e_k + on_start w, with w in terms of the start.
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        from_start = (place.on_start - spread * self.on_start) / sine
        from_token = place.on_token - spread * self.on_token - from_start * cosine
        state.mul_(spread[..., None])
        if cosine > 0:
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

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
from rdlm.process.law.pair import Place, pair_step, place_step
from rdlm.process.start import Start

FEW_DIMENSIONS: Final = 8
"""Below so many coordinates the free direction is often a small remainder of its draw, and is built explicitly."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """Draws of `X` given its token, Eq. (20), for the chain of `bridge` on `grid`.

    `radius` and `heading` are [M, pairs]: the pair's draws at levels 0 to M-1 (level M is the vertex).
    """

    bridge: Bridge
    grid: Grid
    radius: Tensor
    heading: Tensor

    def draw_at_level(
        self, token: Int[Tensor, "..."], level: Int[Tensor, "..."], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states at grid levels (0 to M; M is the vertex itself), Eq. (20)."""
        level = level.expand(token.shape)
        row = self._row(token, level, generator)
        radius = self.radius.take(row).masked_fill_(level == self.grid.steps, 0.0)
        return place(self.bridge, token, radius, self.heading.take(row), generator)

    def draw(
        self, token: Int[Tensor, "..."], noise: Float[Tensor, "..."] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with any amount of noise still to come, between levels too, Eq. (20)."""
        wanted = torch.as_tensor(noise, device=token.device).to(self.radius.dtype).expand(token.shape)
        rising, inverse = self._levels
        # The last level with at least the wanted noise; beyond the last one there is only the vertex.
        level = (self.grid.steps - torch.searchsorted(rising, wanted.contiguous())).clamp_(0, self.grid.steps)
        vertex = level == self.grid.steps
        # Eq. (18) for a step that ends at the wanted noise; none is left to take at the vertex.
        gain = (1 - wanted * inverse.take(level)).clamp_(0, 1).masked_fill_(vertex, 0.0)
        row = self._row(token, level, generator)
        radius, heading = self.radius.take(row).masked_fill_(vertex, 0.0), self.heading.take(row)
        drift = self._pulls.take(row).mul_(gain)
        # What `free` has in the plane of token and start is two normals of their own: the noise of the pair's step.
        free = Free.draw(self.bridge.start, token, radius.dtype, generator)
        normals = free.on_token, free.on_start
        place = place_step(self.bridge, radius, heading, drift, wanted * gain, normals, generator)
        return free.at(place)

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor]:
        """Return the noise of the levels from the last to the first, and its inverse from the first to the last."""
        noise = self.grid.noise
        inverse = torch.where(noise > 0, 1 / noise, 0.0)
        return noise.flip(0).to(self.radius.dtype), inverse.to(self.radius.dtype)

    @cached_property
    def _pulls(self) -> Tensor:
        """Return the pull at every pair of the table: its series takes longer than all the rest of a draw."""
        return self.bridge.pull(self.radius, self.grid.noise[:-1, None].to(self.radius.dtype))

    def _row(self, token: Tensor, level: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return places in the table: a random pair of each level, of the last one for the vertex."""
        pairs = self.radius.shape[1]
        choice = torch.randint(pairs, token.shape, generator=generator, device=token.device)
        return torch.add(choice, level.clamp_max(self.grid.steps - 1), alpha=pairs)

    def to(self, device: torch.device | str) -> ExactLaw:
        """Return the law with its table on `device`."""
        return ExactLaw(self.bridge, self.grid.to(device), self.radius.to(device), self.heading.to(device))


def tabulate(bridge: Bridge, grid: Grid, pairs: int, generator: torch.Generator | None = None) -> ExactLaw:
    """Return the exact law with `pairs` fresh draws per level, by the chain of Eq. (21) in float64."""
    if pairs < 1:
        raise InputError(f"a table needs at least one pair, got {pairs}")
    if abs(grid.total - bridge.total) > 1e-6 * bridge.total:
        raise InputError(f"the grid's total noise {grid.total:g} is not the bridge's, {bridge.total:g}")
    radius = torch.full((pairs,), bridge.start.angle, dtype=torch.float64)
    heading = torch.ones(pairs, dtype=torch.float64)
    table = torch.empty(2, grid.steps, pairs, dtype=torch.float32)
    levels = zip(grid.noise.tolist(), grid.gain.tolist(), grid.variance.tolist(), strict=False)
    for step, (noise, gain, variance) in enumerate(levels):
        table[0, step], table[1, step] = radius, heading
        if step + 1 < grid.steps:
            radius, heading = pair_step(bridge, radius, heading, noise, gain, variance, generator)
    return ExactLaw(bridge, grid, table[0], table[1])


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

    @staticmethod
    def draw(
        start: Start, token: Int[Tensor, "..."], dtype: torch.dtype, generator: torch.Generator | None = None
    ) -> Free:
        """Return fresh ones."""
        shape = (*token.shape, start.dimension)
        normal = torch.randn(shape, generator=generator, dtype=dtype, device=token.device)
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        on_token, on_mask = normal.gather(-1, token[..., None])[..., 0], normal[..., -1]
        on_start = start.mask_coordinate * on_mask
        if cosine > 0:
            on_start = on_start + cosine * (normal.sum(-1) - on_mask - on_token)
        return Free(start, token, normal, on_token, on_start / sine)  # w = (x0 - cos0 e_k) / sin0

    def at(self, place: Place) -> Float[Tensor, "... d"]:
        """Return the states at these places, in the memory of `g`."""
        start, state = self.start, self.normal
        if start.dimension < FEW_DIMENSIONS:
            return self._explicitly(place)
        square = torch.linalg.vecdot(state, state)
        rest = square - self.on_token.square() - self.on_start.square()
        rest = torch.maximum(rest, square * torch.finfo(state.dtype).eps)  # below it there is only rounding
        spread = place.across * rest.rsqrt()
        # x = spread (g - g_k e_k - g_w w) + on_token e_k + on_start w, with w in terms of the start.
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        from_start = (place.on_start - spread * self.on_start) / sine
        from_token = place.on_token - spread * self.on_token - from_start * cosine
        state.mul_(spread[..., None])
        if cosine > 0:
            state.add_((from_start * cosine)[..., None])
        state[..., -1] += from_start * (start.mask_coordinate - cosine)
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

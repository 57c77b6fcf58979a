"""The exact law of the bridge at any noise level, drawn from a table of pairs: no simulation in `d` dimensions.

A table holds many draws of the pair `(r, c)` at each level of a grid. A level between two of them is
reached by one more step of the pair's chain, so that a draw is exact for the chain on the grid with
that level added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid
from rdlm.process.law.pair import pair_step
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
        radius, heading = self._pair(token, level, generator)
        return place(self.bridge, token, radius, heading, generator)

    def draw(
        self, token: Int[Tensor, "..."], noise: Float[Tensor, "..."] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with any amount of noise still to come, between levels too, Eq. (20)."""
        levels = self.grid.noise.to(token.device)
        wanted = torch.as_tensor(noise, dtype=levels.dtype, device=token.device).expand(token.shape)
        # The last level with at least the wanted noise; `levels` fall, searchsorted wants them to rise.
        level = len(levels) - 1 - torch.searchsorted(levels.flip(0).contiguous(), wanted.contiguous())
        level = level.clamp(0, self.grid.steps)
        radius, heading = self._pair(token, level, generator)
        above = levels[level]
        gain = torch.where(above > 0, 1 - wanted / above.clamp_min(torch.finfo(above.dtype).tiny), 0.0).clamp(0, 1)
        # Two numbers a position: float64 costs nothing here and keeps the smallest angles.
        pair = pair_step(self.bridge, radius.double(), heading.double(), above, gain, wanted * gain, generator)
        return place(self.bridge, token, pair[0].to(radius.dtype), pair[1].to(radius.dtype), generator)

    def _pair(self, token: Tensor, level: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        level = level.expand(token.shape)
        pairs = self.radius.shape[1]
        choice = torch.randint(pairs, token.shape, generator=generator, device=token.device)
        row = level.clamp_max(self.grid.steps - 1) * pairs + choice
        radius = self.radius.view(-1)[row]
        radius = torch.where(level == self.grid.steps, torch.zeros_like(radius), radius)
        return radius, self.heading.view(-1)[row]

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
    """Return states with given pairs and a uniform direction for the rest, Eq. (20), in one pass over `d`.

    With `g` normal, `xi` is `g` without its parts along `e_k` and `w`, normalised; all sums needed are
    `|g|^2`, `sum g` and two gathers.
    """
    start = bridge.start
    state = torch.randn(
        (*token.shape, start.dimension), generator=generator, dtype=radius.dtype, device=token.device
    )
    if start.dimension < FEW_DIMENSIONS:
        return _place_explicitly(start, token, radius, heading, state)
    cos0, sin0 = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
    on_token = state.gather(-1, token[..., None])[..., 0]
    on_mask = state[..., -1]
    square = torch.linalg.vector_norm(state, dim=-1).square()
    on_start = start.mask_coordinate * on_mask
    if cos0 > 0:
        on_start = on_start + cos0 * (state.sum(-1) - on_mask)
    on_heading = (on_start - cos0 * on_token) / sin0
    rest = square - on_token.square() - on_heading.square()
    rest = torch.maximum(rest, square * torch.finfo(state.dtype).eps)  # below it there is only rounding
    sine = torch.sin(radius)
    spread = sine * torch.sqrt((1 - heading.square()).clamp_min(0)) * rest.rsqrt()
    # x = spread (g - g_k e_k - g_w w) + cos r e_k + sin r c w with w = (x0 - cos0 e_k) / sin0.
    from_start = (sine * heading - spread * on_heading) / sin0
    from_token = torch.cos(radius) - spread * on_token - from_start * cos0
    state.mul_(spread[..., None])
    if cos0 > 0:
        state.add_((from_start * cos0)[..., None])
        state[..., -1] += from_start * (start.mask_coordinate - cos0)
    else:
        state[..., -1] += from_start * start.mask_coordinate
    return state.scatter_add_(-1, token[..., None], from_token[..., None])


def _place_explicitly(start: Start, token: Tensor, radius: Tensor, heading: Tensor, normal: Tensor) -> Tensor:
    """Return the states of `place` by Gram-Schmidt, which keeps their norms where `|g|^2` minus parts does not."""
    index = token[..., None]
    ahead = start.point(normal.dtype, normal.device).expand_as(normal).scatter(-1, index, 0.0)
    ahead = sphere.project(ahead)  # w
    free = normal.scatter(-1, index, 0.0)
    for _ in range(2):  # the second pass removes the rounding of the first
        free = sphere.tangent(ahead, free)
    across = torch.sqrt((1 - heading.square()).clamp_min(0))
    around = heading[..., None] * ahead + across[..., None] * sphere.project(free)
    return (torch.sin(radius)[..., None] * around).scatter(-1, index, torch.cos(radius)[..., None])

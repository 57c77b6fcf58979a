"""The exact law of a bridge's state at any noise level, without simulation in `d` dimensions, Eq. (20) and (21).

Write `x = cos r e_k + sin r (c w + sqrt(1 - c^2) xi)`: `r` is the angle to the token, `c` the cosine between the
directions of `x` and of the start, both as tangent vectors at the token, and `xi` is uniform on the unit sphere
orthogonal to `e_k` and to `w`, the start's direction. The pair `(r, c)` is a Markov chain by itself, so a state takes
one draw of the pair and one normal vector.

| variable | symbol |
|---|---|
| `radius` | `r`, the angle to the token |
| `start_cosine` | `c`, the cosine between the tangent directions at the token to the state and to the start |
| `remaining`, `gain`, `variance` | `B_m`, `g_m` and `s2_m` of a step, Eq. (18) |
| `on_token`, `on_start` | coordinates on `e_k` and on `w` |
| `across` | length of the part orthogonal to both |

`ExactLaw` draws pairs from a table of many draws at each level of a grid. A noise level between two of them takes one
more step of the pair's chain, so a draw is exact for the chain on the grid with that level added. `FreshLaw` simulates
a separate pair for every position, which bounds need: draws from a table of `P` pairs share its error. The variance of
a mean over `n` sequences of `L` positions is then not `v / (n L)` but up to `v / (n L) + v / P`, which confidence
intervals computed from the sequences do not cover.
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
from rdlm.process.bridge import Bridge
from rdlm.process.channel import Channel, Gaussian
from rdlm.process.path import Law, Path, PathLaw
from rdlm.process.schedule import Grid, StepCoefficients, check_total
from rdlm.process.tokens import Codes
from rdlm.random import Rng

FEW_DIMENSIONS: Final = 8
"""Below this many coordinates `xi` is often a small remainder of a normal vector and is built by Gram-Schmidt."""

ROUNDING: Final = 1.2e-7
"""Smallest squared length of the part of a normal vector orthogonal to `e_k` and `w`: less is float32 rounding."""


class StepNoise(NamedTuple):
    """The noise of a step in the pair's coordinates, Eq. (21)."""

    outward: Tensor
    """Component away from the token."""
    sideways: Tensor
    """Component towards the start, orthogonal to `outward`."""
    rest: Tensor
    """Squared length of all other components."""

    @staticmethod
    def draw(dimension: int, like: Tensor, generator: Rng = None) -> StepNoise:
        """Return two standard normals and a chi-square with `d - 3` degrees of freedom, each in the shape of `like`."""
        return StepNoise(
            _normal(like, generator), _normal(like, generator), _chi_square(like, dimension - 3, generator)
        )


class Coordinates(NamedTuple):
    """Coordinates of a state on `e_k` and on `w`, and the length of the rest, Eq. (20)."""

    on_token: Tensor
    on_start: Tensor
    across: Tensor

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return `(r, c)`; `atan2` keeps the digits of a small angle that its cosine has lost."""
        sine = torch.hypot(self.on_start, self.across)
        return torch.atan2(sine, self.on_token), self.on_start / special.positive_or_one(sine)


def pair_step(
    bridge: Bridge, radius: Tensor, start_cosine: Tensor, coefficients: StepCoefficients, generator: Rng = None
) -> tuple[Tensor, Tensor]:
    """Return the pair `(r, c)` after one step of the d-dimensional chain, exactly, Eq. (21)."""
    drift = coefficients.gain * bridge.pull(radius, coefficients.remaining)
    noise = StepNoise.draw(bridge.dimension, radius, generator)
    return coordinates_after(radius, start_cosine, drift, coefficients.variance, noise).pair()


def coordinates_after(
    radius: Tensor, start_cosine: Tensor, drift: Tensor, variance: Tensor, noise: StepNoise
) -> Coordinates:
    """Return a state's coordinates after a step from the pair `(r, c)`, Eq. (21); `drift` is gain times pull.

    Most operations are in place: with few coordinates, drawing a state spends much of its time here.
    """
    scale = variance.sqrt()
    outward = (scale * noise.outward).sub_(drift)
    sideways = scale * noise.sideways
    rest = variance * noise.rest
    square = torch.addcmul(rest, outward, outward).addcmul_(sideways, sideways)
    length = square.clamp_min_(special.SMALLEST_SQUARE).sqrt_()
    sinc, cos = torch.sin(length).div_(length), torch.cos(length)  # of the step's length, Eq. (4)
    sine, cosine = torch.sin(radius), torch.cos(radius)
    around = torch.sub(1, start_cosine.square()).clamp_min_(0).sqrt_()
    # Coordinates of the new state on e_k, on w, and on the previous state's xi.
    outward.mul_(sinc)
    sideways.mul_(sinc)
    ahead = torch.addcmul(cos * sine, outward, cosine)
    on_token = torch.addcmul(cos * cosine, outward, sine, value=-1)
    on_start = torch.addcmul(ahead * start_cosine, sideways, around)
    on_xi = torch.addcmul(ahead * around, sideways, start_cosine, value=-1)
    return Coordinates(on_token, on_start, on_xi.square_().addcmul_(sinc.square_(), rest).sqrt_())


def _normal(like: Tensor, generator: Rng) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _chi_square(like: Tensor, degrees: int, generator: Rng) -> Tensor:
    """Return chi-square draws; 0 for no degrees of freedom (d = 3)."""
    if degrees == 0:
        return torch.zeros_like(like)
    shape = torch.full_like(like, degrees / 2)
    return 2 * torch._standard_gamma(shape, generator=generator)


def all_but_one_share(like: Tensor, degrees: int, generator: Rng = None) -> Tensor:
    """Return draws of the share of a normal vector's squared length outside one of `degrees + 1` coordinates, Eq. (48).

    The share is independent of the vector's length; it is 0 if there is no other coordinate (d = 3).
    """
    if degrees == 0:
        return torch.zeros_like(like)
    uniform = torch.rand(2, *like.shape, generator=generator, dtype=like.dtype, device=like.device)
    others = uniform[0].pow(2 / degrees)
    return others / (others + (1 - others) * torch.cos(math.pi * uniform[1]).square())


class NormalVector(NamedTuple):
    """Standard normal vectors `g` [..., d] with their components along `e_k` and along `w`.

    Without those two components `g` has a uniform direction, the `xi` of Eq. (20). Only `|g|^2`, `sum g` and two
    gathers are needed.
    """

    bridge: Bridge
    token: Int[Tensor, ...]
    normal: Float[Tensor, "... d"]
    on_token: Float[Tensor, ...]
    on_start: Float[Tensor, ...]
    rest: Float[Tensor, ...]
    """Squared length of `g` without its two components."""

    @staticmethod
    def draw(bridge: Bridge, token: Int[Tensor, ...], dtype: torch.dtype, generator: Rng = None) -> NormalVector:
        """Return one vector per token."""
        start, shape = bridge.start, (*token.shape, bridge.dimension)
        normal = numbers.normal(shape, generator, dtype, token.device)
        on_token, on_start = bridge.tokens.cosine(normal, token), normal[..., -1]
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        if cosine > 0:  # w = (x0 - cos0 e_k) / sin0; for the masked start w is the mask's vertex
            others = normal.sum(-1) - on_start - on_token
            on_start = (start.mask_coordinate * on_start + cosine * others) / sine
        rest = torch.linalg.vector_norm(normal, dim=-1).square_()  # without a second tensor of this size
        rest.addcmul_(on_token, on_token, value=-1).addcmul_(on_start, on_start, value=-1)
        rest.clamp_min_(ROUNDING)
        return NormalVector(bridge, token, normal, on_token, on_start, rest)

    def state_at(self, coordinates: Coordinates) -> Float[Tensor, "... d"]:
        """Return the states with these coordinates and direction `xi`, Eq. (20), in the memory of `g`."""
        start, state = self.bridge.start, self.normal
        if isinstance(self.bridge.tokens, Codes):
            return self._state_of_codes(coordinates)
        if start.dimension < FEW_DIMENSIONS:
            return self._state_by_gram_schmidt(coordinates)
        scale = coordinates.across * self.rest.rsqrt()
        # x = scale (g - g_k e_k - g_w w) + on_token e_k + on_start w, with w in terms of the start.
        along_start = torch.addcmul(coordinates.on_start, scale, self.on_start, value=-1)
        along_token = torch.addcmul(coordinates.on_token, scale, self.on_token, value=-1)
        state.mul_(scale[..., None])
        cosine, sine = start.token_coordinate, (1 - start.token_coordinate**2) ** 0.5
        if cosine > 0:  # else w is the mask's vertex
            along_start.div_(sine)
            along_token.sub_(along_start, alpha=cosine)
            state.add_((along_start * cosine)[..., None])
        state[..., -1].add_(along_start, alpha=start.mask_coordinate - cosine)
        return self.bridge.tokens.add_(state, self.token, along_token)

    def _state_by_gram_schmidt(self, coordinates: Coordinates) -> Float[Tensor, "... d"]:
        """Return the same states with accurate norms where `|g|^2` minus the two components would cancel."""
        index = self.token[..., None]
        w = (
            self.bridge.start.point(self.normal.dtype, self.normal.device)
            .expand_as(self.normal)
            .scatter(-1, index, 0.0)
        )
        w = sphere.project(w)
        xi = self.normal.scatter(-1, index, 0.0)
        for _ in range(2):  # the second pass removes the rounding error of the first
            xi = sphere.tangent(w, xi)
        around = coordinates.on_start[..., None] * w + coordinates.across[..., None] * sphere.project(xi)
        return around.scatter(-1, index, coordinates.on_token[..., None])

    def _state_of_codes(self, coordinates: Coordinates) -> Float[Tensor, "... d"]:
        """Return the same states for tokens at any points orthogonal to the mask, differentiable in the points."""
        point = self.bridge.tokens.at(self.token, self.normal)
        mask = self.bridge.start.point(self.normal.dtype, self.normal.device)
        xi = self.normal
        for _ in range(2):  # the second pass removes the rounding error of the first
            xi = sphere.tangent(mask, sphere.tangent(point, xi))
        state = coordinates.across[..., None] * sphere.project(xi) + coordinates.on_token[..., None] * point
        return torch.addcmul(state, coordinates.on_start[..., None], mask)


def draw_states(
    bridge: Bridge,
    token: Int[Tensor, ...],
    radius: Float[Tensor, ...],
    start_cosine: Float[Tensor, ...],
    generator: Rng = None,
) -> Float[Tensor, "... d"]:
    """Return states with given pairs `(r, c)` and a uniform direction `xi`, Eq. (20), in one pass over `d`."""
    vector = NormalVector.draw(bridge, token, radius.dtype, generator)
    sine, around = torch.sin(radius), torch.sqrt((1 - start_cosine.square()).clamp_min(0))
    return vector.state_at(Coordinates(torch.cos(radius), sine * start_cosine, sine * around))


@dataclass(frozen=True, eq=False)
class ExactLaw(Law):
    """Draws of `X` given its token, Eq. (20), for the chain of `bridge` on `grid`, from a table of pairs.

    `table` is [M + 1, pairs, 4]: draws of `r` and `c` at every level, the pull at `r`, and a draw of the share of
    Eq. (48) for the step to a level between two levels. The last level is the vertex: zeros.
    """

    bridge: Bridge
    grid: Grid
    table: Tensor

    @property
    def radius(self) -> Float[Tensor, "levels pairs"]:
        """The draws of `r` at levels 0 to M-1."""
        return self.table[:-1, :, 0]

    @property
    def start_cosine(self) -> Float[Tensor, "levels pairs"]:
        """The draws of `c` at levels 0 to M-1."""
        return self.table[:-1, :, 1]

    def draw_at_level(self, token: Tensor, level: Tensor, generator: Rng = None) -> Tensor:
        """Return states at grid levels (0 to M; M is the vertex), Eq. (20)."""
        radius, start_cosine, _, _ = self._rows(level.expand(token.shape), generator)
        return draw_states(self.bridge, token, radius, start_cosine, generator)

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return states at any remaining noise, also between levels, Eq. (20)."""
        rising, inverse = self._levels
        target = torch.as_tensor(remaining, device=token.device).to(self.table.dtype)
        target = target.clamp_min(0).clamp_max(rising[-1]).contiguous()
        # The last level with at least this much noise; only the vertex comes after the last one.
        level = (self.grid.steps - torch.searchsorted(rising, target)).clamp_min_(0)
        gain = (1 - inverse[level] * target).clamp_min_(0)  # Eq. (18) for a step from that level to `target`
        radius, start_cosine, pull, share = self._rows(level.expand(token.shape), generator)
        # The components of g that xi does not use are the noise of the pair's step.
        vector = NormalVector.draw(self.bridge, token, target.dtype, generator)
        noise = StepNoise(vector.on_token, vector.on_start, vector.rest * share)
        return vector.state_at(coordinates_after(radius, start_cosine, gain * pull, target * gain, noise))

    @cached_property
    def _levels(self) -> tuple[Float[Tensor, " levels"], Float[Tensor, " levels"]]:
        """The noise of the levels in ascending order, and its inverse by level (0 for the last one)."""
        remaining = self.grid.remaining
        inverse = torch.where(remaining > 0, 1 / remaining, 0.0)
        return remaining.to(self.table.dtype).flip(0), inverse.to(self.table.dtype)

    def _rows(self, level: Int[Tensor, ...], generator: Rng) -> tuple[Float[Tensor, ...], ...]:
        """Return radius, start cosine, pull and share of a random pair at each level."""
        pairs = self.table.shape[1]
        row = torch.randint(pairs, level.shape, generator=generator, device=level.device).add_(level, alpha=pairs)
        rows = self.table.flatten(0, 1).index_select(0, row.flatten())  # [M + 1, pairs, 4] -> [n, 4]
        return rows.view(*level.shape, 4).unbind(-1)


def tabulate(bridge: Bridge, grid: Grid, pairs: int, generator: Rng = None) -> ExactLaw:
    """Return the exact law with `pairs` draws per level, by the chain of Eq. (21) in float64."""
    if pairs < 1:
        raise InputError(f"a table needs at least one pair, got {pairs}")
    check_total(grid, bridge.total)
    radius = torch.full((pairs,), bridge.start.angle, dtype=torch.float64)
    start_cosine = torch.ones(pairs, dtype=torch.float64)
    table = torch.zeros(grid.steps + 1, pairs, 4)
    for step, (remaining, gain, variance) in enumerate(grid.coefficient_table):
        pull = bridge.pull(radius, remaining)
        table[step, :, :3] = torch.stack([radius, start_cosine, pull], -1)
        noise = StepNoise.draw(bridge.dimension, radius, generator)
        radius, start_cosine = coordinates_after(radius, start_cosine, gain * pull, variance, noise).pair()
    table[:-1, :, 3] = all_but_one_share(table[:-1, :, 0], bridge.dimension - 3, generator)
    return ExactLaw(bridge, grid, table)


@dataclass(frozen=True, eq=False)
class FreshLaw(Law):
    """Independent draws of `X` given its token, Eq. (20), for the chain of a path on `grid`: no table."""

    path: Path
    grid: Grid

    @property
    def _bridges(self) -> list[Bridge]:
        return [bridge for bridge in self.path.bridges if isinstance(bridge, Bridge)]

    def draw_at_level(self, token: Tensor, level: Tensor, generator: Rng = None) -> Tensor:
        """Return states at grid levels (0 to M; M is the vertex), Eq. (20)."""
        level = level.expand(token.shape)
        remaining = self.grid.remaining.to(level.device)[level]
        on_second, bridges = self.path.on_second(remaining), self._bridges
        # A pair is simulated only on the bridge that its position follows.
        levels = (level.where(~on_second, 0), level.where(on_second, 0))
        pairs = [simulate_pairs(b, self.grid, own, generator) for b, own in zip(bridges, levels, strict=False)]
        return self._states(token, remaining, pairs, generator)

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return states at any remaining noise, Eq. (20): the last step of each pair ends at that noise level."""
        levels = self.grid.remaining.to(token.device)
        target = torch.as_tensor(remaining, device=token.device).to(levels).expand(token.shape)
        level = len(levels) - 1 - torch.searchsorted(levels.flip(0), target.contiguous())
        level = level.clamp(0, self.grid.steps - 1)
        gain = (1 - target / levels[level]).clamp(0, 1)
        coefficients = StepCoefficients(levels[level], gain, target * gain)
        pairs = []
        for bridge in self._bridges:
            radius, start_cosine = simulate_pairs(bridge, self.grid, level, generator)
            pairs.append(pair_step(bridge, radius.double(), start_cosine.double(), coefficients, generator))
        return self._states(token, target, pairs, generator)

    def _states(self, token: Tensor, remaining: Tensor, pairs: list[tuple[Tensor, Tensor]], generator: Rng) -> Tensor:
        states = [
            draw_states(bridge, token, radius.float(), start_cosine.float(), generator)
            for bridge, (radius, start_cosine) in zip(self._bridges, pairs, strict=True)
        ]
        return self.path.select(remaining, states)


@dataclass(frozen=True, eq=False)
class GaussianLaw(Law):
    """Draws of `x = B u` given its token, Eq. (56), for the Gaussian channel: closed form, no table."""

    bridge: Gaussian
    grid: Grid

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return `(1 - B/S) c_k + sqrt(B (1 - B/S)) z`, Eq. (56)."""
        shape = (*token.shape, self.bridge.dimension)
        normal = numbers.normal(shape, generator, torch.float32, token.device)
        level = torch.as_tensor(remaining, device=token.device).to(normal).clamp_min(0).expand(token.shape)
        share = (1 - level / self.bridge.total).clamp_min(0)
        return self.bridge.tokens.add_(normal.mul_((level * share).sqrt()[..., None]), token, share)


def fresh_law(path: Path, grid: Grid) -> Law:
    """Return the law of a path's states from which every draw is independent, Eq. (20) or (56)."""
    if isinstance(path.bridge, Gaussian):
        return PathLaw.of(path, lambda channel: exact_law(channel, grid, 1))
    return FreshLaw(path, grid)


def exact_law(channel: Channel, grid: Grid, pairs: int, generator: Rng = None) -> Law:
    """Return the exact law of a channel's states: from a table of `pairs` draws, Eq. (20), or closed, Eq. (56)."""
    if isinstance(channel, Gaussian):
        check_total(grid, channel.total)
        return GaussianLaw(channel, grid)
    assert isinstance(channel, Bridge)
    return tabulate(channel, grid, pairs, generator)


def simulate_pairs(
    bridge: Bridge, grid: Grid, level: Int[Tensor, ...], generator: Rng = None
) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
    """Return independent pairs `(r, c)` at the given levels, each from its own chain of Eq. (21)."""
    flat = level.flatten()
    steps = torch.where(flat < grid.steps, flat, 0)  # the vertex needs no simulation
    steps, order = steps.sort(descending=True, stable=True)
    # Pairs that take each step; another device is read once, for all of them.
    active = (len(steps) - torch.bincount(steps.cpu()).cumsum(0))[:-1].tolist()
    radius = torch.full(flat.shape, bridge.start.angle, device=flat.device)
    start_cosine = torch.ones_like(radius)
    coefficient_table = [StepCoefficients(*row) for row in grid.coefficient_table.to(radius)]
    for step, count in enumerate(active):  # pairs with more steps come first
        radius[:count], start_cosine[:count] = pair_step(
            bridge, radius[:count], start_cosine[:count], coefficient_table[step], generator
        )
    inverse = order.argsort()
    radius, start_cosine = radius[inverse], start_cosine[inverse]
    radius = torch.where(flat < grid.steps, radius, 0.0)
    return radius.view(level.shape), start_cosine.view(level.shape)

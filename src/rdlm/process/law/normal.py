"""The paper's approximate law: a Riemannian normal around a point of the geodesic from the start to the token.

| variable | symbol |
|---|---|
| `angle` | `arcsin alpha_t`, the angle from the start to the mean |
| `spread` | `rho_t`, the standard deviation in each direction of the tangent space |
| `start.angle` | `phi_0`, the angle from the start to the token |

The exact law (`rdlm.process.law.exact`) costs as much and approximates nothing; this one is the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge
from rdlm.process.clock import interpolate
from rdlm.process.grid import Grid
from rdlm.process.law.kummer import KummerName, inverse_kummer
from rdlm.process.projected import Coupling, projected_paths


@dataclass(frozen=True, eq=False)
class NormalLaw:
    """Draws of `exp_mu(rho z)`, Eq. (22), with parameters between those of a table.

    `noise` are the table's levels of noise still to come, rising from 0 to `S`.
    """

    bridge: Bridge
    noise: Tensor
    angle: Tensor
    spread: Tensor

    def parameters(self, noise: Float[Tensor, "..."] | float) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return `alpha` and `rho`, Eq. (23), at levels of noise still to come."""
        angle, spread = self._at(torch.as_tensor(noise, dtype=self.noise.dtype, device=self.noise.device))
        return angle.sin(), spread

    def draw(
        self, token: Int[Tensor, "..."], noise: Float[Tensor, "..."] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with so much noise still to come, Eq. (22); the vertex at 0, the start at `S`."""
        level = torch.as_tensor(noise, dtype=self.noise.dtype, device=token.device).expand(token.shape)
        angle, spread = self._at(level)
        mean = self._mean(token, angle)
        return sphere.exponential(mean, spread.to(mean)[..., None] * sphere.tangent_normal(mean, generator))

    def _at(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        knots = self.noise
        return interpolate(noise, knots, self.angle), interpolate(noise, knots, self.spread)

    def _mean(self, token: Tensor, angle: Tensor) -> Tensor:
        """Return `alpha/sin(phi_0) e_k + (sqrt(1 - alpha^2) - alpha cot(phi_0)) x_0`, Eq. (22)."""
        start = self.bridge.start
        on_token = (angle.sin() / math.sin(start.angle)).float()
        on_start = angle.cos().float() - start.token_coordinate * on_token
        point = start.point(device=token.device)
        return (on_start[..., None] * point).scatter_add_(-1, token[..., None], on_token[..., None])

    def to(self, device: torch.device | str) -> NormalLaw:
        """Return the law with its table on `device`."""
        return NormalLaw(self.bridge, self.noise.to(device), self.angle.to(device), self.spread.to(device))


def refined(grid: Grid, steps: int = 2000) -> Grid:
    """Return the grid with every step cut into equal parts of its noise, `steps` or more of them in all."""
    parts = max(1, math.ceil(steps / grid.steps))
    inside = torch.arange(parts, dtype=grid.noise.dtype) / parts
    levels = grid.noise[:-1, None] + (grid.noise[1:] - grid.noise[:-1])[:, None] * inside  # [steps, parts]
    return Grid(torch.cat([levels.flatten(), grid.noise[-1:]]))


def precompute(
    bridge: Bridge,
    grid: Grid,
    paths: int = 16384,
    kummer: KummerName = "corrected",
    coupling: Coupling = "joint",
    generator: torch.Generator | None = None,
) -> NormalLaw:
    """Return the law with parameters from simulated mean projections, Eq. (23): the paper's Algorithm 3.

    The grid's levels are its `K` times. The paper draws the noises of the two projections independently, which
    they are not: near the end that makes `rho^2` 4% too large at d = 4, and it stays within chance of the truth
    with the `joint` noises taken here.
    """
    on_end, on_start = mean_projections(bridge, grid, paths, coupling, generator)
    return from_projections(bridge, grid, on_end, on_start, kummer)


def mean_projections(
    bridge: Bridge,
    grid: Grid,
    paths: int,
    coupling: Coupling = "joint",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the means of `z^T` and `z^0`, Eq. (13) and Eq. (14), at every level of the grid, each [K + 1]."""
    if abs(grid.total - bridge.total) > 1e-6 * bridge.total:
        raise InputError(f"the grid's total noise {grid.total:g} is not the bridge's, {bridge.total:g}")
    means = torch.empty(2, grid.steps + 1, dtype=torch.float64)
    for level, (on_end, on_start) in enumerate(projected_paths(bridge, grid, paths, coupling, generator)):
        means[0, level], means[1, level] = on_end.mean(), on_start.mean()
    return means[0], means[1]


def from_projections(
    bridge: Bridge, grid: Grid, on_end: Tensor, on_start: Tensor, kummer: KummerName = "corrected"
) -> NormalLaw:
    """Return the law whose parameters match mean projections at the grid's levels, Eq. (23)."""
    angle, spread = match_moments(bridge, on_end, on_start, kummer)
    # Both ends are known: the start itself and the vertex itself, without spread.
    angle[0], angle[-1] = 0.0, bridge.start.angle
    spread[0], spread[-1] = 0.0, 0.0
    return NormalLaw(bridge, grid.noise.flip(0), angle.flip(0), spread.flip(0))


def match_moments(
    bridge: Bridge, on_end: Tensor, on_start: Tensor, kummer: KummerName = "corrected"
) -> tuple[Tensor, Tensor]:
    """Return `arcsin alpha` and `rho` from mean projections, Eq. (23).

    Written without the ratio of the two, which is 0/0 at the end of the masked path. The mean's length
    `F_n(rho)` is that of its part in the plane of token and start, outside of which it is 0.
    """
    cosine, sine = bridge.start.token_coordinate, math.sin(bridge.start.angle)
    across = (on_end - cosine * on_start) / sine
    angle = torch.atan2(across, on_start)
    spread = inverse_kummer(bridge.dimension - 1, torch.hypot(across, on_start), kummer)
    return angle, spread

"""One-dimensional shadows of the bridge: its angle to the token, and its cosines to the token and to the start.

| variable | symbol |
|---|---|
| `radius` | `r`, the angle to the token, Eq. (12) |
| `on_end` | `z^T = <X, e_k>`, Eq. (13) |
| `on_start` | `z^0 = <X, x_0>`, Eq. (14) |

All are stepped through the levels of a grid in the process's own clock, with the chain's coefficients
`g_m` and `s2_m` of Eq. (18) for `gamma dt` and `sigma^2 dt`: they agree to first order, and stay finite in
the last steps, where `gamma` does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from rdlm.geometry import special
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid

Coupling = Literal["independent", "joint"]
"""How the noises of the two projections go together: as in the paper's Algorithm 3, or as in the full process."""


def radial_paths(
    bridge: Bridge, grid: Grid, paths: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Yield the angle to the token [paths] at every level of the grid, Euler-Maruyama of Eq. (12).

    `dr = (-pull(r, B) / B + (d - 2)/2 cot r) ds + dW`, reflected at 0 and at pi.
    """
    radius = torch.full((paths,), bridge.start.angle, dtype=torch.float64)
    yield radius
    curvature = (bridge.dimension - 2) / 2
    for noise, gain, variance in _steps(grid):
        cotangent = 1 / special.positive_or_one(radius) - special.cotangent_gap(radius)
        drift = -gain * bridge.pull(radius, noise) + variance * curvature * cotangent
        moved = radius + drift + math.sqrt(variance) * _normal(radius, generator)
        radius = (math.pi - (math.pi - moved.abs()).abs()).clamp(0, math.pi)
        yield radius


def projected_paths(
    bridge: Bridge,
    grid: Grid,
    paths: int,
    coupling: Coupling = "joint",
    generator: torch.Generator | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `(z^T, z^0)`, each [paths], at every level of the grid, by steps of Eq. (13) and Eq. (14)."""
    on_end = torch.full((paths,), bridge.start.token_coordinate, dtype=torch.float64)
    on_start = torch.ones(paths, dtype=torch.float64)
    yield on_end, on_start
    for noise, gain, variance in _steps(grid):
        on_end, on_start = projected_step(
            bridge, on_end, on_start, noise, gain, variance, coupling, generator
        )
        yield on_end, on_start


def projected_step(
    bridge: Bridge,
    on_end: Tensor,
    on_start: Tensor,
    noise: float,
    gain: float,
    variance: float,
    coupling: Coupling = "joint",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `(z^T, z^0)` after one step of Eq. (13) and Eq. (14), kept within [-1, 1].

    Euler-Maruyama with two terms done better, because the length of the mean is read from these numbers: the
    pull moves along its geodesic, and the linear `-(d - 1)/2 z ds`, stiff in high dimension, is solved exactly.
    """
    decay = math.exp(-(bridge.dimension - 1) / 2 * variance)
    scale = math.sqrt(variance)
    sine_end, sine_start = _sine(on_end), _sine(on_start)
    # Steps are as small as 1e-7 of the state, which is why that is float64; their own last digits do not matter.
    slope = gain * bridge.slope(on_end.float(), noise)
    length = slope * sine_end.float()
    slope = (special.sinc(length) * slope).double()
    turn = decay * torch.cos(length).double()
    cross = bridge.start.token_coordinate - on_end * on_start
    noise_end, other = _normal(on_end, generator), _normal(on_start, generator)
    if coupling == "joint":
        # d<z^T, z^0> = (psi_0 - z^T z^0) ds fixes the correlation of the two noises.
        correlation = (cross / special.positive_or_one(sine_end * sine_start)).clamp_(-1, 1)
        other = correlation * noise_end + _sine(correlation) * other
    new_end = turn * on_end + slope * sine_end.square() + scale * sine_end * noise_end
    new_start = turn * on_start + slope * cross + scale * sine_start * other
    return new_end.clamp_(-1, 1), new_start.clamp_(-1, 1)


def _steps(grid: Grid) -> Iterator[tuple[float, float, float]]:
    """Yield noise still to come, gain and variance of every step."""
    return zip(grid.noise.tolist(), grid.gain.tolist(), grid.variance.tolist(), strict=False)


def _sine(cosine: Tensor) -> Tensor:
    return (1 - cosine.square()).clamp_(min=0).sqrt_()


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return normal draws, made in float32: three times faster, and no sum of them can tell."""
    return torch.randn(like.shape, generator=generator).to(like.dtype)

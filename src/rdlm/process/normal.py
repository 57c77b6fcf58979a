"""The paper's approximate law: a Riemannian normal around a point of the geodesic from the start to the token.

The exact law (`rdlm.process.exact`) has the same cost without the approximation.

| variable | symbol |
|---|---|
| `angle` | `arcsin alpha_t`, the angle from the start to the mean, Eq. (22) |
| `scale` | `rho_t`, the standard deviation in each direction of the tangent space, Eq. (22) |
| `start.angle` | `phi_0`, the angle from the start to the token |
| `radius` | `r`, the angle to the token, Eq. (12) |
| `on_end` | `z^T = <X, e_k>`, Eq. (13) |
| `on_start` | `z^0 = <X, x_0>`, Eq. (14) |
| `degrees` | `n = d - 1`, the dimension of the tangent space |

**Projections.** `r`, `z^T` and `z^0` are simulated through the levels of a grid, with the chain's coefficients `g_m`
and `s2_m` of Eq. (18) for `gamma dt` and `sigma^2 dt`: they agree to first order and stay finite in the last steps,
where `gamma` does not.

**Kummer function.** It relates the scale of a Riemannian normal to the length of its mean. For a standard normal `z`
in the tangent space, Eq. (24):

    F_n(rho) = E cos(rho |z|) = 1F1(n/2; 1/2; -rho^2/2)

Three variants are provided for comparison:

| name | formula | `1 - F` for small `rho` |
|---|---|---|
| `corrected` | `F_n` | `n rho^2 / 2` |
| `printed` (the paper) | `exp(-rho^2/2) 1F1(d/2; 1/2; -rho^2/2)` | `(n + 2) rho^2 / 2` |
| `coded` (the authors' code) | `exp(-rho^2/2) F_n` | `(n + 1) rho^2 / 2` |

Each decreases from 1 at 0 to a negative minimum, then oscillates towards 0 (for large `n` like `cos(rho sqrt(n))`).
The inverse is defined up to that first minimum, near `pi / sqrt(n)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.geometry import special, sphere
from rdlm.process.bridge import Bridge
from rdlm.process.path import Law
from rdlm.process.schedule import Grid, check_total, interpolate
from rdlm.random import Rng

Coupling = Literal["independent", "joint"]
"""The noises of the two projections: independent as in the paper's Algorithm 3, or correlated as in the process."""


def radial_paths(bridge: Bridge, grid: Grid, paths: int, generator: Rng = None) -> Iterator[Tensor]:
    """Yield the angle to the token [paths] at every level of the grid, Euler-Maruyama of Eq. (12).

    `dr = (-pull(r, B) / B + (d - 2)/2 cot r) ds + dW`, reflected at 0 and at pi.
    """
    radius = torch.full((paths,), bridge.start.angle, dtype=torch.float64)
    yield radius
    curvature = (bridge.dimension - 2) / 2
    for remaining, gain, variance in _steps(grid):
        cotangent = 1 / special.positive_or_one(radius) - special.cotangent_gap(radius)
        drift = -gain * bridge.pull(radius, remaining) + variance * curvature * cotangent
        moved = radius + drift + math.sqrt(variance) * _normal(radius, generator)
        radius = (math.pi - (math.pi - moved.abs()).abs()).clamp(0, math.pi)
        yield radius


def projected_paths(
    bridge: Bridge, grid: Grid, paths: int, coupling: Coupling = "joint", generator: Rng = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `(z^T, z^0)`, each [paths], at every level of the grid, by steps of Eq. (13) and Eq. (14)."""
    on_end = torch.full((paths,), bridge.start.token_coordinate, dtype=torch.float64)
    on_start = torch.ones(paths, dtype=torch.float64)
    yield on_end, on_start
    for remaining, gain, variance in _steps(grid):
        on_end, on_start = projected_step(bridge, on_end, on_start, remaining, gain, variance, coupling, generator)
        yield on_end, on_start


def projected_step(
    bridge: Bridge,
    on_end: Tensor,
    on_start: Tensor,
    remaining: float,
    gain: float,
    variance: float,
    coupling: Coupling = "joint",
    generator: Rng = None,
) -> tuple[Tensor, Tensor]:
    """Return `(z^T, z^0)` after one step of Eq. (13) and Eq. (14), kept within [-1, 1].

    Euler-Maruyama with two improvements, because the scale depends on small differences of these means: the pull
    follows its geodesic, and the linear term `-(d - 1)/2 z ds`, stiff in high dimension, is integrated exactly.
    """
    decay = math.exp(-(bridge.dimension - 1) / 2 * variance)
    scale = math.sqrt(variance)
    sine_end, sine_start = _sine(on_end), _sine(on_start)
    # Steps are as small as 1e-7 of the state, hence float64 for the state; float32 is enough for the step itself.
    slope = gain * bridge.slope(on_end.float(), remaining)
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
    """Yield remaining noise, gain and variance of every step, Eq. (18)."""
    return zip(grid.remaining.tolist(), grid.gain.tolist(), grid.variance.tolist(), strict=False)


def _sine(cosine: Tensor) -> Tensor:
    return (1 - cosine.square()).clamp_(min=0).sqrt_()


def _normal(like: Tensor, generator: Rng) -> Tensor:
    """Return normal draws, generated in float32, which is three times faster and accurate enough for means."""
    return torch.randn(like.shape, generator=generator).to(like.dtype)


KummerName = Literal["corrected", "printed", "coded"]

_NODES: Final = 96
_REACH: Final = 9.5  # beyond this distance from its peak the chi density is below 1e-19 of the peak
_KNOTS: Final = 2048
_BATCH: Final = 8192


_FORMS: Final = {"corrected": (0, False), "printed": (1, True), "coded": (0, True)}
"""Degrees of freedom beyond `n`, and whether `exp(-rho^2/2)` multiplies."""


def kummer(degrees: int, rho: Float[Tensor, ...], name: KummerName = "corrected") -> Float[Tensor, ...]:
    """Return `F_n(rho)` for `n = degrees`, Eq. (24), in float64; 1 at 0."""
    return 1 - kummer_gap(degrees, rho, name)


def kummer_gap(degrees: int, rho: Float[Tensor, ...], name: KummerName = "corrected") -> Float[Tensor, ...]:
    """Return `1 - F_n(rho)`, Eq. (24), in float64 and to full relative precision near 0."""
    extra, damped = _form(degrees, name)
    flat = rho.double().flatten()
    gap = torch.cat([_gap(degrees + extra, part) for part in flat.split(_BATCH)]) if len(flat) else flat
    if damped:
        damping = torch.expm1(-flat.square() / 2)
        gap = gap * (1 + damping) - damping
    return gap.view(rho.shape)


def inverse_kummer(degrees: int, value: Float[Tensor, ...], name: KummerName = "corrected") -> Float[Tensor, ...]:
    """Return the smallest `rho >= 0` with `F_n(rho) = value`, the inverse of Eq. (24).

    Values of 1 and above give 0; values below the first minimum of `F_n` give the argument of that minimum.
    """
    knots, gaps = _table(degrees, name)
    target = (1 - value.double()).clamp(0, float(gaps[-1]))
    # sqrt(1 - F) is almost linear in rho, so linear interpolation is a good start for Newton's method.
    rho = torch.as_tensor(np.interp(target.sqrt().numpy(), np.sqrt(gaps), knots))
    for _ in range(3):
        slope = (kummer_gap(degrees, rho * (1 + 1e-6), name) - kummer_gap(degrees, rho * (1 - 1e-6), name)) / 2e-6
        step = (kummer_gap(degrees, rho, name) - target) * rho / torch.where(slope > 0, slope, torch.inf)
        # The slope vanishes at the minimum: limit each Newton step to half of the knots' spacing.
        rho = (rho - step.clamp(-knots[1] / 2, knots[1] / 2)).clamp(0, knots[-1])
    return torch.where(target > 0, rho, 0.0)


def _form(degrees: int, name: str) -> tuple[int, bool]:
    if name not in _FORMS:
        raise unknown("Kummer function", name, _FORMS)
    if degrees < 2:
        raise InputError(f"a tangent space of at least 2 dimensions (d >= 3) is needed, got {degrees}")
    return _FORMS[name]


def _gap(degrees: int, rho: Tensor) -> Tensor:
    """Return `1 - F_n = 2 E sin^2(rho |z| / 2)`, Eq. (24): a sum of one sign, without cancellation near 0."""
    length, weight = _chi(degrees)
    return 2 * torch.sin(rho[:, None] * length / 2).square() @ weight


@lru_cache(maxsize=64)
def _chi(degrees: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Legendre quadrature under the density of `|z|`, chi with `n` degrees.

    The density has width `1/sqrt(2)` for every `n`, the cosine has few periods across it for `rho <= pi`, and the
    integrand is entire: 96 nodes are exact to rounding.
    """
    peak = math.sqrt(degrees - 1)
    low = max(-peak, -_REACH)
    node, weight = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(_NODES))
    offset = low + (node + 1) * (_REACH - low) / 2
    # log of (r / peak)^(n-1) exp(-(r^2 - peak^2) / 2) with the large terms cancelled
    log_density = peak**2 * (torch.log1p(offset / peak) - offset / peak) - offset.square() / 2
    mass = weight * log_density.exp()
    return peak + offset, mass / mass.sum()


@lru_cache(maxsize=64)
def _table(degrees: int, name: KummerName) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return `rho` and `1 - F_n(rho)` on equidistant knots from 0 to the first minimum of `F_n`."""
    low, high = 0.0, 2.0 * math.pi / math.sqrt(degrees)
    for _ in range(12):  # each iteration narrows the bracket of the minimum 32 times
        rho = torch.linspace(low, high, 65, dtype=torch.float64)
        gap = kummer_gap(degrees, rho, name)
        falls = (gap[1:] < gap[:-1]).nonzero()
        peak = int(falls[0]) if len(falls) else 64
        low, high = rho[max(peak - 1, 0)].item(), rho[min(peak + 1, 64)].item()
        if high - low < 1e-9:
            break
    knots = torch.linspace(0, (low + high) / 2, _KNOTS, dtype=torch.float64)
    gaps = np.maximum.accumulate(kummer_gap(degrees, knots, name).numpy())
    return knots.numpy(), gaps


@dataclass(frozen=True, eq=False)
class NormalLaw(Law):
    """Draws of `exp_mu(rho z)`, Eq. (22), with parameters interpolated between the levels of a grid."""

    bridge: Bridge
    grid: Grid
    angle: Float[Tensor, " levels"]
    scale: Float[Tensor, " levels"]

    def parameters(self, remaining: Float[Tensor, ...] | float) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
        """Return `alpha` and `rho`, Eq. (23), at any remaining noise."""
        knots = self.grid.remaining
        angle, scale = self._at(torch.as_tensor(remaining, dtype=knots.dtype, device=knots.device))
        return angle.sin(), scale

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return states at any remaining noise, Eq. (22): the vertex at 0, the start at `S`."""
        level = torch.as_tensor(remaining, dtype=self.grid.remaining.dtype, device=token.device).expand(token.shape)
        angle, scale = self._at(level)
        mean = self._mean(token, angle)
        return sphere.exponential(mean, scale.to(mean)[..., None] * sphere.tangent_normal(mean, generator))

    def _at(self, remaining: Tensor) -> tuple[Tensor, Tensor]:
        """Return angle and scale by linear interpolation."""
        knots, angle, scale = self._rising
        return interpolate(remaining, knots, angle), interpolate(remaining, knots, scale)

    @cached_property
    def _rising(self) -> tuple[Tensor, Tensor, Tensor]:
        """Remaining noise, angle and scale in the order of ascending noise."""
        return self.grid.remaining.flip(0), self.angle.flip(0), self.scale.flip(0)

    def _mean(self, token: Tensor, angle: Tensor) -> Tensor:
        """Return `alpha/sin(phi_0) e_k + (sqrt(1 - alpha^2) - alpha cot(phi_0)) x_0`, Eq. (22)."""
        start = self.bridge.start
        on_token = (angle.sin() / math.sin(start.angle)).float()
        on_start = angle.cos().float() - start.token_coordinate * on_token
        point = start.point(device=token.device)
        return self.bridge.tokens.add_(on_start[..., None] * point, token, on_token)


def refined(grid: Grid, steps: int = 2000) -> Grid:
    """Return the grid with every step divided into equal parts, at least `steps` of them in total."""
    parts = max(1, math.ceil(steps / grid.steps))
    inside = torch.arange(parts, dtype=grid.remaining.dtype) / parts
    levels = grid.remaining[:-1, None] + (grid.remaining[1:] - grid.remaining[:-1])[:, None] * inside  # [steps, parts]
    return Grid(torch.cat([levels.flatten(), grid.remaining[-1:]]))


def precompute(
    bridge: Bridge,
    grid: Grid,
    paths: int = 16384,
    kummer: KummerName = "corrected",
    coupling: Coupling = "joint",
    generator: Rng = None,
) -> NormalLaw:
    """Return the law with parameters from simulated mean projections, Eq. (23): the paper's Algorithm 3.

    The grid's levels are its `K` times. The paper draws the noises of the two projections independently, although
    they are correlated: at d = 4 this makes `rho^2` 4% too large near the end. With the default `joint` noises it is
    within the simulation's error of the true value.
    """
    on_end, on_start = mean_projections(bridge, grid, paths, coupling, generator)
    return from_projections(bridge, grid, on_end, on_start, kummer)


def mean_projections(
    bridge: Bridge, grid: Grid, paths: int, coupling: Coupling = "joint", generator: Rng = None
) -> tuple[Tensor, Tensor]:
    """Return the means of `z^T` and `z^0`, Eq. (13) and Eq. (14), at every level of the grid, each [K + 1]."""
    check_total(grid, bridge.total)
    means = torch.empty(2, grid.steps + 1, dtype=torch.float64)
    for level, (on_end, on_start) in enumerate(projected_paths(bridge, grid, paths, coupling, generator)):
        means[0, level], means[1, level] = on_end.mean(), on_start.mean()
    return means[0], means[1]


def from_projections(
    bridge: Bridge, grid: Grid, on_end: Tensor, on_start: Tensor, kummer: KummerName = "corrected"
) -> NormalLaw:
    """Return the law whose parameters match mean projections at the grid's levels, Eq. (23)."""
    angle, scale = match_moments(bridge, on_end, on_start, kummer)
    # Both ends are known exactly: the start and the vertex, with scale 0.
    angle[0], angle[-1] = 0.0, bridge.start.angle
    scale[0], scale[-1] = 0.0, 0.0
    return NormalLaw(bridge, grid, angle, scale)


def match_moments(
    bridge: Bridge, on_end: Tensor, on_start: Tensor, kummer: KummerName = "corrected"
) -> tuple[Tensor, Tensor]:
    """Return `arcsin alpha` and `rho` from mean projections, Eq. (23).

    Computed without the ratio of the two, which is 0/0 at the end of the masked path. The mean lies in the plane of
    token and start, and its length is `F_n(rho)`.
    """
    cosine, sine = bridge.start.token_coordinate, math.sin(bridge.start.angle)
    across = (on_end - cosine * on_start) / sine
    angle = torch.atan2(across, on_start)
    scale = inverse_kummer(bridge.dimension - 1, torch.hypot(across, on_start), kummer)
    return angle, scale

"""The two numbers that carry the whole law of a bridge, and one step of their chain.

Write `x = cos r e_k + sin r (c w + sqrt(1 - c^2) xi)`: `r` is the angle to the token, `c` the cosine
between the direction of `x` and the direction `w` of the start, both seen from the token, and `xi` is
uniform on the unit sphere orthogonal to `e_k` and `w`. The pair `(r, c)` is a Markov chain of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdlm.geometry import special
from rdlm.process.bridge import Bridge


class Place(NamedTuple):
    """Where a state is, seen from its token: its coordinates on `e_k` and on `w`, and the length of the rest."""

    on_token: Tensor
    on_start: Tensor
    across: Tensor


def pair_step(
    bridge: Bridge,
    radius: Tensor,
    heading: Tensor,
    noise: Tensor | float,
    gain: Tensor | float,
    variance: Tensor | float,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the pair `(r, c)` after one step of the d-dimensional chain, exactly, Eq. (21)."""
    normals = _normal(radius, generator), _normal(radius, generator)
    place = place_step(bridge, radius, heading, gain * bridge.pull(radius, noise), variance, normals, generator)
    new_radius = torch.acos(place.on_token.clamp(-1, 1))
    new_heading = place.on_start / special.positive_or_one(torch.sin(new_radius))
    return new_radius, new_heading.clamp(-1, 1)


def place_step(
    bridge: Bridge,
    radius: Tensor,
    heading: Tensor,
    drift: Tensor,
    variance: Tensor | float,
    normals: tuple[Tensor, Tensor],
    generator: torch.Generator | None = None,
) -> Place:
    """Return where the pair's step leads, Eq. (21), without an angle: no digits of a small one are lost in float32.

    `drift` is the gain times the pull; `normals` are the step's noise away from the token and sideways.
    """
    scale = torch.as_tensor(variance, dtype=radius.dtype, device=radius.device).sqrt()
    outward = scale * normals[0] - drift
    sideways = scale * normals[1]
    rest = scale.square() * _chi_square(radius, bridge.dimension - 3, generator)
    length = torch.sqrt(rest + outward.square() + sideways.square())
    sine, cosine, shrink, keep = torch.sin(radius), torch.cos(radius), torch.sinc(length / math.pi), torch.cos(length)
    around = torch.sqrt((1 - heading.square()).clamp_min(0))
    # Coordinates of the new state on e_k, on w, and on the free direction of the old one.
    outward, sideways = shrink * outward, shrink * sideways
    ahead = keep * sine + outward * cosine
    on_token = keep * cosine - outward * sine
    on_start = ahead * heading + sideways * around
    on_free = ahead * around - sideways * heading
    return Place(on_token, on_start, torch.sqrt(on_free.square() + shrink.square() * rest))


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _chi_square(like: Tensor, degrees: int, generator: torch.Generator | None) -> Tensor | float:
    """Return chi-square draws; none are needed without degrees of freedom (d = 3)."""
    if degrees == 0:
        return 0.0
    shape = torch.full_like(like, degrees / 2)
    return 2 * torch._standard_gamma(shape, generator=generator)

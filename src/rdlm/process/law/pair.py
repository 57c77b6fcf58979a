"""The two numbers that carry the whole law of a bridge, and one step of their chain.

Write `x = cos r e_k + sin r (c w + sqrt(1 - c^2) xi)`: `r` is the angle to the token, `c` the cosine
between the direction of `x` and the direction `w` of the start, both seen from the token, and `xi` is
uniform on the unit sphere orthogonal to `e_k` and `w`. The pair `(r, c)` is a Markov chain of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rdlm.geometry import special
from rdlm.process.bridge import Bridge


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
    scale = torch.as_tensor(variance, dtype=radius.dtype, device=radius.device).sqrt()
    outward = -gain * bridge.pull(radius, noise) + scale * _normal(radius, generator)
    sideways = scale * _normal(radius, generator)
    rest = scale.square() * _chi_square(radius, bridge.dimension - 3, generator)
    length = torch.sqrt(outward.square() + sideways.square() + rest)
    sine, cosine = torch.sin(radius), torch.cos(radius)
    shrink = special.sinc(length)
    # Coordinates of the new state on e_k and on w.
    on_token = torch.cos(length) * cosine - shrink * sine * outward
    across = torch.sqrt((1 - heading.square()).clamp_min(0))
    on_start = torch.cos(length) * sine * heading + shrink * (outward * cosine * heading + sideways * across)
    new_radius = torch.acos(on_token.clamp(-1, 1))
    new_heading = on_start / special.positive_or_one(torch.sin(new_radius))
    return new_radius, new_heading.clamp(-1, 1)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _chi_square(like: Tensor, degrees: int, generator: torch.Generator | None) -> Tensor | float:
    """Return chi-square draws; none are needed without degrees of freedom (d = 3)."""
    if degrees == 0:
        return 0.0
    shape = torch.full_like(like, degrees / 2)
    return 2 * torch._standard_gamma(shape, generator=generator)

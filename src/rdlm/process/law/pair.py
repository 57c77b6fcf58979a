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
from rdlm.process.grid import Stride


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
    bridge: Bridge, radius: Tensor, heading: Tensor, stride: Stride, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the pair `(r, c)` after one step of the d-dimensional chain, exactly, Eq. (21)."""
    drift = stride.gain * bridge.pull(radius, stride.noise)
    wobble = Wobble.draw(bridge.dimension, radius, generator)
    return place_step(radius, heading, drift, stride.variance, wobble).pair()


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

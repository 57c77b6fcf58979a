"""The unit sphere of R^d: distance, exponential, logarithm, geodesic, transport and random draws.

Points and tangent vectors are in the last dimension of a tensor, all leading dimensions broadcast. Gradients are
those of the formulas in R^d: their tangent part is the Riemannian gradient, their normal part is not meaningful.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm import random as numbers
from rdlm.errors import InputError
from rdlm.geometry import special
from rdlm.random import Rng


def project(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return x/|x|, the nearest point of the sphere; the zero vector stays zero."""
    return x / special.positive_or_one(_norm(x))


def tangent(x: Float[Tensor, "*batch d"], v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return the part of v in the tangent space at x, v - <x, v> x."""
    return v - (x * v).sum(-1, keepdim=True) * x


def distance(x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return the angle between x and y, Eq. (3); the gradient is 0 at its kinks, x = y and the antipode."""
    return 2 * torch.atan2(_norm(x - y), _norm(x + y)).squeeze(-1)


def exponential(x: Float[Tensor, "*batch d"], v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return the end of the geodesic that leaves x with velocity v, Eq. (4); x itself for v = 0.

    Rounding errors of |x| are not corrected: chains of many steps should call `project`.
    """
    length = _norm(v)
    return torch.cos(length) * x + special.sinc(length) * v


def exponential_(
    state: Float[Tensor, "... d"], ambient: Float[Tensor, "... d"], scale: Float[Tensor, "..."] | None = None
) -> Float[Tensor, "... d"]:
    """Return `exp_x` of the tangent part of `a`, Eq. (4); `a` is `ambient`, which is overwritten, times `scale`.

    In few passes: sums over the coordinates, then `x' = (cos m - sinc m <x, a>) x + sinc m a` with
    `m^2 = |a|^2 - <x, a>^2`. The sums also give the rounding error of the norm, which is removed on the way.
    """
    along = (state * ambient).sum(-1)
    square, own = (torch.linalg.vector_norm(one, dim=-1).square_() for one in (ambient, state))
    step = along if scale is None else along * scale
    length = (square if scale is None else square * scale.square()).addcmul(step, step, value=-1)
    length = length.clamp_min_(special.SMALLEST_SQUARE).sqrt_()
    shrink = torch.sin(length).div_(length)
    to_state = torch.addcmul(torch.cos(length), shrink, step, value=-1)
    to_ambient = shrink if scale is None else shrink.mul_(scale)
    # For |x| = 1 the result has length 1, else 1 + q^2 (|x|^2 - 1) is its square.
    back = torch.addcmul(torch.ones_like(own), to_state.square(), own.sub(1)).rsqrt_()
    return ambient.mul_((to_ambient * back)[..., None]).addcmul_(state, to_state.mul_(back)[..., None])


def logarithm(x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return the tangent vector at x that `exponential` takes to y, Eq. (5).

    It is 0 at y = x. At the antipode all directions are shortest and their average, 0, is returned; the length falls
    from pi to 0 within `special.ANTIPODE_CHORD` of it.
    """
    difference, total = y - x, x + y
    chord, cochord = _norm(difference), _norm(total)
    # Both differ from y by a multiple of x; the shorter one is more accurate.
    across = tangent(x, torch.where(chord < cochord, difference, total))
    return special.angle_over_sine_of_chords(chord, cochord) * across


def geodesic(
    x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"], t: float | Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch d"]:
    """Return the point a fraction t of the way from x to y, Eq. (6); x for every t at the antipode.

    A tensor t has the leading dimensions of the points, or broadcasts to them.
    """
    fraction = t.unsqueeze(-1) if isinstance(t, Tensor) else t
    return exponential(x, fraction * logarithm(x, y))


def transport(
    x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"], v: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch d"]:
    """Return v moved from the tangent space at x to that at y, parallel along their geodesic, Eq. (7).

    This is the reflection across the hyperplane orthogonal to x + y, hence an isometry to rounding. At the antipode,
    where the geodesic is not unique, v is returned unchanged (it is tangent there, too).
    """
    normal = project(x + y)
    return v - 2 * (normal * v).sum(-1, keepdim=True) * normal


def uniform(
    shape: Sequence[int],
    d: int,
    generator: Rng = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch d"]:
    """Return independent uniform points of the sphere in R^d, of shape [*shape, d], Eq. (41)."""
    if d < 1:
        raise InputError(f"a sphere needs at least 1 dimension, not d = {d}")
    return project(numbers.normal((*shape, d), generator, dtype, device))


def tangent_normal(x: Float[Tensor, "*batch d"], generator: Rng = None) -> Float[Tensor, "*batch d"]:
    """Return one standard normal vector of the tangent space at each x, Eq. (41)."""
    return tangent(x, numbers.normal(x.shape, generator, x.dtype, x.device))


def _norm(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "... 1"]:
    """Return the norm along the last dimension; its gradient at the zero vector is 0 (torch's choice)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm

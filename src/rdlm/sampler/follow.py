"""The exponential map of a whole batch of states, in as few passes over their coordinates as it takes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.geometry import special
from rdlm.sampler.piece import pieces


def follow(
    state: Float[Tensor, "... d"], ambient: Float[Tensor, "... d"], scale: Float[Tensor, "..."] | None = None
) -> Float[Tensor, "... d"]:
    """Return `exp_x` of the tangent part of `a`, Eq. (4), `a` being `ambient`, which is consumed, times `scale`.

    Only sums, then `x' = (cos m - sinc m <x, a>) x + sinc m a` with `m^2 = |a|^2 - <x, a>^2` go over all coordinates.
    The sums also say how far the result will be from the sphere by rounding, and it is scaled back on the way.
    """
    before, rows = state.flatten(0, -2), ambient.flatten(0, -2)  # [..., d] -> [n, d]
    along, square, own = _sums(before, rows)
    to_ambient, to_state = _weights(along, square, own, None if scale is None else scale.reshape(-1, 1))
    for at, by, old, new in pieces(ambient.shape[-1], before, rows, to_state, to_ambient):
        by.mul_(new).addcmul_(at, old)
    return rows.view(ambient.shape)


def _sums(before: Float[Tensor, "n d"], rows: Float[Tensor, "n d"]) -> tuple[Tensor, ...]:
    """Return `<x, a>`, `|a|^2` and `|x|^2`, each [n, 1]."""
    sums = [_products(at, by) for at, by in pieces(rows.shape[-1], before, rows)]
    return sums[0] if len(sums) == 1 else tuple(map(torch.cat, zip(*sums, strict=True)))


def _products(at: Float[Tensor, "n d"], by: Float[Tensor, "n d"]) -> tuple[Tensor, ...]:
    square, own = (torch.linalg.vector_norm(one, dim=-1, keepdim=True).square_() for one in (by, at))
    return (at * by).sum(-1, keepdim=True), square, own


def _weights(along: Tensor, square: Tensor, own: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what `follow` multiplies the unscaled ambient vector and the state by."""
    step = along if scale is None else along * scale
    length = (square if scale is None else square * scale.square()).addcmul(step, step, value=-1)
    length = length.clamp_min_(special.SMALLEST_SQUARE).sqrt_()
    shrink = torch.sin(length).div_(length)
    to_state = torch.addcmul(torch.cos(length), shrink, step, value=-1)
    to_ambient = shrink if scale is None else shrink.mul_(scale)
    # For |x| = 1 the result has length 1, else 1 + q^2 (|x|^2 - 1) is its square.
    back = torch.addcmul(torch.ones_like(own), to_state.square(), own.sub(1)).rsqrt_()
    return to_ambient * back, to_state.mul_(back)

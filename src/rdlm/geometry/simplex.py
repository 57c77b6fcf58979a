"""The probability simplex with the Fisher-Rao metric, and its square-root map to the sphere."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import special, sphere


def to_sphere(p: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return sqrt(p), a point of the sphere, Eq. (1); where p = 0 the slope is set to 0 instead of infinity."""
    check_on_simplex(p)
    return special.square_root(p)


def to_simplex(u: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return the probabilities u^2 of a point of the sphere, the inverse of Eq. (1) for u >= 0."""
    sphere.check_on_sphere(u)
    return u * u


def fisher_rao_distance(p: Float[Tensor, "*batch d"], q: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return 2 arccos(sum_i sqrt(p_i q_i)), twice the angle of the square roots, Eq. (2).

    Computed from chords, as `sphere.distance`. The gradient is 0 at p = q (a kink). Where the true slope is infinite
    (p_i = 0 and q_i > 0, or the reverse) the slope of the overlap is set to 0.
    """
    check_on_simplex(p)
    check_on_simplex(q)
    mass, u, v = p + q, special.square_root(p), special.square_root(q)
    shared_zero = mass == 0
    # Where p = q = 0 both squares change like p + q, a slope that the square roots cannot propagate.
    chord = torch.where(shared_zero, mass, (u - v) ** 2).sum(-1)
    cochord = torch.where(shared_zero, mass, (u + v) ** 2).sum(-1)
    return 4 * torch.atan2(special.square_root(chord), special.square_root(cochord))


def check_on_simplex(p: Float[Tensor, "*batch d"], tolerance: float = special.SPHERE_TOLERANCE) -> None:
    """Raise InputError if a probability is negative or NaN, or a sum farther than `tolerance` from one."""
    if not bool((p >= 0).all()):
        raise InputError(f"a probability is {float(p.min()):.6g}; it must not be negative")
    total = p.sum(-1).flatten()
    error = (total - 1).abs()
    if not bool((error <= tolerance).all()):
        worst = float(total[error.nan_to_num(torch.inf).argmax()])
        raise InputError(f"probabilities sum to {worst:.6g}, not 1 (within {tolerance:g})")

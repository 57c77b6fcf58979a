"""Flows: bridges without noise, whose squared coordinates are the transition probabilities of discrete diffusion.

| variable | symbol |
|---|---|
| `kappa` | `kappa_t`, the remaining share of the geodesic's angle |
| `alpha` | `alpha_t`, the probability that discrete diffusion has kept the token |
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Start


def flow(
    origin: Float[Tensor, "... d"], target: Float[Tensor, "... d"], kappa: float | Float[Tensor, ...]
) -> Float[Tensor, "... d"]:
    """Return the flow's point `exp_target(kappa log_target(origin))`, Eq. (15): the origin at 1, the target at 0.

    Written from the target, so there is no division by the sine of the whole angle, which is 0 if the two coincide.
    """
    return sphere.geodesic(target, origin, kappa)


def masked_kappa(alpha: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Return `2/pi arcsin sqrt(alpha)`, Eq. (16), for the flow from a token to the mask's vertex."""
    return 2 / math.pi * torch.asin(_checked(alpha).sqrt())


def uniform_kappa(alpha: Float[Tensor, ...], dimension: int) -> Float[Tensor, ...]:
    """Return `1 - arcsin(sqrt(1 - alpha) sin theta_0) / theta_0`, Eq. (17), `cos theta_0 = 1/sqrt(d)`.

    This is the flow from a token to the point with equal coordinates.
    """
    if dimension < 2:
        raise InputError(f"a flow between states needs at least d = 2 coordinates, got {dimension}")
    angle = math.acos(1 / math.sqrt(dimension))
    return 1 - torch.asin((1 - _checked(alpha)).sqrt() * math.sin(angle)) / angle


def bridge_limit(start: Start, token: Int[Tensor, ...], kappa: float | Float[Tensor, ...]) -> Float[Tensor, "... d"]:
    """Return the bridge's states in the limit `S -> 0`, Eq. (15) with `kappa = B / S`, in float64."""
    point = start.point(torch.float64, token.device).expand(*token.shape, -1)
    vertex = torch.zeros_like(point).scatter(-1, token[..., None], 1.0)
    return flow(point, vertex, kappa)


def _checked(alpha: Tensor) -> Tensor:
    if alpha.numel() and not (alpha.min().item() >= 0 and alpha.max().item() <= 1):
        low, high = alpha.min().item(), alpha.max().item()
        raise InputError(f"alpha is a probability and must lie in [0, 1], got values from {low:g} to {high:g}")
    return alpha

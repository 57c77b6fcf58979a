"""The damped Kummer function that ties a Riemannian normal's scale to the length of its mean, and its inverse.

For a standard normal `z` in the tangent space of dimension `n = d - 1`, Eq. (24):

    F_n(rho) = E cos(rho |z|) = 1F1(n/2; 1/2; -rho^2/2)

Three functions go by that name here, for comparison:

| name | formula | `1 - F` for small `rho` |
|---|---|---|
| `corrected` | `F_n` | `n rho^2 / 2` |
| `printed` (the paper) | `exp(-rho^2/2) 1F1(d/2; 1/2; -rho^2/2)` | `(n + 2) rho^2 / 2` |
| `coded` (its authors' program) | `exp(-rho^2/2) F_n` | `(n + 1) rho^2 / 2` |

Each falls from 1 at 0 to a negative minimum, then swings back towards 0 (for large `n` it oscillates like
`cos(rho sqrt(n))`): the inverse lives on the part before that first minimum, near `pi / sqrt(n)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError, unknown

KummerName = Literal["corrected", "printed", "coded"]

_NODES: Final = 96
_REACH: Final = 9.5  # the chi density is below 1e-19 of its peak beyond this distance from it
_KNOTS: Final = 2048
_CHUNK: Final = 8192


@dataclass(frozen=True)
class _Form:
    """`extra` degrees of freedom beyond `n`, and whether `exp(-rho^2/2)` multiplies."""

    extra: int
    damped: bool


_FORMS: Final[dict[str, _Form]] = {
    "corrected": _Form(0, False),
    "printed": _Form(1, True),
    "coded": _Form(0, True),
}


def kummer(degrees: int, rho: Float[Tensor, "..."], name: KummerName = "corrected") -> Float[Tensor, "..."]:
    """Return `F_n(rho)` for `n = degrees`, Eq. (24), in float64; 1 at 0."""
    return 1 - kummer_gap(degrees, rho, name)


def kummer_gap(degrees: int, rho: Float[Tensor, "..."], name: KummerName = "corrected") -> Float[Tensor, "..."]:
    """Return `1 - F_n(rho)`, Eq. (24), in float64 and to full relative precision near 0."""
    form = _form(degrees, name)
    flat = rho.double().flatten()
    gap = torch.cat([_gap(degrees + form.extra, part) for part in flat.split(_CHUNK)]) if len(flat) else flat
    if form.damped:
        damping = torch.expm1(-flat.square() / 2)
        gap = gap * (1 + damping) - damping
    return gap.view(rho.shape)


def inverse_kummer(
    degrees: int, value: Float[Tensor, "..."], name: KummerName = "corrected"
) -> Float[Tensor, "..."]:
    """Return the smallest `rho >= 0` with `F_n(rho) = value`, the inverse of Eq. (24).

    Values of 1 and above give 0; values below the first minimum of `F_n` give the place of that minimum.
    """
    knots, gaps = _table(degrees, name)
    wanted = (1 - value.double()).clamp(0, float(gaps[-1]))
    # The root of the gap is almost linear in rho, so that linear interpolation starts Newton close by.
    rho = torch.as_tensor(np.interp(wanted.sqrt().numpy(), np.sqrt(gaps), knots))
    for _ in range(3):
        slope = (kummer_gap(degrees, rho * (1 + 1e-6), name) - kummer_gap(degrees, rho * (1 - 1e-6), name)) / 2e-6
        step = (kummer_gap(degrees, rho, name) - wanted) * rho / torch.where(slope > 0, slope, torch.inf)
        # At the minimum the slope vanishes: half of the knots' spacing bounds what Newton may correct.
        rho = (rho - step.clamp(-knots[1] / 2, knots[1] / 2)).clamp(0, knots[-1])
    return torch.where(wanted > 0, rho, 0.0)


def monotone_range(degrees: int, name: KummerName = "corrected") -> float:
    """Return the place of the first minimum of `F_n`, Eq. (24), up to which it has an inverse."""
    return float(_table(degrees, name)[0][-1])


def _form(degrees: int, name: str) -> _Form:
    if name not in _FORMS:
        raise unknown("Kummer function", name, _FORMS)
    if degrees < 2:
        raise InputError(f"a tangent space of at least 2 dimensions (d >= 3) is needed, got {degrees}")
    return _FORMS[name]


def _gap(degrees: int, rho: Tensor) -> Tensor:
    """Return `2 E sin^2(rho |z| / 2)`, a sum of one sign: nothing cancels near 0."""
    length, weight = _chi(degrees)
    return 2 * torch.sin(rho[:, None] * length / 2).square() @ weight


@lru_cache(maxsize=64)
def _chi(degrees: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Legendre quadrature under the density of `|z|`, chi with `n` degrees.

    The density has width `1/sqrt(2)` for every `n`, and `rho <= pi` turns the cosine a few times across it:
    the integrand is entire on the interval, so that 96 nodes reach rounding.
    """
    peak = math.sqrt(degrees - 1)
    low = max(-peak, -_REACH)
    node, weight = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(_NODES))
    offset = low + (node + 1) * (_REACH - low) / 2
    # log of (r / peak)^(n-1) exp(-(r^2 - peak^2) / 2) with the large terms cancelled by hand
    log_density = peak**2 * (torch.log1p(offset / peak) - offset / peak) - offset.square() / 2
    mass = weight * log_density.exp()
    return peak + offset, mass / mass.sum()


@lru_cache(maxsize=64)
def _table(degrees: int, name: KummerName) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return `rho` and `1 - F_n(rho)` on equidistant knots from 0 to the first minimum of `F_n`."""
    low, high = 0.0, 2.0 * math.pi / math.sqrt(degrees)
    for _ in range(12):  # each round narrows the bracket of the minimum 32 times, to rounding's flat bottom
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

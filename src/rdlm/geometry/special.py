"""Elementary functions of angles that stay accurate and differentiable where their formulas divide by zero.

All epsilons of the package are defined here. Three rules hold for every function:

- near a removable 0/0 a power series is used, and the closed form is evaluated at a clamped argument there, so that
  the branch not taken contributes neither NaN nor gradient;
- where the true value or slope is infinite (the antipode) the argument is capped, with slope 0 beyond;
- float32 and float64 are supported; in float32 the series covers a wider range, because the closed form cancels sooner.

| name here | formula, with z = cos(theta) |
|---|---|
| `sinc(x)` | sin(x) / x |
| `angle(z)`, `squared_angle(z)` | arccos(z), arccos(z)^2 |
| `angle_over_sine(z)`, `log_angle_over_sine(z)` | theta / sin(theta) and its logarithm |
| `angle_over_sine_of_chords(a, b)` | the same from a = 2 sin(theta/2) and b = 2 cos(theta/2) |
| `cotangent_gap(theta)` | 1/theta - cot(theta) |
| `cotangent_curve(theta)` | (theta cot(theta) - 1) / theta^2 |

`interpolated_` evaluates any smooth function of a long row by a polynomial per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALLEST_NOISE = 1e-6
"""A finished position (remaining noise 0) is evaluated with this much noise, so that its evidence is one-hot and
finite."""

ANTIPODE_ANGLE = 1e-3
"""An angle computed from a cosine, or passed to a cotangent, is capped at pi minus this: nearer to -1 there are fewer
than ten float32 cosines. theta/sin(theta) is then at most about 3140."""

ANTIPODE_CHORD = 1e-6
"""The smallest |x + y| that is distinguished from an antipode: vectors resolve the antipode linearly, a cosine only
quadratically, so this cap is much closer than `ANTIPODE_ANGLE`."""

SMALLEST_SQUARE = torch.finfo(torch.float32).tiny
"""Lower bound of a squared length, so that sin(x)/x at its root is 1 and not 0/0."""

_FARTHEST_COSINE = -math.cos(ANTIPODE_ANGLE)
_FARTHEST_ANGLE = math.pi - ANTIPODE_ANGLE
# pi rounded to float32 and the rest: (high - theta) + low keeps the digits of pi - theta.
_PI_HIGH = 13176795 / 2**22
_PI_LOW = math.pi - _PI_HIGH


@lru_cache
def _angle_over_sine_series(terms: int) -> list[float]:
    """Return the coefficients of theta/sin(theta) in powers of 1 - cos(theta); c_(k+1)/c_k = (k+1)/(2k+3)."""
    coefficients = [1.0]
    for k in range(terms - 1):
        coefficients.append(coefficients[-1] * (k + 1) / (2 * k + 3))
    return coefficients


def _log_series(c: Sequence[float]) -> list[float]:
    """Return the coefficients of the logarithm of a power series with c[0] = 1, without the zero constant."""
    log = [0.0]
    for k in range(1, len(c)):
        log.append(c[k] - sum(j * log[j] * c[k - j] for j in range(1, k)) / k)
    return log[1:]


def _zeta_tail(s: int, first: int = 1000) -> float:
    """Return the sum of k^-s over k >= 3 (directly, then Euler-Maclaurin beyond `first`)."""
    rest = math.pow(first, -s) * (first / (s - 1) + 1 / 2 + s / (12 * first))
    return math.fsum(math.pow(j, -s) for j in range(3, first)) + rest


_SINC = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]  # in x^2
_RATIO = _angle_over_sine_series(8)  # in 1 - z
_LOG_RATIO = _log_series(_angle_over_sine_series(15))  # in 1 - z, divided by 1 - z
_SQUARE = [2.0 ** (k + 1) / (k * k * math.comb(2 * k, k)) for k in range(1, 9)]  # in 1 - z, divided by 1 - z
# The cotangent curve is -2 sum_j 1/(j^2 pi^2 - theta^2); these are its terms j >= 3 in powers of theta^2.
_CURVE = [2 * _zeta_tail(2 * k + 2) / math.pi ** (2 * k + 2) for k in range(17)]
_CURVE_SLOPE = [k * c for k, c in enumerate(_CURVE)][1:]


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return the polynomial with these coefficients, lowest power first, by Horner's rule."""
    total = torch.full_like(x, coefficients[-1])
    buffer = None if _records(x) else total
    for c in reversed(coefficients[:-1]):
        total = torch.addcmul(x.new_full((), c), total, x, out=buffer)
    return total


def _records(x: Tensor) -> bool:
    """Return whether autograd needs intermediate results; if not, one buffer is reused, which is faster."""
    return x.requires_grad and torch.is_grad_enabled()


def _by_precision(x: Tensor, single: float, double: float) -> float:
    """Return `double` for a float64 tensor and `single` otherwise."""
    return double if x.dtype == torch.float64 else single


def sinc(x: Tensor) -> Tensor:
    """Return sin(x)/x, which is 1 at 0."""
    near = x.abs() < 0.5
    safe = torch.where(near, 1.0, x)
    return torch.where(near, _series(x * x, _SINC), torch.sin(safe) / safe)


def positive_or_one(x: Tensor) -> Tensor:
    """Return x where it is positive and 1 elsewhere: a divisor that leaves the zero vector zero."""
    return torch.where(x > 0, x, 1.0)


def angle(cosine: Tensor) -> Tensor:
    """Return arccos(z), 0 for z >= 1 and pi for z <= -1; at both ends the slope is 0 in place of infinity.

    A cosine does not resolve small angles (float32: below 3e-4); `sphere.distance` does.
    """
    inside = cosine.abs() < 1
    ends = math.pi * (cosine < 0).to(cosine.dtype)
    return torch.where(inside, torch.acos(torch.where(inside, cosine, 0.0)), ends)


def squared_angle(cosine: Tensor) -> Tensor:
    """Return arccos(z)^2, of slope -2 theta/sin(theta), -2 at z = 1; capped at pi - `ANTIPODE_ANGLE`.

    Near the antipode the slope, which is that of torch.acos, has a relative error of the machine epsilon over 1 + z;
    the value is accurate.
    """
    z = cosine.clamp(_FARTHEST_COSINE, 1.0)
    gap, switch = 1.0 - z, _by_precision(z, 0.2, 0.02)
    theta = torch.acos(z.clamp(max=1.0 - switch))
    return torch.where(gap < switch, gap * _series(gap, _SQUARE), theta * theta)


def angle_over_sine(cosine: Tensor) -> Tensor:
    """Return theta/sin(theta), which is 1 + (1-z)/3 + ... at z = 1; capped at pi - `ANTIPODE_ANGLE`."""
    inverse, gap = _half_cosine(cosine)
    return _in_half(gap, "ratio")[0].mul_(inverse)


def angle_over_sine_and_curves(cosine: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 1/y for y = cos(theta/2), and `angle_over_sine`, `cotangent_curve`, `cotangent_bend` without their poles.

    The functions themselves are these times 1/y, 1/y and 1/y^2.
    """
    inverse, gap = _half_cosine(cosine)
    ratio, curve, bend = _in_half(gap, "ratio", "curve", "bend")
    return inverse, ratio, curve, bend


def _half_cosine(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1/y and 1 - y for y = cos(theta/2) = sqrt((1+z)/2): the poles are powers of 1/y; smooth at z = 1."""
    square = cosine.clamp(_FARTHEST_COSINE, 1.0).mul_(0.5).add_(0.5)
    inverse = square.rsqrt()
    return inverse, torch.addcmul(square.new_ones(()), square, inverse, value=-1)


def _in_half(gap: Tensor, *names: str) -> list[Tensor]:
    """Return functions of the angle without their poles at y = 0, each by one polynomial for all angles."""
    if gap.dtype == torch.float64:
        # A fit inherits a few rounding errors of the function; the series of the ratio is exact.
        return [_series(gap, _angle_over_sine_series(56) if name == "ratio" else _fitted(name, 20)) for name in names]
    # The fits converge like 5.8^-degree: the next singularity is y = -1.
    # All polynomials are evaluated together, because the tensors are often small.
    total, *others = _stacked(names, 9, gap.ndim, gap.dtype, gap.device)
    buffer = None if _records(gap) else gap.new_empty(len(names), *gap.shape)
    for coefficient in others:
        total = torch.addcmul(coefficient, total, gap, out=buffer)
    return [total[index] for index in range(len(names))]


@lru_cache
def _stacked(
    names: tuple[str, ...], degree: int, axes: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Return the stacked coefficients of several fitted polynomials, highest power first, to broadcast over `axes`."""
    fitted = torch.tensor([_fitted(name, degree) for name in names], dtype=dtype, device=device).T.flip(0)
    return fitted.reshape(degree + 1, len(names), *[1] * axes).unbind(0)


@lru_cache
def _fitted(name: str, degree: int) -> list[float]:
    """Return the polynomial in 1 - y that interpolates a function at the Chebyshev points of [0, 1]."""
    pole, function = _OF_ANGLE[name]

    def of(gap: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        angle = 4 * torch.asin(torch.as_tensor(gap / 2).sqrt())
        return (function(angle) * torch.as_tensor(1 - gap) ** pole).numpy()

    fit = np.polynomial.Chebyshev.interpolate(of, degree, domain=[0, 1])
    coefficients: list[float] = fit.convert(kind=np.polynomial.Polynomial).coef.tolist()
    return [float(of(np.zeros(1))[0]), *coefficients[1:]]  # exact at angle 0


def log_angle_over_sine(cosine: Tensor) -> Tensor:
    """Return log(theta/sin(theta)), which is (1-z)/3 + ... at z = 1; capped at pi - `ANTIPODE_ANGLE`."""
    z = cosine.clamp(_FARTHEST_COSINE, 1.0)
    # The logarithm of a ratio near 1 cancels, so the series covers a wider range than in `angle_over_sine`.
    gap, switch = 1.0 - z, _by_precision(z, 0.6, 0.06)
    far = z.clamp(max=1.0 - switch)
    closed = torch.log(torch.acos(far) * torch.rsqrt((1.0 - far) * (1.0 + far)))
    return torch.where(gap < switch, gap * _series(gap, _LOG_RATIO), closed)


def angle_over_sine_of_chords(chord: Tensor, cochord: Tensor) -> Tensor:
    """Return theta/sin(theta) = 4 atan2(a, b)/(a b) from the chords a = |x-y| and b = |x+y| of unit vectors.

    It is 1 at a = 0; b counts as at least `ANTIPODE_CHORD`.
    """
    gap, switch = chord * chord / 2, _by_precision(chord, 0.2, 0.02)  # 1 - cos(theta)
    a, b = chord.clamp(min=math.sqrt(2 * switch)), cochord.clamp(min=ANTIPODE_CHORD)
    return torch.where(gap < switch, _series(gap, _RATIO), 4 * torch.atan2(a, b) / (a * b))


def _poles(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return theta^2, pi^2 - theta^2 and 4 pi^2 - theta^2, the second without cancellation."""
    square = theta * theta
    return square, ((_PI_HIGH - theta) + _PI_LOW) * (math.pi + theta), 4 * math.pi**2 - square


def _terms(theta: Tensor, coefficients: Sequence[float]) -> Sequence[float]:
    """Return the coefficients that the precision resolves: on [0, pi] each term is about 1/9 of the previous one."""
    return coefficients if theta.dtype == torch.float64 else coefficients[:9]


def cotangent_curve(theta: Tensor) -> Tensor:
    """Return (theta cot(theta) - 1)/theta^2, -1/3 at 0; capped at pi - `ANTIPODE_ANGLE`.

    Summed over the poles of the cotangent, -2 sum_j 1/(j^2 pi^2 - theta^2). All terms have the same sign, so nothing
    cancels on [0, pi], neither here nor in the slope, and no branch is needed. The curve of the pull, Eq. (26).
    """
    theta = theta.clamp(max=_FARTHEST_ANGLE)
    square, first, second = _poles(theta)
    return -(2 / first + 2 / second + _series(square, _terms(theta, _CURVE)))


def cotangent_bend(theta: Tensor) -> Tensor:
    """Return the derivative of `cotangent_curve` over theta, -2/45 at 0; capped at pi - `ANTIPODE_ANGLE`."""
    theta = theta.clamp(max=_FARTHEST_ANGLE)
    square, first, second = _poles(theta)
    rest = _series(square, _terms(theta, _CURVE_SLOPE))
    return -2 * (2 / (first * first) + 2 / (second * second) + rest)


def cotangent_gap(theta: Tensor) -> Tensor:
    """Return 1/theta - cot(theta), theta/3 near 0; capped at pi - `ANTIPODE_ANGLE`."""
    return -theta.clamp(max=_FARTHEST_ANGLE) * cotangent_curve(theta)


INTERPOLATION_DEGREE = 5
"""Degree of the polynomials of `interpolated_`."""

INTERPOLATION_TILE = 2**15
"""Values per tile of `interpolated_` on a CPU, so that they stay in its cache."""


def interpolated_(function: Callable[[Tensor], Tensor], x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return function(x) by one polynomial per row of x [..., n], through the Chebyshev points of [low, high].

    The function takes a few points of each row, [..., k]; x is clamped to the interval, whose ends are [..., 1]. In few
    operations, for long rows; the gradient is that of the polynomial, in x alone, and x is overwritten without one.
    """
    with torch.no_grad():
        points, inverse = _chebyshev(INTERPOLATION_DEGREE, x.dtype, x.device)
        centre, half = (high + low) / 2, (high - low) / 2
        coefficients = function(torch.addcmul(centre, half, points)) @ inverse  # [..., k], highest power first
        scale = 1 / half
        shift = -centre * scale
    if not _records(x):
        return _row_polynomials(x, scale, shift, coefficients, out=x)
    result: Tensor = _RowPolynomial.apply(x, scale, shift, coefficients)  # type: ignore[no-untyped-call]
    return result


def _row_polynomials(x: Tensor, scale: Tensor, shift: Tensor, coefficients: Tensor, out: Tensor) -> Tensor:
    """Return polynomials in `clamp(a x + b, -1, 1)`, one per row, written to `out`."""
    rows = [part.reshape(-1, part.shape[-1]) for part in (x, scale, shift, coefficients)]
    result = out.view(-1, out.shape[-1])
    size = max(1, INTERPOLATION_TILE // x.shape[-1]) if x.device.type == "cpu" else max(1, len(result))
    for begin in range(0, len(result), size):
        own, a, b, c = (part[begin : begin + size] for part in rows)
        _horner(torch.addcmul(b, own, a).clamp_(-1, 1), c, result[begin : begin + size])
    return out


@lru_cache
def _chebyshev(degree: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the Chebyshev points of [-1, 1] and the matrix from values there to coefficients, highest power first."""
    points = torch.cos(math.pi * (torch.arange(degree + 1, dtype=torch.float64) + 0.5) / (degree + 1))
    inverse = torch.linalg.inv(torch.vander(points))
    return points.to(device, dtype), inverse.T.to(device, dtype)


class _RowPolynomial(torch.autograd.Function):
    """`_row_polynomials` with a gradient in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale, shift, coefficients)
        return _row_polynomials(x, scale, shift, coefficients, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, scale, shift, coefficients = ctx.saved_tensors
        inside = torch.addcmul(shift, x, scale)
        power = torch.arange(coefficients.shape[-1] - 1, 0, -1, dtype=x.dtype, device=x.device)
        slope = torch.empty_like(x)
        _horner(inside.clamp(-1, 1), coefficients[..., :-1] * power * scale, slope)
        return slope.mul_(inside.abs_() <= 1).mul_(gradients[0]), None, None, None


def _horner(t: Tensor, coefficients: Tensor, out: Tensor) -> None:
    """Write the polynomials of t [..., n] with coefficients [..., k], highest power first, to `out`."""
    first, *others = coefficients.split(1, dim=-1)
    torch.addcmul(others[0], t, first, out=out)
    for coefficient in others[1:]:
        torch.addcmul(coefficient, out, t, out=out)


_OF_ANGLE: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "ratio": (0, lambda theta: 1 / sinc(theta / 2)),  # (theta/2) / sin(theta/2), already without the pole
    "curve": (1, cotangent_curve),
    "bend": (2, cotangent_bend),
}
"""Functions of the angle, and the power of y that removes their pole at the antipode."""

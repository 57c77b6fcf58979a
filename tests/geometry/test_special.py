from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from rdlm.geometry import special

Oracle = Callable[[mp.mpf], mp.mpf]

CAP = special.ANTIPODE_ANGLE


def _ratio(z: mp.mpf) -> mp.mpf:
    return mp.acos(z) / mp.sqrt((1 - z) * (1 + z)) if z != 1 else mp.mpf(1)


def _curve(t: mp.mpf) -> mp.mpf:
    return (t * mp.cot(t) - 1) / t**2 if t else -mp.mpf(1) / 3


def _slope(t: mp.mpf) -> mp.mpf:
    return 2 / t**3 - mp.cot(t) / t**2 - mp.csc(t) ** 2 / t if t else mp.mpf(0)


# value and derivative of each function, at an mpmath argument
OF_COSINE: dict[str, tuple[Callable[[Tensor], Tensor], Oracle, Oracle]] = {
    "squared_angle": (special.squared_angle, lambda z: mp.acos(z) ** 2, lambda z: -2 * _ratio(z)),
    "angle_over_sine": (
        special.angle_over_sine,
        _ratio,
        lambda z: (z * _ratio(z) - 1) / (1 - z * z) if z != 1 else -mp.mpf(1) / 3,
    ),
    "log_angle_over_sine": (
        special.log_angle_over_sine,
        lambda z: mp.log(_ratio(z)),
        lambda z: (z - 1 / _ratio(z)) / (1 - z * z) if z != 1 else -mp.mpf(1) / 3,
    ),
}
OF_ANGLE: dict[str, tuple[Callable[[Tensor], Tensor], Oracle, Oracle]] = {
    "sinc": (
        special.sinc,
        lambda t: mp.sin(t) / t if t else mp.mpf(1),
        lambda t: mp.cos(t) / t - mp.sin(t) / t**2 if t else mp.mpf(0),
    ),
    "cotangent_curve": (special.cotangent_curve, _curve, _slope),
    "cotangent_gap": (
        special.cotangent_gap,
        lambda t: 1 / t - mp.cot(t) if t else mp.mpf(0),
        lambda t: mp.csc(t) ** 2 - 1 / t**2 if t else mp.mpf(1) / 3,
    ),
    "theta times cotangent_bend": (
        lambda t: t.clamp(max=math.pi - special.ANTIPODE_ANGLE) * special.cotangent_bend(t),
        _slope,
        lambda t: (
            2 * mp.cot(t) / t**3 + 2 * mp.csc(t) ** 2 / t**2 + 2 * mp.csc(t) ** 2 * mp.cot(t) / t - 6 / t**4
            if t
            else -mp.mpf(2) / 45
        ),
    ),
}
FUNCTIONS = {**OF_COSINE, **OF_ANGLE, "angle": (special.angle, mp.acos, lambda z: -1 / mp.sqrt(1 - z * z))}


def _cosines(dtype: torch.dtype) -> Tensor:
    """Representable cosines from the cap to 1, dense at both ends; each is then an exact argument."""
    ends = torch.logspace(-8, 0, 120, dtype=torch.float64)
    z = torch.cat([1 - ends, ends - 1, torch.linspace(-1, 1, 600, dtype=torch.float64)]).to(dtype)
    return z[(z >= -math.cos(CAP)) & (z <= 1)]


def _angles(dtype: torch.dtype) -> Tensor:
    """Representable angles from 0 to the cap, dense at both ends."""
    ends = torch.logspace(-9, 0, 120, dtype=torch.float64)
    t = torch.cat([torch.zeros(1), ends, math.pi - ends, torch.linspace(0, math.pi, 600)]).to(dtype)
    return t[t < math.pi - 1.01 * CAP]


def _arguments(name: str, dtype: torch.dtype) -> Tensor:
    return _angles(dtype) if name in OF_ANGLE else _cosines(dtype)


def _relative_error(value: Tensor, argument: Tensor, oracle: Oracle, floor: float = 0.0) -> float:
    """The largest error over the exact value, or over `floor` where that is larger."""
    with mp.workdps(60):
        exact = [oracle(mp.mpf(x)) for x in argument.tolist()]
        errors = [abs(v - e) / (max(abs(e), floor) or 1) for v, e in zip(value.tolist(), exact, strict=True)]
    return float(max(errors))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_match_mpmath(name: str, dtype: torch.dtype, tolerance: float) -> None:
    function, oracle, _ = FUNCTIONS[name]
    x = _arguments(name, dtype)
    value = function(x)
    assert value.dtype == dtype
    assert _relative_error(value, x, oracle) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("name", [*OF_COSINE, *OF_ANGLE])
def test_slopes_match_mpmath(name: str, dtype: torch.dtype, tolerance: float) -> None:
    function, _, oracle = FUNCTIONS[name]
    x = _arguments(name, dtype)
    if name == "squared_angle":  # its slope is torch's, which cancels towards the antipode
        x = x[x > -0.99]
    x.requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    # Slopes that vanish at angle 0 are held to an absolute error there.
    assert _relative_error(slope, x.detach(), oracle, floor=0.05) < tolerance


def test_slope_of_the_curve_is_the_derivative_of_the_curve() -> None:
    t = _angles(torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(special.cotangent_curve(t).sum(), t)
    torch.testing.assert_close(t.detach() * special.cotangent_bend(t.detach()), slope, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name: str) -> None:
    # Angles are even or odd functions, so a difference across 0 is fine; one across z = 1 meets the clamp.
    angles = [0.0, 1e-8, 1e-4, 0.03, 0.5, 2.0, math.pi - 0.05]
    cosines = [1 - 1e-5, 1 - 1e-3, 0.5, 0.0, -0.9, -1 + 1e-3]
    points = angles if name in OF_ANGLE else cosines
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    assert gradcheck(FUNCTIONS[name][0], (x,), eps=1e-7, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_finite_everywhere_also_past_the_ends(name: str, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype)
    ends = [0.0, tiny.tiny, 1e-30, 1e-12, 1e-6, 1 - tiny.eps, 1.0, 1 + 2 * tiny.eps]
    points = [*ends, math.pi - CAP, math.pi - 1e-7, math.pi, math.pi + 1e-6] if name in OF_ANGLE else ends
    signed = [-z for z in ends] if name not in OF_ANGLE else []
    x = torch.tensor([*points, *signed], dtype=dtype, requires_grad=True)
    value = FUNCTIONS[name][0](x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert value.isfinite().all() and slope.isfinite().all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_the_same_with_and_without_a_gradient(name: str) -> None:
    x = _arguments(name, torch.float32)
    kept = x.clone()
    within = FUNCTIONS[name][0](x.clone().requires_grad_()).detach()
    assert torch.equal(FUNCTIONS[name][0](x), within)
    assert torch.equal(x, kept)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-11)])
def test_curves_of_the_cosine_are_those_of_the_angle(dtype: torch.dtype, tolerance: float) -> None:
    z = _cosines(dtype)
    inverse, ratio, curve, bend = special.angle_over_sine_and_curves(z)
    ratio, curve, bend = ratio * inverse, curve * inverse, bend * inverse.square()
    torch.testing.assert_close(ratio, special.angle_over_sine(z), rtol=tolerance, atol=0)
    assert _relative_error(curve, z, lambda z: _curve(mp.acos(z))) < tolerance
    assert _relative_error(bend, z, lambda z: _slope(mp.acos(z)) / mp.acos(z) if z < 1 else -mp.mpf(2) / 45) < tolerance


def test_ends_and_caps() -> None:
    z = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    ratio, square, angle = special.angle_over_sine(z), special.squared_angle(z), special.angle(z)
    assert ratio[0] == 1 and square[0] == 0
    assert angle.tolist() == [0.0, math.pi]
    assert ratio[1].item() == pytest.approx((math.pi - CAP) / math.sin(CAP), rel=1e-9)
    assert square[1].item() == pytest.approx((math.pi - CAP) ** 2, rel=1e-9)
    (slope,) = torch.autograd.grad(square.sum(), z)
    assert slope.tolist() == [-2.0, 0.0]
    (slope,) = torch.autograd.grad(angle.sum(), z)
    assert slope.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chords_agree_with_the_cosine(dtype: torch.dtype) -> None:
    theta = torch.linspace(0, 3.0, 301, dtype=torch.float64)
    chords = special.angle_over_sine_of_chords(
        (2 * torch.sin(theta / 2)).to(dtype), (2 * torch.cos(theta / 2)).to(dtype)
    )
    exact = special.angle_over_sine(torch.cos(theta)).to(dtype)
    torch.testing.assert_close(chords, exact, rtol=4 * torch.finfo(dtype).eps * 4, atol=0)


def test_divisor_at_zero() -> None:
    assert special.positive_or_one(torch.tensor([0.0, 4.0])).tolist() == [1.0, 4.0]


@settings(deadline=None, max_examples=100)
@given(st.floats(min_value=0.0, max_value=math.pi - 2 * CAP))
def test_functions_of_one_angle_fit_together(theta: float) -> None:
    t = torch.tensor(theta, dtype=torch.float64)
    z = torch.cos(t)
    torch.testing.assert_close(special.angle_over_sine(z) * special.sinc(t), torch.ones_like(t), rtol=1e-9, atol=0)
    torch.testing.assert_close(special.log_angle_over_sine(z).exp(), special.angle_over_sine(z))
    torch.testing.assert_close(special.squared_angle(z), t * t, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(special.cotangent_gap(t), -t * special.cotangent_curve(t), rtol=0, atol=0)
    assert special.cotangent_gap(t) >= t / 3 * (1 - 1e-14)

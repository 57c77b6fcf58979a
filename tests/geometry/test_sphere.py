from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from rdlm.errors import InputError
from rdlm.geometry import sphere

SMALL = [0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
ANGLES = [*SMALL, *(math.pi * k / 64 for k in range(1, 64)), *(math.pi - a for a in SMALL)]
DTYPES = [torch.float32, torch.float64]


def _pairs(angles: Tensor, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pairs of float64 points at the given angles, in random directions."""
    generator = torch.Generator().manual_seed(seed)
    x = sphere.uniform(angles.shape, d, generator, torch.float64)
    w = sphere.project(sphere.tangent_normal(x, generator))
    return x, torch.cos(angles).unsqueeze(-1) * x + torch.sin(angles).unsqueeze(-1) * w


def _triple(seed: int, d: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    points = sphere.uniform((3,), d, torch.Generator().manual_seed(seed), dtype)
    return points[0], points[1], points[2]


def _exact_angle(x: Tensor, y: Tensor) -> Tensor:
    """The angle of the very vectors given, whatever their type, normalised and computed in float64."""
    x, y = sphere.project(x.double()), sphere.project(y.double())
    return 2 * torch.atan2((x - y).norm(dim=-1), (x + y).norm(dim=-1))


triples = st.builds(_triple, st.integers(0, 2**31), st.integers(2, 40))


@pytest.mark.parametrize("d", [2, 4, 28, 1000])
def test_float32_distance_at_all_angles(d: int) -> None:
    x, y = (v.float() for v in _pairs(torch.tensor(ANGLES, dtype=torch.float64), d))
    error = (sphere.distance(x, y).double() - _exact_angle(x, y)).abs()
    assert error.max() < 1e-6


def test_float32_distance_from_a_vertex_is_relatively_exact_for_tiny_angles() -> None:
    angles = torch.tensor(SMALL)
    x = torch.tensor([1.0, 0.0])
    y = torch.stack([torch.ones_like(angles), angles], -1)  # its angle from x is atan(angle), exactly
    exact = torch.atan(angles.double())
    torch.testing.assert_close(sphere.distance(x, y).double(), exact, rtol=5e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_nan_or_infinite_at_any_angle(dtype: torch.dtype) -> None:
    base, other = (v.to(dtype) for v in _pairs(torch.tensor(ANGLES, dtype=torch.float64), 5))
    base, other = (
        torch.cat([base, base, base]),
        torch.cat([other, base, -base]),
    )  # exact equality and antipodes
    x, y = base.requires_grad_(), other.requires_grad_()
    v = sphere.tangent(x, y)
    results = [
        sphere.distance(x, y),
        sphere.logarithm(x, y),
        sphere.geodesic(x, y, 0.3),
        sphere.exponential(x, v),
        sphere.exponential(x, 0 * v),
        sphere.transport(x, y, v),
        sphere.project(x + y),
    ]
    for result in results:
        gradients = torch.autograd.grad(result.square().sum() + result.sum(), (x, y), retain_graph=True)
        assert result.isfinite().all()
        assert all(g.isfinite().all() for g in gradients)


def test_distance_has_zero_gradient_at_its_kinks() -> None:
    x = torch.tensor([0.6, 0.8], requires_grad=True)
    for y in (x.detach(), -x.detach()):
        (gradient,) = torch.autograd.grad(sphere.distance(x, y), x)
        assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("angle", [0.0, 1e-5, 1e-3, 0.1, 1.0, 2.5, math.pi - 1e-2])
def test_gradcheck_of_points(angle: float) -> None:
    x, y = _pairs(torch.tensor([angle], dtype=torch.float64), 4)
    x, y = x.requires_grad_(), y.requires_grad_()
    t = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    # A step of 1e-8 stays far from the kink at 0 and from the steep antipode.
    options = {"eps": 1e-8, "atol": 1e-5, "rtol": 1e-3}
    assert gradcheck(sphere.distance, (x, y), **options)
    assert gradcheck(sphere.logarithm, (x, y), **options)
    assert gradcheck(sphere.geodesic, (x, y, t), **options)
    assert gradcheck(sphere.transport, (x, y, torch.ones_like(x)), **options)


@pytest.mark.parametrize("length", [0.0, 1e-9, 1e-5, 1e-2, 1.0, math.pi - 1e-4, math.pi, 7.0])
def test_gradcheck_of_the_exponential(length: float) -> None:
    x, y = _pairs(torch.tensor([1.0], dtype=torch.float64), 4)
    v = length * sphere.project(sphere.tangent(x, y))
    assert gradcheck(sphere.exponential, (x.requires_grad_(), v.requires_grad_()), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("d", [3, 28, 256])
def test_logarithm_and_exponential_are_inverse(d: int, dtype: torch.dtype, tolerance: float) -> None:
    angles = torch.tensor([a for a in ANGLES if a < math.pi - 1e-5], dtype=torch.float64)
    x, y = (sphere.project(v.to(dtype)) for v in _pairs(angles, d))
    v = sphere.logarithm(x, y)
    assert (sphere.exponential(x, v) - y).norm(dim=-1).max() < tolerance
    assert (x * v).sum(-1).abs().max() < tolerance
    assert (v.norm(dim=-1) - sphere.distance(x, y)).abs().max() < tolerance
    short = angles < 3.0
    back = sphere.logarithm(x, sphere.exponential(x, v))
    assert (back - v)[short].norm(dim=-1).max() < tolerance


def test_logarithm_at_the_antipode_is_zero() -> None:
    x = sphere.uniform((7,), 5, torch.Generator().manual_seed(1))
    assert sphere.logarithm(x, -x).abs().max() == 0
    assert sphere.logarithm(x, x).abs().max() == 0
    assert torch.equal(sphere.geodesic(x, -x, 0.5), x)
    v = sphere.tangent_normal(x, torch.Generator().manual_seed(2))
    assert torch.equal(sphere.transport(x, -x, v), v)


@pytest.mark.parametrize("angle", [1e-4, 0.01, 0.3, 1.5, 2.9, math.pi - 1e-2])
def test_logarithm_is_minus_half_the_gradient_of_the_squared_distance(angle: float) -> None:
    x, y = _pairs(torch.full((5,), angle, dtype=torch.float64), 6)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(sphere.distance(x, y).square().sum(), x)
    expected = -0.5 * sphere.tangent(x.detach(), gradient)
    torch.testing.assert_close(sphere.logarithm(x.detach(), y), expected, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(triples)
def test_distance_is_a_metric(points: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, z = points
    assert sphere.distance(x, y) == sphere.distance(y, x)
    assert sphere.distance(x, z) <= sphere.distance(x, y) + sphere.distance(y, z) + 1e-12
    torch.testing.assert_close(sphere.distance(x, y) + sphere.distance(-x, y), torch.tensor(math.pi).double())


@settings(deadline=None, max_examples=60)
@given(triples, st.floats(0, 1))
def test_geodesic_has_constant_speed(points: tuple[Tensor, Tensor, Tensor], t: float) -> None:
    x, y, _ = points
    length = sphere.distance(x, y)
    point = sphere.geodesic(x, y, t)
    torch.testing.assert_close(point.norm(dim=-1), torch.ones_like(length), rtol=0, atol=1e-12)
    torch.testing.assert_close(sphere.distance(x, point), t * length, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(sphere.distance(point, y), (1 - t) * length, rtol=1e-7, atol=1e-7)


def test_geodesic_is_slerp_and_takes_a_time_per_point() -> None:
    angles = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    x, y = _pairs(angles, 4)
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    start, end = (torch.sin(w * angles) / torch.sin(angles) for w in (1 - t, t))
    torch.testing.assert_close(sphere.geodesic(x, y, t), start[:, None] * x + end[:, None] * y)
    assert sphere.geodesic(x[0], y[0], torch.linspace(0, 1, 11).double()).shape == (11, 4)


@settings(deadline=None, max_examples=60)
@given(triples, st.integers(0, 2**31))
def test_transport_is_an_isometry(points: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    x, y, _ = points
    generator = torch.Generator().manual_seed(seed)
    v, w = sphere.tangent_normal(x, generator), sphere.tangent_normal(x, generator)
    moved_v, moved_w = sphere.transport(x, y, v), sphere.transport(x, y, w)
    torch.testing.assert_close((moved_v * moved_w).sum(), (v * w).sum(), rtol=1e-9, atol=1e-9)
    assert (moved_v * y).sum().abs() < 1e-7  # tangent at y
    torch.testing.assert_close(sphere.transport(y, x, moved_v), v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_transport_turns_the_logarithm_round(dtype: torch.dtype, tolerance: float) -> None:
    angles = torch.tensor([a for a in ANGLES if a < 3.0], dtype=torch.float64)
    x, y = (sphere.project(v.to(dtype)) for v in _pairs(angles, 9))
    moved = sphere.transport(x, y, sphere.logarithm(x, y))
    assert (moved + sphere.logarithm(y, x)).norm(dim=-1).max() < tolerance


def test_transport_along_a_geodesic_keeps_what_is_orthogonal_to_it() -> None:
    x, y, normal = torch.eye(4, dtype=torch.float64)[:3]
    assert torch.equal(sphere.transport(x, y, normal), normal)
    torch.testing.assert_close(sphere.transport(x, y, y), -x)  # the velocity at the end of the quarter circle


def test_uniform_and_tangent_normal_moments() -> None:
    n, d = 40_000, 4
    generator = torch.Generator().manual_seed(3)
    x = sphere.uniform((n,), d, generator, torch.float64)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    # <x_i> has variance 1/d; x_i^2 has variance 2(d-1)/(d^2(d+2)). Five standard errors.
    assert x.mean(0).abs().max() < 5 * math.sqrt(1 / d / n)
    assert (x.square().mean(0) - 1 / d).abs().max() < 5 * math.sqrt(2 * (d - 1) / (d**2 * (d + 2)) / n)
    v = sphere.tangent_normal(x, generator)
    assert (x * v).sum(-1).abs().max() < 1e-12
    # |v|^2 is chi-square with d - 1 degrees of freedom, of variance 2(d-1).
    assert abs(float(v.square().sum(-1).mean()) - (d - 1)) < 5 * math.sqrt(2 * (d - 1) / n)


def test_draws_follow_the_generator_type_and_shape() -> None:
    first, second = (sphere.uniform((2, 3), 5, torch.Generator().manual_seed(9)) for _ in range(2))
    assert torch.equal(first, second) and first.shape == (2, 3, 5) and first.dtype == torch.float32
    normal = [sphere.tangent_normal(first.double(), torch.Generator().manual_seed(9)) for _ in range(2)]
    assert torch.equal(*normal) and normal[0].dtype == torch.float64
    with pytest.raises(InputError, match="d = 0"):
        sphere.uniform((2,), 0)


def test_functions_broadcast() -> None:
    x = sphere.uniform((3, 1), 5, torch.Generator().manual_seed(0))
    y = torch.eye(5)
    assert sphere.distance(x, y).shape == (3, 5)
    assert sphere.logarithm(x, y).shape == sphere.transport(x, y, y).shape == (3, 5, 5)
    assert sphere.exponential(x, sphere.logarithm(x, y)).shape == (3, 5, 5)


def test_project() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    point = sphere.project(x)
    torch.testing.assert_close(point, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(point.sum(), x)
    assert gradient.isfinite().all()

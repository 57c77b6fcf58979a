from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import simplex, sphere


def _distributions(seed: int, d: int) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(2, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p, q = logits.softmax(-1)
    return p, q


@settings(deadline=None, max_examples=60)
@given(st.builds(_distributions, st.integers(0, 2**31), st.integers(2, 50)))
def test_square_root_map_is_an_isometry(pair: tuple[Tensor, Tensor]) -> None:
    p, q = pair
    u, v = simplex.to_sphere(p), simplex.to_sphere(q)
    sphere.check_on_sphere(u, 1e-12)
    torch.testing.assert_close(simplex.to_simplex(u), p)
    distance = simplex.fisher_rao_distance(p, q)
    torch.testing.assert_close(sphere.distance(u, v), distance / 2)
    torch.testing.assert_close(distance, 2 * torch.acos((p * q).sqrt().sum()), rtol=1e-6, atol=1e-6)


def test_distance_of_neighbours_is_the_fisher_information_metric() -> None:
    p, q = _distributions(0, 8)
    step = 1e-4 * (q - p)
    length = (step.square() / p).sum().sqrt()
    torch.testing.assert_close(simplex.fisher_rao_distance(p, p + step), length, rtol=1e-3, atol=0)


def test_vertices_are_pi_apart_in_float32() -> None:
    vertices = torch.eye(4)
    distance = simplex.fisher_rao_distance(vertices[:, None], vertices)
    torch.testing.assert_close(distance, math.pi * (1 - torch.eye(4)), rtol=0, atol=1e-6)


def test_gradient_along_the_simplex_is_right_beside_shared_zeros() -> None:
    p = torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.8, 0.2, 0.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(simplex.fisher_rao_distance(p, q), p)
    step = torch.tensor([-0.6, -0.4, 1.0], dtype=torch.float64)  # its sum is zero
    overlap = (p.detach() * q).sqrt().sum()
    of_overlap = 0.5 * (q[:2] / p.detach()[:2]).sqrt() @ step[:2]
    exact = -2 * of_overlap / torch.sqrt(1 - overlap**2)
    torch.testing.assert_close(gradient @ step, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_vertices_and_equal_points(dtype: torch.dtype) -> None:
    p = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]], dtype=dtype, requires_grad=True)
    q = torch.tensor([[0.0, 1, 0], [1.0, 0, 0], [0, 0.5, 0.5], [0.2, 0.3, 0.5]], dtype=dtype, requires_grad=True)
    for result in (simplex.fisher_rao_distance(p, q), simplex.to_sphere(p) + simplex.to_sphere(q)):
        gradients = torch.autograd.grad(result.sum(), (p, q))
        assert all(g.isfinite().all() for g in gradients)


def test_off_simplex_input_is_refused() -> None:
    good = torch.tensor([0.5, 0.5])
    with pytest.raises(InputError, match=r"-0\.1"):
        simplex.to_sphere(torch.tensor([1.1, -0.1]))
    with pytest.raises(InputError, match=r"sum to 1\.2"):
        simplex.fisher_rao_distance(good, torch.tensor([0.6, 0.6]))
    with pytest.raises(InputError, match="nan"):
        simplex.fisher_rao_distance(torch.tensor([math.nan, 1.0]), good)
    with pytest.raises(InputError, match=r"norm is 0\.5"):
        simplex.to_simplex(torch.tensor([0.5, 0.0]))

"""Functions of long rows by one polynomial per row."""

from __future__ import annotations

import torch

from rdlm.geometry import special


def test_rows_are_interpolated_with_their_own_function() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(7, 300, generator=generator, dtype=torch.float64) * 0.8
    rate = torch.linspace(0.2, 2, 7, dtype=torch.float64)[:, None]
    low, high = torch.zeros(7, 1, dtype=torch.float64), torch.full((7, 1), 0.8, dtype=torch.float64)
    found = special.interpolated_(lambda some: torch.exp(-rate * some), x.clone(), low, high)
    torch.testing.assert_close(found, torch.exp(-rate * x), rtol=0, atol=1e-5)


def test_beyond_the_interval_the_value_of_its_end_is_kept() -> None:
    x = torch.tensor([[-3.0, 0.0, 0.5, 1.0, 9.0]])
    found = special.interpolated_(torch.square, x, torch.zeros(1, 1), torch.ones(1, 1))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0, 0.25, 1.0, 1.0]]), rtol=0, atol=1e-5)


def test_the_gradient_is_that_of_the_function_inside_and_0_outside() -> None:
    x = torch.tensor([[-3.0, 0.1, 0.5, 0.9, 9.0]], dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    value = special.interpolated_(torch.sin, x, torch.zeros(1, 1), torch.ones(1, 1))
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(gradient[:, 1:4], before[:, 1:4].cos(), rtol=0, atol=1e-4)
    assert gradient[0, 0] == 0 and gradient[0, 4] == 0
    assert torch.equal(x.detach(), before)  # overwritten without a gradient only

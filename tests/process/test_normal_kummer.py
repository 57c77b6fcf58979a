"""The damped Kummer function against mpmath, its inverse, and the factors by which the wrong ones err."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.process.normal import _table, inverse_kummer, kummer, kummer_gap

DEGREES = (2, 3, 4, 27, 255, 30521)
NAMES = ("corrected", "printed", "coded")


def first_minimum(degrees, name):
    """Return the argument of the first minimum, up to which there is an inverse."""
    return float(_table(degrees, name)[0][-1])


def oracle_gap(degrees: int, rho: float, name: str) -> float:
    with mpmath.workdps(40):
        half_square = mpmath.mpf(rho) ** 2 / 2
        first = mpmath.mpf(degrees + (name == "printed")) / 2
        value = mpmath.hyp1f1(first, mpmath.mpf(1) / 2, -half_square)
        return float(1 - value * (1 if name == "corrected" else mpmath.exp(-half_square)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("degrees", DEGREES)
def test_agrees_with_mpmath(degrees, name):
    rho = [1e-6, 1e-3, *(part * math.pi / math.sqrt(degrees) for part in (0.1, 0.5, 0.9, 1.5)), 3.1]
    gap = kummer_gap(degrees, torch.tensor(rho, dtype=torch.float64), name)
    expected = torch.tensor([oracle_gap(degrees, r, name) for r in rho], dtype=torch.float64)
    torch.testing.assert_close(gap, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("degrees", [3, 27])
def test_is_the_mean_cosine_of_a_normal_length(degrees):
    length = torch.randn(200_000, degrees, generator=torch.Generator().manual_seed(0)).double().norm(dim=1)
    cosine = torch.cos(0.3 * length)
    error = (cosine.mean() - kummer(degrees, torch.tensor(0.3))).abs()
    assert error < 4 * cosine.std() / math.sqrt(len(cosine))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("degrees", DEGREES)
def test_falls_on_its_range_and_rises_after_it(degrees, name):
    last = first_minimum(degrees, name)
    values = kummer(degrees, torch.linspace(0, last, 500, dtype=torch.float64), name)
    assert bool((values[1:] <= values[:-1]).all())
    assert values[0] == 1 and values[-1] < 0
    assert kummer(degrees, torch.tensor(last * 1.02), name) > values[-1]


@settings(deadline=None, max_examples=60)
@given(degrees=st.integers(2, 30521), part=st.floats(0, 0.99), name=st.sampled_from(NAMES))
def test_inverse_undoes_it(degrees, part, name):
    rho = torch.tensor(part * first_minimum(degrees, name), dtype=torch.float64)
    found = inverse_kummer(degrees, kummer(degrees, rho, name), name)
    # A value keeps 1e-16 of 1; for small rho that is a larger part of n rho^2 / 2.
    slack = 1e-15 / (degrees * max(rho.item(), 1e-12))
    assert abs(found - rho) < 1e-9 * rho + slack + 1e-8 * (rho < 1e-6)


@pytest.mark.parametrize("degrees", [3, 27, 255])
def test_wrong_functions_err_by_the_predicted_factors(degrees):
    value = torch.tensor(1 - 1e-5, dtype=torch.float64)
    right = inverse_kummer(degrees, value)
    torch.testing.assert_close(right, torch.tensor(math.sqrt(2e-5 / degrees)).double(), rtol=1e-4, atol=0)
    for name, extra in (("printed", 2), ("coded", 1)):
        factor = inverse_kummer(degrees, value, name) / right
        assert factor.item() == pytest.approx(math.sqrt(degrees / (degrees + extra)), rel=1e-4)


def test_values_outside_the_range_give_its_ends():
    value = torch.tensor([1.0, 1.5, -2.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.0, first_minimum(3, "corrected")], dtype=torch.float64)
    torch.testing.assert_close(inverse_kummer(3, value), expected, rtol=1e-6, atol=0)


def test_refuses_bad_input():
    with pytest.raises(InputError, match="did you mean 'corrected'"):
        kummer(3, torch.tensor(0.1), "correct")
    with pytest.raises(InputError, match="d >= 3"):
        kummer(1, torch.tensor(0.1))

"""The evidence against the heat kernel itself: its Gegenbauer series in high precision, Eq. (42)."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from rdlm.process.bridge import EXPANSION_RANGE, Bridge, masked_start

S = 0.03756
# From a state on its token to one beyond the equator; the others are compared with the right angle, where most
# tokens are.
ANGLES = (math.pi / 2, 0.05, 0.3, 0.6, 0.9, 1.2, 1.5, 1.65, 1.8)


def heat_kernel(dimension: int, remaining: float) -> list[float]:
    """Return log h at `ANGLES` on the sphere of R^d up to a constant, by its series over harmonics."""
    n = dimension - 1
    # The terms are of order one and cancel to h, so the digits must reach below it.
    digits = int(30 + (max(ANGLES) ** 2 / (2 * remaining) + 5 * n) / math.log(10))
    with mpmath.workdps(digits):
        order, schedule = mpmath.mpf(n - 1) / 2, mpmath.mpf(remaining) / 2
        cosines = [mpmath.cos(mpmath.mpf(angle)) for angle in ANGLES]
        before, harmonic = [mpmath.mpf(0)] * len(ANGLES), [mpmath.mpf(1)] * len(ANGLES)
        total = [mpmath.mpf(0)] * len(ANGLES)
        for degree in range(10**5):
            weight = (degree + order) / order * mpmath.exp(-degree * (degree + n - 1) * schedule)
            total = [t + weight * c for t, c in zip(total, harmonic, strict=True)]
            if degree > n and weight * mpmath.binomial(degree + n - 2, degree) < mpmath.mpf(10) ** -digits:
                break
            following = [
                (2 * (degree + order) * z * c - (degree + 2 * order - 1) * b) / (degree + 1)
                for z, c, b in zip(cosines, harmonic, before, strict=True)
            ]
            before, harmonic = harmonic, following
        return [float(mpmath.log(t)) for t in total]


def log_ratios(dimension: int, total: float, remaining: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log h minus its value at the right angle, by the bridge and by the series."""
    angle = torch.tensor(ANGLES, dtype=torch.float64)
    state = torch.zeros(len(ANGLES), dimension, dtype=torch.float64)
    state[:, 0], state[:, -1] = torch.cos(angle), torch.sin(angle)
    evidence = Bridge(masked_start(dimension - 1), total).log_likelihood(state, remaining)[:, 0]
    series = torch.tensor(heat_kernel(dimension, remaining), dtype=torch.float64)
    return (evidence - evidence[0])[1:], (series - series[0])[1:]


@pytest.mark.parametrize("remaining", [S, S / 2, 0.005])
@pytest.mark.parametrize("dimension", [3, 4, 28])
def test_evidence_is_the_heat_kernel_to_a_thousandth(dimension: int, remaining: float) -> None:
    """Ten times better than the 1% that is promised, at the paper's total noise and below it."""
    evidence, series = log_ratios(dimension, S, remaining)
    torch.testing.assert_close(evidence, series, rtol=1e-3, atol=0)


def test_the_sphere_in_four_dimensions_has_a_closed_form() -> None:
    """On S^3 the expansion ends after its first factor; what is left are images beyond the antipode."""
    evidence, series = log_ratios(4, S, S)
    torch.testing.assert_close(evidence, series, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dimension", [28, 64])
def test_one_percent_holds_up_to_the_edge_of_the_range_and_is_reached_not_far_beyond(dimension: int) -> None:
    edge = EXPANSION_RANGE / (dimension - 2)
    evidence, series = log_ratios(dimension, edge, edge)
    error = ((evidence - series) / series).abs().max().item()
    assert 0.004 < error < 0.01
    evidence, series = log_ratios(dimension, edge, 1.5 * edge)
    assert ((evidence - series) / series).abs().max().item() > 0.01


def legendre_series(angle: float) -> mpmath.mpf:
    """Return the heat kernel of S^2 at noise 1/2, from mpmath's own polynomials."""
    cosine = mpmath.cos(angle)
    return sum((2 * k + 1) * mpmath.legendre(k, cosine) * mpmath.exp(-k * (k + 1) * 0.25) for k in range(40))


def test_oracle_is_right_on_the_ordinary_sphere() -> None:
    by_hand = [float(mpmath.log(legendre_series(angle))) for angle in ANGLES]
    assert heat_kernel(3, 0.5) == pytest.approx(by_hand, abs=1e-9)

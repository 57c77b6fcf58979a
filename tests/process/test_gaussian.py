"""Gaussian observations: their law, their evidence, and the sphere's Brownian bridge for small noise."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.channel import Gaussian
from rdlm.process.exact import exact_law, fresh_law
from rdlm.process.kernel import step_log_density
from rdlm.process.law import SimulatedLaw
from rdlm.process.path import masked_path
from rdlm.process.schedule import Geometric, Grid, StepCoefficients, uniform_in_time
from rdlm.process.tokens import Codes

CLOCK = Geometric()
S = CLOCK.total


def codes(vocabulary: int = 4, coordinates: int = 3) -> Codes:
    return Codes(vocabulary, coordinates, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("coded", [True, False])
def test_states_are_sums_of_observations(coded: bool) -> None:
    """u = x / B has mean a c_k and variance a, with a = 1/B - 1/S."""
    channel = masked_path(4, S, "gaussian", codes() if coded else None).bridge
    law = exact_law(channel, uniform_in_time(CLOCK, 8), 1)
    token, remaining = torch.full((40_000,), 2), 0.6 * S
    u = law.draw(token, remaining, torch.Generator().manual_seed(2)).double() / remaining
    strength = 1 / remaining - 1 / S
    mean = strength * channel.tokens.at(token[:1], u[:1])[0]
    assert float((u.mean(0) - mean).abs().max()) < 4.5 * math.sqrt(strength / 40_000)
    spread = torch.cov(u.T) - strength * torch.eye(channel.dimension)
    assert float(spread.abs().max()) < 6 * strength * math.sqrt(2 / 40_000)


def test_a_chain_of_steps_has_the_closed_law() -> None:
    """The coefficients of Eq. (18) are exact in flat space, for any grid."""
    path, grid = masked_path(4, S, "gaussian", codes()), Grid(torch.tensor([S, 0.7 * S, 0.2 * S, 0.0]).double())
    token = torch.full((40_000,), 1)
    walked = SimulatedLaw(path.bridge, grid).draw(token, 0.2 * S, torch.Generator().manual_seed(3))
    drawn = fresh_law(path, grid).draw_at_level(token, torch.full_like(token, 2), torch.Generator().manual_seed(4))
    scale = math.sqrt(0.2 * S * 0.8)
    assert float((walked.mean(0) - drawn.mean(0)).abs().max()) < 4.5 * scale * math.sqrt(2 / 40_000)
    assert float((torch.cov(walked.T) - torch.cov(drawn.T)).abs().max()) < 6 * scale**2 * math.sqrt(4 / 40_000)


def test_evidence_is_the_log_likelihood_of_the_state() -> None:
    """Against the density of the law, token by token."""
    channel = masked_path(4, S, "gaussian", codes()).bridge
    x = 0.3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(5)).double()
    remaining = 0.4 * S
    share = 1 - remaining / S
    distance = (x[:, None] - share * codes().vectors(x)).square().sum(-1)  # [6, 4]
    expected = torch.log_softmax(-distance / (2 * remaining * share), -1)
    found = torch.log_softmax(channel.log_likelihood(x, torch.full((6,), remaining, dtype=torch.float64)), -1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def ratios(total: float) -> float:
    """Return the largest difference of evidence and of step densities between sphere and flat space.

    Near the mask a point of the sphere is a displacement, in units of the quarter circle to every token; the noise is
    in the square of these units.
    """
    unit = 2 / math.pi
    points = codes(6, 5).double()
    curved = masked_path(6, total, "brownian", points).bridge
    flat = masked_path(6, unit**2 * total, "gaussian", points).bridge
    before, after = 1 / (2.0 + 1 / total), 1 / (5.0 + 1 / total)  # strengths 2 and 5
    generator = torch.Generator().manual_seed(6)
    u, v = 3 * torch.randn(2, 9, 5, generator=generator).double()  # observations of order one
    displacement, step = before * u, (after - before) * u + before * v
    mask = torch.zeros(9, 6).double()
    mask[:, -1] = 1
    state = sphere.exponential(mask, torch.nn.functional.pad(displacement, (0, 1)))
    tangent = sphere.tangent(state, torch.nn.functional.pad(step, (0, 1)))
    gain = torch.full((9,), 1 - after / before).double()
    coefficients = StepCoefficients(torch.full((9,), before).double(), gain, after * gain)
    scaled = StepCoefficients(unit**2 * coefficients.remaining, gain, unit**2 * coefficients.variance)
    pairs = (
        (curved.log_likelihood(state, before), flat.log_likelihood(unit * displacement, unit**2 * before)),
        (
            step_log_density(curved, state, tangent, coefficients),
            step_log_density(flat, unit * displacement, unit * step, scaled),
        ),
    )
    return max(float((a - b - (a - b).mean(-1, keepdim=True)).abs().max()) for a, b in pairs)


def test_the_brownian_bridge_tends_to_it_for_small_noise() -> None:
    """Evidence and step densities agree up to a term linear in S."""
    found = [ratios(total) for total in (1e-2, 1e-3, 1e-4, 1e-5)]
    assert found[-1] < 2e-3
    for coarse, fine in itertools.pairwise(found):
        assert coarse / fine == pytest.approx(10, rel=0.15)


def test_a_channel_needs_positive_noise() -> None:
    with pytest.raises(InputError, match="positive"):
        Gaussian.of(codes(), 0.0)

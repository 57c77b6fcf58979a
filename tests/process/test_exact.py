"""The exact law: states built from pairs, tables of pairs, and draws at and between their levels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, BridgeKind, Start, masked_start, uniform_start
from rdlm.process.exact import ExactLaw, all_but_one_share, draw_states, pair_step, tabulate
from rdlm.process.kernel import draw_token_step
from rdlm.process.schedule import Geometric, Grid, StepCoefficients, uniform_in_time

S = Geometric().total
STARTS = [
    start
    for vocabulary in (2, 3, 27)
    for start in (masked_start(vocabulary), uniform_start(vocabulary), Start(vocabulary, 0.3), Start(vocabulary, 1.0))
    if start != Start(2, 1.0)  # its two tokens and itself share a great circle: nothing is wrong with it, but dull
]
every_start = pytest.mark.parametrize("start", STARTS, ids=lambda s: f"d{s.dimension}-{s.token_weight:.2f}")
KINDS: tuple[BridgeKind, ...] = ("brownian", "logarithm")
SIGNIFICANT = 1e-4


def pair_of(state: Tensor, start: Start, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angle to the token and the cosine between the directions of state and start seen from it."""
    state = state.double()
    vertex = torch.nn.functional.one_hot(token, start.dimension).double()
    start_cosine = sphere.project(sphere.tangent(vertex, start.point(torch.float64).expand_as(vertex)))
    outward = sphere.project(sphere.tangent(vertex, state))
    return sphere.distance(state, vertex), (start_cosine * outward).sum(-1)


@every_start
@settings(max_examples=25)
@given(radius=st.floats(0.01, 3.1), start_cosine=st.floats(-1, 1), seed=st.integers(0, 10**6))
def test_states_are_unit_vectors_with_the_given_pair(
    start: Start, radius: float, start_cosine: float, seed: int
) -> None:
    token = torch.arange(8) % start.vocabulary
    wanted = (torch.full((8,), value, dtype=torch.float64) for value in (radius, start_cosine))
    state = draw_states(Bridge(start, S), token, *wanted, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(state.norm(dim=-1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-6)
    found_radius, found_cosine = pair_of(state, start, token)
    torch.testing.assert_close(found_radius, torch.full_like(found_radius, radius), rtol=0, atol=1e-6)
    torch.testing.assert_close(found_cosine, torch.full_like(found_cosine, start_cosine), rtol=0, atol=1e-6)


@every_start
def test_place_stays_on_the_sphere_in_float32(start: Start) -> None:
    """With few dimensions the free direction is a small remainder of its normal draw now and then."""
    count = 200_000
    token = torch.arange(count) % start.vocabulary
    radius, start_cosine = torch.full((count,), 0.9), torch.full((count,), 0.3)
    state = draw_states(Bridge(start, S), token, radius, start_cosine, torch.Generator().manual_seed(0))
    assert state.dtype == torch.float32
    assert float((state.double().norm(dim=-1) - 1).abs().max()) < 5e-6
    cosine = state.gather(-1, token[:, None])[:, 0]
    assert float((cosine - math.cos(0.9)).abs().max()) < 2e-6


@pytest.mark.parametrize("start", [masked_start(27), uniform_start(27), masked_start(3), uniform_start(2)], ids=str)
def test_free_direction_is_uniform(start: Start) -> None:
    """Mean 0 and covariance (1 - e e' - w w') / (d - 2), and the fourth moment of one coordinate."""
    count, d = 40_000, start.dimension
    token = torch.zeros(count, dtype=torch.long)
    flat = torch.full((count,), math.pi / 2, dtype=torch.float64)
    xi = draw_states(Bridge(start, S), token, flat, torch.zeros_like(flat), torch.Generator().manual_seed(1))
    vertex = torch.eye(d, dtype=torch.float64)[0]
    start_cosine = sphere.project(sphere.tangent(vertex, start.point(torch.float64)))
    free = torch.eye(d, dtype=torch.float64) - torch.outer(vertex, vertex) - torch.outer(start_cosine, start_cosine)
    # Coordinates are below 1: five standard errors for all moments at once.
    assert float(xi.mean(0).abs().max()) < 5 / math.sqrt(count * max(1, d - 2)) + 1e-9
    covariance = xi.T @ xi / count
    assert float((covariance - free / (d - 2)).abs().max()) < 5 / (math.sqrt(count) * (d - 2)) + 1e-9
    if d > 3:
        axis = sphere.project(free[1])
        fourth = (xi @ axis) ** 4
        expected = 3 / ((d - 2) * d)
        assert fourth.mean().item() == pytest.approx(expected, abs=5 * fourth.std().item() / math.sqrt(count))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [masked_start(2), uniform_start(3), masked_start(27)], ids=str)
def test_pair_step_is_the_projected_step_of_the_full_chain(start: Start, kind: BridgeKind) -> None:
    """One step from one state, in d dimensions and for the pair alone: equal laws of both numbers."""
    bridge, count = Bridge(start, S, kind), 20_000
    generator = torch.Generator().manual_seed(2)
    token = torch.zeros(count, dtype=torch.long)
    radius, start_cosine = (torch.full((count,), value, dtype=torch.float64) for value in (1.1, 0.6))
    coefficients = StepCoefficients(*(torch.full((count,), v, dtype=torch.float64) for v in (0.8 * S, 0.3, 0.02)))
    state = draw_states(bridge, token, radius, start_cosine, generator)
    move = draw_token_step(bridge, state, token, coefficients, generator)
    full = pair_of(sphere.exponential(state, move), start, token)
    pair = pair_step(bridge, radius, start_cosine, coefficients, generator)
    for one, other in zip(full, pair, strict=True):
        assert stats.ks_2samp(one.numpy(), other.numpy()).pvalue > SIGNIFICANT


@pytest.mark.parametrize("degrees", [1, 2, 25, 30519])
def test_part_of_all_coordinates_but_one_has_its_beta_law(degrees: int) -> None:
    part = all_but_one_share(torch.empty(20_000, dtype=torch.float64), degrees, torch.Generator().manual_seed(7))
    assert stats.kstest(part.numpy(), stats.beta(degrees / 2, 0.5).cdf).pvalue > SIGNIFICANT
    single = all_but_one_share(torch.empty(200_000), degrees, torch.Generator().manual_seed(8))
    assert float(single.min()) >= 0 and float(single.max()) <= 1  # NaN fails both


def test_without_another_coordinate_nothing_is_left() -> None:
    assert all_but_one_share(torch.ones(3), 0).tolist() == [0, 0, 0]


@pytest.fixture(scope="module")
def law() -> ExactLaw:
    return tabulate(
        Bridge(uniform_start(3), S), uniform_in_time(Geometric(), 12), 20_000, torch.Generator().manual_seed(3)
    )


def test_level_0_is_the_start_and_the_last_level_the_vertex(law: ExactLaw) -> None:
    token = torch.tensor([[0, 1], [2, 1]])
    first = law.draw_at_level(token, torch.zeros_like(token))
    torch.testing.assert_close(first, law.bridge.start.point().expand(2, 2, 4), rtol=0, atol=2e-7)
    last = law.draw_at_level(token, torch.full_like(token, 12))
    torch.testing.assert_close(last, torch.eye(4)[token], rtol=0, atol=1e-7)
    for remaining, level in (
        (S, first),
        (S * (1 + 1e-6), first),
        (0.0, last),
        (-1e-9, last),
    ):  # rounding oversteps both
        torch.testing.assert_close(law.draw(token, remaining), level, rtol=0, atol=2e-7)


def test_levels_may_differ_from_position_to_position(law: ExactLaw) -> None:
    token, level = torch.zeros(3, dtype=torch.long), torch.tensor([0, 12, 6])
    state = law.draw_at_level(token, level, torch.Generator().manual_seed(0))
    assert state[0].tolist() == pytest.approx([0.5] * 4) and state[1].tolist() == pytest.approx([1, 0, 0, 0])
    assert 0 < law.bridge.start.angle - math.acos(state[2, 0].item()) < law.bridge.start.angle


@pytest.mark.parametrize("level", [1, 6, 11])
def test_draw_at_the_noise_of_a_level_has_the_law_of_the_level(law: ExactLaw, level: int) -> None:
    generator = torch.Generator().manual_seed(4)
    token = torch.arange(20_000) % 3
    one = law.draw_at_level(token, torch.tensor(level), generator)
    other = law.draw(token, law.grid.remaining[level], generator)
    rounded = law.draw(token, law.grid.remaining[level].float(), generator)  # a hair beside the level
    start = law.bridge.start
    for first, second, third in zip(*(pair_of(x, start, token) for x in (one, other, rounded)), strict=True):
        assert stats.ks_2samp(first.numpy(), second.numpy()).pvalue > SIGNIFICANT
        assert stats.ks_2samp(first.numpy(), third.numpy()).pvalue > SIGNIFICANT


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_draw_between_levels_is_that_of_the_grid_with_the_level_added(law: ExactLaw, share: float) -> None:
    generator = torch.Generator().manual_seed(5)
    levels = law.grid.remaining
    wanted = torch.lerp(levels[6], levels[7], share)
    refined = Grid(torch.cat([levels[:7], wanted[None], levels[7:]]))
    token = torch.arange(20_000) % 3
    one = law.draw(token, wanted, generator)
    other = tabulate(law.bridge, refined, 20_000, generator).draw_at_level(token, torch.tensor(7), generator)
    for first, second in zip(*(pair_of(x, law.bridge.start, token) for x in (one, other)), strict=True):
        assert stats.ks_2samp(first.numpy(), second.numpy()).pvalue > SIGNIFICANT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [uniform_start(3), masked_start(2)], ids=str)
def test_table_follows_the_chain_in_d_dimensions(start: Start, kind: BridgeKind) -> None:
    """The whole chain, step by step on the sphere, against the table at its last level before the vertex."""
    bridge, grid, count = Bridge(start, S, kind), uniform_in_time(Geometric(), 6), 20_000
    generator = torch.Generator().manual_seed(6)
    token = torch.arange(count) % start.vocabulary
    state = start.point(torch.float64).repeat(count, 1)
    for step in range(5):
        now = StepCoefficients(*grid.coefficient_table[step].expand(count, 3).unbind(-1))
        state = sphere.exponential(state, draw_token_step(bridge, state, token, now, generator))
    law = tabulate(bridge, grid, count, generator)
    drawn = law.draw_at_level(token, torch.tensor(5), generator)
    for one, other in zip(pair_of(state, start, token), pair_of(drawn, start, token), strict=True):
        assert stats.ks_2samp(one.numpy(), other.numpy()).pvalue > SIGNIFICANT


def test_same_generator_same_table_and_draws(law: ExactLaw) -> None:
    again = tabulate(law.bridge, law.grid, 20_000, torch.Generator().manual_seed(3))
    assert torch.equal(again.radius, law.radius) and torch.equal(again.start_cosine, law.start_cosine)
    token = torch.arange(50) % 3
    first, second = (law.draw(token, S / 2, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)


def test_noise_may_be_one_number_or_one_per_position(law: ExactLaw) -> None:
    token = torch.zeros(2, 3, dtype=torch.long)
    assert law.draw(token, 0.01).shape == (2, 3, 4)
    mixed = law.draw(token, torch.tensor([[S, 0.0, 0.01]]))
    assert mixed[:, 0].allclose(torch.full((2, 4), 0.5)) and mixed[:, 1].allclose(torch.eye(4)[0].expand(2, 4))


def test_moving_to_a_device_keeps_the_table(law: ExactLaw) -> None:
    moved = law.to("cpu")
    assert torch.equal(moved.radius, law.radius) and torch.equal(moved.grid.remaining, law.grid.remaining)


def test_a_grid_of_other_total_noise_is_refused() -> None:
    with pytest.raises(InputError, match=r"grid's total noise 0.0375\d* is not the bridge's, 0.01"):
        tabulate(Bridge(masked_start(3), 0.01), uniform_in_time(Geometric(), 4), 10)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(InputError, match="at least one pair, got 0"):
        tabulate(Bridge(masked_start(3), S), uniform_in_time(Geometric(), 4), 0)

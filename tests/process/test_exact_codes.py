"""The exact law with codes against the simulation in all dimensions, and mutations that the comparison detects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from experiments.discrepancy import permutation_test
from rdlm.process.bridge import Bridge, BridgeKind, masked_start
from rdlm.process.exact import ExactLaw, FreshLaw, draw_states, tabulate
from rdlm.process.law import SimulatedLaw, _parameters
from rdlm.process.path import Law, masked_path
from rdlm.process.schedule import Geometric, uniform_in_time
from rdlm.process.tokens import Codes

CLOCK = Geometric()
GRID = uniform_in_time(CLOCK, 32)


def bridge_to(codes: Codes, kind: BridgeKind = "brownian") -> Bridge:
    found = masked_path(codes.vocabulary, CLOCK.total, kind, codes).bridge
    assert isinstance(found, Bridge)
    return found


def codes(vocabulary: int = 5, coordinates: int = 6) -> Codes:
    return Codes(vocabulary, coordinates, torch.Generator().manual_seed(3))


def p_values(first: Law, second: Law, count: int = 600) -> list[float]:
    found = []
    for index, time in enumerate((0.3, 0.6, 0.9)):
        generator = torch.Generator().manual_seed(10 + index)
        token, remaining = torch.full((count,), 1), CLOCK.remaining(time)
        draws = first.draw(token, remaining, generator), second.draw(token, remaining, generator)
        found.append(permutation_test(*draws, 199, generator).p_value)
    return sorted(found)


@pytest.mark.parametrize("kind", ["brownian", "logarithm"])
@pytest.mark.parametrize(("vocabulary", "coordinates"), [(9, 3), (5, 6), (4, 20)])
def test_the_exact_law_cannot_be_told_from_the_simulation(vocabulary: int, coordinates: int, kind: BridgeKind) -> None:
    bridge = bridge_to(codes(vocabulary, coordinates), kind)
    exact = tabulate(bridge, GRID, 8192, torch.Generator().manual_seed(4))
    found = p_values(exact, SimulatedLaw(bridge, GRID))
    assert found[0] > 0.005 and found[1] > 0.05, found


def test_fresh_draws_have_the_same_law() -> None:
    bridge = bridge_to(codes())
    found = p_values(FreshLaw(masked_path(5, CLOCK.total, "brownian", codes()), GRID), SimulatedLaw(bridge, GRID))
    assert found[0] > 0.005 and found[1] > 0.05, found


class UnequalLengths(Codes):
    """A mutation: vectors of lengths 0.8, 1.2, ..."""

    def vectors(self, like: Tensor) -> Tensor:
        return super().vectors(like) * (1 + 0.2 * (-1) ** torch.arange(1, self.vocabulary + 1))[:, None].to(like)


class OnTheMask(Codes):
    """A mutation: every vector has a part along the start."""

    def at(self, token: Tensor, like: Tensor) -> Tensor:
        point = super().at(token, like)
        return torch.cat([0.8 * point[..., :-1], torch.full_like(point[..., -1:], 0.6)], -1)

    def cosine(self, x: Tensor, token: Tensor) -> Tensor:
        return (x * self.at(token, x)).sum(-1)


class WrongInTheDrift(Codes):
    """A mutation: the drift leads to the next token's vector."""

    def add_(self, x: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        return super().add_(x, (token + 1) % self.vocabulary, weight)


@pytest.mark.parametrize("mutant", [UnequalLengths, OnTheMask, WrongInTheDrift])
def test_the_comparison_detects_wrong_codes(mutant: Callable[[int, int, torch.Generator], Codes]) -> None:
    bridge = bridge_to(mutant(5, 6, torch.Generator().manual_seed(3)))
    exact = tabulate(bridge, GRID, 8192, torch.Generator().manual_seed(4))
    assert p_values(exact, SimulatedLaw(bridge, GRID))[0] == 1 / 200


def test_states_lie_on_the_sphere_at_their_angle_to_the_code() -> None:
    made = codes(50, 6)
    token = torch.arange(50)
    radius, cosine = torch.linspace(0, 3, 50), torch.linspace(-1, 1, 50)
    state = draw_states(bridge_to(made), token, radius, cosine, torch.Generator().manual_seed(0))
    torch.testing.assert_close(state.norm(dim=-1), torch.ones(50))
    torch.testing.assert_close(made.cosine(state, token), radius.cos(), rtol=0, atol=1e-6)
    torch.testing.assert_close(state[:, -1], radius.sin() * cosine, rtol=0, atol=1e-6)


def test_the_table_depends_on_the_dimension_alone() -> None:
    coded, vertex = bridge_to(codes(5, 6)), Bridge(masked_start(6), CLOCK.total)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    tables = [tabulate(one, GRID, 64, g).table for one, g in zip((coded, vertex), generators, strict=True)]
    assert torch.equal(*tables)
    assert _parameters("exact", coded, GRID) == _parameters("exact", vertex, GRID)


def test_draws_are_differentiable_in_the_codes() -> None:
    """Against central differences, with the same random numbers."""
    made = Codes(4, 5, torch.Generator().manual_seed(6)).double()
    law = ExactLaw(bridge_to(made), GRID, tabulate(bridge_to(made), GRID, 64).table)
    token, level = torch.tensor([0, 1, 2, 3, 1]), torch.tensor([3, 9, 14, 20, 30])
    radius, cosine = law.table[level, 5, 0].double(), law.table[level, 5, 1].double()
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(7)).double()

    def value(points: Codes) -> Tensor:
        state = draw_states(bridge_to(points), token, radius, cosine, torch.Generator().manual_seed(8))
        return (weight * state.sin()).sum()

    (gradient,) = torch.autograd.grad(value(made.learning()), made.weight)
    step = torch.randn(4, 5, generator=torch.Generator().manual_seed(9)).double()
    ends = []
    for sign in (1, -1):
        moved = Codes(4, 5).double()
        moved.weight = torch.nn.Parameter(made.weight.detach() + sign * 1e-6 * step)
        ends.append(float(value(moved)))
    assert float((gradient * step).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)

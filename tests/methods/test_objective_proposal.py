"""Proposals of times: densities against their inverses, weighted means against integrals, and what is learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributed

from rdlm.config import ObjectiveConfig
from rdlm.methods.objective import BINS, DECAY, Proposal

COUNT = 40_000


def quantiles(count: int = COUNT, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def learned() -> Proposal:
    """Return an adaptive proposal that has seen large losses in the middle of [0, 1]."""
    proposal = Proposal(ObjectiveConfig(proposal="adaptive"))
    for step in range(200):
        time = proposal.times(quantiles(64, step))[0]
        proposal.observe(step, time, 0.1 + 5 * ((time > 0.4) & (time < 0.6)))
    proposal.advance(200)
    return proposal


PROPOSALS: dict[str, Callable[[], Proposal]] = {
    "uniform": lambda: Proposal(ObjectiveConfig()),
    "interval": lambda: Proposal(ObjectiveConfig(proposal="interval", floor=0.1)),
    "at the start": lambda: Proposal(ObjectiveConfig(proposal="interval", interval=(0.0, 0.2))),
    "at the end": lambda: Proposal(ObjectiveConfig(proposal="interval", interval=(0.8, 1.0))),
    "adaptive": learned,
}
every_proposal = pytest.mark.parametrize("name", PROPOSALS)


@every_proposal
def test_times_follow_the_density(name: str) -> None:
    """Between neighbouring quantiles the time grows by their distance over the density, from 0 to 1."""
    proposal = PROPOSALS[name]()
    comb = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
    proposal.edges, proposal.mass = proposal.edges.double(), proposal.mass.double()
    time, weight = proposal.times(comb)
    assert float(proposal.mass.sum()) == pytest.approx(1, abs=1e-6)
    assert 0 <= time[0] < 1e-2 and 1 - 1e-2 < time[-1] <= 1
    growth, expected = torch.diff(time), (weight[1:] + weight[:-1]) / 2 / COUNT
    inside = weight[1:] == weight[:-1]  # not across the edge of a bin
    assert int(inside.sum()) >= COUNT - BINS
    torch.testing.assert_close(growth[inside], expected[inside], rtol=1e-4, atol=1e-9)
    counts = torch.histc(time, 10, 0, 1) / COUNT
    density = mass_between(proposal, torch.linspace(0, 1, 11, dtype=torch.float64))
    torch.testing.assert_close(counts, density, rtol=0, atol=3 / COUNT)


def mass_between(proposal: Proposal, edges: Tensor) -> Tensor:
    """Return the probability of each interval between `edges` by integrating the piecewise constant density."""
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    index = (torch.searchsorted(proposal.edges, grid, right=True) - 1).clamp(0, len(proposal.mass) - 1)
    height = proposal.mass[index] / torch.diff(proposal.edges)[index]
    bins = torch.searchsorted(edges, grid, right=True) - 1
    return torch.zeros(len(edges) - 1, dtype=torch.float64).index_add_(0, bins, height / len(grid))


@every_proposal
@pytest.mark.parametrize("power", [0, 1, 4])
def test_weighted_means_are_integrals(name: str, power: int) -> None:
    time, weight = PROPOSALS[name]().times(quantiles())
    value = weight * time**power
    error = value.std().item() / COUNT**0.5
    assert value.mean().item() == pytest.approx(1 / (power + 1), abs=4 * error + 1e-5)


def test_the_interval_is_normalised() -> None:
    """Eq. (38): the density is eps outside and eps + (1 - eps) / (b - a) inside, and integrates to one."""
    proposal = Proposal(ObjectiveConfig(proposal="interval", interval=(0.25, 0.75), floor=0.2))
    time, weight = proposal.times(quantiles())
    inside = (time > 0.25) & (time < 0.75)
    assert 1 / weight[inside].unique().tolist()[0] == pytest.approx(0.2 + 0.8 / 0.5, rel=1e-5)
    torch.testing.assert_close(weight[~inside], torch.full_like(weight[~inside], 5.0))
    assert inside.float().mean().item() == pytest.approx(0.9, abs=4 * (0.09 / COUNT) ** 0.5)


@given(low=st.floats(0, 0.9), width=st.floats(0.01, 1), floor=st.floats(1e-4, 1), point=st.floats(0, 1, width=32))
def test_every_interval_gives_times_in_range_and_finite_weights(
    low: float, width: float, floor: float, point: float
) -> None:
    config = ObjectiveConfig(proposal="interval", interval=(low, min(1.0, low + width)), floor=floor)
    time, weight = Proposal(config).times(torch.tensor([0.0, point, 1 - 2**-24]))
    assert bool(((time >= 0) & (time <= 1) & weight.isfinite() & (weight >= 0)).all())
    assert weight.max().item() <= 1.001 / floor


# -- the adaptive proposal --------------------------------------------------------------------------


def test_mass_moves_to_large_losses() -> None:
    proposal = learned()
    centre = (proposal.edges[1:] + proposal.edges[:-1]) / 2
    middle, far = (centre - 0.5).abs() < 0.08, (centre - 0.5).abs() > 0.12
    assert proposal.mass[middle].min() > 5 * proposal.mass[far].max()
    floor = 0.05 / BINS
    assert proposal.mass.min().item() >= floor and float(proposal.mass.sum()) == pytest.approx(1, abs=1e-6)


def test_mass_is_the_root_mean_square_of_what_was_seen() -> None:
    """Eq. (46) for one step: two losses in one bin, one in another, none elsewhere."""
    config = ObjectiveConfig(proposal="adaptive", floor=0.1)
    proposal = Proposal(config)
    proposal.observe(0, torch.tensor([0.001, 0.002, 0.999]), torch.tensor([3.0, 5.0, 2.0]))
    proposal.advance(1)
    square = torch.ones(BINS)
    square[0] = DECAY + (1 - DECAY) * (9 + 25) / 2
    square[-1] = DECAY + (1 - DECAY) * 4
    expected = 0.9 * square.sqrt() / square.sqrt().sum() + 0.1 / BINS
    torch.testing.assert_close(proposal.mass, expected)


def test_the_density_is_fixed_within_a_step() -> None:
    proposal = learned()
    before = proposal.mass.clone()
    for _ in range(3):  # accumulated shards of one step
        proposal.advance(200)
        proposal.observe(200, torch.full((8,), 0.9), torch.full((8,), 100.0))
        assert torch.equal(proposal.mass, before)
    proposal.advance(201)
    assert proposal.mass[int(0.9 * BINS)] > before[int(0.9 * BINS)]


def test_what_was_learned_is_kept_bit_for_bit() -> None:
    """A run that is saved in the middle of learning goes on as if it had not been."""
    whole, resumed = learned(), Proposal(ObjectiveConfig(proposal="adaptive"))
    whole.observe(200, torch.tensor([0.1, 0.7]), torch.tensor([4.0, 1.0]))
    resumed.load_state({name: tensor.clone() for name, tensor in whole.state().items()})
    for step in (201, 202):
        for proposal in (whole, resumed):
            proposal.advance(step)
            proposal.observe(step, torch.tensor([0.3, 0.5]), torch.tensor([2.0, 6.0]))
        assert torch.equal(whole.mass, resumed.mass) and torch.equal(whole.square, resumed.square)
    assert not torch.equal(resumed.mass, learned().mass)


def test_loading_does_not_tie_two_proposals_together() -> None:
    first, second = learned(), Proposal(ObjectiveConfig(proposal="adaptive"))
    second.load_state(first.state())
    second.observe(500, torch.tensor([0.5]), torch.tensor([3.0]))
    assert not torch.equal(second.state()["proposal.pending"], first.state()["proposal.pending"])


class Pretended:
    """Two processes in one: what one of them adds up, it adds to the other's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processes: list[Proposal]) -> None:
        self.processes, self.rank, self.noted = processes, 0, []
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda: self.rank)
        monkeypatch.setattr(distributed, "all_reduce", self.add)

    def run(self, action: Callable[[int, Proposal], Any]) -> list[Any]:
        """Return what each process answers; all of them add up what they had noted before any acts."""
        self.noted = [proposal._pending.clone() for proposal in self.processes]
        answers = []
        for self.rank, proposal in enumerate(self.processes):  # noqa: B020  (get_rank reads it)
            answers.append(action(self.rank, proposal))
        return answers

    def add(self, tensor: Tensor) -> None:
        for rank, noted in enumerate(self.noted):
            if rank != self.rank:
                tensor += noted


def test_two_processes_learn_what_one_with_two_shards_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ObjectiveConfig(proposal="adaptive")
    alone = Proposal(config)
    shards = [(quantiles(16, seed), 3 * quantiles(16, seed + 10)) for seed in (0, 1)]
    for time, loss in shards:
        alone.observe(0, time, loss)
    alone.advance(1)
    pair = [Proposal(config), Proposal(config)]
    team = Pretended(monkeypatch, pair)
    team.run(lambda rank, proposal: proposal.observe(0, *shards[rank]))
    team.run(lambda rank, proposal: proposal.advance(1))
    for proposal in pair:
        torch.testing.assert_close(proposal.mass, alone.mass, rtol=1e-6, atol=0)
    assert torch.equal(pair[0].mass, pair[1].mass)


def test_a_checkpoint_holds_what_all_processes_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's file alone resumes both: nothing is lost and nothing counted twice."""
    config = ObjectiveConfig(proposal="adaptive")
    pair = [Proposal(config), Proposal(config)]
    team = Pretended(monkeypatch, pair)
    shards = [(quantiles(16, seed), 3 * quantiles(16, seed + 10)) for seed in (0, 1)]
    team.run(lambda rank, proposal: proposal.observe(0, *shards[rank]))
    saved = {name: tensor.clone() for name, tensor in team.run(lambda _, proposal: proposal.state())[0].items()}
    team.run(lambda _, proposal: proposal.advance(1))
    resumed = [Proposal(config), Proposal(config)]
    team = Pretended(monkeypatch, resumed)
    team.run(lambda _, proposal: proposal.load_state(saved))
    for state in team.run(lambda _, proposal: proposal.state()):
        assert torch.equal(state["proposal.pending"], saved["proposal.pending"])
    team.run(lambda _, proposal: proposal.advance(1))
    for before, after in zip(pair, resumed, strict=True):
        assert torch.equal(before.mass, after.mass) and torch.equal(before.square, after.square)


def test_other_proposals_do_not_learn() -> None:
    proposal = Proposal(ObjectiveConfig(proposal="interval"))
    before = proposal.mass.clone()
    proposal.observe(0, torch.tensor([0.1]), torch.tensor([9.0]))
    proposal.advance(1)
    assert torch.equal(proposal.mass, before)

"""Proposals of times: densities against their inverses, weighted means against integrals, and what is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributed

from rdlm.config import ObjectiveConfig
from rdlm.methods.objective import BINS, DECAY, DUE_EVERY, WEAKEST, Proposal, draw_times, measured_information
from rdlm.process.schedule import schedule
from rdlm.random import Draw, generator_of

from .small import BY_TOKEN, every_layout, method, tokens
from .small import LAYOUTS as SETTINGS

COUNT = 40_000
SCHEDULES = ("geometric", "constant", "linear", "cosine")


def made(config: ObjectiveConfig, name: str = "geometric") -> Proposal:
    return Proposal(config, schedule(name, 0.04), 27)


def quantiles(count: int = COUNT, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def learned() -> Proposal:
    """Return an adaptive proposal that has seen large losses in the middle of [0, 1]."""
    proposal = made(ObjectiveConfig(proposal="adaptive"))
    for step in range(200):
        time = proposal.times(quantiles(64, step))[0]
        proposal.observe(step, time, 0.1 + 5 * ((time > 0.4) & (time < 0.6)))
    proposal.advance(200)
    return proposal


PROPOSALS: dict[str, Callable[[], Proposal]] = {
    "uniform": lambda: made(ObjectiveConfig(proposal="uniform")),
    "interval": lambda: made(ObjectiveConfig(proposal="interval", floor=0.1)),
    "at the start": lambda: made(ObjectiveConfig(proposal="interval", interval=(0.0, 0.2))),
    "at the end": lambda: made(ObjectiveConfig(proposal="interval", interval=(0.8, 1.0))),
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
    proposal = made(ObjectiveConfig(proposal="interval", interval=(0.25, 0.75), floor=0.2))
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
    time, weight = made(config).times(torch.tensor([0.0, point, 1 - 2**-24]))
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
    proposal = made(config)
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
    whole, resumed = learned(), made(ObjectiveConfig(proposal="adaptive"))
    whole.observe(200, torch.tensor([0.1, 0.7]), torch.tensor([4.0, 1.0]))
    resumed.load_state({name: tensor.clone() for name, tensor in whole.state().items()})
    for step in (201, 202):
        for proposal in (whole, resumed):
            proposal.advance(step)
            proposal.observe(step, torch.tensor([0.3, 0.5]), torch.tensor([2.0, 6.0]))
        assert torch.equal(whole.mass, resumed.mass) and torch.equal(whole.square, resumed.square)
    assert not torch.equal(resumed.mass, learned().mass)


def test_loading_does_not_tie_two_proposals_together() -> None:
    first, second = learned(), made(ObjectiveConfig(proposal="adaptive"))
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
    alone = made(config)
    shards = [(quantiles(16, seed), 3 * quantiles(16, seed + 10)) for seed in (0, 1)]
    for time, loss in shards:
        alone.observe(0, time, loss)
    alone.advance(1)
    pair = [made(config), made(config)]
    team = Pretended(monkeypatch, pair)
    team.run(lambda rank, proposal: proposal.observe(0, *shards[rank]))
    team.run(lambda rank, proposal: proposal.advance(1))
    for proposal in pair:
        torch.testing.assert_close(proposal.mass, alone.mass, rtol=1e-6, atol=0)
    assert torch.equal(pair[0].mass, pair[1].mass)


def test_a_checkpoint_holds_what_all_processes_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's file alone resumes both: nothing is lost and nothing counted twice."""
    config = ObjectiveConfig(proposal="adaptive")
    pair = [made(config), made(config)]
    team = Pretended(monkeypatch, pair)
    shards = [(quantiles(16, seed), 3 * quantiles(16, seed + 10)) for seed in (0, 1)]
    team.run(lambda rank, proposal: proposal.observe(0, *shards[rank]))
    saved = {name: tensor.clone() for name, tensor in team.run(lambda _, proposal: proposal.state())[0].items()}
    team.run(lambda _, proposal: proposal.advance(1))
    resumed = [made(config), made(config)]
    team = Pretended(monkeypatch, resumed)
    team.run(lambda _, proposal: proposal.load_state(saved))
    for state in team.run(lambda _, proposal: proposal.state()):
        assert torch.equal(state["proposal.pending"], saved["proposal.pending"])
    team.run(lambda _, proposal: proposal.advance(1))
    for before, after in zip(pair, resumed, strict=True):
        assert torch.equal(before.mass, after.mass) and torch.equal(before.square, after.square)


def test_other_proposals_do_not_learn() -> None:
    proposal = made(ObjectiveConfig(proposal="interval"))
    before = proposal.mass.clone()
    proposal.observe(0, torch.tensor([0.1]), torch.tensor([9.0]))
    proposal.advance(1)
    assert torch.equal(proposal.mass, before)


# -- the proposal by information ----------------------------------------------------------------------


def informed(**settings: Any) -> Proposal:
    """Return a proposal by information with a peak at a strength of about 10 and a shoulder at 0.1."""
    proposal = made(ObjectiveConfig(proposal="information", **settings))
    centre = (proposal.edges[1:] + proposal.edges[:-1]) / 2
    peak, shoulder = (-(centre - 2.3).square()).exp(), 0.2 * (-(centre + 2.3).square()).exp()
    proposal.set_information(peak + shoulder)
    return proposal


@pytest.mark.parametrize("name", SCHEDULES)
def test_strengths_follow_the_density_under_every_schedule(name: str) -> None:
    """Times are those of a piecewise constant density of log a, with a = 1/B - 1/S recovered from the time."""
    proposal = made(ObjectiveConfig(), name)
    comb = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
    proposal.mass = proposal.mass.double()
    proposal.edges = proposal.edges.double()
    time, _ = proposal.times(comb)
    assert time[0] > 0 and time[-1] < 1 and bool((time.diff() > 0).all())
    strength = 1 / proposal.schedule.remaining(time) - 1 / proposal.schedule.total
    assert float(strength[0]) == pytest.approx(WEAKEST, rel=0.1)
    counts = torch.histogram(strength.log(), proposal.edges.double())[0]
    torch.testing.assert_close(counts / COUNT, proposal.mass, rtol=0, atol=3 / COUNT)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("power", [0, 1, 4])
def test_importance_weights_of_strengths_give_integrals_over_time(name: str, power: int) -> None:
    proposal = made(ObjectiveConfig(floor=0.5), name)
    comb = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
    ends = proposal.times(torch.tensor([0.0, 1.0], dtype=torch.float64))[0]
    time, weight = proposal.times(comb)
    expected = float(ends[1] ** (power + 1) - ends[0] ** (power + 1)) / (power + 1)
    assert float((weight * time**power).mean()) == pytest.approx(expected, rel=2e-3)


def test_single_precision_keeps_the_ends_inside() -> None:
    time, weight = made(ObjectiveConfig()).times(torch.tensor([0.0, 1e-7, 1 - 2**-24]))
    assert bool(((time > 0) & (time < 1) & weight.isfinite() & (weight > 0)).all())


def test_mass_is_the_smoothed_information_with_a_floor() -> None:
    proposal = made(ObjectiveConfig(floor=0.2))
    nats = torch.zeros(BINS)
    nats[0], nats[10] = 1.0, 3.0
    proposal.set_information(nats)
    expected = torch.full((BINS,), 0.2 / BINS)
    for index, share in {0: 0.75, 1: 0.25, 9: 0.75, 10: 1.5, 11: 0.75}.items():
        expected[index] += 0.8 * share / 4
    torch.testing.assert_close(proposal.mass, expected)
    assert float(proposal.mass.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0])
def test_information_without_a_sum_leaves_the_density_as_it_is(wrong: float) -> None:
    proposal = informed()
    before = proposal.mass.clone()
    nats = torch.zeros(BINS)
    nats[3] = wrong
    proposal.set_information(nats)
    assert torch.equal(proposal.mass, before)


def test_information_is_due_early_and_at_intervals_and_for_this_proposal_only() -> None:
    due = [step for step in range(2 * DUE_EVERY + 1) if informed().due(step)]
    assert due == [25, 50, 100, DUE_EVERY, 2 * DUE_EVERY]
    assert not any(made(ObjectiveConfig(proposal="adaptive")).due(step) for step in due)


def test_measured_information_is_kept_bit_for_bit() -> None:
    first, second = informed(), made(ObjectiveConfig())
    assert not torch.equal(first.mass, second.mass)
    second.load_state(first.state())
    assert torch.equal(first.mass, second.mass)
    assert torch.equal(first.times(quantiles())[0], second.times(quantiles())[0])


def test_all_processes_hold_the_density_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one, theirs = method(8), torch.linspace(1, 2, BINS, dtype=torch.float64)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "broadcast", lambda tensor, source: tensor.copy_(theirs))
    one.renew(tokens(8, 16, 12), Draw(0, 25))
    one.proposal.mass, found = torch.zeros(BINS), one.proposal.mass
    one.proposal.set_information(theirs)
    assert torch.equal(found, one.proposal.mass)


@every_layout
def test_information_of_the_evidence_alone_is_the_entropy(layout: str) -> None:
    """Area theorem: the nats of all strengths add up to the entropy of the tokens if the posterior is exact.

    The network predicts nothing yet, so the posterior is the evidence, which is exact for independent uniform tokens.
    """
    one = method(8, **SETTINGS[layout], levels=128, pairs=4096)
    nats = measured_information(one, tokens(8, 64, 96), generator_of("test"))
    bits = 3.0 if layout in BY_TOKEN else 1.0  # per token, or per digit
    assert float(nats.sum()) / math.log(2) == pytest.approx(bits, rel=0.03)
    assert bool((nats >= 0).all())


def test_weak_evidence_is_worth_half_its_strength() -> None:
    """a/2 E|sum_l p_l v_l - v_k|^2 nats per unit of log a, with p uniform and the state at the start, Eq. (50)."""
    one = method(8)
    slope = float(one.process.bridge.slope(torch.zeros(()), torch.tensor(one.process.schedule.total)))
    nats = measured_information(one, tokens(8, 64, 48), generator_of("test"))
    edges = one.proposal.edges.double().exp()
    weak = edges[1:] < 0.05
    expected = torch.diff(edges) / 2 * slope**2 * (1 - 1 / 8)
    torch.testing.assert_close(nats[weak], expected[weak], rtol=0.15, atol=0)


def test_without_evidence_the_drift_error_is_measured() -> None:
    """A network that predicts nothing pays in proportion to the strength, so its density is at the strongest levels."""
    one = method(8, bridge="logarithm", evidence=False, features="tokens", proposal="information")
    one.renew(tokens(8, 16, 12), Draw(0, 25))
    assert bool(one.proposal.mass.isfinite().all()) and int(one.proposal.mass.argmax()) == BINS - 1


def test_renewal_depends_on_seed_and_step_and_leaves_the_network_in_training_mode() -> None:
    def renewed(seed: int, step: int) -> Tensor:
        one = method(8, scrambled=True)
        one.network.train()
        before = one.proposal.mass
        one.renew(tokens(8, 16, 12), Draw(seed, step, shard=1, shards=2))
        assert one.network.training and (torch.equal(one.proposal.mass, before) == (step == 26))
        return one.proposal.mass

    assert torch.equal(renewed(0, 25), renewed(0, 25))
    assert not torch.equal(renewed(0, 25), renewed(1, 25)) and not torch.equal(renewed(0, 25), renewed(0, 50))
    renewed(0, 26)


def test_nothing_is_measured_for_sequences_that_do_not_use_it() -> None:
    for settings in ({"asynchronous": 1.0}, {"blockwise": 1.0}):
        one = method(8, **settings)
        before = one.proposal.mass.clone()
        one.renew(tokens(8, 16, 12), Draw(0, 25))
        assert torch.equal(one.proposal.mass, before)


def test_levels_by_information_have_weight_one_in_cross_entropy_only() -> None:
    proposal, points = informed(), quantiles(64)
    assert bool((draw_times(ObjectiveConfig(), proposal, points, 8).weight == 1).all())
    weighted = draw_times(ObjectiveConfig(loss="drift_error"), proposal, points, 8).weight
    assert torch.equal(weighted, proposal.times(points)[1]) and weighted.std() > 0.1

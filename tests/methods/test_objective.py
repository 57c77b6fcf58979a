"""When a batch is looked at, and how its answers are scored."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from rdlm.config import ObjectiveConfig
from rdlm.errors import InputError
from rdlm.methods.objective import (
    GAPS,
    Proposal,
    TrainingTimes,
    cross_entropy,
    draw_block_times,
    draw_readings,
    draw_times,
    mean_unfinished,
)
from rdlm.process.schedule import Geometric
from rdlm.random import Draw

from .small import LAYOUTS as SETTINGS
from .small import method, tokens

LENGTH = 12
SCHEDULE = Geometric()


def quantiles(count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(0))


def test_synchronous_positions_share_one_time() -> None:
    config = ObjectiveConfig(proposal="interval")
    proposal, points = Proposal(config, SCHEDULE, 27), quantiles(64)
    moment = draw_times(config, proposal, points, LENGTH)
    time, weight = proposal.times(points)
    assert moment.time.shape == (64, 1)
    assert torch.equal(moment.time[:, 0], time) and torch.equal(moment.weight, weight)
    assert torch.equal(moment.common, time) and bool(moment.synchronous.all())


@pytest.mark.parametrize("order", ["random", "left_to_right", "both"])
def test_windows_have_times_of_their_own(order: Literal["random", "left_to_right", "both"]) -> None:
    config = ObjectiveConfig(asynchronous=1.0, order=order, proposal="interval")
    moment = draw_times(
        config, Proposal(config, SCHEDULE, 27), quantiles(400), LENGTH, torch.Generator().manual_seed(1)
    )
    time = moment.time
    assert time.shape == (400, LENGTH) and bool(((time >= 0) & (time <= 1)).all())
    falling = (torch.diff(time, dim=1) <= 0).all(1)
    share = falling.float().mean().item()
    if order == "left_to_right":
        assert share == 1.0
    else:  # of random orders only those fall in which all but a few have finished or none has begun
        assert (0.2 if order == "random" else 0.6) > share > (0.0 if order == "random" else 0.45)
    # Their common time is uniform, whatever the proposal is.
    assert torch.equal(moment.weight, torch.ones(400)) and not bool(moment.synchronous.any())


def test_windows_are_those_of_the_process_and_of_every_width() -> None:
    """Eq. (35): with width w the position of rank R is at (t - (1 - w) R) / w, cut off at 0 and 1.

    Half of the windows hold one running position at most; the width of the others is uniform.
    """
    config = ObjectiveConfig(asynchronous=1.0, order="left_to_right")
    points, length = quantiles(500), 1000
    time = draw_times(config, Proposal(config, SCHEDULE, 27), points, length, torch.Generator().manual_seed(2)).time
    inside = (time > 0) & (time < 1)
    rank = torch.linspace(0, 1, length)
    # Of two running positions the times differ by their ranks: dt = (1/w - 1) dR; that gives w, and w the rest.
    rows = (inside.sum(1) >= 2).nonzero()[:, 0].tolist()
    widths = []
    for row in rows:
        first, last = (int(index) for index in inside[row].nonzero()[[0, -1], 0])
        slope = float((time[row, first] - time[row, last]) / (rank[last] - rank[first]))
        widths.append(1 / (1 + slope))
        expected = ((points[row] - (1 - widths[-1]) * rank) / widths[-1]).clamp(0, 1)
        torch.testing.assert_close(time[row], expected, rtol=0, atol=5e-3)
    assert 215 < len(rows) < 285 and min(widths) >= 0.9e-3  # three standard deviations about a half
    distance = (torch.tensor(widths).sort().values - torch.arange(len(rows)) / len(rows)).abs().max().item()
    assert distance < 1.95 / len(rows) ** 0.5  # Kolmogorov, level 1e-3


def test_finished_prefixes_have_time_one() -> None:
    config = ObjectiveConfig(prefix=0.5, proposal="uniform")
    points = quantiles(2000) * 0.99
    moment = draw_times(config, Proposal(config, SCHEDULE, 27), points, LENGTH, torch.Generator().manual_seed(4))
    finished = moment.time == 1
    length = finished.sum(1)
    assert torch.equal(finished, torch.arange(LENGTH) < length[:, None])  # a prefix, never all of it
    assert int(length.max()) == LENGTH - 1
    share = (length > 0).float().mean().item()  # a prefix may have length 0, too
    expected = 0.5 * (1 - 1 / LENGTH)
    assert share == pytest.approx(expected, abs=4 * (0.25 / 2000) ** 0.5)
    torch.testing.assert_close(moment.time[~finished], points[:, None].expand_as(finished)[~finished])
    assert torch.equal(moment.common, points) and bool(moment.synchronous.all())


def test_shares_mix_within_a_batch() -> None:
    config = ObjectiveConfig(asynchronous=0.3, proposal="interval")
    proposal, points = Proposal(config, SCHEDULE, 27), quantiles(4000)
    moment = draw_times(config, proposal, points, LENGTH, torch.Generator().manual_seed(5))
    alone = moment.synchronous
    assert alone.float().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / 4000) ** 0.5)
    time, weight = proposal.times(points)
    assert torch.equal(moment.time[alone], time[alone, None].expand(-1, LENGTH))
    assert torch.equal(moment.weight, torch.where(alone, weight, 1.0))


# -- scores -----------------------------------------------------------------------------------------


def test_cross_entropy_averages_over_unfinished_positions() -> None:
    generator = torch.Generator().manual_seed(6)
    log_probs = torch.log_softmax(torch.randn(3, 4, 5, generator=generator), -1).requires_grad_()
    token = torch.randint(5, (3, 4), generator=generator)
    time = torch.tensor([[0.2, 0.2, 0.2, 0.2], [1.0, 0.5, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    found = cross_entropy(log_probs, token, time)
    loss = -log_probs.detach()[torch.arange(3)[:, None], torch.arange(4), token]
    expected = torch.stack([loss[0].mean(), (loss[1, 1] + loss[1, 3]) / 2, torch.zeros(())])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    gradient = log_probs.grad
    assert gradient is not None and bool(gradient.isfinite().all())
    assert torch.equal(gradient.abs().sum(-1) > 0, time < 1)


def test_a_shared_time_counts_for_all_positions() -> None:
    loss = torch.rand(2, 4, generator=torch.Generator().manual_seed(7))
    found = mean_unfinished(loss, torch.tensor([[0.3], [1.0]]))
    torch.testing.assert_close(found, torch.stack([loss[0].mean(), torch.zeros(())]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": (0.6, 0.3)},
        {"interval": (-0.1, 0.5)},
        {"interval": (0.5, 0.5)},
        {"floor": 0.0},
        {"floor": 1.5},
        {"asynchronous": 1.1},
        {"prefix": -0.1},
        {"condition_dropout": 2.0},
        {"floor": float("nan")},
    ],
)
def test_impossible_objectives_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"objective\.{next(iter(wrong))}"):
        ObjectiveConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("narrow", [0.0, 0.5, 1.0])
def test_every_block_has_an_unfinished_token_and_counts_by_its_tokens(narrow: float) -> None:
    config = ObjectiveConfig(blockwise=1, block_sizes=(1, 3, 5, 50), narrow=narrow)
    moment = draw_block_times(config, quantiles(200), LENGTH, torch.Generator().manual_seed(1))
    assert set(moment.block.tolist()) == {1, 3, 5, LENGTH}
    assert bool(((moment.time >= 0) & (moment.time <= 1)).all())
    for time, weight, block in zip(moment.time, moment.weight, moment.block.tolist(), strict=True):
        for part, counted in zip(time.split(block), weight.split(block), strict=True):
            assert bool((part < 1).any())
            assert torch.equal(counted > 0, part < 1)
            assert float(counted.sum()) == pytest.approx(len(part))
            assert counted[part < 1].unique().numel() == 1


def test_each_count_of_finished_positions_of_a_block_is_as_likely() -> None:
    config = ObjectiveConfig(blockwise=1, block_sizes=(4,), narrow=1.0)
    generator = torch.Generator().manual_seed(2)
    moment = draw_block_times(config, torch.rand(4000, generator=generator), 8, generator)
    finished = moment.time.view(-1, 2, 4) == 1
    for block in range(2):
        counts = torch.bincount(finished[:, block].sum(-1), minlength=5)
        assert int(counts[4]) == 0
        assert bool(((counts[:4] - 1000).abs() < 5 * 27).all())  # a standard deviation is 27
    shares = finished.float().mean(0)
    assert bool(((shares - 3 / 8).abs() < 5 * 0.0077).all())  # none of the places is favoured


def test_meaningless_block_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=r"objective\.block_sizes"):
        ObjectiveConfig(block_sizes=(0,))
    with pytest.raises(InputError, match=r"objective\.blockwise"):
        ObjectiveConfig(blockwise=0.5, loss="drift_error")


# -- mixed levels -------------------------------------------------------------------------------------


def mixed_quantiles(count: int, **settings: float) -> tuple[TrainingTimes, Tensor]:
    """Return drawn times and, because the proposal is uniform, the quantiles that they are."""
    config = ObjectiveConfig(proposal="uniform", **settings)  # type: ignore[arg-type]
    comb = (torch.randperm(count, generator=torch.Generator().manual_seed(7)) + 0.5) / count
    proposal = Proposal(config, SCHEDULE, 27)
    return draw_times(config, proposal, comb, LENGTH, torch.Generator().manual_seed(8)), comb


def test_every_mixed_level_has_the_law_of_the_proposal() -> None:
    moment, _ = mixed_quantiles(20_000, mixed=1.0)
    assert bool(((moment.time >= 0) & (moment.time <= 1)).all()) and not bool(moment.synchronous.any())
    assert torch.equal(moment.weight, torch.ones(20_000))
    for position in range(LENGTH):
        counts = torch.histc(moment.time[:, position], 10, 0, 1)
        # variance 1,800 of each count, at most: five standard deviations
        assert (counts - 2000).abs().max().item() < 5 * 1800**0.5


def test_mixed_sequences_range_from_synchronous_to_independent() -> None:
    """The spread within a sequence: near 0 in some, that of independent levels (1/sqrt(12)) in others."""
    moment, comb = mixed_quantiles(20_000, mixed=1.0)
    spread = moment.time.std(1)
    assert (spread < 0.03).float().mean() == pytest.approx(0.05, abs=0.02)
    assert (spread > 0.26).float().mean() > 0.1
    centre = moment.time.mean(1)
    together, apart = spread < 0.05, spread > 0.27
    assert torch.corrcoef(torch.stack([centre, comb])[:, together])[0, 1] > 0.98
    assert torch.corrcoef(torch.stack([centre, comb])[:, apart])[0, 1] < 0.7


def test_mixed_levels_are_those_of_the_measured_density() -> None:
    config = ObjectiveConfig(mixed=1.0)
    proposal = Proposal(config, SCHEDULE, 27)
    comb = (torch.arange(20_000) + 0.5) / 20_000
    time = draw_times(config, proposal, comb, LENGTH, torch.Generator().manual_seed(9)).time
    strength = 1 / SCHEDULE.remaining(time.double()) - 1 / SCHEDULE.total
    counts = torch.histogram(strength.log().flatten().float(), proposal.edges)[0] / time.numel()
    torch.testing.assert_close(counts, proposal.mass, rtol=0, atol=0.004)


def test_shares_of_mixed_and_asynchronous_sequences() -> None:
    moment, comb = mixed_quantiles(8000, mixed=0.3, asynchronous=0.2)
    assert moment.synchronous.float().mean().item() == pytest.approx(0.5, abs=0.03)
    finished = (moment.time == 1).any(1) | (moment.time == 0).any(1)  # windows end, levels of a proposal do not
    assert finished.float().mean().item() == pytest.approx(0.2, abs=0.04)
    torch.testing.assert_close(moment.time[moment.synchronous], comb[moment.synchronous, None].expand(-1, LENGTH))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixed": 0.6, "asynchronous": 0.5}, "add up to at most 1, got 0.6 \\+ 0 \\+ 0.5"),
        ({"mixed": 0.5, "readings": 0.6}, "add up to at most 1, got 0.5 \\+ 0.6 \\+ 0"),
        ({"readings": 0.5, "loss": "drift_error"}, "objective.readings needs objective.loss cross_entropy"),
        ({"mixed": 1.5}, "objective.mixed must lie in"),
        ({"mixed": 0.5, "loss": "drift_error"}, "objective.mixed needs objective.loss cross_entropy"),
    ],
)
def test_impossible_shares_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ObjectiveConfig(**settings)


def test_sequences_that_are_read_have_time_0_and_weight_1() -> None:
    moment, _ = mixed_quantiles(8000, mixed=0.3, readings=0.4)
    assert moment.read.float().mean().item() == pytest.approx(0.4, abs=0.03)
    assert moment.synchronous.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert not bool((moment.read & moment.synchronous).any())
    assert not bool(moment.time[moment.read].any()) and bool((moment.weight[moment.read] == 1).all())


def test_the_evidence_of_readings_is_the_likelihood_of_the_channel() -> None:
    """Over many draws, positions with a posterior of p by the evidence alone are right with a share of p."""
    size, generator = 5, torch.Generator().manual_seed(0)
    token = torch.randint(size, (4000, 50), generator=generator)
    law = draw_readings(token, size, generator).softmax(-1)
    certainty, best = law.max(-1)
    known = certainty > 1 / size + 1e-6
    assert (~known).float().mean().item() == pytest.approx(
        GAPS / 4, abs=0.01
    )  # half of the sequences, GAPS / 2 of each
    for low, high in ((0.5, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.0)):
        inside = known & (certainty > low) & (certainty < high)
        right, expected = (best == token)[inside].float().mean(), certainty[inside].mean()
        assert right.item() == pytest.approx(expected.item(), abs=0.01)
    wrong = known & (best != token)
    shift = torch.bincount(((best - token) % size)[wrong], minlength=size)[1:] / wrong.sum()
    assert torch.allclose(shift, torch.full((size - 1,), 1 / (size - 1)), atol=0.01)


def test_a_method_learns_from_readings() -> None:
    one = method(8, readings=1.0)
    loss = one.loss(tokens(8, 16, 12), Draw(0, 3))
    loss.backward()
    assert bool(loss.isfinite()) and loss.item() < 0.9 * math.log(8)  # the evidence alone says more than nothing
    assert all(p.grad is not None for p in one.network.parameters())
    with pytest.raises(InputError, match="evidence"):
        method(8, features="coordinates", readings=0.5)


@pytest.mark.parametrize("layout", SETTINGS)
def test_a_method_trains_on_mixed_levels_in_every_layout(layout: str) -> None:
    one = method(8, **SETTINGS[layout], mixed=0.5, asynchronous=0.25, prefix=0.5)
    loss = one.loss(tokens(8, 16, 12), Draw(0, 3))
    loss.backward()
    assert bool(loss.isfinite()) and all(p.grad is not None for p in one.network.parameters())

"""The sampler: exact posteriors give samples that pass chi-square, for every kernel, path and clock."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from rdlm.sampling.course import Look
from rdlm.sampling.walk import draw_token, walk
from scipy import stats
from torch import Tensor

from rdlm.data.sources import Source, markov, skewed
from rdlm.likelihood import Posterior
from rdlm.process.grid import uniform_in_time
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSteps
from rdlm.process.path import Path, joint_posterior, masked_path, switching_path
from rdlm.process.schedule import Geometric

S = Geometric().total
DRAWS = 20_000
SIGNIFICANT = 1e-3
KERNELS: tuple[Kernel, ...] = ("mixture", "drift")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def switching(states: int, time: float) -> Path:
    return switching_path(states, S, float(Geometric().remaining(time)))


def exact_posterior(source: Source, path: Path) -> Posterior:
    return partial(joint_posterior, path, source.log_joint)


def chi_square(source: Source, token: Tensor) -> float:
    """Return the p-value of whole sequences against the source's joint law."""
    code = sum(token[:, i] * source.states ** (source.length - 1 - i) for i in range(source.length))
    count = torch.bincount(torch.as_tensor(code), minlength=source.states**source.length)
    expected = len(token) * source.log_joint.exp().flatten()
    return float(stats.chisquare(count.numpy(), expected.numpy()).pvalue)


@every_kernel
@pytest.mark.parametrize("states", [3, 27])
def test_evidence_alone_samples_the_source(states: int, kernel: Kernel) -> None:
    source, path = skewed(states), masked_path(states, S)
    chain = Chain(path, uniform_in_time(Geometric(), 64), kernel)
    token = walk(exact_posterior(source, path), chain, DRAWS, 1, torch.Generator().manual_seed(0))
    assert token.shape == (DRAWS, 1) and token.dtype == torch.int64
    assert chi_square(source, token) > SIGNIFICANT


def test_chi_square_would_notice_a_wrong_prior() -> None:
    """The test's own test: a prior a tenth hotter than the source's fails."""
    source, path = skewed(27), masked_path(27, S)
    chain = Chain(path, uniform_in_time(Geometric(), 16))
    hotter = partial(joint_posterior, path, 0.9 * source.log_joint)
    assert chi_square(source, walk(hotter, chain, DRAWS, 1, torch.Generator().manual_seed(1))) < 1e-6


@pytest.mark.parametrize(
    ("kernel", "lanes", "draws"),
    [
        # One after the other: exact with as few steps as one likes for the mixture kernel.
        ("mixture", TokenSteps(8, 4, "left_to_right"), DRAWS),
        ("mixture", TokenSteps(96, 64, "left_to_right"), DRAWS),
        # The drift kernel's error is of first order: for a token of probability 3/4 it is 0.006 at 64 steps, which
        # 20,000 draws begin to see, and 0.001 at 256.
        ("drift", TokenSteps(128, 64, "left_to_right"), 8000),
        ("drift", TokenSteps(512, 256, "left_to_right"), DRAWS),
        # Together: within a step neither position knows of the other's move, which 20,000 draws would begin to see.
        ("mixture", TokenSteps(96, 64), 8000),
        ("drift", TokenSteps(96, 64), 8000),
    ],
    ids=str,
)
def test_lanes_sample_two_dependent_positions(kernel: Kernel, token_steps: TokenSteps, draws: int) -> None:
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), token_steps.steps), kernel, token_steps)
    token = walk(exact_posterior(source, path), chain, draws, 2, torch.Generator().manual_seed(2))
    assert chi_square(source, token) > SIGNIFICANT


def test_neighbours_that_move_together_in_few_steps_are_too_independent() -> None:
    """What a step costs: with four calls the second position repeats the first less often than in the source."""
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 4))
    token = walk(exact_posterior(source, path), chain, DRAWS, 2, torch.Generator().manual_seed(2))
    assert chi_square(source, token) < 1e-6
    assert (token[:, 0] == token[:, 1]).double().mean().item() < 0.73


@pytest.mark.parametrize("states", [3, 27])
@pytest.mark.parametrize("time", [0.35, 0.7])
def test_switching_path_samples_the_source(states: int, time: float) -> None:
    source, path = skewed(states), switching(states, time)
    chain = Chain(path, uniform_in_time(Geometric(), 32))
    token = walk(exact_posterior(source, path), chain, DRAWS, 1, torch.Generator().manual_seed(3))
    assert chi_square(source, token) > SIGNIFICANT


def test_a_switch_puts_states_at_the_second_law() -> None:
    """Just after it they are those of the masked chain at its level, whose mask coordinate is far larger."""
    source, path, count = skewed(3), switching(3, 0.5), 4000
    chain = Chain(path, uniform_in_time(Geometric(), 8))
    generator, seen = torch.Generator().manual_seed(4), {}

    def callback(look: Look) -> None:
        seen[int(look.step[0])] = look.state[:, 0]

    walk(exact_posterior(source, path), chain, count, 1, generator, callback=callback)
    token = source.draw(count, generator)
    for level in (chain.switch, chain.switch + 1, 6):
        drawn = chain.law(count, generator).draw(token, torch.tensor(level), generator)[:, 0]
        error = ((drawn.var(0) + seen[level].var(0)) / count).sqrt()
        assert bool(((drawn.mean(0) - seen[level].mean(0)).abs() < 4 * error).all())
    assert seen[chain.switch][:, -1].mean() < 0.6 < 0.8 < seen[chain.switch + 1][:, -1].mean()


def test_one_call_draws_from_the_prior_of_each_position() -> None:
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 1))
    token = walk(exact_posterior(source, path), chain, DRAWS, 2, torch.Generator().manual_seed(5))
    first, second = source.log_prior
    independent = Source("independent", first[:, None] + second)
    assert chi_square(independent, token) > SIGNIFICANT


def test_callback_sees_every_call_and_states_on_the_sphere() -> None:
    source, path = markov(), switching(3, 0.5)
    chain = Chain(path, uniform_in_time(Geometric(), 6), asynchronous=TokenSteps(10, 6, "left_to_right"))
    seen: list[int] = []

    def callback(look: Look) -> None:
        assert look.step.tolist() == [len(seen)] * 5 and look.row.tolist() == list(range(5))
        seen.append(look.done)
        assert look.state.shape == (5, 2, 4) and look.log_probs.shape == (5, 2, 3)
        torch.testing.assert_close(look.state.norm(dim=-1), torch.ones(5, 2), rtol=0, atol=1e-5)
        if look.done == 1:
            torch.testing.assert_close(look.state, path.bridge.start.point().expand(5, 2, 4))

    walk(exact_posterior(source, path), chain, 5, 2, callback=callback)
    assert seen == list(range(1, 11))


def test_finished_positions_stay_where_they_are() -> None:
    """Once a lane has ended its state is the vertex of the token that comes back."""
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 3), asynchronous=TokenSteps(9, 3, "left_to_right"))
    last: list[Tensor] = []
    token = walk(
        exact_posterior(source, path),
        chain,
        40,
        2,
        torch.Generator().manual_seed(6),
        callback=lambda look: last.append(look.state),
    )
    assert len(last) == 6  # in three of the nine steps nothing moves
    assert torch.equal(last[3][:, 0], torch.eye(4)[token[:, 0]])
    assert torch.equal(last[-1][:, 0], torch.eye(4)[token[:, 0]])
    assert torch.equal(last[3][:, 1], path.bridge.start.point().expand(40, 4))


@every_kernel
def test_same_seed_same_tokens(kernel: Kernel) -> None:
    source, path = markov(), switching(3, 0.5)
    chain = Chain(path, uniform_in_time(Geometric(), 8), kernel, TokenSteps(12, 8))
    run = partial(walk, exact_posterior(source, path), chain, 50, 2)
    first, second, third = (run(torch.Generator().manual_seed(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_tokens_are_drawn_by_their_probabilities() -> None:
    law = torch.tensor([0.5, 0.0, 0.3, 0.2])
    token = draw_token(law.log().expand(DRAWS, 4), torch.Generator().manual_seed(9))
    count = torch.bincount(token, minlength=4)
    assert count[1] == 0
    assert stats.chisquare(count[[0, 2, 3]].numpy(), DRAWS * law[[0, 2, 3]].double().numpy()).pvalue > SIGNIFICANT


@pytest.mark.parametrize("chance", [1e-9, 1e-12])
def test_tiny_probabilities_keep_their_share_of_the_points(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The points that lead to a token of tiny probability fill an interval as long: float32 has none of them."""
    law = torch.tensor([0.5, chance, 0.5 - chance], dtype=torch.float64)
    points = torch.tensor([0.5 + share * chance for share in (-0.01, 0.01, 0.99, 1.01)], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: points.to(options["dtype"]))
    assert draw_token(law.log().expand(4, 3)).tolist() == [0, 1, 1, 2]


def test_rare_tokens_are_as_frequent_as_they_should_be() -> None:
    """Five tokens of 4e-6 behind a likely one, from float32 log-probabilities: 40 hits in 2,000,000."""
    law = torch.full((6,), 4e-6)
    law[0] = 1 - 2e-5
    generator, hits = torch.Generator().manual_seed(10), 0
    for _ in range(40):
        hits += int((draw_token(law.log().expand(50_000, -1), generator) > 0).sum())
    assert hits == pytest.approx(40, abs=4 * math.sqrt(40))


def test_points_at_the_ends_never_draw_an_impossible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    log_law = torch.tensor([0.0, 0.4, 0.6, 0.0], dtype=torch.float64).log()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: ends)
    assert draw_token(log_law.expand(2, 4)).tolist() == [1, 2]

"""The bound on data: two estimators and two limits agree, intervals hold, nothing failed becomes a number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rdlm.data.sources import markov, skewed
from rdlm.errors import InputError
from rdlm.likelihood.continuous import continuous, paper_estimate
from rdlm.likelihood.estimate import student, sum_over_rows
from rdlm.likelihood.estimators import Problem, RowSampler, path_bound, path_profile, per_window_bound, stratified_bound
from rdlm.process.kernel import Chain
from rdlm.process.law import simulated_law
from rdlm.process.order import TokenSchedule
from rdlm.process.path import Path, constant_mixture, joint_posterior, masked_path, switching_path
from rdlm.process.schedule import Geometric, uniform_in_time

CLOCK = Geometric()
S = CLOCK.total
SOURCE = markov()


def problem(
    path: Path,
    calls: int,
    count: int = 64,
    kernel: str = "mixture",
    window: TokenSchedule | None = None,
    seed: int = 0,
) -> Problem:
    token_steps = None if window is None else window.discretize(calls)
    chain = Chain(path, uniform_in_time(CLOCK, token_steps.steps if token_steps else calls), kernel, token_steps)  # type: ignore[arg-type]
    token = SOURCE.draw(count, torch.Generator().manual_seed(seed))

    def model(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        assert len(state) == len(row)
        return joint_posterior(path, SOURCE.log_joint, state, remaining)

    return Problem(token, (chain,), (1.0,), model, batch=256)  # one that costs next to nothing


def truth(target: Problem, paths: int = 40, seed: int = 9) -> tuple[float, float]:
    """Return the mean bound of the very sequences, and its standard error, from many paths of each."""
    sums = path_bound(target, paths, torch.Generator().manual_seed(seed)).sum((1, 3))
    return float(sums.mean()), float((sums.var(0).mean() / sums.numel()).sqrt())


def test_steps_and_paths_estimate_one_number() -> None:
    target = problem(masked_path(3, S), 8)
    value, stderr = truth(target)
    found = stratified_bound(target, 6000, torch.Generator().manual_seed(1)).total
    assert found.value == pytest.approx(value, abs=4 * math.hypot(stderr, found.stderr))
    comb = per_window_bound(target, 60, torch.Generator().manual_seed(2)).sum(-1)
    error = float(comb.var(0).mean() / comb.numel()) ** 0.5
    assert float(comb.mean()) == pytest.approx(value, abs=4 * math.hypot(stderr, error))


@pytest.mark.parametrize("window", [None, TokenSchedule(0.5), TokenSchedule(0.25, "left_to_right")])
def test_windows_and_their_paths_agree(window: TokenSchedule | None) -> None:
    target = problem(masked_path(3, S), 8, window=window)
    value, stderr = truth(target, 60)
    found = stratified_bound(target, 4000, torch.Generator().manual_seed(3))
    assert found.total.value == pytest.approx(value, abs=4 * math.hypot(stderr, found.total.stderr))
    assert (found.remaining is None) == (window is not None)


def test_intervals_of_single_windows_are_neither_too_narrow_nor_too_wide() -> None:
    """Forty scores of two windows from eight steps each: the standard error is within a third of the spread."""
    target = problem(masked_path(3, S), 6, count=2)
    found = [
        sum_over_rows(per_window_bound(target, 8, torch.Generator().manual_seed(seed)).sum(-1), paired=True)
        for seed in range(40)
    ]
    spread = float(torch.tensor([one.value for one in found]).std())
    claimed = math.sqrt(sum(one.stderr**2 for one in found) / 40)
    assert 0.67 < claimed / spread < 1.5


def test_intervals_cover_as_often_as_they_say() -> None:
    """Fifty evaluations of small sets, six per sequence: 88% to 98% of the 95% intervals contain the mean."""
    path = masked_path(3, S)
    value, _ = truth(problem(path, 12, count=4000), 4)
    found = [
        stratified_bound(problem(path, 12, count=48, seed=seed), 300, torch.Generator().manual_seed(seed)).total
        for seed in range(50)
    ]
    hits = sum(one.low <= value <= one.high for one in found)
    assert 44 <= hits <= 49
    assert abs(sum(one.value for one in found) / 50 - value) < 4 * max(one.stderr for one in found) / 50**0.5


@pytest.mark.parametrize("path", [masked_path(3, S), switching_path(3, S, float(CLOCK.remaining(0.6)))])
def test_exact_and_simulated_states_give_one_value(path: Path) -> None:
    target = problem(path, 6)
    exact = stratified_bound(target, 4000, torch.Generator().manual_seed(4)).total
    simulated = stratified_bound(target, 4000, torch.Generator().manual_seed(5), law=simulated_law).total
    assert exact.value == pytest.approx(simulated.value, abs=4 * math.hypot(exact.stderr, simulated.stderr))


def test_more_steps_than_evaluations_are_binned() -> None:
    target = problem(masked_path(3, S), 500)
    found = stratified_bound(target, 400, torch.Generator().manual_seed(6))
    assert len(found.curve.mean) == 20 and found.remaining is not None
    assert found.remaining[0] == pytest.approx(S) and found.remaining[-1] == 0
    assert float(found.cumulative()[-1]) == pytest.approx(found.total.value)
    # The mixture kernel's bound hardly depends on M, and the posterior is Bayes' own.
    assert found.total.value == pytest.approx(truth(problem(masked_path(3, S), 8))[0], abs=5 * found.total.stderr)


def test_continuous_time_is_the_limit_of_many_steps() -> None:
    fine = problem(masked_path(3, S), 128)
    limit = continuous(fine, 4000, torch.Generator().manual_seed(7))
    drift = stratified_bound(
        problem(masked_path(3, S), 128, kernel="drift"), 4000, torch.Generator().manual_seed(8)
    ).total
    assert limit.total.value == pytest.approx(drift.value, abs=4 * math.hypot(limit.total.stderr, drift.stderr) + 0.02)
    nats = float(-SOURCE.log_joint[tuple(fine.token.T)].mean())
    assert limit.total.value + 4 * limit.total.stderr > nats
    assert limit.remaining is not None and len(limit.remaining) == len(limit.curve.mean) + 1


def test_continuous_time_pays_for_the_switch() -> None:
    path = switching_path(3, S, float(CLOCK.remaining(0.6)))
    target = problem(path, 64)
    limit = continuous(target, 2000, torch.Generator().manual_seed(9)).total
    chain = stratified_bound(problem(path, 64, kernel="drift"), 2000, torch.Generator().manual_seed(10)).total
    assert limit.value == pytest.approx(chain.value, abs=4 * math.hypot(limit.stderr, chain.stderr) + 0.05)


def test_a_mixture_is_the_average_of_its_parts() -> None:
    mixture = constant_mixture(3, S, 0.3)
    parts = [problem(path, 8) for path in mixture.paths]
    whole = replace(parts[0], chains=tuple(p.chains[0] for p in parts), weights=mixture.weights)
    found = stratified_bound(whole, 6000, torch.Generator().manual_seed(11)).total
    wanted = sum(w * truth(p, 40)[0] for w, p in zip(mixture.weights, parts, strict=True))
    assert found.value == pytest.approx(wanted, abs=5 * found.stderr)


def test_the_papers_estimator_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a uniform source of three states the spliced integral is below the entropy and is labelled as no bound."""
    switch = float(CLOCK.remaining(0.35))
    path = switching_path(3, S, switch, "logarithm")
    flat = torch.full((3, 3), -math.log(9.0), dtype=torch.float64)
    token = torch.randint(3, (256, 2), generator=torch.Generator().manual_seed(12))

    def model(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        return joint_posterior(path, flat, state, remaining)

    target = Problem(token, (Chain(path, uniform_in_time(CLOCK, 128), "drift"),), (1.0,), model, batch=8192)
    found = paper_estimate(target, CLOCK, 60_000, torch.Generator().manual_seed(13), "exact")
    assert not found.claims_bound
    assert found.value + 4 * found.stderr < math.log(9)
    monkeypatch.setattr("rdlm.likelihood.continuous.DRAWS", 256)
    single = replace(target, chains=(Chain(masked_path(3, S, "logarithm"), uniform_in_time(CLOCK, 128), "drift"),))
    assert not paper_estimate(single, CLOCK, 64, torch.Generator().manual_seed(14)).claims_bound
    assert paper_estimate(single, CLOCK, 64, torch.Generator().manual_seed(15), "exact", 0.0).claims_bound
    with pytest.raises(InputError, match="logarithm bridge"):
        paper_estimate(problem(masked_path(3, S), 8), CLOCK, 64)


def test_a_failed_computation_is_no_number() -> None:
    target = problem(masked_path(3, S), 6)

    def broken(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        return torch.full((*state.shape[:-1], 3), math.nan)

    def certain(row: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        return torch.tensor([0.0, -math.inf, -math.inf]).expand(*state.shape[:-1], 3)

    for model in (broken, certain):
        bad = replace(target, model=model)
        for estimate in (
            lambda p=bad: stratified_bound(p, 200),
            lambda p=bad: path_bound(p),
            lambda p=bad: continuous(p, 200),
        ):
            with pytest.raises(InputError, match="not finite"):
                estimate()


def test_single_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 tokens"):
        replace(problem(masked_path(3, S), 4), token=torch.zeros(3, 1, dtype=torch.long))


def test_rows_are_sampled_without_replacement() -> None:
    rows = RowSampler(5, torch.Generator().manual_seed(0))
    taken = torch.cat([rows.take(3) for _ in range(10)])
    assert torch.bincount(taken).tolist() == [6] * 5
    assert sorted(taken[:5].tolist()) == [0, 1, 2, 3, 4]


def test_path_profile_is_the_mean_over_sequences() -> None:
    target = problem(masked_path(3, S), 4, count=8)
    terms = path_bound(target, 1, torch.Generator().manual_seed(1))
    found = path_profile(target, terms)
    sums = terms.sum((1, 3))[0]
    assert found.total.value == pytest.approx(float(sums.mean()))
    assert found.total.stderr == pytest.approx(float(sums.std()) / 8**0.5)
    assert found.total.high - found.total.value > 1.96 * found.total.stderr


@pytest.mark.parametrize(("freedom", "quantile"), [(2, 4.303), (3, 3.182), (7, 2.365), (30, 2.042), (math.inf, 1.960)])
def test_students_quantiles(freedom: float, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=1e-3)


def test_skewed_source_needs_no_second_position() -> None:
    """The strata's pilot survives a source whose first step never varies."""
    path, source = masked_path(3, S), skewed(3)
    chain = Chain(path, uniform_in_time(CLOCK, 1))
    token = source.draw(64, torch.Generator().manual_seed(0)).repeat(1, 2)
    law = torch.full((3, 3), -math.log(9.0), dtype=torch.float64)
    target = Problem(
        token, (chain,), (1.0,), lambda row, state, remaining: joint_posterior(path, law, state, remaining)
    )
    found = stratified_bound(target, 64, torch.Generator().manual_seed(1)).total
    assert (found.value, found.stderr) == pytest.approx((2 * math.log(3), 0), abs=1e-5)

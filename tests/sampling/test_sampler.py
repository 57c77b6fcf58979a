"""The sampler: exact posteriors give samples that pass chi-square, for every kernel, path and token schedule."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.sources import Source, markov, skewed
from rdlm.methods.rdlm import Rdlm
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSchedule, TokenSteps
from rdlm.process.path import Path, joint_posterior, masked_path, switching_path
from rdlm.process.schedule import uniform_in_time
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.denoisers import Batcher, GuidedDenoiser, drive
from rdlm.sampling.sampler import Output, Sampler, StepInfo, sample_chain
from rdlm.sampling.solvers import SOLVERS
from tests.sampling.exact import SCHEDULE, exact_posterior, output_of, p_value, sampler_of

S = SCHEDULE.total
DRAWS = 20_000
SIGNIFICANT = 1e-3
KERNELS: tuple[Kernel, ...] = ("mixture", "drift")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def switching(states: int, time: float) -> Path:
    return switching_path(states, S, float(SCHEDULE.remaining(time)))


@every_kernel
@pytest.mark.parametrize("states", [3, 27])
def test_evidence_alone_samples_the_source(states: int, kernel: Kernel) -> None:
    source, path = skewed(states), masked_path(states, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, 64), kernel)
    token = sample_chain(exact_posterior(source, path), chain, DRAWS, 1, torch.Generator().manual_seed(0))
    assert token.shape == (DRAWS, 1) and token.dtype == torch.int64
    assert p_value(source, token) > SIGNIFICANT


def test_chi_square_detects_a_wrong_prior() -> None:
    """A mutation: a prior a tenth hotter than the source's fails."""
    source, path = skewed(27), masked_path(27, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, 16))
    hotter = partial(joint_posterior, path, 0.9 * source.log_joint)
    assert p_value(source, sample_chain(hotter, chain, DRAWS, 1, torch.Generator().manual_seed(1))) < 1e-6


@pytest.mark.parametrize(
    ("kernel", "token_steps", "draws"),
    [
        # One after the other: exact for the mixture kernel, with any number of steps.
        ("mixture", TokenSteps(8, 4, "left_to_right"), DRAWS),
        ("mixture", TokenSteps(96, 64, "left_to_right"), DRAWS),
        # The drift kernel's error is of first order: for a token of probability 3/4 it is 0.006 at 64 steps, which
        # 20,000 draws begin to detect, and 0.001 at 256.
        ("drift", TokenSteps(128, 64, "left_to_right"), 8000),
        ("drift", TokenSteps(512, 256, "left_to_right"), DRAWS),
        # Together: within a step both move independently, which 20,000 draws would begin to detect.
        ("mixture", TokenSteps(96, 64), 8000),
        ("drift", TokenSteps(96, 64), 8000),
    ],
    ids=str,
)
def test_token_schedules_sample_two_dependent_positions(kernel: Kernel, token_steps: TokenSteps, draws: int) -> None:
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, token_steps.steps), kernel, token_steps)
    token = sample_chain(exact_posterior(source, path), chain, draws, 2, torch.Generator().manual_seed(2))
    assert p_value(source, token) > SIGNIFICANT


def test_positions_that_move_together_in_few_steps_are_too_independent() -> None:
    """With four steps the second position repeats the first less often than in the source."""
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, 4))
    token = sample_chain(exact_posterior(source, path), chain, DRAWS, 2, torch.Generator().manual_seed(2))
    assert p_value(source, token) < 1e-6
    assert (token[:, 0] == token[:, 1]).double().mean().item() < 0.73


@pytest.mark.parametrize("states", [3, 27])
@pytest.mark.parametrize("time", [0.35, 0.7])
def test_switching_path_samples_the_source(states: int, time: float) -> None:
    source, path = skewed(states), switching(states, time)
    chain = Chain(path, uniform_in_time(SCHEDULE, 32))
    token = sample_chain(exact_posterior(source, path), chain, DRAWS, 1, torch.Generator().manual_seed(3))
    assert p_value(source, token) > SIGNIFICANT


def test_a_switch_draws_states_of_the_second_bridge() -> None:
    """After it, states have the distribution of the masked chain at that level, whose mask coordinate is far larger."""
    source, path, count = skewed(3), switching(3, 0.5), 4000
    chain = Chain(path, uniform_in_time(SCHEDULE, 8))
    generator, seen = torch.Generator().manual_seed(4), {}

    def callback(info: StepInfo) -> None:
        seen[int(info.before.step[0])] = info.before.state[:, 0]

    sample_chain(exact_posterior(source, path), chain, count, 1, generator, callback=callback)
    token = source.draw(count, generator)
    for level in (chain.switch, chain.switch + 1, 6):
        drawn = chain.law(count, generator).draw_at_level(token, torch.tensor(level), generator)[:, 0]
        error = ((drawn.var(0) + seen[level].var(0)) / count).sqrt()
        assert bool(((drawn.mean(0) - seen[level].mean(0)).abs() < 4 * error).all())
    assert seen[chain.switch][:, -1].mean() < 0.6 < 0.8 < seen[chain.switch + 1][:, -1].mean()


def test_one_step_draws_from_the_prior_of_each_position() -> None:
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, 1))
    token = sample_chain(exact_posterior(source, path), chain, DRAWS, 2, torch.Generator().manual_seed(5))
    first, second = source.log_prior
    independent = Source("independent", first[:, None] + second)
    assert p_value(independent, token) > SIGNIFICANT


def test_callback_sees_every_step_and_states_on_the_sphere() -> None:
    source, path = markov(), switching(3, 0.5)
    chain = Chain(path, uniform_in_time(SCHEDULE, 6), asynchronous=TokenSteps(10, 6, "left_to_right"))
    seen: list[int] = []

    def callback(info: StepInfo) -> None:
        assert info.before.step.tolist() == [[len(seen)]] * 5 and info.rows.tolist() == list(range(5))
        seen.append(int(info.after.step.min()))
        state = info.before.state
        assert state.shape == (5, 2, 4) and info.log_probs.shape == (5, 2, 3)
        torch.testing.assert_close(state.norm(dim=-1), torch.ones(5, 2), rtol=0, atol=1e-5)
        if seen[-1] == 1:
            torch.testing.assert_close(state, path.bridge.start.point().expand(5, 2, 4))

    sample_chain(exact_posterior(source, path), chain, 5, 2, callback=callback)
    assert seen == list(range(1, 11))


def test_finished_positions_stay_at_their_vertices() -> None:
    source, path = markov(), masked_path(3, S)
    chain = Chain(path, uniform_in_time(SCHEDULE, 3), asynchronous=TokenSteps(9, 3, "left_to_right"))
    last: list[Tensor] = []
    token = sample_chain(
        exact_posterior(source, path),
        chain,
        40,
        2,
        torch.Generator().manual_seed(6),
        callback=lambda info: last.append(info.before.state),
    )
    assert len(last) == 6  # in three of the nine steps no position is active
    assert torch.equal(last[3][:, 0], torch.eye(4)[token[:, 0]])
    assert torch.equal(last[-1][:, 0], torch.eye(4)[token[:, 0]])
    assert torch.equal(last[3][:, 1], path.bridge.start.point().expand(40, 4))


@every_kernel
def test_same_seed_same_tokens(kernel: Kernel) -> None:
    source, path = markov(), switching(3, 0.5)
    chain = Chain(path, uniform_in_time(SCHEDULE, 8), kernel, TokenSteps(12, 8))
    run = partial(sample_chain, exact_posterior(source, path), chain, 50, 2)
    first, second, third = (run(torch.Generator().manual_seed(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, second) and not torch.equal(first, third)


# -- steps in which no position is active ------------------------------------------------------------


def counting_sampler(token_steps: TokenSteps, solver: str = "mixture", **options: Any) -> tuple[Sampler, list[int]]:
    """Return a sampler of two dependent positions by their exact posterior, and the rows of each evaluation."""
    path, evaluations = masked_path(3, S), list[int]()
    exact = exact_posterior(markov(), path)

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        evaluations.append(len(state))
        return exact(state, remaining)

    chain = Chain(path, uniform_in_time(SCHEDULE, token_steps.steps), asynchronous=token_steps)
    return sampler_of(posterior, chain, solver, **options), evaluations


@pytest.mark.parametrize("solver", SOLVERS)
def test_nfe_counts_the_evaluations(solver: str) -> None:
    for token_steps in (TokenSteps(30, 3), TokenSteps(9, 1), TokenSteps(5, 5)):
        sampler, evaluations = counting_sampler(token_steps, solver)
        found = output_of(sampler, torch.full((6, 2), -1), RandomStreams([generator_of(i) for i in range(6)], 6))
        assert int(found.nfe.sum()) == sum(evaluations)
        assert int(found.nfe.max()) == len(evaluations)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("together", [True, False], ids=["one generator", "a generator each"])
def test_inactive_steps_do_not_change_the_distribution(steps: int, together: bool) -> None:
    """Starts that rarely overlap follow the source; where both positions decode at once, they are independent."""
    source, token_steps = markov(), TokenSteps(120, steps, "random" if steps == 1 else "left_to_right")
    sampler, evaluations = counting_sampler(token_steps)
    draws = DRAWS if together else 2000
    generators = [generator_of(0)] if together else [generator_of(i) for i in range(draws)]
    token = output_of(sampler, torch.full((draws, 2), -1), RandomStreams(generators, draws)).token
    assert len(evaluations) == 2 * steps
    joint, (first, second) = source.log_joint.exp(), source.log_prior.exp()
    apart = 1 / token_steps.nfe if steps == 1 else 0.0
    expected = (1 - apart) * joint + apart * first[:, None] * second
    count = torch.bincount(3 * token[:, 0] + token[:, 1], minlength=9)
    assert stats.chisquare(count.numpy(), (draws * expected.flatten()).numpy()).pvalue > SIGNIFICANT


def test_a_self_conditioned_model_is_evaluated_at_every_step() -> None:
    sampler, evaluations = counting_sampler(TokenSteps(30, 2), every_step=True)
    output_of(sampler, torch.full((4, 2), -1), RandomStreams([generator_of(i) for i in range(4)], 4))
    assert evaluations == [4] * 30


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_every_active_step_is_taken_and_no_other(data: st.DataObject) -> None:
    nfe = data.draw(st.integers(1, 12))
    token_steps = TokenSteps(nfe, data.draw(st.integers(1, nfe)))
    sampler, _ = counting_sampler(token_steps)
    known = torch.tensor([data.draw(st.lists(st.integers(-1, 2), min_size=2, max_size=2))])
    state = sampler.start(known, RandomStreams([generator_of(data.draw(st.integers(0, 99)))], 1))
    offsets = state.offsets
    active = [s for s in range(nfe) if bool(((offsets <= s) & (s < offsets + token_steps.steps)).any())]
    assert sampler.steps_of(state) == active


# -- the generator -----------------------------------------------------------------------------------


def small_method(**model: Any) -> Rdlm:
    torch.manual_seed(0)
    config = RunConfig(
        process=ProcessConfig(levels=8, pairs=16),
        model=TransformerConfig(width=16, layers=1, heads=2, time_width=8, **model),
    )
    method = Rdlm(config, 27)
    for parameter in method.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    method.network.eval()
    return method


def sampler_for(method: Rdlm, chain: Chain, solver: str, **options: Any) -> Sampler:
    """Return a sampler that yields the queries of a method's network, with a KV cache where there are blocks."""
    make_cache = method.network.cache if chain.token_steps.block else None
    denoise = GuidedDenoiser(method.denoiser, block_mask=method.block_mask(chain))
    schedule = method.process.schedule
    return Sampler(denoise, chain, SOLVERS[solver], schedule, clean=True, make_cache=make_cache, **options)


SCHEDULES: dict[str, TokenSchedule | None] = {
    "synchronous": None,
    "windows": TokenSchedule(0.5),
    "one step": TokenSchedule(1 / 8, "strided"),
    "blocks": TokenSchedule(1 / 8, "strided", 2),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


def prompted() -> Tensor:
    known = torch.full((2, 6), -1)
    known[0, :2] = 3
    return known


@every_schedule
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_generator_driven_by_hand_gives_the_tokens_of_drive(schedule: str, solver: str) -> None:
    """Yields queries, is sent log-probabilities: one query per step, and one more where the solver takes two."""
    method = small_method()
    chain = method.chain(method.process.mixture.paths[0], 8, token_schedule=SCHEDULES[schedule], length=6)
    assert bool(chain.token_steps.block) == (schedule == "blocks")
    steps: list[StepInfo] = []
    sampler = sampler_for(method, chain, solver, callback=steps.append)
    batcher = Batcher(method.denoiser, method.network, rows=1)
    driven = drive(sampler.sample(prompted(), RandomStreams([generator_of(0), generator_of(1)], 2)), batcher)
    taken, queries, output = len(steps), 0, None
    sampling = sampler.sample(prompted(), RandomStreams([generator_of(0), generator_of(1)], 2))
    log_probs: Tensor | None = None
    while output is None:
        try:
            query = sampling.send(log_probs)  # type: ignore[arg-type]
        except StopIteration as stop:
            output = stop.value
            break
        queries += 1
        rows = query.split()
        log_probs = query.join(rows, [row.evaluate(method.denoiser, method.network) for row in rows])
    assert isinstance(output, Output) and torch.equal(output.token, driven.token)
    assert torch.equal(output.nfe, driven.nfe) and output.invalid == driven.invalid
    assert len(steps) == 2 * taken
    # Only a step in which nothing moves but what decodes needs no second evaluation.
    assert taken <= queries <= SOLVERS[solver].nfe * taken
    assert (queries > taken) == (SOLVERS[solver].nfe == 2 and chain.grid.steps > 1)


def test_a_generator_that_is_closed_evaluates_nothing_more() -> None:
    method = small_method()
    sampler = sampler_for(method, method.chain(method.process.mixture.paths[0], 8, length=6), "heun")
    sampling = sampler.sample(prompted(), RandomStreams([generator_of(0), generator_of(1)], 2))
    query = next(sampling)
    sampling.send(query.evaluate(method.denoiser, method.network))
    sampling.close()
    with pytest.raises(StopIteration):
        next(sampling)


# -- devices -----------------------------------------------------------------------------------------

META = torch.device("meta")


class BlockingCopies(TorchDispatchMode):
    """Counts operations that wait for the meta device: copies to it that block, and indices from the CPU.

    Reading a value from the meta device is an error of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        to_device = name == "_to_copy" and options.get("device") == META and args[0].device != META
        indexed = name.startswith("index") and args[0].device == META
        indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else args[1:]
        from_cpu = indexed and any(isinstance(index, Tensor) and index.device != META for index in indices)
        if from_cpu or (to_device and not options.get("non_blocking")):
            self.found.append(name)
        return func(*args, **options)


def test_blocking_copies_are_found() -> None:
    with BlockingCopies() as copies:
        torch.zeros(3, device=META)[torch.arange(2)]
        torch.zeros(3).to(META)
        torch.zeros(3).to(META, non_blocking=True)
    assert len(copies.found) == 2
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.zeros(3, device=META).any())


@every_schedule
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sampler_never_waits_for_the_device(schedule: str, solver: str) -> None:
    """It neither reads from the device nor waits for copies to it: everything is decided on the CPU."""
    method = small_method()
    chain = method.chain(method.process.mixture.paths[0], 8, token_schedule=SCHEDULES[schedule], length=6)
    method.network.to(META)
    sampler = sampler_for(method, chain, solver, device=META)
    batcher = Batcher(method.denoiser, method.network, rows=2)

    def run() -> Output:
        return drive(sampler.sample(prompted(), RandomStreams([generator_of(0), generator_of(1)], 2)), batcher)

    run()  # makes the tables
    with BlockingCopies() as copies:
        found = run()
    assert found.token.device == META and copies.found == []

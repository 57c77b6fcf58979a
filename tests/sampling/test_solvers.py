"""Solvers: samples of the right distribution, orders of convergence, steps that agree with the sphere's own maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rdlm.data.sources import Source, markov, skewed
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.likelihood.estimators import path_terms
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSteps
from rdlm.process.path import masked_path, switching_path
from rdlm.process.schedule import Grid, Linear, uniform_in_time
from rdlm.random import RandomStreams
from rdlm.sampling.solvers import SOLVERS, Solver, Step, euler, solver_of
from tests.sampling.exact import SCHEDULE, exact_posterior, output_of, p_value, sampler_of

S = SCHEDULE.total
DRAWS = 20_000
CONSISTENT = [name for name, solver in SOLVERS.items() if solver.consistent]
every_consistent = pytest.mark.parametrize("name", CONSISTENT)


class NoNoise(RandomStreams):
    """RandomStreams that is zero everywhere."""

    def normal(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


def sample(source: Source, name: str, chain: Chain, seed: int = 0) -> Tensor:
    sampler = sampler_of(exact_posterior(source, chain.path), chain, name)
    noise = RandomStreams([torch.Generator().manual_seed(seed)], DRAWS)
    return output_of(sampler, torch.full((DRAWS, source.length), -1), noise).token


@every_consistent
@pytest.mark.parametrize("source", [skewed(6), markov()], ids=lambda source: source.name)
def test_the_exact_posterior_samples_the_source(name: str, source: Source) -> None:
    chain = Chain(masked_path(source.states, S), uniform_in_time(SCHEDULE, 64))
    assert p_value(source, sample(source, name, chain)) > 1e-3


@pytest.mark.parametrize("name", ["heun", "corrector", "deterministic"])
def test_asynchronous_positions_and_a_switch_sample_the_source(name: str) -> None:
    """The sampler handles both; a solver only takes steps."""
    source, in_turn = markov(), TokenSteps(64, 32, "left_to_right")
    asynchronous = Chain(masked_path(3, S), uniform_in_time(SCHEDULE, 32), asynchronous=in_turn)
    assert p_value(source, sample(source, name, asynchronous, 1)) > 1e-3
    alone = skewed(3)
    switching = Chain(switching_path(3, S, 0.6 * S), uniform_in_time(SCHEDULE, 32))
    law = switching.law(16384, torch.Generator().manual_seed(0))
    sampler = sampler_of(exact_posterior(alone, switching.path), switching, name, law=law)
    noise = RandomStreams([torch.Generator().manual_seed(2)], DRAWS)
    assert p_value(alone, output_of(sampler, torch.full((DRAWS, 1), -1), noise).token) > 1e-3


@pytest.mark.parametrize("name", [name for name, solver in SOLVERS.items() if solver.bound])
def test_the_bound_of_the_same_chain_is_above_the_entropy(name: str) -> None:
    source, kernel = skewed(6), SOLVERS[name].bound
    assert kernel is not None
    chain = Chain(masked_path(6, S), uniform_in_time(SCHEDULE, 64), kernel)
    token = source.draw(400, torch.Generator().manual_seed(0))
    posterior = exact_posterior(source, chain.path)
    terms = path_terms(posterior, chain, token, torch.Generator().manual_seed(1), torch.float64).sum((0, 2))
    excess = terms + source.log_joint[token[:, 0]]
    assert float(excess.mean()) > -4 * float(excess.std()) / math.sqrt(400)
    assert float(excess.mean()) < 0.1 * source.entropy


def solved(solver: Solver, step: Step, log_probs: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the states after a step; a second evaluation, where there is one, is by `log_probs`."""
    moved = solver.step(step)
    if isinstance(moved, Tensor):
        return moved
    at, local = next(moved)
    with pytest.raises(StopIteration) as stop:
        moved.send(log_probs(at, local))
    found: Tensor = stop.value.value
    return found


def flow_end(name: str, steps: int) -> Tensor:
    """Return where a solver without noise moves one state between two noise levels, in `steps` steps."""
    source, path = skewed(4), masked_path(4, S)
    levels = S * torch.logspace(math.log10(0.9), math.log10(0.7), steps + 1, dtype=torch.float64)
    grid = Grid(torch.cat([levels.new_tensor([S]), levels, levels.new_zeros(1)]))
    chain, posterior = Chain(path, grid), exact_posterior(source, path)
    start = path.bridge.start.point(torch.float64)
    aside = sphere.tangent(start, start.new_tensor([0.1, -0.05, 0.12, 0.02, 0.0]))
    state = sphere.exponential(start, aside)[None, None]

    def log_probs(at: Tensor, local: Tensor) -> Tensor:
        return posterior(at, grid.remaining[local])

    for level in range(1, steps + 1):
        local = torch.tensor([[level]])
        now = log_probs(state, local)
        step = Step(chain, SCHEDULE, state, local, now, now.argmax(-1), NoNoise([None], 1))
        state = solved(SOLVERS[name], step, log_probs)
    return state


@pytest.mark.parametrize(("name", "order"), [("drift", 1), ("euler", 1), ("heun", 2), ("deterministic", 1)])
def test_order_of_convergence(name: str, order: int) -> None:
    """On the exact posterior's own flow, against a fine reference: errors fall by 2^order when steps halve."""
    reference = flow_end(name if name == "deterministic" else "heun", 640)
    errors = [float((flow_end(name, steps) - reference).norm()) for steps in (20, 40, 80)]
    rates = [math.log2(a / b) for a, b in pairwise(errors)]
    assert all(rate == pytest.approx(order, abs=0.25) for rate in rates), (errors, rates)


def test_exponential_is_that_of_the_tangent_part() -> None:
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((50,), 9, generator, torch.float64)
    ambient = 0.5 * torch.randn(50, 9, generator=generator, dtype=torch.float64)
    expected = sphere.exponential(state, sphere.tangent(state, ambient))
    torch.testing.assert_close(sphere.exponential_(state, ambient.clone()), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(sphere.exponential_(state, 3 * state), state, rtol=0, atol=1e-7)


def test_exponential_scales_the_ambient_vector_and_stays_on_the_sphere() -> None:
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((4, 5), 28, generator)
    ambient, scale = torch.randn(4, 5, 28, generator=generator), torch.rand(4, 5, generator=generator)
    expected = sphere.exponential_(state, scale[..., None] * ambient)
    torch.testing.assert_close(sphere.exponential_(state, ambient.clone(), scale), expected, rtol=0, atol=5e-7)
    for _ in range(2000):  # rounding does not add up
        state = sphere.exponential_(state, torch.randn(4, 5, 28, generator=generator), scale)
    assert float((state.double().norm(dim=-1) - 1).abs().max()) < 1e-6


def some_log_probs() -> Tensor:
    return torch.log_softmax(torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64), -1)


def one_step(name: str, log_probs: Tensor, level: int = 3) -> tuple[Tensor, Step]:
    chain = Chain(masked_path(5, S), uniform_in_time(SCHEDULE, 8))
    start = chain.path.bridge.start.point(torch.float64).expand(2, 7, 6)
    state = sphere.exponential(start, 0.2 * sphere.tangent_normal(start, torch.Generator().manual_seed(3)))
    local, noise = torch.full((2, 7), level), RandomStreams([torch.Generator().manual_seed(1)], 2)
    step = Step(chain, SCHEDULE, state, local, log_probs, log_probs.argmax(-1), noise)
    return solved(SOLVERS[name], step, lambda at, local: log_probs), step


def test_with_a_one_hot_prediction_the_mean_is_the_drawn_bridge() -> None:
    certain = torch.nn.functional.one_hot(torch.arange(14).view(2, 7) % 5, 5).double().log()
    torch.testing.assert_close(one_step("mixture", certain)[0], one_step("drift", certain)[0], rtol=0, atol=1e-12)


def test_euler_takes_the_rates_of_its_schedule() -> None:
    log_probs, level = some_log_probs(), 3
    _, step = one_step("euler", log_probs, level)
    noiseless = replace(step, random=NoNoise([None], 2))
    time = level / 8
    pull = step.chain.path.bridge.mean_pull(step.state, log_probs.exp(), SCHEDULE.remaining(time).expand(2, 7))
    expected = sphere.exponential(step.state, SCHEDULE.rate(time) / SCHEDULE.remaining(time) / 8 * pull)
    torch.testing.assert_close(euler(noiseless), expected, rtol=0, atol=1e-9)


def test_euler_does_not_move_after_its_end() -> None:
    grid = Grid(torch.tensor([S, 1e-7, 0.0], dtype=torch.float64))
    chain = Chain(masked_path(3, S), grid)
    state = sphere.uniform((1, 4), 4, torch.Generator().manual_seed(0), torch.float64)
    log_probs = torch.full((1, 4, 3), -math.log(3), dtype=torch.float64)
    noise = RandomStreams([torch.Generator().manual_seed(0)], 1)
    local = torch.ones(1, 4, dtype=torch.long)
    step = Step(chain, Linear(S, S), state, local, log_probs, log_probs.argmax(-1), noise)
    torch.testing.assert_close(euler(step), state)


@pytest.mark.parametrize("name", SOLVERS)
def test_states_stay_on_the_sphere(name: str) -> None:
    for level in range(7):
        after, _ = one_step(name, some_log_probs(), level)
        torch.testing.assert_close(after.norm(dim=-1), torch.ones(2, 7, dtype=torch.float64), rtol=0, atol=1e-9)


def test_bounds_are_claimed_for_kernels_alone() -> None:
    kernels: dict[str, Kernel] = {"mixture": "mixture", "drift": "drift"}
    assert {name: solver.bound for name, solver in SOLVERS.items() if solver.bound} == kernels
    with pytest.raises(InputError, match="unknown solver 'heum': did you mean 'heun'"):
        solver_of("heum")


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_evaluates_the_network_as_often_as_it_declares(name: str) -> None:
    """One evaluation comes before the step; a solver with a second one is a generator."""
    _, step = one_step(name, some_log_probs())
    assert SOLVERS[name].nfe == (1 if isinstance(SOLVERS[name].step(step), Tensor) else 2)

"""Solvers: samples of the right law, the right order of convergence, steps that agree with the sphere's own maps."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from rdlm.sampling.walk import Walker
from scipy import stats
from torch import Tensor

from rdlm.data.sources import Source, markov, skewed
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.likelihood import path_terms
from rdlm.process.grid import Grid, uniform_in_time
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSteps
from rdlm.process.path import joint_posterior, masked_path, switching_path
from rdlm.process.schedule import Geometric, Linear
from rdlm.random import RandomStreams
from rdlm.sampling import solvers as piece
from rdlm.sampling.solvers import SOLVERS, Step, euler, mean_pull, solver_of

CLOCK = Geometric()
S = CLOCK.total
DRAWS = 20_000
CONSISTENT = [name for name, solver in SOLVERS.items() if solver.consistent]
every_consistent = pytest.mark.parametrize("name", CONSISTENT)


class Silence(RandomStreams):
    """Noise without any."""

    def normal(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


def p_value(source: Source, token: Tensor) -> float:
    code = sum(token[:, i] * source.states ** (source.length - 1 - i) for i in range(source.length))
    count = torch.bincount(torch.as_tensor(code), minlength=source.states**source.length)
    return float(stats.chisquare(count.numpy(), (len(token) * source.log_joint.exp().flatten()).numpy()).pvalue)


def sample(source: Source, name: str, chain: Chain, seed: int = 0) -> Tensor:
    posterior = partial(joint_posterior, chain.path, source.log_joint)
    walker = Walker(posterior, chain, SOLVERS[name], CLOCK)
    remaining = RandomStreams([torch.Generator().manual_seed(seed)], DRAWS)
    return walker.run(torch.full((DRAWS, source.length), -1), remaining).token


@every_consistent
@pytest.mark.parametrize("source", [skewed(6), markov()], ids=lambda source: source.name)
def test_the_exact_posterior_samples_the_source(name: str, source: Source) -> None:
    chain = Chain(masked_path(source.states, S), uniform_in_time(CLOCK, 64))
    assert p_value(source, sample(source, name, chain)) > 1e-3


@pytest.mark.parametrize("name", ["heun", "corrector", "deterministic"])
def test_other_clocks_sample_the_source_too(name: str) -> None:
    """Lanes and a switch: the two things that a solver must leave to the walk."""
    source = markov()
    token_steps = Chain(masked_path(3, S), uniform_in_time(CLOCK, 32), asynchronous=TokenSteps(64, 32, "left_to_right"))
    assert p_value(source, sample(source, name, token_steps, 1)) > 1e-3
    alone = skewed(3)
    switching = Chain(switching_path(3, S, 0.6 * S), uniform_in_time(CLOCK, 32))
    posterior = partial(joint_posterior, switching.path, alone.log_joint)
    law = switching.law(16384, torch.Generator().manual_seed(0))
    walker = Walker(posterior, switching, SOLVERS[name], CLOCK, law=law)
    token = walker.run(torch.full((DRAWS, 1), -1), RandomStreams([torch.Generator().manual_seed(2)], DRAWS)).token
    assert p_value(alone, token) > 1e-3


@pytest.mark.parametrize("name", [name for name, solver in SOLVERS.items() if solver.bound])
def test_the_bound_of_the_same_chain_is_above_the_entropy(name: str) -> None:
    source, kernel = skewed(6), SOLVERS[name].bound
    assert kernel is not None
    chain = Chain(masked_path(6, S), uniform_in_time(CLOCK, 64), kernel)
    token = source.draw(400, torch.Generator().manual_seed(0))
    posterior = partial(joint_posterior, chain.path, source.log_joint)
    terms = path_terms(posterior, chain, token, torch.Generator().manual_seed(1), torch.float64).sum((0, 2))
    excess = terms + source.log_joint[token[:, 0]]
    assert float(excess.mean()) > -4 * float(excess.std()) / math.sqrt(400)
    assert float(excess.mean()) < 0.1 * source.entropy


def flow_end(name: str, steps: int) -> Tensor:
    """Return where a solver without noise is carried from one state between two noise levels, in `steps` steps."""
    source, path = skewed(4), masked_path(4, S)
    levels = S * torch.logspace(math.log10(0.9), math.log10(0.7), steps + 1, dtype=torch.float64)
    grid = Grid(torch.cat([levels.new_tensor([S]), levels, levels.new_zeros(1)]))
    chain = Chain(path, grid)
    start = path.bridge.start.point(torch.float64)
    aside = sphere.tangent(start, start.new_tensor([0.1, -0.05, 0.12, 0.02, 0.0]))
    state = sphere.exponential(start, aside)[None, None]

    def predict(at: Tensor, local: Tensor) -> Tensor:
        return joint_posterior(path, source.log_joint, at, grid.remaining[local])

    for level in range(1, steps + 1):
        local = torch.tensor([[level]])
        law = predict(state, local)
        step = Step(chain, CLOCK, state, local, law, law.argmax(-1), Silence([None], 1), predict)
        state = SOLVERS[name].step(step)
    return state


@pytest.mark.parametrize(("name", "order"), [("drift", 1), ("euler", 1), ("heun", 2), ("deterministic", 1)])
def test_order_of_convergence(name: str, order: int) -> None:
    """On the exact posterior's own flow, against a fine reference: errors fall by 2^order when steps halve."""
    reference = flow_end(name if name == "deterministic" else "heun", 640)
    errors = [float((flow_end(name, steps) - reference).norm()) for steps in (20, 40, 80)]
    rates = [math.log2(a / b) for a, b in pairwise(errors)]
    assert all(rate == pytest.approx(order, abs=0.25) for rate in rates), (errors, rates)


def test_follow_is_the_exponential_of_the_tangent_part() -> None:
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((50,), 9, generator, torch.float64)
    ambient = 0.5 * torch.randn(50, 9, generator=generator, dtype=torch.float64)
    expected = sphere.exponential(state, sphere.tangent(state, ambient))
    torch.testing.assert_close(follow(state, ambient.clone()), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(follow(state, 3 * state), state, rtol=0, atol=1e-7)


def test_follow_scales_the_ambient_vector_and_stays_on_the_sphere() -> None:
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((4, 5), 28, generator)
    ambient, scale = torch.randn(4, 5, 28, generator=generator), torch.rand(4, 5, generator=generator)
    expected = follow(state, scale[..., None] * ambient)
    torch.testing.assert_close(follow(state, ambient.clone(), scale), expected, rtol=0, atol=5e-7)
    for _ in range(2000):  # rounding does not add up
        state = follow(state, torch.randn(4, 5, 28, generator=generator), scale)
    assert float((state.double().norm(dim=-1) - 1).abs().max()) < 1e-6


def test_large_states_are_followed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of many coordinates are worked on row by row, to the same end."""
    law = torch.log_softmax(torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64), -1)
    whole = [one_step(name, law)[0] for name in ("mixture", "drift", "euler")]
    monkeypatch.setattr(piece, "CACHED", 6)
    for name, expected in zip(("mixture", "drift", "euler"), whole, strict=True):
        torch.testing.assert_close(one_step(name, law)[0], expected, rtol=0, atol=1e-14)


def one_step(name: str, law: Tensor, level: int = 3) -> tuple[Tensor, Step]:
    chain = Chain(masked_path(5, S), uniform_in_time(CLOCK, 8))
    start = chain.path.bridge.start.point(torch.float64).expand(2, 7, 6)
    state = sphere.exponential(start, 0.2 * sphere.tangent_normal(start, torch.Generator().manual_seed(3)))
    local = torch.full((2, 7), level)
    step = Step(
        chain,
        CLOCK,
        state,
        local,
        law,
        law.argmax(-1),
        RandomStreams([torch.Generator().manual_seed(1)], 2),
        lambda at, local: law,
    )
    return SOLVERS[name].step(step), step


def test_with_a_certain_law_the_mean_is_the_drawn_bridge() -> None:
    certain = torch.nn.functional.one_hot(torch.arange(14).view(2, 7) % 5, 5).double().log()
    torch.testing.assert_close(one_step("mixture", certain)[0], one_step("drift", certain)[0], rtol=0, atol=1e-12)


def test_euler_takes_the_rates_of_its_clock() -> None:
    law = torch.log_softmax(torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64), -1)
    level = 3
    _, step = one_step("euler", law, level)
    silent = replace(step, random=Silence([None], 2))
    time = level / 8
    pull = mean_pull(step.chain.path.bridge, step.state, law.exp(), CLOCK.remaining(time).expand(2, 7))
    expected = sphere.exponential(step.state, CLOCK.rate(time) / CLOCK.remaining(time) / 8 * pull)
    torch.testing.assert_close(euler(silent), expected, rtol=0, atol=1e-9)


def test_euler_stands_still_after_its_cut() -> None:
    grid = Grid(torch.tensor([S, 1e-7, 0.0], dtype=torch.float64))
    chain = Chain(masked_path(3, S), grid)
    state = sphere.uniform((1, 4), 4, torch.Generator().manual_seed(0), torch.float64)
    law = torch.full((1, 4, 3), -math.log(3), dtype=torch.float64)
    clock = Linear(S, S)
    remaining = RandomStreams([torch.Generator().manual_seed(0)], 1)
    step = Step(
        chain, clock, state, torch.ones(1, 4, dtype=torch.long), law, law.argmax(-1), remaining, lambda a, b: law
    )
    torch.testing.assert_close(euler(step), state)


@pytest.mark.parametrize("name", SOLVERS)
def test_states_stay_on_the_sphere(name: str) -> None:
    law = torch.log_softmax(torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64), -1)
    for level in range(7):
        after, _ = one_step(name, law, level)
        torch.testing.assert_close(after.norm(dim=-1), torch.ones(2, 7, dtype=torch.float64), rtol=0, atol=1e-9)


def test_claims_are_those_of_kernels() -> None:
    kernels: dict[str, Kernel] = {"mixture": "mixture", "drift": "drift"}
    assert {name: solver.bound for name, solver in SOLVERS.items() if solver.bound} == kernels
    with pytest.raises(InputError, match="unknown solver 'heum': did you mean 'heun'"):
        solver_of("heum")

"""The entropy floor: bounds above the entropy and close to it, mutations below it, one likelihood computed exactly."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from rdlm.data.sources import Source, markov, skewed, uniform
from rdlm.geometry import sphere
from rdlm.likelihood.estimate import Estimate
from rdlm.likelihood.estimators import path_terms
from rdlm.process.bridge import BridgeKind
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSteps
from rdlm.process.path import (
    Mixture,
    Path,
    constant_mixture,
    joint_posterior,
    masked_path,
    switching_path,
    uniform_path,
)
from rdlm.process.schedule import Geometric, uniform_in_time

S = Geometric().total
KINDS: tuple[BridgeKind, ...] = ("brownian", "logarithm")
KERNELS: tuple[Kernel, ...] = ("mixture", "drift")
CERTAIN = 4  # standard errors


def switching(states: int, time: float, kind: BridgeKind = "brownian") -> Path:
    return switching_path(states, S, float(Geometric().remaining(time)), kind)


def measured(source: Source, chain: Chain, paths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the bound's terms [calls, paths] of the source's own posterior, and the tokens' -log p [paths]."""
    generator = torch.Generator().manual_seed(seed)
    token = source.draw(paths, generator)
    posterior = partial(joint_posterior, chain.path, source.log_joint)
    terms = path_terms(posterior, chain, token, generator, torch.float64).sum(-1)
    return terms, -source.log_joint[tuple(token.T)]


def bound(source: Source, terms: Tensor, surprise: Tensor) -> Estimate:
    """Return the bound; only its excess over -log p, whose mean is known, has to be estimated."""
    excess = terms.sum(0) - surprise
    return Estimate(source.entropy + excess.mean().item(), excess.std().item() / math.sqrt(len(excess)))


def holds(source: Source, estimate: Estimate) -> bool:
    """The floor check itself."""
    return estimate.value + CERTAIN * estimate.stderr >= source.entropy


def chain_of(path: Path, steps: int, kernel: Kernel = "mixture", token_steps: TokenSteps | None = None) -> Chain:
    return Chain(path, uniform_in_time(Geometric(), steps), kernel, token_steps)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", [skewed(3), uniform(27)], ids=lambda s: s.name)
@pytest.mark.parametrize("mixture", ["masked", "uniform", "constant", "switching"])
def test_no_bound_is_below_the_entropy(mixture: str, source: Source, kind: BridgeKind, kernel: Kernel) -> None:
    states = source.states
    mixtures = {
        "masked": Mixture((masked_path(states, S, kind),)),
        "uniform": Mixture((uniform_path(states, S, kind),)),
        "constant": constant_mixture(states, S, 0.3, kind),
        "switching": Mixture((switching(states, 0.6, kind),)),
    }
    chosen = mixtures[mixture]
    total = Estimate(0.0, 0.0)
    for path, weight in zip(chosen.paths, chosen.weights, strict=True):
        total = total + bound(source, *measured(source, chain_of(path, 24, kernel), 600)) * weight
    assert total.claims_bound and holds(source, total)
    assert total.low < 1.35 * source.entropy  # a bound that says something


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "token_steps",
    [
        None,
        TokenSteps(24, 12),
        TokenSteps(24, 12, "strided"),
        TokenSteps(24, 12, "left_to_right"),
        TokenSteps(24, 2, "left_to_right"),
    ],
    ids=["synchronous", "random", "strided", "left-to-right", "narrow"],
)
def test_floor_holds_for_every_token_schedule(token_steps: TokenSteps | None, kind: BridgeKind, kernel: Kernel) -> None:
    source = markov()
    chain = chain_of(masked_path(3, S, kind), token_steps.steps if token_steps else 24, kernel, token_steps)
    estimate = bound(source, *measured(source, chain, 800))
    assert holds(source, estimate)
    if kernel == "mixture":  # moving by the mean is crude with few steps
        assert estimate.low < 1.1 * source.entropy


@pytest.mark.parametrize("states", [3, 27])
def test_drift_kernel_is_within_one_and_a_half_percent_at_400_steps(states: int) -> None:
    source = skewed(states)
    estimate = bound(source, *measured(source, chain_of(masked_path(states, S), 400, "drift"), 1000))
    assert holds(source, estimate)
    assert estimate.value - 2 * estimate.stderr <= 1.015 * source.entropy
    assert estimate.stderr < 0.005 * source.entropy


@pytest.mark.parametrize("states", [3, 27])
@pytest.mark.parametrize("start", [masked_path, uniform_path])
def test_mixture_kernel_is_within_half_a_percent_at_8_steps(states: int, start: type[Path]) -> None:
    source = skewed(states)
    estimate = bound(source, *measured(source, chain_of(start(states, S), 8), 4000))
    assert holds(source, estimate)
    assert estimate.value + 2 * estimate.stderr <= 1.005 * source.entropy


def test_one_token_at_a_time_is_autoregression() -> None:
    """Lanes of one step from left to right: -log p(first) - log p(second | first), on every path."""
    source = markov()
    terms, surprise = measured(
        source, chain_of(masked_path(3, S), 1, token_steps=TokenSteps(2, 1, "left_to_right")), 50
    )
    torch.testing.assert_close(terms.sum(0), surprise, rtol=0, atol=1e-9)


def test_random_order_with_one_step_is_masked_diffusion() -> None:
    """The bound is the entropy plus, where both tokens share a step, their mutual information."""
    source, calls, paths = markov(), 4, 4000
    terms, surprise = measured(source, chain_of(masked_path(3, S), 1, token_steps=TokenSteps(calls, 1)), paths)
    shared = (terms == 0).sum(0) == calls - 1
    apart = terms.sum(0)[~shared] - surprise[~shared]
    torch.testing.assert_close(apart, torch.zeros_like(apart), rtol=0, atol=1e-9)
    assert shared.double().mean().item() == pytest.approx(1 / calls, abs=4 * math.sqrt(3 / 16 / paths))
    information = float(torch.special.entr(source.log_prior.exp()).sum()) - source.entropy
    estimate = bound(source, terms, surprise)
    assert estimate.value == pytest.approx(source.entropy + information / calls, abs=CERTAIN * estimate.stderr)


@pytest.mark.parametrize("calls", [2, 3, 7])
def test_strided_order_with_one_step_loses_nothing(calls: int) -> None:
    """With a call for each token no two share one: the bound is the surprise itself, in whichever order they come."""
    source = markov()
    terms, surprise = measured(source, chain_of(masked_path(3, S), 1, token_steps=TokenSteps(calls, 1, "strided")), 50)
    torch.testing.assert_close(terms.sum(0), surprise, rtol=0, atol=1e-9)


# The test of the test: each of these mistakes must be caught by the floor check.


@pytest.mark.parametrize("states", [3, 27])
def test_floor_catches_a_dropped_decode_term(states: int) -> None:
    """On a grid that ends early, with much noise still to come before its last step."""
    source = uniform(states)
    terms, surprise = measured(source, chain_of(masked_path(states, S), 2), 600)
    assert holds(source, bound(source, terms, surprise))
    assert not holds(source, bound(source, terms[:-1], surprise))


@pytest.mark.parametrize("states", [3, 27])
def test_floor_catches_skipped_last_steps(states: int) -> None:
    source = uniform(states)
    terms, surprise = measured(source, chain_of(masked_path(states, S), 32), 600)
    assert holds(source, bound(source, terms, surprise))
    cut = torch.cat([terms[:20], terms[-1:]])  # the decode term is kept, but the path to it is not paid for
    assert not holds(source, bound(source, cut, surprise))


@pytest.mark.parametrize("states", [3, 27])
def test_floor_catches_two_spliced_paths(states: int) -> None:
    """The uniform path before the paper's switch time, the masked one after it, nothing for the change."""
    source, steps = uniform(states), 64
    first, surprise = measured(source, chain_of(uniform_path(states, S), steps), 2000)
    second, _ = measured(source, chain_of(masked_path(states, S), steps), 2000)
    for terms in (first, second):
        assert holds(source, bound(source, terms, surprise))
    switch = round(0.35 * steps)
    spliced = torch.cat([first[:switch], second[switch:]])
    assert not holds(source, bound(source, spliced, surprise))


@pytest.mark.parametrize("states", [3, 27])
def test_floor_catches_a_forgotten_switch_term(states: int) -> None:
    source = uniform(states)
    chain = chain_of(switching(states, 0.35), 64)
    terms, surprise = measured(source, chain, 4000)
    assert holds(source, bound(source, terms, surprise))
    terms[chain.switch] = 0
    assert not holds(source, bound(source, terms, surprise))


# Two states, two positions: what the chain of two calls really generates, by enumeration and quadrature.


def pair_source() -> Source:
    """Return two positions of two states that mostly agree."""
    return Source("pair", torch.tensor([[0.5, 0.1], [0.05, 0.35]], dtype=torch.float64).log())


def exact_likelihood(source: Source, path: Path, kernel: Kernel) -> Tensor:
    """Return p [2, 2] of the two-call chain: the first call moves both positions, the second names both tokens.

    The first move is one of two Gaussians (mixture) or one (drift) in the tangent plane of each position's
    start, integrated by Gauss-Hermite; the second call is Bayes' rule on both states.
    """
    grid, bridge, start = uniform_in_time(Geometric(), 2), path.bridge, path.bridge.start.point(torch.float64)
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(24))
    plane = torch.cartesian_prod(nodes, nodes)  # [n, 2]
    mass = torch.cartesian_prod(weights, weights).prod(-1) / (2 * math.pi)
    frame = torch.linalg.qr(torch.cat([start[:, None], torch.eye(3, dtype=torch.float64)[:, :2]], 1))[0][:, 1:]
    noise = grid.variance[0].sqrt() * plane @ frame.T
    slope = grid.gain[0] * bridge.slope(start[:2], grid.remaining[0])
    evidence, chance = [], []
    for prior in source.log_prior.exp():
        laws = [(torch.eye(2, dtype=torch.float64)[k], prior[k]) for k in range(2)]
        if kernel == "drift":
            laws = [(prior, torch.ones((), dtype=torch.float64))]
        moves = torch.cat([bridge.mixture_direction(start, law * slope) + noise for law, _ in laws])
        state = sphere.exponential(start.expand_as(moves), moves)
        evidence.append(bridge.log_likelihood(state, grid.remaining[1]))
        chance.append(torch.cat([mass * weight for _, weight in laws]))
    # [states of the first, states of the second, its token, the other's token]
    joint = source.log_joint + evidence[0][:, None, :, None] + evidence[1][None, :, None, :]
    law = torch.softmax(joint.flatten(2), -1).view(joint.shape)
    named = law.sum(3)[..., :, None] * law.sum(2)[..., None, :]  # tokens are drawn independently
    return torch.einsum("a,b,abij->ij", chance[0], chance[1], named)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("start", [masked_path, uniform_path])
def test_bound_is_above_the_exact_likelihood_and_the_gap_shrinks(start: type[Path], kernel: Kernel) -> None:
    source, path = pair_source(), start(2, S)
    likelihood = exact_likelihood(source, path, kernel)
    assert float(likelihood.sum()) == pytest.approx(1, abs=1e-9)
    truth = -float((source.log_joint.exp() * likelihood.log()).sum())  # mean -log p of the chain of 2 calls
    assert truth > source.entropy + 0.01  # it is not a perfect sampler
    bounds = {m: bound(source, *measured(source, chain_of(path, m, kernel), 5000)) for m in (1, 2, 16, 64)}
    independent = float(torch.special.entr(source.log_prior.exp()).sum())
    assert bounds[1].value == pytest.approx(independent, abs=CERTAIN * bounds[1].stderr)
    assert bounds[2].value + CERTAIN * bounds[2].stderr >= truth
    assert all(holds(source, b) for b in bounds.values())
    # At M calls the true likelihood is at least the entropy, so bound - entropy is at least the gap.
    gap = bounds[2].value - truth
    excess = {m: estimate.value - source.entropy for m, estimate in bounds.items()}
    for few, many in ((2, 16), (16, 64)):
        assert excess[few] - excess[many] > 2 * math.hypot(bounds[few].stderr, bounds[many].stderr)
    assert gap > excess[64] > 0
    for first, second in itertools.product(range(2), repeat=2):
        check_token_bound(source, path, kernel, (first, second), likelihood[first, second].item())


def check_token_bound(source: Source, path: Path, kernel: Kernel, token: tuple[int, int], truth: float) -> None:
    """Assert the bound of one sequence against its own exact likelihood, not only on average."""
    posterior = partial(joint_posterior, path, source.log_joint)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.tensor(token).expand(4000, 2)
    terms = path_terms(posterior, chain_of(path, 2, kernel), tokens, generator, torch.float64).sum((0, 2))
    assert terms.mean().item() + CERTAIN * terms.std().item() / math.sqrt(4000) >= -math.log(truth)

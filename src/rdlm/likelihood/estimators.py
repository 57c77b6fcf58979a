"""The bound along whole paths: walk the chain to given tokens and add up log-density ratios step by step.

It costs a network call for every step of the chain, but the sum hardly varies: were the posterior exact,
it would be `-log p(tokens)` on every path. Its mean is the same bound as that of single steps.

The bound of a model on data, at M network calls: from single steps of many sequences, or along whole paths.

| estimator | network calls | good for |
|---|---|---|
| `stratified_bound` | one for each sequence-step, whatever M | a mean over many sequences, a curve over M |
| `per_window_bound` | a few for each sequence, whatever M | a long document, window by window |
| `path_bound` | M for each path | a single text: the sum along a path hardly varies |

All of them estimate the same number without bias, with states of the exact law that no two positions share
(`rdlm.likelihood.oracle`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.likelihood.estimate import FEWEST, Curve, Estimate, sample_mean, stratified
from rdlm.likelihood.oracle import FreshLaw
from rdlm.likelihood.terms import Posterior, StateLaw, mixture_excess, renoise, step_terms
from rdlm.process.kernel import Chain, draw_token_step, mean_step_log_density, step_log_density


def path_terms(
    posterior: Posterior,
    chain: Chain,
    token: Int[Tensor, "batch length"],
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "calls batch length"]:
    """Return `log q_k(step) - log q_model(step)` of each position at each step of one path per sequence.

    Summed over steps and positions the mean is an upper bound on `-log p(token)`, Eq. (28)-(30) and (32).
    """
    digit, offsets = chain.split(token), chain.offsets(token, generator)
    state = chain.path.bridge.start.point(dtype, token.device).repeat(*digit.shape, 1)
    terms = torch.zeros(chain.nfe, *token.shape, dtype=torch.float64, device=token.device)
    for step in range(chain.nfe):
        local = chain.token_steps.local_step(step, offsets)
        moving = (step >= offsets) & (local < chain.grid.steps)
        log_probs = posterior(state, chain.grid.remaining.to(state)[local])
        local = local.clamp_max(chain.grid.steps - 1)
        after, term = forced_step(chain, state, token, local, log_probs, generator)
        state = torch.where(chain.spread(moving, digit)[..., None], after, state)
        terms[step] = torch.where(moving, term, 0.0)
    return terms


def forced_step(
    chain: Chain,
    state: Tensor,
    token: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probs: Float[Tensor, "batch length v"],
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Float[Tensor, "batch length"]]:
    """Return the states after one step of the tokens' bridges, and the excess of each position."""
    bridge, digit = chain.path.bridge, chain.split(token)
    coefficients = chain.coefficients(chain.spread(local, digit), state)
    move = draw_token_step(bridge, state, digit, coefficients, generator)
    density = step_log_density(bridge, state, move, coefficients)
    if chain.kernel == "mixture":
        term = mixture_excess(chain.join(density), log_probs, token)
    else:
        own = density.gather(-1, digit[..., None])[..., 0]
        law = chain.marginals(log_probs.exp())
        term = chain.gather(own - mean_step_log_density(bridge, state, move, law, coefficients))
    after = sphere.project(sphere.exponential(state, move))
    if chain.switch >= 0 and bool((chosen := local == chain.switch).any()):
        renoised, path_density = renoise(chain, token, state.dtype, generator)
        after = torch.where(chain.spread(chosen, digit)[..., None], renoised, after)
        term = torch.where(chosen, mixture_excess(path_density, log_probs, token), term)
    last = local == chain.grid.steps - 1
    vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)
    after = torch.where(chain.spread(last, digit)[..., None], vertex, after)
    return after, torch.where(last, -log_probs.gather(-1, token[..., None])[..., 0], term)


BATCH = 16
"""Sequences that go through the network at once."""

MANY, NUMBERS = 256, 1 << 19
"""Sequences whose states are drawn at once, and the most numbers of theirs, which the processor's cache should hold."""

Advance = Callable[[int], object]
"""Told how many sequences have been through the network, for a progress bar."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is bounded: `-log p` of sequences under a mixture of chains that share a grid's steps, Eq. (31)."""

    token: Int[Tensor, "n length"]
    chains: tuple[Chain, ...]
    weights: tuple[float, ...]
    posterior: Callable[[Int[Tensor, " rows"]], Posterior]
    """The model for some rows of `token`, with what conditions them."""

    def __post_init__(self) -> None:
        if self.token.ndim != 2 or self.token.shape[0] < 1 or self.token.shape[1] < 2:
            raise InputError(f"sequences of at least 2 tokens are needed, got a set of shape {tuple(self.token.shape)}")

    @property
    def nfe(self) -> int:
        """Return M."""
        return self.chains[0].nfe

    def chunk(self, batch: int) -> int:
        """Return how many sequences may have their states in memory together."""
        chain = self.chains[0]
        digits = 1 if chain.layout is None else chain.layout.digits
        width = max(digits * chain.path.bridge.dimension, 0 if chain.layout is None else chain.layout.vocabulary)
        return max(batch, min(MANY, NUMBERS // (self.token.shape[1] * width)))

    def answer(self, row: Int[Tensor, " rows"], batch: int, advance: Advance = lambda count: None) -> Posterior:
        """Return the model for some rows, asked for `batch` of them at a time; `advance` hears of each time."""

        def answer(state: Tensor, remaining: Tensor) -> Tensor:
            found = []
            for part in torch.arange(len(row), device=row.device).split(batch):
                found.append(self.posterior(row[part])(state[part], remaining[part]))
                advance(len(part))
            return torch.cat(found)

        return answer


@dataclass(frozen=True, eq=False)
class Profile:
    """The bound in nats per sequence, and where along the noise it is spent."""

    total: Estimate
    curve: Curve
    remaining: Float[Tensor, " bins+1"] | None
    """The noise still to come at the bins' ends; none where positions have clocks of their own."""

    def cumulative(self) -> Float[Tensor, " bins+1"]:
        """Return the nats spent up to each end of a bin."""
        return torch.cat([torch.zeros(1, dtype=torch.float64), self.curve.mean.cumsum(0)])


class Deal:
    """Rows of a set in random order, each as often as any other: a new permutation when all have been dealt."""

    def __init__(self, count: int, generator: torch.Generator | None) -> None:
        self._count, self._generator = count, generator
        self._left = torch.empty(0, dtype=torch.long)

    def take(self, number: int) -> Int[Tensor, " number"]:
        """Return the next rows."""
        while len(self._left) < number:
            self._left = torch.cat([self._left, torch.randperm(self._count, generator=self._generator)])
        taken, self._left = self._left[:number], self._left[number:]
        return taken


def stratified_bound(
    problem: Problem,
    evaluations: int,
    generator: torch.Generator | None = None,
    law: Callable[[Chain], StateLaw] = FreshLaw,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Profile:
    """Return the bound from single steps, Eq. (28)-(32), with about `evaluations` sequence-steps.

    Steps are stratified over the whole evaluation, in as many bins as leaves each a few draws, and go where a pilot
    found the spread. The interval holds for the mean over these sequences, and, up to one evaluation for each of
    them, for that over their source.
    """
    chains = len(problem.chains)
    bins = max(1, min(problem.nfe, evaluations * 4 // 5 // (2 * FEWEST * chains)))
    edges = torch.arange(bins + 1) * problem.nfe // bins
    deal = Deal(len(problem.token), generator)
    laws = [law(chain) for chain in problem.chains]

    def measure(stratum: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        value = torch.zeros(len(stratum), dtype=torch.float64)
        first, size = edges[stratum % bins], torch.diff(edges)[stratum % bins]
        step = first + (torch.rand(len(stratum), generator=generator) * size).long().minimum(size - 1)
        for number in stratum.div(bins, rounding_mode="floor").unique().tolist():
            chosen = (stratum // bins == number).nonzero()[:, 0]
            row = deal.take(len(chosen)).to(problem.token.device)
            terms = step_terms(
                problem.answer(row, batch, advance),
                problem.chains[number],
                laws[number],
                problem.token[row],
                step[chosen].to(row.device),
                generator,
            )
            check_finite(terms, step[chosen])
            weight = problem.weights[number] * size[chosen]
            value[chosen] = weight * terms.double().sum(-1).cpu()
        return value

    curve = stratified(measure, chains * bins, evaluations, problem.chunk(batch))
    # The parts of a mixture share their bins.
    curve = Curve(curve.mean.view(chains, bins).sum(0), curve.variance.view(chains, bins).sum(0))
    chain = problem.chains[0]
    return Profile(curve.total, curve, chain.grid.remaining[edges] if chain.asynchronous is None else None)


def per_window_bound(
    problem: Problem,
    draws: int,
    generator: torch.Generator | None = None,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Float[Tensor, "draws n length"]:
    """Return `draws` estimates of each position's share of every sequence's bound, Eq. (28)-(32), in nats.

    Each is a single step; a sequence's steps lie in equal parts of its chain, one in each.
    """
    found = torch.zeros(draws, *problem.token.shape, dtype=torch.float64)
    laws = [FreshLaw(chain) for chain in problem.chains]
    for row in torch.arange(len(problem.token), device=problem.token.device).split(problem.chunk(batch)):
        for draw in range(draws):
            place = (draw + torch.rand(len(row), generator=generator)) / draws
            step = (place * problem.nfe).long().clamp_max(problem.nfe - 1).to(row.device)
            for chain, weight, law in zip(problem.chains, problem.weights, laws, strict=True):
                answer = problem.answer(row, batch, advance)
                terms = step_terms(answer, chain, law, problem.token[row], step, generator)
                check_finite(terms, step.cpu())
                found[draw, row.cpu()] += weight * problem.nfe * terms.double().cpu()
    return found


def path_bound(
    problem: Problem,
    paths: int = 1,
    generator: torch.Generator | None = None,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Float[Tensor, "paths calls n length"]:
    """Return the terms of every position along so many paths of its sequence, Eq. (28)-(32), in nats."""
    found = torch.zeros(paths, problem.nfe, *problem.token.shape, dtype=torch.float64)
    for path in range(paths):
        for row in torch.arange(len(problem.token), device=problem.token.device).split(batch):
            for chain, weight in zip(problem.chains, problem.weights, strict=True):
                terms = path_terms(problem.answer(row, batch, advance), chain, problem.token[row], generator)
                check_finite(terms.sum((0, 2)), torch.full((len(row),), -1))
                found[path][:, row.cpu()] += weight * terms.cpu()
    return found


def path_profile(problem: Problem, terms: Float[Tensor, "paths calls n length"]) -> Profile:
    """Return the mean over sequences of what `path_bound` found; the interval holds for the sequences' source."""
    each = terms.sum(-1).mean(0)  # [calls, n]
    curve = Curve(each.mean(1), each.var(1) / each.shape[1])
    chain = problem.chains[0]
    return Profile(sample_mean(each.sum(0)), curve, chain.grid.remaining if chain.asynchronous is None else None)


def check_finite(terms: Tensor, step: Int[Tensor, " n"]) -> None:
    """Refuse a term that is not a number, or infinite: no mean is made of it."""
    bad = ~terms.isfinite().reshape(len(terms), -1).all(-1).cpu()
    if bool(bad.any()):
        where = f" at step {int(step[bad][0])}" if int(step[bad][0]) >= 0 else ""
        raise InputError(
            f"{int(bad.sum())} of {len(terms)} sequences have a term of the bound that is not finite{where}: "
            "the model gives a token probability 0, or its weights are not finite; there is no bound to report"
        )

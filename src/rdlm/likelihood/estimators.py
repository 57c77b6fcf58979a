"""Estimators of a model's bound on data at `M` network evaluations: from single steps, or along whole paths.

| estimator | network evaluations | use |
|---|---|---|
| `stratified_bound` | one per sequence and step drawn, for any M | a mean over many sequences, a curve over steps |
| `per_window_bound` | a few per sequence, for any M | a long document, window by window |
| `path_bound` | M per path | a single text: the sum along a path has little variance |

All are unbiased estimates of the same number. Single steps use independent states (`fresh_law`). A path simulates the
chain to the given tokens and sums log-density ratios step by step: with an exact posterior the sum would be
`-log p(tokens)` on every path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.estimate import PER_BIN, Curve, Estimate, pair_strata, sample_mean, stratified
from rdlm.likelihood.terms import Posterior, mixture_excess, renoise, step_terms
from rdlm.process.exact import fresh_law
from rdlm.process.kernel import Chain, draw_token_step, mean_step_log_density, step_log_density
from rdlm.process.path import Law, Path
from rdlm.process.schedule import Grid
from rdlm.random import Rng, on_device


def path_terms(
    posterior: Posterior,
    chain: Chain,
    token: Int[Tensor, "batch length"],
    generator: Rng = None,
    dtype: torch.dtype = torch.float32,
    known: int = 0,
) -> Float[Tensor, "nfe batch length"]:
    """Return `log q_k(u) - log q_model(u)` of each position at each step `u` of one path per sequence.

    The mean of the sum over steps and positions is an upper bound on `-log p(token)`, Eq. (28)-(30) and (32). With
    `known` first tokens, clamped to their vertices from step 0, the sum over the others bounds
    `-log p(others | known)` of the sampler with that prompt.
    """
    digit, offsets = chain.split(token), _offsets(chain, token, known, generator)
    generator = on_device(generator, token.device)
    state = chain.path.bridge.start.point(dtype, token.device).repeat(*digit.shape, 1)
    if known:
        vertex = chain.path.bridge.tokens.at(digit, state)
        state = torch.where(chain.per_sphere(offsets < 0, digit)[..., None], vertex, state)
    terms = torch.zeros(chain.nfe, *token.shape, dtype=torch.float64, device=token.device)
    for step in range(chain.nfe):
        local = chain.token_steps.local_step(step, offsets)
        moving = (step >= offsets) & (local < chain.grid.steps)
        log_probs = posterior(state, chain.grid.remaining.to(state)[local])
        local = local.clamp_max(chain.grid.steps - 1)
        after, term = forced_step(chain, state, token, local, log_probs, generator)
        state = torch.where(chain.per_sphere(moving, digit)[..., None], after, state)
        terms[step] = torch.where(moving, term, 0.0)
    return terms


def _offsets(
    chain: Chain, token: Int[Tensor, "batch length"], known: int, generator: Rng
) -> Int[Tensor, "batch length"]:
    """Return the first step of each position, as in the sampler: known tokens end before step 0.

    The division into blocks does not depend on them.
    """
    if not known:
        return chain.offsets(token, generator)
    steps, first = chain.token_steps, known * chain.group
    own = chain.offsets(token, generator)[:, first:] if steps.block else chain.offsets(token[:, first:], generator)
    return torch.cat([torch.full_like(token[:, :first], -steps.steps), own], dim=1)


def forced_step(
    chain: Chain,
    state: Tensor,
    token: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probs: Float[Tensor, "batch length v"],
    generator: Rng = None,
) -> tuple[Tensor, Float[Tensor, "batch length"]]:
    """Return the states after one step of the tokens' bridges, Eq. (19), and each position's term, Eq. (28)-(32)."""
    bridge, digit = chain.path.bridge, chain.split(token)
    coefficients = chain.coefficients(chain.per_sphere(local, digit), state)
    move = draw_token_step(bridge, state, digit, coefficients, generator)
    density = step_log_density(bridge, state, move, coefficients)
    if chain.kernel == "mixture":
        term = mixture_excess(chain.join(density), log_probs, token)
    else:
        own = density.gather(-1, digit[..., None])[..., 0]
        probability = chain.marginals(log_probs.exp())
        term = chain.gather(own - mean_step_log_density(bridge, state, move, probability, coefficients))
    after = bridge.move(state, move)
    if chain.switch >= 0 and bool((chosen := local == chain.switch).any()):
        renoised, path_density = renoise(chain, token, state.dtype, generator)
        after = torch.where(chain.per_sphere(chosen, digit)[..., None], renoised, after)
        term = torch.where(chosen, mixture_excess(path_density, log_probs, token), term)
    last = local == chain.grid.steps - 1
    vertex = bridge.tokens.at(digit, state)
    after = torch.where(chain.per_sphere(last, digit)[..., None], vertex, after)
    return after, torch.where(last, -log_probs.gather(-1, token[..., None])[..., 0], term)


MANY, NUMBERS = 256, 1 << 19
"""Largest number of sequences whose states are drawn at once, and of values in them (they should fit into cache)."""

PROBABILITIES = 1 << 23
"""Largest number of log-probabilities of sequences that are evaluated at once, unless one sequence has more."""

Advance = Callable[[int], object]
"""Called with the number of sequences that have been evaluated, for a progress bar."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The sequences whose `-log p` is bounded, under a mixture of chains with the same number of steps, Eq. (31)."""

    token: Int[Tensor, "n length"]
    chains: tuple[Chain, ...]
    weights: tuple[float, ...]
    model: Callable[[Int[Tensor, " rows"], Tensor, Tensor], Tensor]
    """`log p(token | states)` of some rows of `token`, with their conditions: rows, states and remaining noise to
    [rows, length, v]."""
    known: int = 0
    """Tokens of a given prompt at the beginning of every sequence; only `path_bound` takes them."""
    batch: int = 16
    """Sequences per network evaluation."""

    def __post_init__(self) -> None:
        if self.token.ndim != 2 or self.token.shape[0] < 1 or self.token.shape[1] < 2:
            raise InputError(f"sequences of at least 2 tokens are needed, got a set of shape {tuple(self.token.shape)}")

    @property
    def nfe(self) -> int:
        """`M`, the number of network evaluations."""
        return self.chains[0].nfe

    @property
    def rows_at_once(self) -> int:
        """Return the number of sequences whose states are in memory together."""
        chain = self.chains[0]
        digits = 1 if chain.joint is None else chain.joint.digits
        vocabulary = chain.path.bridge.vocabulary if chain.joint is None else chain.joint.vocabulary
        width = max(digits * chain.path.bridge.dimension, 0 if chain.joint is None else vocabulary)
        few = max(1, PROBABILITIES // (self.token.shape[1] * vocabulary))
        return min(few, max(self.batch, min(MANY, NUMBERS // (self.token.shape[1] * width))))

    def log_probs(
        self, row: Int[Tensor, " rows"], state: Tensor, remaining: Tensor, advance: Advance = lambda count: None
    ) -> Float[Tensor, "rows length v"]:
        """Return the model's log-probabilities of some rows, evaluated `batch` of them at a time."""
        found = []
        for part in torch.arange(len(row), device=row.device).split(self.batch):
            found.append(self.model(row[part], state[part], remaining[part]))
            advance(len(part))
        return torch.cat(found)


@dataclass(frozen=True, eq=False)
class Profile:
    """The bound in nats per sequence, and its terms as a function of the remaining noise."""

    total: Estimate
    curve: Curve
    remaining: Float[Tensor, " bins+1"] | None
    """The remaining noise at the edges of the bins; None with a token schedule, where positions differ."""

    def cumulative(self) -> Float[Tensor, " bins+1"]:
        """Return the sum of the terms up to each edge of a bin, in nats."""
        return torch.cat([torch.zeros(1, dtype=torch.float64), self.curve.mean.cumsum(0)])


class RowSampler:
    """Rows of a data set in random order without replacement; a new permutation when all have been used."""

    def __init__(self, count: int, generator: Rng) -> None:
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
    generator: Rng = None,
    law: Callable[[Path, Grid], Law] = fresh_law,
    advance: Advance = lambda count: None,
) -> Profile:
    """Return the bound from single steps, Eq. (28)-(32), with about `evaluations` sequence-steps.

    Steps are stratified in bins of a few draws, and allocated in proportion to the standard deviations of a pilot. The
    interval holds for the mean over the source of the sequences, Eq. (65).
    """
    chains = len(problem.chains)
    bins = max(1, min(problem.nfe, evaluations * 4 // 5 // (PER_BIN * chains)))
    edges = torch.arange(bins + 1) * problem.nfe // bins
    order = RowSampler(len(problem.token), generator)
    laws = [law(chain.path, chain.grid) for chain in problem.chains]

    def measure(stratum: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        value, rows = torch.zeros(len(stratum), dtype=torch.float64), torch.zeros(len(stratum), dtype=torch.long)
        first, size = edges[stratum % bins], torch.diff(edges)[stratum % bins]
        step = first + (torch.rand(len(stratum), generator=generator) * size).long().minimum(size - 1)
        for number in stratum.div(bins, rounding_mode="floor").unique().tolist():
            chosen = (stratum // bins == number).nonzero()[:, 0]
            rows[chosen] = order.take(len(chosen))
            row = rows[chosen].to(problem.token.device)
            terms = step_terms(
                partial(problem.log_probs, row, advance=advance),
                problem.chains[number],
                laws[number],
                problem.token[row],
                step[chosen].to(row.device),
                generator,
            )
            check_finite(terms, step[chosen])
            weight = problem.weights[number] * size[chosen]
            value[chosen] = weight * terms.double().sum(-1).cpu()
        return value, rows

    # The chains of a mixture use the same bins.
    curve = stratified(measure, chains * bins, evaluations, problem.rows_at_once).folded(chains)
    chain = problem.chains[0]
    return Profile(curve.total, curve, chain.grid.remaining[edges] if chain.asynchronous is None else None)


def per_window_bound(
    problem: Problem, draws: int, generator: Rng = None, advance: Advance = lambda count: None
) -> Float[Tensor, "draws n length"]:
    """Return `draws` estimates of each position's part of every sequence's bound, Eq. (28)-(32), in nats.

    Each estimate is a single step; the steps of a sequence are stratified over parts of its chain, if there are enough
    of them two in each part (`pair_strata`), so that their differences give the error.
    """
    found = torch.zeros(draws, *problem.token.shape, dtype=torch.float64, device=problem.token.device)
    laws = [fresh_law(chain.path, chain.grid) for chain in problem.chains]
    sizes = torch.bincount(pair_strata(draws))
    firsts = sizes.cumsum(0) - sizes
    parts = [(int(firsts[part]), int(sizes[part])) for part in pair_strata(draws).tolist()]
    for row in torch.arange(len(problem.token), device=problem.token.device).split(problem.rows_at_once):
        for draw, (first, size) in enumerate(parts):
            quantile = (first + size * torch.rand(len(row), generator=generator)) / draws
            step = (quantile * problem.nfe).long().clamp_max(problem.nfe - 1).to(row.device)
            for chain, weight, law in zip(problem.chains, problem.weights, laws, strict=True):
                posterior = partial(problem.log_probs, row, advance=advance)
                terms = step_terms(posterior, chain, law, problem.token[row], step, generator)
                found[draw, row] += weight * problem.nfe * terms.double()
    # Once, as every read synchronises with the device.
    check_finite(found.transpose(0, 1), torch.full((len(problem.token),), -1))
    return found.cpu()


def path_bound(
    problem: Problem, paths: int = 1, generator: Rng = None, advance: Advance = lambda count: None
) -> Float[Tensor, "paths nfe n length"]:
    """Return the terms of every position along `paths` simulated paths of its sequence, Eq. (28)-(32), in nats."""
    found = torch.zeros(paths, problem.nfe, *problem.token.shape, dtype=torch.float64, device=problem.token.device)
    for path in range(paths):
        for row in torch.arange(len(problem.token), device=problem.token.device).split(problem.batch):
            for chain, weight in zip(problem.chains, problem.weights, strict=True):
                posterior, token = partial(problem.log_probs, row, advance=advance), problem.token[row]
                terms = path_terms(posterior, chain, token, generator, known=problem.known)
                found[path][:, row] += weight * terms
    check_finite(found.sum((0, 1, 3)), torch.full((len(problem.token),), -1))
    return found.cpu()


def path_profile(problem: Problem, terms: Float[Tensor, "paths nfe n length"]) -> Profile:
    """Return the mean over sequences of the terms of `path_bound`; the interval holds for the sequences' source."""
    each = terms.sum(-1).mean(0)  # [nfe, n]
    curve = Curve(each.mean(1), each.var(1) / each.shape[1])
    chain = problem.chains[0]
    return Profile(sample_mean(each.sum(0)), curve, chain.grid.remaining if chain.asynchronous is None else None)


def check_finite(terms: Tensor, step: Int[Tensor, " n"]) -> None:
    """Raise InputError if a term is NaN or infinite."""
    bad = (~terms.isfinite()).reshape(len(terms), -1).any(-1).cpu()
    if bool(bad.any()):
        where = f" at step {int(step[bad][0])}" if int(step[bad][0]) >= 0 else ""
        raise InputError(
            f"{int(bad.sum())} of {len(terms)} sequences have a term of the bound that is not finite{where}: "
            "the model assigns a token probability 0, or its weights are not finite; there is no bound to report"
        )

"""The likelihood of a reading, for comparing readings, channels or models, and the error rate that maximises it.

| function | result | network calls |
|---|---|---|
| `observation_bound` | an upper bound on `-log p(reading)`, Eq. (58) | twice the steps per draw |
| `pseudo_log_likelihood` | a cheap score for comparing readings, not a bound | one row per position |
| `estimate_error` | the error rate under which a reading is most likely, with an interval | a few per window |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.api.decoding import certain, check_evidence, marginals, overlapping_windows, posterior_of, rows_of_call
from rdlm.api.language_model import LanguageModel
from rdlm.data.evidence import Evidence
from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sample_mean
from rdlm.process.order import TokenSchedule, TokenSteps
from rdlm.random import generator_of

ITERATIONS: Final = 30
"""Most iterations of the estimate of an error rate."""

LEAST_ERROR: Final = 1e-4
"""Smallest estimate of an error rate."""

STEEPEST: Final = 0.95
"""Largest slope by which iterations are extrapolated."""

SPREAD, FEW = 32, 4
"""Windows of a long text in which an error rate is estimated; one of so many of them is read for a first estimate."""


@torch.no_grad()
def pseudo_log_likelihood(model: LanguageModel, evidence: Evidence) -> float:
    """Return `sum_i log sum_k p(k | the reading elsewhere) lambda_i(k)` in nats for one window.

    Each position is predicted without its own evidence, in one row of a network call. The sum is not the likelihood of
    the reading, nor a bound on it.
    """
    given = check_evidence(model, evidence)
    length = len(given)
    if length > model.length:
        raise InputError(f"the likelihood is for one window of at most {model.length} positions, got {length}")
    total = float(evidence.double().amax(-1).sum())  # `check_evidence` has removed it
    for position in torch.arange(length).split(rows_of_call(length)):
        row = torch.arange(len(position))
        others = given.expand(len(position), -1, -1).clone()
        others[row, position] = 0.0
        law = posterior_of(model.rdlm, others)[row, position].double()  # [rows, V]
        total += float(torch.logsumexp(law + given[position].double(), -1).sum())
    return total


@torch.no_grad()
def observation_bound(
    model: LanguageModel, evidence: Evidence, draws: int = 8, steps: int | None = None, seed: int = 0
) -> Estimate:
    """Return an upper bound on `-log p(reading)` in nats for one window, Eq. (58), with its standard error.

    Sequences are drawn with the evidence and scored without it, in the same random order of positions.
    """
    given = check_evidence(model, evidence)
    if len(given) > model.length:
        raise InputError(f"the bound is for one window of at most {model.length} positions, got {len(given)}")
    offset = float(evidence.double().amax(-1).sum())  # `check_evidence` has removed it
    token_steps = TokenSchedule(1e-6, "strided").discretize(min(steps or len(given), len(given)), len(given))
    many, posterior = rows_of_call(len(given)), partial(posterior_of, model.rdlm)
    values = [
        free_energy(posterior, given, rows, token_steps, generator_of("free energy", seed, index))
        for index, rows in enumerate([many] * (draws // many) + [draws % many])
        if rows
    ]
    return sample_mean(torch.cat(values) - offset)


@torch.no_grad()
def free_energy(
    posterior: Callable[[Tensor], Tensor],
    given: Float[Tensor, "length v"],
    rows: int,
    token_steps: TokenSteps,
    generator: torch.Generator,
) -> Float[Tensor, " rows"]:
    """Return `log r(k) - log p(k) - sum_i log lambda_i(k_i)` of sequences drawn from `r`, Eq. (58).

    In every step some positions are drawn from `r`, with the evidence, and scored by `p`, without it, given those
    before.
    """
    length, size = given.shape
    offsets = token_steps.offsets(rows, length, generator).to(given.device)
    with_evidence = given.expand(rows, -1, -1).clone()
    without = torch.zeros_like(with_evidence)
    value = torch.zeros(rows, dtype=torch.float64)
    for step in range(token_steps.nfe):
        deciding = offsets == step  # [rows, length]
        if not bool(deciding.any()):
            continue
        proposal, model = (posterior(evidence).double().cpu() for evidence in (with_evidence, without))
        token = torch.multinomial(proposal.exp().flatten(0, 1), 1, generator=generator).view(rows, length)
        index = token[..., None]
        excess = (proposal - model - given.double().cpu()).gather(-1, index)[..., 0]
        value += torch.where(deciding.cpu(), excess, 0.0).sum(-1)
        known = certain(token, size).to(given)
        with_evidence = torch.where(deciding[..., None], known, with_evidence)
        without = torch.where(deciding[..., None], known, without)
    return value


# -- error rates ----------------------------------------------------------------------------------------


class ErrorRate(NamedTuple):
    """The error rate of a channel: a given one, or an estimate with a 95% interval."""

    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"{self.value:.3g}" + ("" if self.interval is None else " [{:.2g}, {:.2g}]".format(*self.interval))

    @staticmethod
    def of(rate: float, slope: float, symbols: int) -> ErrorRate:
        """Return an estimate from `symbols` that were read, where expectation maximisation has that slope.

        The slope is the share of the information that is missing because errors are not known: the likelihood falls
        from its maximum as that of `symbols (1 - slope)` symbols with known errors, by their number times KL(rate, x).
        The interval has all rates x at which it has fallen by less than 1.96^2 / 2.
        """
        limit = 1.96**2 / 2 / (symbols * (1 - slope))
        low, high = (_farthest(rate, end, limit) for end in (0.0, 1.0))
        return ErrorRate(rate, (low if low > LEAST_ERROR else 0.0, high))


def _farthest(rate: float, end: float, limit: float) -> float:
    """Return the rate x between `rate` and `end` at which the divergence KL(rate, x) of two coins is `limit`."""
    near, far = rate, end
    for _ in range(40):
        middle = (near + far) / 2
        divergence = rate * math.log(rate / middle) + (1 - rate) * math.log((1 - rate) / (1 - middle))
        near, far = (middle, far) if divergence < limit else (near, middle)
    return near


@torch.no_grad()
def estimate_error(
    model: LanguageModel,
    reading: Callable[[float], Evidence],
    read: Int[Tensor, " positions"],
    first: float = 0.1,
    tolerance: float = 0.01,
) -> ErrorRate:
    """Return the error rate of a channel by expectation maximisation: the expected share of wrong symbols.

    `reading` gives the evidence for an error rate, `read` the symbols that were read, -1 where nothing was. Of a long
    text `SPREAD` windows are read, and a few of them until the rate is known roughly.
    """
    if not bool((read >= 0).any()):
        raise InputError("an error rate cannot be estimated from a text without readable symbols")
    spans, rate, slope = _spread_windows(read, model.length), first, None
    for part, near in ((spans[::FEW], FEW * tolerance), (spans, tolerance)):
        rate, slope = _fixed_point(partial(_expected_errors, model, reading, read, part), rate, slope, near)
    return ErrorRate.of(rate, slope or 0.0, int(_counted_once(read, spans).sum()))


def _spread_windows(read: Int[Tensor, " positions"], window: int) -> list[tuple[int, int]]:
    """Return spans of at most `window` positions with readable symbols, evenly spread, that cover a short text."""
    size = min(window, len(read))
    count = min(SPREAD, math.ceil(len(read) / size))
    begins = [round(number * (len(read) - size) / max(count - 1, 1)) for number in range(count)]
    spans = [(begin, begin + size) for begin in begins]
    readable = [(begin, end) for begin, end in spans if bool((read[begin:end] >= 0).any())]
    return readable or overlapping_windows(len(read), size)


def _expected_errors(
    model: LanguageModel,
    reading: Callable[[float], Evidence],
    read: Int[Tensor, " positions"],
    spans: Sequence[tuple[int, int]],
    rate: float,
) -> float:
    """Return the expected share of wrong symbols among those that were read in some windows, given an error rate."""
    evidence = reading(rate)
    given = torch.stack([check_evidence(model, evidence[begin:end]) for begin, end in spans])  # [windows, L, V]
    posterior = torch.cat([marginals(model, part) for part in given.split(rows_of_call(given.shape[1]))])
    symbol = torch.stack([read[begin:end] for begin, end in spans])
    right = posterior.gather(-1, symbol.clamp_min(0)[..., None])[..., 0]
    return float(1 - right[_counted_once(read, spans)].mean())


def _counted_once(read: Int[Tensor, " positions"], spans: Sequence[tuple[int, int]]) -> Bool[Tensor, "windows length"]:
    """Return the positions of windows at which a symbol was read; those in two windows count in the first."""
    counted = torch.stack([read[begin:end] for begin, end in spans]) >= 0
    for row, ((_, end), (begin, _)) in enumerate(pairwise(spans), 1):
        counted[row, : max(0, end - begin)] = False
    return counted


def _fixed_point(
    function: Callable[[float], float], rate: float, slope: float | None, tolerance: float
) -> tuple[float, float]:
    """Return a rate that a function maps to itself, and the function's slope there.

    Iterations are extrapolated by the slope between the last two, at first by the one given: those of EM are slow.
    """
    before: tuple[float, float] | None = None
    for _ in range(ITERATIONS):
        new = function(rate)
        if before is not None and rate != before[0]:
            slope = min(max((new - before[1]) / (rate - before[0]), 0.0), STEEPEST)
        before, step = (rate, new), (new - rate) / (1 - (slope or 0.0))
        found = min(max(rate + step, min(new, rate / 4), LEAST_ERROR), 0.99)
        if abs(found - rate) <= tolerance * rate and slope is not None:
            return found, slope
        rate = found
    return rate, slope or 0.0

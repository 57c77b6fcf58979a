"""Stratified estimates of the bound: every step of the chain gets its share, and the error is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.oracle import FreshLaw
from rdlm.likelihood.terms import Posterior, step_terms
from rdlm.process.kernel import Chain

CONFIDENCE = 1.96
"""Standard errors on either side of a 95% interval, where the standard error itself is well known."""

PILOT = 8
"""Fewest evaluations from which the spread of a group of strata is judged."""

FEWEST = 4
"""Fewest evaluations of a stratum."""

MANY_ROWS = 16
"""Rows from which their errors are judged together."""

CHUNK = 1 << 14
"""Sequences evaluated at once."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; `claims_bound` says whether it is a bound at all."""

    value: float
    stderr: float
    claims_bound: bool = True
    freedom: float = math.inf
    """Degrees of freedom behind the standard error: few of them widen the interval."""

    @property
    def margin(self) -> float:
        """Return half the width of the 95% interval."""
        return 0.0 if self.stderr == 0 else student(self.freedom) * self.stderr

    @property
    def low(self) -> float:
        """Return the lower end of the 95% interval."""
        return self.value - self.margin

    @property
    def high(self) -> float:
        """Return the upper end of the 95% interval."""
        return self.value + self.margin

    def __add__(self, other: Estimate) -> Estimate:
        """Return the sum of two independent estimates; it claims a bound only where both do.

        The degrees of freedom are Satterthwaite's.
        """
        stderr = math.hypot(self.stderr, other.stderr)
        fourth = self.stderr**4 / self.freedom + other.stderr**4 / other.freedom
        freedom = stderr**4 / fourth if fourth > 0 else math.inf
        return Estimate(self.value + other.value, stderr, self.claims_bound and other.claims_bound, freedom)

    def __mul__(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.stderr * abs(factor), self.claims_bound, self.freedom)


def student(freedom: float) -> float:
    """Return the 97.5% quantile of Student's law by its expansion in 1 / freedom: within 4% from 2 on."""
    z, inverse = CONFIDENCE, 1 / freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + inverse * (first + inverse * (second + inverse * third))


def sample_mean(value: Float[Tensor, " n"], claims_bound: bool = True) -> Estimate:
    """Return the mean of independent values; fewer than two have no error, and are refused."""
    if len(value) < 2:
        raise InputError(f"an interval needs at least 2 values, got {len(value)}")
    value = value.double()
    return Estimate(float(value.mean()), float(value.std()) / math.sqrt(len(value)), claims_bound, len(value) - 1)


def sum_over_rows(value: Float[Tensor, "draws rows"], claims_bound: bool = True) -> Estimate:
    """Return the sum over rows of the rows' means, from independent draws of each.

    The first draws of all rows may be of one kind (the first part of a comb), the second ones of another. For few rows
    their own errors add up. For many the error is that of what is left of the values without their row's and their
    draw's mean: how rows differ is no error of their sum, nor how kinds do. What rows and kinds have not in common
    counts as error, so that the interval is too wide rather than too narrow.
    """
    draws, rows = value.shape
    if rows < MANY_ROWS:
        each = [sample_mean(column, claims_bound) for column in value.T]
        return sum(each[1:], start=each[0])
    value = value.double()
    rest = value - value.mean(0) - value.mean(1, keepdim=True) + value.mean()
    freedom = (draws - 1) * (rows - 1)
    variance = float(rest.square().sum()) / freedom * rows / draws
    return Estimate(float(value.mean(0).sum()), math.sqrt(variance), claims_bound, freedom)


@dataclass(frozen=True, eq=False)
class Curve:
    """Where along the chain the information is gained: mean term and its variance of the mean at each step."""

    mean: Float[Tensor, " steps"]
    variance: Float[Tensor, " steps"]

    @property
    def total(self) -> Estimate:
        """Return the sum over steps."""
        return Estimate(float(self.mean.sum()), math.sqrt(float(self.variance.sum())))


Measure = Callable[[Int[Tensor, " n"]], Float[Tensor, " n"]]
"""Strata in, one draw of each one's share of the bound out: the strata's means add up to the bound."""


def stratified(measure: Measure, strata: int, evaluations: int, chunk: int = CHUNK) -> Curve:
    """Return every stratum's mean and its variance, from about `evaluations` draws.

    A fifth of them is a pilot, spread evenly over groups of neighbouring strata; the rest goes where the pilot
    found the spread (Neyman's allocation). The pilot only chooses the counts: the curve is made of the rest, and
    is unbiased.
    """

    def sample(stratum: Int[Tensor, " n"], bins: Int[Tensor, " n"], count: int) -> tuple[Tensor, Tensor, Tensor]:
        value = torch.cat([measure(part).double() for part in stratum.split(chunk)])
        number = torch.bincount(bins, minlength=count)
        mean = torch.zeros(count, dtype=torch.float64).index_add_(0, bins, value) / number
        square = torch.zeros_like(mean).index_add_(0, bins, (value - mean[bins]).square())
        return mean, square / (number - 1), number

    groups = min(strata, max(1, evaluations // (5 * PILOT)))
    group_of = torch.arange(strata) * groups // strata
    each = max(PILOT, evaluations // (5 * groups))
    # The draws of a group are spread evenly over its strata.
    first = torch.searchsorted(group_of, torch.arange(groups + 1))
    comb = torch.arange(each) / each
    pilot = (first[:-1, None] + comb * torch.diff(first)[:, None]).long().flatten()
    spread = sample(pilot, group_of[pilot], groups)[1].sqrt()[group_of]
    # A step that looked constant in the pilot may still vary: everyone keeps a tenth of an even share.
    share = 0.9 * spread / spread.sum().clamp_min(1e-300) + 0.1 / strata
    counts = (0.8 * evaluations * share).round().long().clamp_min(FEWEST)
    stratum = torch.arange(strata).repeat_interleave(counts)
    mean, variance, number = sample(stratum, stratum, strata)
    return Curve(mean, variance / number)


Draw = Callable[[int, torch.Generator | None], Int[Tensor, "n length"]]
"""Fresh sequences of a source: a count and a generator to tokens."""


def curve_of_source(
    posterior: Posterior,
    chain: Chain,
    draw: Draw,
    evaluations: int,
    generator: torch.Generator | None = None,
) -> Curve:
    """Return the bound's curve in nats per sequence of a source, from about so many sequence-steps, Eq. (28)-(30)."""
    law = FreshLaw(chain)  # draws from a table would share its error, which no interval sees

    def measure(step: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return step_terms(posterior, chain, law, draw(len(step), generator), step, generator).sum(-1)

    return stratified(measure, chain.nfe, evaluations)

"""Estimates with standard errors, and stratified sampling over the steps of a chain.

| variable | meaning |
|---|---|
| `stderr` | standard error of a mean |
| `freedom` | degrees of freedom of the standard error (Satterthwaite's for sums) |
| `stratum` | a step of the chain, or a bin of steps |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError

CONFIDENCE = 1.96
"""Standard errors on either side of a 95% interval for a known standard error."""

MANY_FREEDOM = 100
"""Degrees of freedom from which the expansion of Student's quantiles is accurate."""

PILOT = 8
"""Fewest evaluations from which the standard deviation of a group of strata is estimated."""

FEWEST = 4
"""Fewest evaluations of a stratum."""

PER_BIN = 16
"""Evaluations per bin of steps; with half of them, intervals are too narrow where the error is in rare terms."""

EVEN = 0.5
"""Share of the evaluations that is allocated evenly."""

PAIRED = 8
"""Least number of draws that are paired in strata."""

MANY_ROWS = 16
"""Number of rows from which their errors are pooled."""

ROWS_AT_ONCE = 1 << 14
"""Sequences evaluated at once."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; `claims_bound` is False for estimates that are not bounds."""

    value: float
    stderr: float
    claims_bound: bool = True
    freedom: float = math.inf
    """Degrees of freedom of the standard error; few of them widen the interval."""

    @property
    def margin(self) -> float:
        """Half the width of the 95% interval."""
        return 0.0 if self.stderr == 0 else student(self.freedom) * self.stderr

    @property
    def low(self) -> float:
        """The lower end of the 95% interval."""
        return self.value - self.margin

    @property
    def high(self) -> float:
        """The upper end of the 95% interval."""
        return self.value + self.margin

    def __add__(self, other: Estimate) -> Estimate:
        """Return the sum of two independent estimates, a bound only if both are.

        The degrees of freedom are Satterthwaite's.
        """
        stderr = math.hypot(self.stderr, other.stderr)
        fourth = self.stderr**4 / self.freedom + other.stderr**4 / other.freedom
        freedom = stderr**4 / fourth if fourth > 0 else math.inf
        return Estimate(self.value + other.value, stderr, self.claims_bound and other.claims_bound, freedom)

    def __mul__(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.stderr * abs(factor), self.claims_bound, self.freedom)


@lru_cache(maxsize=256)
def student(freedom: float, z: float = CONFIDENCE) -> float:
    """Return the quantile of Student's t at the level of the normal quantile `z`, for one or more degrees of freedom.

    For few of them, by the distribution of `phi` in `t = sqrt(freedom) tan(phi)`, whose density is proportional to
    `cos(phi)^(freedom - 1)`; for many, by the expansion in 1 / freedom.
    """
    if freedom < MANY_FREEDOM:
        phi = np.linspace(0, math.pi / 2, 1 << 14)
        density = np.cos(phi) ** (freedom - 1)
        below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        share = math.erf(z / math.sqrt(2))  # of the positive half
        return math.sqrt(freedom) * math.tan(float(np.interp(share * below[-1], below, phi)))
    inverse = 1 / freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + inverse * (first + inverse * (second + inverse * third))


def sample_mean(value: Float[Tensor, " n"], claims_bound: bool = True) -> Estimate:
    """Return the mean of at least two independent values with its standard error."""
    if len(value) < 2:
        raise InputError(f"an interval needs at least 2 values, got {len(value)}")
    value = value.double()
    return Estimate(float(value.mean()), float(value.std()) / math.sqrt(len(value)), claims_bound, len(value) - 1)


def sum_over_rows(value: Float[Tensor, "draws rows"], claims_bound: bool = True, paired: bool = False) -> Estimate:
    """Return the sum over rows of the rows' means, from draws that are independent, or `paired` in strata.

    The strata are those of `pair_strata`; fewer than `PAIRED` draws count as independent. With few rows of independent
    draws the rows' standard errors are combined. With many, the error is pooled from the residuals after removing row
    means and draw means: differences between rows, or between draws that all rows share, are no error of the sum. The
    interaction of rows and draws is counted as error, so the interval is conservative.
    """
    draws, rows = value.shape
    paired = paired and draws >= PAIRED
    if not paired and rows < MANY_ROWS:
        each = [sample_mean(column, claims_bound) for column in value.T]
        return sum(each[1:], start=each[0])
    value = value.double()
    total = float(value.mean(0).sum())
    if paired:
        variance, freedom = paired_variance(value)
        return Estimate(total, math.sqrt(variance), claims_bound, freedom)
    rest = value - value.mean(0) - value.mean(1, keepdim=True) + value.mean()
    freedom = (draws - 1) * (rows - 1)
    return Estimate(total, math.sqrt(float(rest.square().sum()) / freedom * rows / draws), claims_bound, freedom)


def pair_strata(draws: int) -> Int[Tensor, " draws"]:
    """Return the stratum of each draw: two draws per stratum, and three in the last if their number is odd.

    Fewer than `PAIRED` draws have a stratum each: wide strata would cost more than the pairs' variance is worth.
    """
    if draws < PAIRED:
        return torch.arange(draws)
    return (torch.arange(draws) // 2).clamp_max(draws // 2 - 1)


def paired_variance(value: Float[Tensor, "draws rows"]) -> tuple[float, float]:
    """Return the variance of the sum over rows of means over `pair_strata`, and its degrees of freedom, Eq. (64).

    Only differences within a stratum are errors of a stratified mean; the sample variance of all draws would count
    those between strata, too. The degrees of freedom are Satterthwaite's, with the moments of normal draws.
    """
    stratum = pair_strata(len(value))
    number = torch.bincount(stratum).double()[:, None]
    mean = torch.zeros(len(number), value.shape[1], dtype=torch.float64).index_add_(0, stratum, value) / number
    square = torch.zeros_like(mean).index_add_(0, stratum, (value - mean[stratum]).square())
    parts = number * square / (number - 1) / len(value) ** 2  # variances of the strata's shares
    variance, doubt = float(parts.sum()), float((parts.square() / (number + 1)).sum())  # E s^4 = (n+1)/(n-1) sigma^4
    return variance, max(2.0, variance**2 / doubt - 2) if doubt > 0 else math.inf


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean term at each step of a chain, and the variance of that mean."""

    mean: Float[Tensor, " steps"]
    variance: Float[Tensor, " steps"]
    doubt: Float[Tensor, " steps"] | None = None
    """`variance^2` over its degrees of freedom; None: the variances are known exactly."""
    shared: tuple[float, float] = (0.0, 0.0)
    """Variance of the sum because sequences were used several times, and its square over its degrees of freedom."""

    @property
    def total(self) -> Estimate:
        """The sum over steps; the degrees of freedom are Satterthwaite's."""
        variance = float(self.variance.sum()) + self.shared[0]
        doubt = 0.0 if self.doubt is None else float(self.doubt.sum()) + self.shared[1]
        freedom = max(2.0, variance**2 / doubt) if doubt > 0 else math.inf
        return Estimate(float(self.mean.sum()), math.sqrt(variance), freedom=freedom)

    def folded(self, parts: int) -> Curve:
        """Return the curve of `parts` chains whose steps follow each other, added step by step."""
        doubt = None if self.doubt is None else self.doubt.view(parts, -1).sum(0)
        return Curve(self.mean.view(parts, -1).sum(0), self.variance.view(parts, -1).sum(0), doubt, self.shared)


Measure = Callable[[Int[Tensor, " n"]], tuple[Float[Tensor, " n"], Int[Tensor, " n"] | None]]
"""Maps strata to one draw each of their part of the bound, and to the sequence of each draw (None: all are different).
The means of all strata sum to the bound."""


def stratified(measure: Measure, strata: int, evaluations: int, rows_at_once: int = ROWS_AT_ONCE) -> Curve:
    """Return every stratum's mean and its variance, from about `evaluations` draws.

    A fifth of them is a pilot, distributed evenly over groups of neighbouring strata; the rest is allocated in
    proportion to the pilot's standard deviations (Neyman allocation). The pilot only determines the counts and the
    curve is computed from the rest, so the estimate is unbiased. Its interval holds for the source of the sequences,
    also if each is used several times, Eq. (65).
    """

    def sample(stratum: Int[Tensor, " n"], bins: Int[Tensor, " n"], count: int) -> Curve:
        values, rows = zip(*[measure(part) for part in stratum.split(rows_at_once)], strict=True)
        value, number = torch.cat(values).double(), torch.bincount(bins, minlength=count)
        mean = torch.zeros(count, dtype=torch.float64).index_add_(0, bins, value) / number
        rest = (value - mean[bins]) / (number * (number - 1)).double().sqrt()[bins]
        variance = torch.zeros_like(mean).index_add_(0, bins, rest.square())
        row = [one for one in rows if one is not None]
        shared = shared_variance(rest, torch.cat(row)) if row else (0.0, 0.0)
        return Curve(mean, variance, variance.square() / (number - 1), shared)

    groups = min(strata, max(1, evaluations // (5 * PILOT)))
    group_of = torch.arange(strata) * groups // strata
    each = max(PILOT, evaluations // (5 * groups))
    # The draws of a group are distributed evenly over its strata.
    first = torch.searchsorted(group_of, torch.arange(groups + 1))
    quantile = torch.arange(each) / each
    pilot = (first[:-1, None] + quantile * torch.diff(first)[:, None]).long().flatten()
    deviation = sample(pilot, group_of[pilot], groups).variance.sqrt()[group_of]  # all groups have as many draws
    # The pilot misses rare large terms, of which the error consists where the posterior is good.
    share = (1 - EVEN) * deviation / deviation.sum().clamp_min(1e-300) + EVEN / strata
    counts = (0.8 * evaluations * share).round().long().clamp_min(FEWEST)
    stratum = torch.arange(strata).repeat_interleave(counts)
    return sample(stratum, stratum, strata)


def shared_variance(rest: Float[Tensor, " n"], row: Int[Tensor, " n"]) -> tuple[float, float]:
    """Return the covariance of draws of the same sequence, and its square over its degrees of freedom, Eq. (65).

    `rest` are the draws' deviations from their means in units in which their squares sum to the variance.
    """
    _, place = row.unique(return_inverse=True)
    each = torch.zeros(int(place.max()) + 1, dtype=torch.float64).index_add_(0, place, rest)
    variance = max(0.0, float(each.square().sum() - rest.square().sum()))
    return variance, variance**2 / max(1, len(each) - 1)

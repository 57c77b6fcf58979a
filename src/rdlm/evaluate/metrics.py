"""Metrics with their intervals, units and conventions, and the maximum mean discrepancy of two sets of samples.

| name | convention |
|---|---|
| bits_per_character | nats of all sequences / characters of their text / ln 2 |
| bits_per_dimension, bits_per_base | the same per pixel value, per base |
| perplexity_per_token | exp(nats of all sequences / their tokens) |
| perplexity_per_word | exp(nats of all sequences / their words), separated by whitespace within a sequence |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood import Estimate


@dataclass(frozen=True)
class Metric:
    """A number with its 95% interval, its unit, and the convention by which it was computed."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    unit: str
    convention: str

    def to_json(self) -> dict[str, object]:
        """Return the fields by their names."""
        return asdict(self)


def metric_of(estimate: Estimate, unit: str, convention: str) -> Metric:
    """Return an estimate as a metric."""
    return Metric(estimate.value, estimate.stderr, estimate.low, estimate.high, unit, convention)


def perplexity_metric(estimate: Estimate, convention: str) -> Metric:
    """Return `exp` of an estimate in nats, also of the ends of its interval; the standard error is of first order."""
    value, low, high = map(_exp, (estimate.value, estimate.low, estimate.high))
    return Metric(value, value * estimate.stderr, low, high, "perplexity", convention)


def _exp(nats: float) -> float:
    return math.inf if nats > 709 else math.exp(nats)  # the range of float64


def count_metric(value: int, unit: str, convention: str) -> Metric:
    """Return an exact count as a metric without an interval."""
    return Metric(float(value), None, None, None, unit, convention)


@dataclass(frozen=True)
class Size:
    """Mean number of tokens, characters and words of the evaluated sequences."""

    tokens: float
    characters: float
    words: float


def size_of_texts(texts: Sequence[str], tokens: int) -> Size:
    """Return the mean size of texts with `tokens` tokens in total."""
    return Size(
        tokens / len(texts),
        sum(map(len, texts)) / len(texts),
        sum(len(text.split()) for text in texts) / len(texts),
    )


def likelihood(nats: Estimate, size: Size, kind: str, what: str) -> dict[str, Metric]:
    """Return the metrics of a bound in nats per sequence, for text, images or DNA; `what` describes the bound."""
    bits = 1 / math.log(2)
    found = {"nats_per_sequence": metric_of(nats, "nats", what)}
    if kind != "text":
        name, unit = ("bits_per_dimension", "pixel value") if kind == "image" else ("bits_per_base", "base")
        found[name] = metric_of(nats * (bits / size.tokens), f"bits per {unit}", f"{what}; over all {unit}s")
        return found
    per_token = nats * (1 / size.tokens)
    found["bits_per_character"] = metric_of(
        nats * (bits / size.characters), "bits per character", f"{what}; over the characters of the decoded sequences"
    )
    found["perplexity_per_token"] = perplexity_metric(per_token, f"{what}; exp of nats per token")
    if size.words > 0:
        found["perplexity_per_word"] = perplexity_metric(
            nats * (1 / size.words),
            f"{what}; exp of nats per whitespace-separated word of each sequence, no end-of-text token",
        )
    return found


# -- calibration -----------------------------------------------------------------------------------------------------

_BINS: Final = 15
"""Bins of the probability of the best symbol."""


@dataclass(frozen=True)
class Calibration:
    """Accuracy of predictions by their certainty: per bin the mean certainty, the share right, and the number."""

    certainty: Float[Tensor, " bins"]
    right: Float[Tensor, " bins"]
    count: Int[Tensor, " bins"]
    variance: Float[Tensor, " bins"]
    """Mean over the predictions of a bin of `p (1 - p)`, the variance of a prediction that is right with chance p."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over predictions of `|share right - certainty|` of their bin."""
        return float((self.count * (self.right - self.certainty).abs()).sum() / self.count.sum())

    @property
    def floor(self) -> float:
        """The expected error of calibrated predictions of these certainties, if they are right independently.

        The share right of a bin is nearly normal around its certainty, with variance `variance / count`.
        """
        return float((2 / math.pi * self.count * self.variance).sqrt().sum() / self.count.sum())


def calibration(law: Float[Tensor, "n v"], truth: Int[Tensor, " n"], bins: int = _BINS) -> Calibration:
    """Return the calibration of the most likely symbols of distributions; empty bins are left out."""
    certainty, best = law.double().max(-1)
    index = (certainty * bins).long().clamp_max(bins - 1)
    count = torch.bincount(index, minlength=bins)
    used, right = count > 0, (best == truth).double()
    means = [
        torch.bincount(index, one, bins)[used] / count[used] for one in (certainty, right, certainty - certainty**2)
    ]
    return Calibration(means[0], means[1], count[used], means[2])


# -- maximum mean discrepancy ----------------------------------------------------------------------------------------

_ROWS: Final = 1024
"""Rows of the kernel matrix that are in memory at once."""

_MEDIAN_SAMPLE: Final = 512
"""Samples of each set from which the median distance is computed."""


@dataclass(frozen=True)
class Discrepancy:
    """The squared discrepancy `value`, and its range for two sets from one distribution.

    `low` and `high` enclose 95% of the values under random exchanges between the two sets; `p_value` is the share of
    exchanges with at least `value` (never 0, because the given assignment counts as one).
    """

    value: float
    low: float
    high: float
    p_value: float


def permutation_test(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "m d"],
    permutations: int = 200,
    generator: torch.Generator | None = None,
    bandwidth: float | None = None,
) -> Discrepancy:
    """Return the unbiased squared discrepancy, Eq. (43), and its distribution under exchanges between the two sets.

    The kernel is Gaussian; its default bandwidth is the median distance between the samples. The estimate can be
    negative.
    """
    if permutations < 1:
        raise InputError(f"a permutation test needs at least one permutation, got {permutations}")
    count = len(x) + len(y)
    order = torch.rand(count, permutations, generator=generator).argsort(0)
    exchanged = (order < len(x)).double()
    values = _statistics(x, y, torch.cat([_first_set(x, y), exchanged], dim=1), bandwidth)
    observed, null = values[0], values[1:]
    low, high = null.quantile(torch.tensor([0.025, 0.975], dtype=null.dtype)).tolist()
    beyond = int((null >= observed).sum())
    return Discrepancy(float(observed), low, high, (1 + beyond) / (1 + permutations))


def median_bandwidth(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> float:
    """Return the median distance between distinct samples, from the first few hundred of each set."""
    some = torch.cat([x[:_MEDIAN_SAMPLE], y[:_MEDIAN_SAMPLE]]).double()
    distance = torch.pdist(some - some.mean(0))
    positive = distance[distance > 0]
    return float(positive.median()) if len(positive) else 1.0


def _first_set(x: Tensor, y: Tensor) -> Tensor:
    """Return the indicator [n + m, 1] of the samples of `x`."""
    return torch.cat([torch.ones(len(x), 1), torch.zeros(len(y), 1)]).double()


def _statistics(x: Tensor, y: Tensor, first: Tensor, bandwidth: float | None) -> Tensor:
    """Return Eq. (43) for every column of `first` [n + m, columns], the indicators of the first set.

    The kernel matrix is computed `_ROWS` rows at a time; each part serves all columns in one matrix product.
    """
    n, m = len(x), len(y)
    if min(n, m) < 2 or x.shape[1:] != y.shape[1:]:
        raise InputError(
            f"MMD needs two sets of at least 2 vectors of one length, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    width = median_bandwidth(x, y) if bandwidth is None else bandwidth
    if not (math.isfinite(width) and width > 0):
        raise InputError(f"the bandwidth of a kernel must be positive, got {width}")
    pooled = torch.cat([x, y]).double()
    pooled = pooled - pooled.mean(0)  # same distances, less cancellation in their squares
    square = pooled.square().sum(1)
    columns = torch.cat([first, torch.ones(n + m, 1, dtype=torch.float64)], dim=1)
    product = torch.empty_like(columns)
    for begin in range(0, n + m, _ROWS):
        rows = slice(begin, min(begin + _ROWS, n + m))
        distance = torch.addmm(square[rows, None] + square, pooled[rows], pooled.T, alpha=-2)
        kernel = distance.clamp_(min=0).mul_(-1 / (2 * width**2)).exp_()
        kernel.diagonal(offset=begin).zero_()  # a sample is not compared with itself
        product[rows] = kernel @ columns
    within_first = (first * product[:, :-1]).sum(0)
    from_first = first.T @ product[:, -1]
    within_second = product[:, -1].sum() - 2 * from_first + within_first
    across = from_first - within_first
    return within_first / (n * (n - 1)) + within_second / (m * (m - 1)) - 2 * across / (n * m)

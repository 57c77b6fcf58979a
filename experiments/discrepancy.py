"""The maximum mean discrepancy of two sets of samples, Eq. (43), with a permutation test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError

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

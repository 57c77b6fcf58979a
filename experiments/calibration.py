"""The expected calibration error of predictions, and its value for calibrated ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS: Final = 15
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


def calibration(law: Float[Tensor, "n v"], truth: Int[Tensor, " n"]) -> Calibration:
    """Return the calibration of the most likely symbols of distributions; empty bins are left out."""
    certainty, best = law.double().max(-1)
    index = (certainty * BINS).long().clamp_max(BINS - 1)
    count = torch.bincount(index, minlength=BINS)
    used, right = count > 0, (best == truth).double()
    means = [
        torch.bincount(index, one, BINS)[used] / count[used] for one in (certainty, right, certainty - certainty**2)
    ]
    return Calibration(means[0], means[1], count[used], means[2])

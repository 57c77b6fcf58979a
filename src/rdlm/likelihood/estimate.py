"""Stratified estimates of the bound: every step of the chain gets its share, and the error is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.likelihood.terms import Posterior, step_terms
from rdlm.process.chain import Chain

CONFIDENCE = 1.96
"""Standard errors on either side of a 95% interval."""

PILOT = 8
"""Fewest sequences at a step from which its spread is judged."""

CHUNK = 1 << 14
"""Sequences evaluated at once."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; `claims_bound` says whether it is a bound at all."""

    value: float
    stderr: float
    claims_bound: bool = True

    @property
    def low(self) -> float:
        """Return the lower end of the 95% interval."""
        return self.value - CONFIDENCE * self.stderr

    @property
    def high(self) -> float:
        """Return the upper end of the 95% interval."""
        return self.value + CONFIDENCE * self.stderr

    def __add__(self, other: Estimate) -> Estimate:
        """Return the sum of two independent estimates; it claims a bound only where both do."""
        stderr = math.hypot(self.stderr, other.stderr)
        return Estimate(self.value + other.value, stderr, self.claims_bound and other.claims_bound)

    def __mul__(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.stderr * abs(factor), self.claims_bound)


@dataclass(frozen=True, eq=False)
class Curve:
    """Where along the chain the information is gained: mean term and its variance of the mean at each step."""

    mean: Float[Tensor, " steps"]
    variance: Float[Tensor, " steps"]

    @property
    def total(self) -> Estimate:
        """Return the sum over steps."""
        return Estimate(float(self.mean.sum()), math.sqrt(float(self.variance.sum())))


Draw = Callable[[int, torch.Generator | None], Int[Tensor, "n length"]]
"""Fresh sequences of a source: a count and a generator to tokens."""


def curve_of_source(
    posterior: Posterior,
    chain: Chain,
    draw: Draw,
    evaluations: int,
    generator: torch.Generator | None = None,
    pairs: int = 8192,
) -> Curve:
    """Return the bound's curve in nats per sequence of a source, from about so many sequence-steps, Eq. (28)-(30).

    A fifth of them is spread evenly over the steps; the rest goes where that pilot found the spread of the
    terms (Neyman's allocation). The pilot only chooses the counts: the curve is made of the rest, and is unbiased.
    """
    law = chain.law(pairs, generator)

    def sample(counts: Int[Tensor, " steps"]) -> tuple[Tensor, Tensor]:
        steps = torch.arange(chain.calls).repeat_interleave(counts)
        value = torch.cat(
            [
                step_terms(posterior, chain, law, draw(len(part), generator), part, generator).sum(-1).double()
                for part in steps.split(CHUNK)
            ]
        )
        mean = torch.zeros(chain.calls, dtype=torch.float64).index_add_(0, steps, value) / counts
        square = torch.zeros_like(mean).index_add_(0, steps, (value - mean[steps]).square())
        return mean, square / (counts - 1)

    pilot = torch.full((chain.calls,), max(PILOT, evaluations // (5 * chain.calls)))
    spread = sample(pilot)[1].sqrt()
    # A step that looked constant in the pilot may still vary: everyone keeps a tenth of an even share.
    share = 0.9 * spread / spread.sum().clamp_min(1e-300) + 0.1 / chain.calls
    counts = (0.8 * evaluations * share).long().clamp_min(PILOT)
    mean, variance = sample(counts)
    return Curve(mean, variance / counts)

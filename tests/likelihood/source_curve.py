"""The bound of a source with a known distribution, whose sequences are drawn anew for every step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rdlm.likelihood.estimate import Curve, stratified
from rdlm.likelihood.terms import Posterior, step_terms
from rdlm.process.exact import FreshLaw
from rdlm.process.kernel import Chain

Draw = Callable[[int, torch.Generator | None], Tensor]
"""Samples sequences of a source: maps a count and a generator to tokens [n, length]."""


def curve_of_source(
    posterior: Posterior, chain: Chain, draw: Draw, evaluations: int, generator: torch.Generator | None = None
) -> Curve:
    """Return the bound's curve in nats per sequence of a source, from about `evaluations` steps, Eq. (28)-(30)."""
    law = FreshLaw(chain.path, chain.grid)  # draws from a table would share an error that the interval does not cover

    def measure(step: Tensor) -> tuple[Tensor, None]:
        return step_terms(posterior, chain, law, draw(len(step), generator), step, generator).sum(-1), None

    return stratified(measure, chain.nfe, evaluations)

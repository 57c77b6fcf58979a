"""Samples of a model: any condition, any solver, any length, and the same sample for the same seed.

Sample `i` of a request with seed `s` has the seed `s + i`, and depends on nothing else: not on the batch, not on how
many others are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.language_model import LanguageModel
from rdlm.sampler.plan import Plan, Progress
from rdlm.sampler.request import Request
from rdlm.sampler.trace import Trace


@dataclass(frozen=True)
class Sample:
    """One sample: its ids, their text, and the seed that makes it again."""

    tokens: tuple[int, ...]
    text: str
    seed: int


@dataclass(frozen=True, eq=False)
class Generation:
    """Samples, and how they were made."""

    samples: tuple[Sample, ...]
    request: Request
    network_calls: int
    """Network calls that one sample took."""
    invalid_codes: int
    """Digits drawn anew because they spelled no token."""
    claims_bound: bool
    """Whether the likelihood bound of the same steps and grid holds for these very samples."""
    trace: Trace | None = None

    @property
    def tokens(self) -> Int[Tensor, "num length"]:
        """Return the ids of all samples."""
        return torch.tensor([sample.tokens for sample in self.samples])


def generate(
    model: LanguageModel, request: Request | None = None, *, progress: Progress | None = None, **options: Any
) -> Generation:
    """Return samples of the model; `options` are fields of a `Request`, such as `num=4, prompt="the "`."""
    plan = Plan.of(model, replace(request or Request(), **options))
    network = model.rdlm.network
    training = network.training
    network.eval()
    trace = Trace(model) if plan.request.trace else None
    try:
        tokens, invalid = plan.run(progress, trace)
    finally:
        network.train(training)
    if trace is not None:
        trace.finish(tokens[0])
    samples = tuple(
        Sample(tuple(row), model.tokenizer.decode(row), plan.request.seed + index)
        for index, row in enumerate(tokens.tolist())
    )
    return Generation(samples, plan.request, plan.network_calls, invalid, plan.claims_bound, trace)

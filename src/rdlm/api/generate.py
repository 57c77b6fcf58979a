"""Samples of a model: any condition, any solver, any length, and the same sample for the same seed.

Sample `i` of a request with seed `s` has the seed `s + i`, and depends on nothing else: not on the batch, not on how
many others are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rdlm.api import notebook as display
from rdlm.api.language_model import LanguageModel
from rdlm.api.plan import Plan, Progress
from rdlm.api.render import Trace
from rdlm.api.request import Request
from rdlm.errors import InputError
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.rdlm import Rdlm
from rdlm.random import generator_of
from rdlm.sampling.prompt import OPEN

RIVALS: Final = ("num", "length", "steps", "seed", "batch")
"""What can be asked of a method other than rdlm."""

SHOWN = 60
"""Characters of a sample in a line that stands for it."""


@dataclass(frozen=True)
class Sample:
    """One sample: its ids, their text, and the seed that makes it again."""

    tokens: tuple[int, ...]
    text: str
    seed: int

    def __repr__(self) -> str:
        return f"Sample({_short(self.text)!r}, seed={self.seed})"

    def _repr_html_(self) -> str:
        return display.sample(self)


@dataclass(frozen=True, eq=False)
class Generation:
    """Samples, and how they were made."""

    samples: tuple[Sample, ...]
    request: Request
    network_calls: int
    """Network calls that a sample took, at most: steps in which nothing of it moves take none."""
    invalid_codes: int
    """Codes chosen anew because their digits spelled no token."""
    claims_bound: bool
    """Whether the likelihood bound of the same steps and grid holds for these very samples."""
    trace: Trace | None = None
    model: LanguageModel | None = None
    """Whose samples these are."""
    known: tuple[bool, ...] = ()
    """Which tokens were given, such as a prompt's; empty where none could be."""

    def __repr__(self) -> str:
        bound = "its bound holds" if self.claims_bound else "no bound holds"
        first = _short(self.samples[0].text)
        return f"<Generation of {len(self.samples)}, {self.network_calls} network calls each, {bound}: {first!r}>"

    def _repr_html_(self) -> str:
        return display.generation(self)

    @property
    def tokens(self) -> Int[Tensor, "num length"]:
        """Return the ids of all samples."""
        return torch.tensor([sample.tokens for sample in self.samples])


def generate(
    model: LanguageModel, request: Request | None = None, *, progress: Progress | None = None, **options: Any
) -> Generation:
    """Return samples of the model; `options` are fields of a `Request`, such as `num=4, prompt="the "`."""
    request = replace(request or Request(), **options)
    with _at_rest(model.method.network):
        if not isinstance(model.method, Rdlm):
            return _of_rival(model, request, progress)
        plan = Plan.of(model, request)
        trace = Trace(model) if plan.request.trace else None
        tokens, invalid, nfe = plan.run(progress, trace)
    if trace is not None:
        trace.finish(tokens[0])
    samples = _samples(model, tokens, plan.request.seed)
    known = tuple((plan.template.known != OPEN).tolist())
    return Generation(samples, plan.request, int(nfe.max()), invalid, plan.claims_bound, trace, model, known)


def _of_rival(model: LanguageModel, request: Request, progress: Progress | None) -> Generation:
    """Return samples of another method, which knows no condition and no choice but the number of its steps."""
    plain = Request(**{name: getattr(request, name) for name in RIVALS})
    others = [field.name for field in fields(Request) if getattr(request, field.name) != getattr(plain, field.name)]
    length = request.length or model.length
    if others or length > model.length:
        raise InputError(
            f"a model of the method {model.config.method!r} samples sequences of up to {model.length} tokens, and with "
            f"{', '.join(RIVALS)} alone; leave out {', '.join(others) or f'length {length}'}"
        )
    rows, steps = [], request.steps or model.nfe
    for number in range(request.num):
        rows.append(model.method.generate(1, length, steps, generator_of("sample", request.seed + number)))
        if progress is not None:
            progress(number + 1, request.num)
    nfe = length if isinstance(model.method, Autoregressive) else steps
    samples = _samples(model, torch.cat(rows), request.seed)
    return Generation(samples, replace(request, steps=steps), nfe, 0, model.method.claims_bound, model=model)


def _samples(model: LanguageModel, tokens: Int[Tensor, "num length"], seed: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(tuple(row), model.tokenizer.decode(row), seed + index) for index, row in enumerate(tokens.tolist())
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


@contextmanager
def _at_rest(network: nn.Module) -> Iterator[None]:
    """Have the network in evaluation mode meanwhile."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)

"""The likelihood bound of a method on sequences, by the estimator of one's choice, and the paper's beside it.

The methods that RDLM is compared with bring one estimator each, `Method.bound`; `repeated_bound` asks it as often as it
takes for an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rdlm.data.batch import Batch
from rdlm.errors import DamagedFileError, InputError
from rdlm.likelihood import (
    Estimate,
    Problem,
    Profile,
    continuous,
    paper_estimate,
    path_bound,
    path_profile,
    stratified_bound,
)
from rdlm.likelihood.continuous import FINE
from rdlm.likelihood.estimate import CONFIDENCE, student
from rdlm.likelihood.estimators import Advance
from rdlm.methods.base import Method
from rdlm.methods.rdlm import Rdlm
from rdlm.process.exact import FreshLaw
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.law import LawName
from rdlm.process.order import TokenSchedule
from rdlm.process.simulated import simulated_law
from rdlm.random import generator_of

Estimator = Literal["steps", "path"]
States = Literal["exact", "simulated"]

PIECE = 64
"""Sequences of a rival's bound that are measured at once."""

REPEATS = (3, 32)
"""Fewest estimates of a rival's bound of the same sequences, and most unless told otherwise."""


@dataclass(frozen=True)
class Bound:
    """The mean bound of sequences in nats, with its standard error."""

    mean: float
    stderr: float
    tokens: int
    """Tokens per sequence."""

    @property
    def bits(self) -> float:
        """Return the bound in bits per token."""
        return self.mean / self.tokens / math.log(2)

    @property
    def margin(self) -> float:
        """Return half the width of the 95% interval, in bits per token."""
        return 1.96 * self.stderr / self.tokens / math.log(2)


@dataclass(frozen=True)
class Setting:
    """The sampler whose likelihood is bounded, and how its bound is estimated."""

    nfe: int | None = 64
    """Network calls M; None is the limit of continuous time."""
    kernel: Kernel = "mixture"
    window: TokenSchedule | None = None
    """None is synchronous."""
    estimator: Estimator = "steps"
    states: States = "exact"
    """Where single steps find their states: drawn from their law, or at the end of a walk in all dimensions."""

    def __post_init__(self) -> None:
        if self.nfe is not None and self.nfe < 1:
            raise InputError(f"at least one network call is needed, got {self.nfe}")
        if self.nfe is None and self.window is not None:
            raise InputError("the bound in continuous time has one clock for all positions: it goes with a window of 1")
        if self.nfe is None and self.estimator == "path":
            raise InputError("a path has a number of steps: continuous time is estimated from single steps")
        if self.states == "simulated" and (self.nfe is None or self.estimator == "path"):
            raise InputError("simulated states are for single steps of a chain; a path is simulated anyway")


def measure(
    method: Rdlm,
    batch: Batch,
    setting: Setting,
    evaluations: int,
    generator: torch.Generator | None = None,
    advance: Advance = lambda count: None,
) -> Profile:
    """Return the bound of the method on the sequences of `batch`, from about so many sequences through the network.

    A path takes M of them, so that the path estimator looks at the first evaluations / M sequences alone.
    """
    check_weights(method.network)
    window = setting.window or TokenSchedule()
    if setting.nfe is None:
        problem = method.problem(batch, FINE, token_schedule=window)
        return continuous(problem, evaluations, generator, advance=advance)
    problem = method.problem(batch, setting.nfe, setting.kernel, window)
    if setting.estimator == "steps":
        law = FreshLaw if setting.states == "exact" else simulated_law
        return stratified_bound(problem, evaluations, generator, law, advance=advance)
    kept = min(len(batch.ids), max(2, evaluations // (problem.nfe * len(problem.chains))))
    problem = replace(problem, token=problem.token[:kept])
    return path_profile(problem, path_bound(problem, 1, generator, advance=advance))


@torch.no_grad()
def repeated_bound(
    method: Method,
    batch: Batch,
    nfe: int,
    seed: int,
    most: int = REPEATS[1],
    advance: Advance = lambda count: None,
) -> Bound:
    """Return the mean bound of sequences, estimated anew until the estimator's own error is small beside theirs.

    Two errors add up: that of the estimates, seen in how their means differ, and that of having so few sequences, seen
    in how far two independent estimates of a sequence agree. The first is widened, as so few means know it badly.
    """
    estimates: list[Tensor] = []
    for repeat in range(most):
        estimates.append(_estimate(method, batch, nfe, generator_of("compare", seed, repeat)))
        advance(len(batch.ids))
        if len(estimates) < REPEATS[0]:
            continue
        values = torch.stack(estimates)  # [repeats, sequences]
        own = float(values.mean(1).var()) / len(values) * (student(len(values) - 1) / CONFIDENCE) ** 2
        halves = torch.stack([values[::2].mean(0), values[1::2].mean(0)])
        theirs = max(0.0, float(torch.cov(halves)[0, 1])) / values.shape[1] if values.shape[1] > 1 else math.inf
        if own < theirs / 4:
            break
    return Bound(float(values.mean()), math.sqrt(own + theirs), batch.ids.shape[1])


def _estimate(method: Method, batch: Batch, nfe: int, generator: torch.Generator) -> Float[Tensor, " batch"]:
    place = next(method.network.parameters()).device
    pieces = [slice(first, first + PIECE) for first in range(0, len(batch.ids), PIECE)]
    found = [method.bound(batch[rows].to(place), nfe, generator).double().cpu() for rows in pieces]
    return torch.cat(found)


def paper(
    method: Rdlm,
    batch: Batch,
    evaluations: int,
    generator: torch.Generator | None = None,
    law: LawName = "normal",
    advance: Advance = lambda count: None,
) -> Estimate:
    """Return the paper's estimator for the method, Eq. (33): not a bound, whatever it looks like."""
    check_weights(method.network)
    problem = method.problem(batch, method.config.process.levels, "drift", TokenSchedule())
    return paper_estimate(
        _with_logarithm_bridge(problem), method.process.schedule, evaluations, generator, law, advance=advance
    )


def _with_logarithm_bridge(problem: Problem) -> Problem:
    return replace(problem, chains=tuple(_logarithm(chain) for chain in problem.chains))


def _logarithm(chain: Chain) -> Chain:
    path = chain.path
    second = None if path.second is None else replace(path.second, kind="logarithm")
    return replace(chain, path=replace(path, bridge=replace(path.bridge, kind="logarithm"), second=second))


def check_weights(network: nn.Module) -> None:
    """Refuse a network with a weight that is not finite: nothing computed from it means anything."""
    for name, parameter in network.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise DamagedFileError(f"the network's weights {name} are not finite: there is nothing to measure")

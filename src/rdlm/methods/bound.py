"""Likelihood bounds of a method on given sequences.

| function | methods | estimator |
|---|---|---|
| `measure_bound` | RDLM | stratified steps, paths, or continuous time |
| `paper` | RDLM | the paper's estimator, Eq. (33), which is not a bound |
| `repeated_bound` | all | `Method.bound`, repeated until its own error is small |

`uniform_note` is the remark on a bound that is worse than the uniform code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.errors import DamagedFileError, InputError
from rdlm.likelihood.continuous import FINE, continuous, paper_estimate
from rdlm.likelihood.estimate import CONFIDENCE, Estimate, student
from rdlm.likelihood.estimators import Advance, Profile, path_bound, path_profile, stratified_bound
from rdlm.methods.base import BoundEstimator, Method
from rdlm.methods.discrete import check_nfe
from rdlm.methods.rdlm import Rdlm
from rdlm.process.bridge import Bridge
from rdlm.process.channel import Channel
from rdlm.process.exact import fresh_law
from rdlm.process.kernel import Kernel
from rdlm.process.law import LawName, simulated_law
from rdlm.process.order import TokenSchedule
from rdlm.random import Rng, generator_of

States = Literal["exact", "simulated"]

BATCH_SIZE = 64
"""Sequences per call of `Method.bound`."""

REPEATS = (3, 32)
"""Least and, by default, largest number of estimates in `repeated_bound`."""


UNIFORM_MARGIN = 1e-3
"""Relative difference from the uniform code within which a bound is reported as no better."""


@dataclass(frozen=True)
class Bound:
    """The mean bound of sequences in nats, with its standard error."""

    mean: float
    stderr: float
    tokens: int
    """Tokens per sequence."""

    @property
    def bits(self) -> float:
        """The bound in bits per token."""
        return self.mean / self.tokens / math.log(2)

    @property
    def margin(self) -> float:
        """Half the width of the 95% confidence interval, in bits per token."""
        return 1.96 * self.stderr / self.tokens / math.log(2)


def uniform_note(
    nats: float, tokens: float, vocabulary: int, config: RunConfig, unit: str, per: float, late: bool = True
) -> str | None:
    """Return a remark on a bound that is worse than the uniform code, log2(V) bits per token, and the reason; or None.

    The bound and the uniform code are for `tokens` tokens, which have `per` characters, pixels or bases. `late` is
    whether the late steps have most of the bound, or are not known: without evidence, the network has to infer from the
    states that tokens are nearly finished, and its errors add up over the late steps.
    """
    uniform = tokens * math.log(vocabulary)
    if nats < uniform * (1 - UNIFORM_MARGIN):
        return None
    worse = "worse" if nats > uniform * (1 + UNIFORM_MARGIN) else "no better"
    reason = "the network is hardly trained"
    if config.method == "rdlm" and not config.denoiser.evidence and late:
        reason = "without evidence, late steps are charged for what the network has not learned"
    return f"{worse} than guessing ({uniform / per / math.log(2):.2f} {unit}): {reason}"


@dataclass(frozen=True)
class Setting:
    """The sampler whose likelihood is bounded, and the estimator of its bound."""

    nfe: int | None = 64
    """Network evaluations M; None: the limit of continuous time."""
    kernel: Kernel = "mixture"
    token_schedule: TokenSchedule | None = None
    """None: all positions are synchronous."""
    estimator: BoundEstimator = "steps"
    states: States = "exact"
    """States of single steps: drawn from the exact law of the chain, or by simulating the chain in all dimensions."""

    def __post_init__(self) -> None:
        if self.nfe is not None:
            check_nfe(self.nfe)
        if self.nfe is None and self.token_schedule is not None:
            raise InputError("the bound in continuous time needs synchronous positions: use --order synchronous")
        if self.nfe is None and self.estimator == "path":
            raise InputError("paths have a finite number of steps: estimate continuous time from single steps")
        if self.states == "simulated" and (self.nfe is None or self.estimator == "path"):
            raise InputError("simulated states apply to single steps of a chain: paths are always simulated")


def measure_bound(
    method: Rdlm,
    batch: Batch,
    setting: Setting,
    evaluations: int,
    generator: Rng = None,
    advance: Advance = lambda count: None,
) -> Profile:
    """Return the bound of the method on the sequences of `batch`, from about `evaluations` network evaluations.

    A path takes M of them, so the path estimator uses the first `evaluations / M` sequences only.
    """
    check_weights(method.network)
    token_schedule = setting.token_schedule or TokenSchedule()
    if setting.nfe is None:
        problem = method.problem(batch, FINE, token_schedule=token_schedule)
        return continuous(problem, evaluations, generator, advance=advance)
    problem = method.problem(batch, setting.nfe, setting.kernel, token_schedule)
    if setting.estimator == "steps":
        law = fresh_law if setting.states == "exact" else simulated_law
        return stratified_bound(problem, evaluations, generator, law, advance=advance)
    count = min(len(batch.ids), max(2, evaluations // (problem.nfe * len(problem.chains))))
    problem = replace(problem, token=problem.token[:count])
    return path_profile(problem, path_bound(problem, 1, generator, advance=advance))


@torch.no_grad()
def repeated_bound(
    method: Method, batch: Batch, nfe: int, seed: int, most: int = REPEATS[1], advance: Advance = lambda count: None
) -> Bound:
    """Return the mean bound of sequences, repeating the estimate until its error is small relative to the sampling
    error.

    The variance has two parts: that of the estimator, from the variance of its means, widened by Student's t for their
    small number; and that of the finite sample of sequences, from the covariance of two independent estimates of each.
    """
    estimates: list[Tensor] = []
    for repeat in range(most):
        estimates.append(_estimate(method, batch, nfe, generator_of("compare", seed, repeat)))
        advance(len(batch.ids))
        if len(estimates) < REPEATS[0]:
            continue
        values = torch.stack(estimates)  # [repeats, sequences]
        estimator_variance = float(values.mean(1).var()) / len(values) * (student(len(values) - 1) / CONFIDENCE) ** 2
        halves = torch.stack([values[::2].mean(0), values[1::2].mean(0)])  # [2, sequences]
        covariance = float(torch.cov(halves)[0, 1]) if values.shape[1] > 1 else math.inf
        sample_variance = max(0.0, covariance) / values.shape[1]
        if estimator_variance < sample_variance / 4:
            break
    return Bound(float(values.mean()), math.sqrt(estimator_variance + sample_variance), batch.ids.shape[1])


def _estimate(method: Method, batch: Batch, nfe: int, generator: torch.Generator) -> Float[Tensor, " batch"]:
    device = next(method.network.parameters()).device
    slices = [slice(first, first + BATCH_SIZE) for first in range(0, len(batch.ids), BATCH_SIZE)]
    values = [method.bound(batch[rows].to(device), nfe, generator).double().cpu() for rows in slices]
    return torch.cat(values)


def paper(
    method: Rdlm,
    batch: Batch,
    evaluations: int,
    generator: Rng = None,
    law: LawName = "normal",
    advance: Advance = lambda count: None,
) -> Estimate:
    """Return the paper's estimate for the method, Eq. (33); it is not a bound."""
    check_weights(method.network)
    problem = method.problem(batch, method.config.process.levels, "drift", TokenSchedule())
    paths = [chain.path for chain in problem.chains]
    paths = [
        replace(path, bridge=_logarithm(path.bridge), second=path.second and _logarithm(path.second)) for path in paths
    ]
    chains = tuple(replace(chain, path=path) for chain, path in zip(problem.chains, paths, strict=True))
    problem = replace(problem, chains=chains)
    return paper_estimate(problem, method.process.schedule, evaluations, generator, law, advance=advance)


def _logarithm(channel: Channel) -> Bridge:
    if not isinstance(channel, Bridge):
        raise InputError(f"the paper's estimator is for bridges of the sphere, not for the {channel.kind} channel")
    return replace(channel, kind="logarithm")


def check_weights(network: nn.Module) -> None:
    """Raise an error if a weight of the network is not finite."""
    wrong = {name: (~parameter.isfinite()).any() for name, parameter in network.named_parameters()}
    if wrong and bool(torch.stack(list(wrong.values())).any()):  # read from the device once
        name = next(name for name, found in wrong.items() if bool(found))
        raise DamagedFileError(f"the network's weights {name} are not finite")

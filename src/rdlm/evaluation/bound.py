"""The likelihood bound of a method on sequences, by the estimator of one's choice, and the paper's beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from rdlm.data.batch import Batch
from rdlm.errors import DamagedFileError, InputError
from rdlm.likelihood import Estimate, Problem, Profile, by_paths, by_steps, continuous, paper_estimate, path_profile
from rdlm.likelihood.continuous import FINE
from rdlm.likelihood.data import Advance
from rdlm.method.rdlm import Rdlm
from rdlm.process.chain import Chain, Kernel
from rdlm.process.law import LawName
from rdlm.process.window import Window

Estimator = Literal["steps", "path"]


@dataclass(frozen=True)
class Setting:
    """The sampler whose likelihood is bounded, and how its bound is estimated."""

    calls: int | None = 64
    """Network calls M; None is the limit of continuous time."""
    kernel: Kernel = "mixture"
    window: Window | None = None
    """None is synchronous."""
    estimator: Estimator = "steps"

    def __post_init__(self) -> None:
        if self.calls is not None and self.calls < 1:
            raise InputError(f"at least one network call is needed, got {self.calls}")
        if self.calls is None and self.estimator == "path":
            raise InputError("a path has a number of steps: continuous time is estimated from single steps")


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
    window = setting.window or Window()
    if setting.calls is None:
        problem = method.problem(batch, FINE, window=window)
        return continuous(problem, evaluations, generator, advance=advance)
    problem = method.problem(batch, setting.calls, setting.kernel, window)
    if setting.estimator == "steps":
        return by_steps(problem, evaluations, generator, advance=advance)
    kept = min(len(batch.ids), max(2, evaluations // (setting.calls * len(problem.chains))))
    problem = replace(problem, token=problem.token[:kept])
    return path_profile(problem, by_paths(problem, 1, generator, advance=advance))


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
    problem = method.problem(batch, method.config.process.levels, "drift")
    return paper_estimate(
        _with_logarithm_bridge(problem), method.process.clock, evaluations, generator, law, advance=advance
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

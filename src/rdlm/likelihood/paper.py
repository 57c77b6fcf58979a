"""The paper's estimator of the likelihood, Eq. (33), for comparison with the bounds.

Times are uniform up to a cut, states are drawn from a given law, a switching path is spliced from one path before the
switch and another after it, and the switch term and the decode term are omitted. Each of these alone invalidates the
bound.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sample_mean
from rdlm.likelihood.estimators import BATCH, Advance, Problem, RowSampler, check_finite
from rdlm.likelihood.terms import drift_error
from rdlm.process.law import LawName, build
from rdlm.process.path import PathLaw
from rdlm.process.schedule import Schedule
from rdlm.random import Rng

CUT = 1e-3
"""Length of the interval before time 1 that is left out."""

DRAWS = 16384
"""Draws in the table of a law."""


def paper_estimate(
    problem: Problem,
    schedule: Schedule,
    evaluations: int,
    generator: Rng = None,
    law: LawName = "normal",
    cut: float = CUT,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Estimate:
    """Return the spliced integral of Eq. (33) in nats per sequence, at uniform times.

    It is a bound only for a path without a switch, with the exact or the simulated law and no cut.
    """
    if not 0 <= cut < 1:
        raise InputError(f"the cut must lie in [0, 1), got {cut}")
    chain, path = problem.chains[0], problem.chains[0].path
    if len(problem.chains) > 1:
        raise InputError("the paper's estimator supports one path, with or without a switch, not a mixture")
    if any(bridge.kind != "logarithm" for bridge in path.bridges):
        raise InputError("the paper's estimator requires the logarithm bridge")
    path_law = PathLaw.of(path, lambda bridge: build(law, bridge, chain.grid, DRAWS, generator))
    rows = RowSampler(len(problem.token), generator)
    values = []
    for part in torch.arange(evaluations).split(batch):
        row = rows.take(len(part)).to(problem.token.device)
        time = torch.rand(len(part), generator=generator, dtype=torch.float64) * (1 - cut)
        token = problem.token[row]
        remaining = schedule.remaining(time)[:, None].expand(token.shape).to(token.device)
        digit = chain.split(token)
        level = chain.per_sphere(remaining, digit)
        state = path_law.draw(digit, level, generator)
        log_probs = problem.model(row, state, remaining.to(state))
        error = chain.gather(drift_error(chain, state, digit, level.to(state), log_probs)).double().sum(-1).cpu()
        check_finite(error, torch.full((len(part),), -1))
        values.append(error * _weight(schedule, time) * (1 - cut))
        advance(len(part))
    claims = path.second is None and law != "normal" and cut == 0
    return sample_mean(torch.cat(values), claims)


def _weight(schedule: Schedule, time: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return `beta / (2 B^2)`, the weight of a drift error at a time: `(du / dt) / 2` with `u = 1/B`, Eq. (28)."""
    return schedule.rate(time) / (2 * schedule.remaining(time).square())

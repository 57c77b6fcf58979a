"""The paper's estimator of the likelihood, under its own name, for comparison with the bounds.

Times are uniform up to a cut, the states come from the law of one's choice, a mixture is spliced from the part of one
path before the switch and of another after it, and neither the switch nor the decode step is counted, Eq. (33).
Each of these makes it something else than a bound.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sample_mean
from rdlm.likelihood.estimators import BATCH, Advance, Deal, Problem, check_finite
from rdlm.likelihood.terms import drift_error
from rdlm.process.bridge import Bridge
from rdlm.process.law import LawName, build
from rdlm.process.schedule import Schedule

CUT = 1e-3
"""The end of time that is left out."""

DRAWS = 16384
"""Draws of a law's table."""


def paper_estimate(
    problem: Problem,
    schedule: Schedule,
    evaluations: int,
    generator: torch.Generator | None = None,
    law: LawName = "normal",
    cut: float = CUT,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Estimate:
    """Return the spliced integral of Eq. (33) in nats per sequence, at uniform times; it does not claim a bound.

    Only for one path without a switch, with the exact or simulated law and nothing cut off, is it one.
    """
    if not 0 <= cut < 1:
        raise InputError(f"the cut must lie in [0, 1), got {cut}")
    path = problem.chains[0].path
    if len(problem.chains) > 1:
        raise InputError("the paper's estimator knows one path, or two with a switch between them, not a mixture")
    if any(bridge.kind != "logarithm" for bridge in (path.bridge, path.second) if bridge is not None):
        raise InputError("the paper's estimator is that of the logarithm bridge")
    grid = problem.chains[0].grid
    laws = {b: build(law, b, grid, DRAWS, generator) for b in _bridges(problem)}
    deal = Deal(len(problem.token), generator)
    switch_time = float(schedule.time(path.switch_remaining)) if path.second is not None else 1.0
    values = []
    for part in torch.arange(evaluations).split(batch):
        row = deal.take(len(part)).to(problem.token.device)
        time = torch.rand(len(part), generator=generator, dtype=torch.float64) * (1 - cut)
        token, chain = problem.token[row], problem.chains[0]
        remaining = schedule.remaining(time)[:, None].expand(token.shape).to(token.device)
        digit = chain.split(token)
        level = remaining if chain.layout is None else remaining[..., None].expand(digit.shape)
        state = laws[path.bridge].draw(digit, level, generator)
        if path.second is not None:
            late = (time >= switch_time).to(token.device).view(-1, *[1] * (state.ndim - 1))
            state = torch.where(late, laws[path.second].draw(digit, level, generator), state)
        log_probs = problem.posterior(row)(state, remaining.to(state))
        error = chain.gather(drift_error(chain, state, digit, level.to(state), log_probs)).double().sum(-1).cpu()
        check_finite(error, torch.full((len(part),), -1))
        values.append(error * _weight(schedule, time) * (1 - cut))
        advance(len(part))
    claims = path.second is None and law != "normal" and cut == 0
    return sample_mean(torch.cat(values), claims)


def _weight(schedule: Schedule, time: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return `beta / (2 B^2)`, the weight of a drift error at a time: `du / dt / 2` in the clock `u = 1/B`."""
    return schedule.rate(time) / (2 * schedule.remaining(time).square())


def _bridges(problem: Problem) -> list[Bridge]:
    path = problem.chains[0].path
    return [path.bridge] if path.second is None else [path.bridge, path.second]

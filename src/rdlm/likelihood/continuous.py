"""The bound in continuous time, the limit of infinitely many steps: the diffusion itself, down to a last noise level.

With time `u = 1/B` the drift errors of Eq. (28) become an integral,

    -log p(k) <= 1/2 int E |sum_l p_l v_l - v_k|^2 du  +  E[-log p(k | X at the last level)],

over `u` from `1/S` to `1/B_last`. The model whose likelihood is bounded follows its diffusion to `B_last` and decodes
there: the last term is part of the bound, and no interval of time is omitted. A switch adds its term of Eq. (32).

The states are those of a chain of `FINE` steps plus one step that ends at the drawn level. They differ from the
diffusion's by that chain's discretisation error, which is smaller than the usual confidence interval.

The paper's estimator, Eq. (33), is included for comparison (`paper_estimate`). Its times are uniform up to a cut, its
states are drawn from a given law, a switching path is spliced from one path before the switch and another after it, and
the switch term and the decode term are omitted. Each of these alone invalidates the bound.

| variable | symbol |
|---|---|
| `remaining` | `B` |
| `width` | `du`, the part of the integral that a draw represents |
| `kind` | type of a stratum: `BEFORE` or `AFTER` the switch, the `SWITCH` itself, or `DECODE` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.estimate import PER_BIN, Curve, Estimate, sample_mean, stratified
from rdlm.likelihood.estimators import Advance, Problem, Profile, RowSampler, check_finite
from rdlm.likelihood.terms import drift_error, mixture_excess, renoise
from rdlm.process.exact import fresh_law
from rdlm.process.kernel import Chain
from rdlm.process.law import LawName, build
from rdlm.process.path import Path, PathLaw
from rdlm.process.schedule import Schedule
from rdlm.random import Rng

FINE = 512
"""Steps of the chain that draws the states."""

LAST = 1e-3
"""The last noise level, as a fraction of the total noise."""

BEFORE, AFTER, SWITCH, DECODE = range(4)
"""Kinds of strata: bins before and after the switch, the switch term and the decode term."""


@dataclass(frozen=True, eq=False)
class Strata:
    """The strata of one path's bound: bins of remaining noise in equal ratios, the switch, the decode step."""

    chain: Chain
    remaining: Float[Tensor, " bins+1"]
    switch: int
    """Index of the first bin after the switch; -1 without a switch."""

    @property
    def bins(self) -> int:
        """The number of bins; the stratum after them is the switch, and the last one the decode step."""
        return len(self.remaining) - 1

    def kind(self, stratum: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the kind of each stratum: `BEFORE`, `AFTER`, `SWITCH` or `DECODE`."""
        late = (stratum >= self.switch) if self.switch > 0 else torch.zeros_like(stratum, dtype=torch.bool)
        return torch.where(stratum < self.bins, late.long(), stratum - self.bins + SWITCH)


def strata_of(chain: Chain, bins: int) -> Strata:
    """Return the strata of a chain's path, with an edge between bins at the switch."""
    total = chain.path.bridge.total
    remaining = total * LAST ** torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    if chain.switch < 0:
        return Strata(chain, remaining, -1)
    at = float(chain.grid.remaining[chain.switch + 1])  # noise level at which the chain draws its state again
    nearest = int((remaining[1:-1].log() - math.log(at)).abs().argmin()) + 1
    remaining[nearest] = at
    return Strata(chain, remaining, nearest)


def continuous(
    problem: Problem, evaluations: int, generator: Rng = None, advance: Advance = lambda count: None
) -> Profile:
    """Return the bound in continuous time, Eq. (28) with Eq. (30)-(32), from about `evaluations` sequences and levels.

    The chains of `problem` have `FINE` steps. Noise levels are log-uniform in bins; a pilot allocates the evaluations.
    """
    if any(chain.asynchronous is not None for chain in problem.chains):
        raise InputError("the bound in continuous time needs all positions at the same time: use a window of 1")
    paths = len(problem.chains)
    bins = max(2, min(64, evaluations * 4 // 5 // (PER_BIN * paths) - 2))
    strata = [strata_of(chain, bins) for chain in problem.chains]
    shares = bins + 2
    order = RowSampler(len(problem.token), generator)

    def measure(stratum: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        value, rows = torch.zeros(len(stratum), dtype=torch.float64), torch.zeros(len(stratum), dtype=torch.long)
        for path in range(paths):
            own = stratum - path * shares
            kind = torch.where((own >= 0) & (own < shares), strata[path].kind(own), -1)
            for wanted in (BEFORE, AFTER, SWITCH, DECODE):
                chosen = (kind == wanted).nonzero()[:, 0]
                rows[chosen] = order.take(len(chosen))
                row = rows[chosen].to(problem.token.device)
                if len(row) and not (wanted == SWITCH and strata[path].switch < 0):
                    terms = _terms(problem, strata[path], wanted, own[chosen], row, generator)
                    check_finite(terms, torch.full((len(row),), -1))
                    value[chosen] = problem.weights[path] * terms.double().cpu()
        advance(len(stratum))
        return value, rows

    curve = stratified(measure, paths * shares, evaluations, problem.rows_at_once).folded(paths)
    total = curve.total
    # The switch term is added to the bin before it.
    if strata[0].switch > 0:
        curve.mean[strata[0].switch - 1] += curve.mean[bins]
        curve.variance[strata[0].switch - 1] += curve.variance[bins]
    shown = torch.cat([torch.arange(bins), torch.tensor([bins + 1])])
    curve = Curve(curve.mean[shown], curve.variance[shown])
    return Profile(total, curve, torch.cat([strata[0].remaining, torch.zeros(1, dtype=torch.float64)]))


def _terms(
    problem: Problem, strata: Strata, kind: int, stratum: Int[Tensor, " n"], row: Int[Tensor, " n"], generator: Rng
) -> Float[Tensor, " n"]:
    """Return one draw per row of its stratum's part of the bound; all strata are of one kind."""
    chain, token = strata.chain, problem.token[row]
    late = kind == AFTER or (kind == DECODE and strata.switch > 0)
    bridge = chain.path.second if late and chain.path.second is not None else chain.path.bridge
    remaining, width = _remaining(strata, kind, stratum, generator)
    digit, level = chain.split(token), remaining[:, None].to(token.device).expand(token.shape)
    sphere_level = chain.per_sphere(level, digit)
    state = fresh_law(Path(bridge), chain.grid).draw(digit, sphere_level, generator)
    log_probs = problem.log_probs(row, state, level.to(state))
    if kind == SWITCH:
        density = renoise(chain, token, state.dtype, generator)[1]
        return mixture_excess(density, log_probs, token).sum(-1)  # Eq. (32)
    if kind == DECODE:
        return -log_probs.gather(-1, token[..., None])[..., 0].sum(-1)  # Eq. (30)
    error = chain.gather(drift_error(chain, state, digit, sphere_level.to(state), log_probs))
    return error.double().sum(-1) * (width / 2).to(token.device)


def _remaining(
    strata: Strata, kind: int, stratum: Int[Tensor, " n"], generator: Rng
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return a noise level `B` for each row, and the width `du = (1/B) d(-log B)` that it represents."""
    if kind in (SWITCH, DECODE):
        at = strata.remaining[strata.switch if kind == SWITCH else -1]
        return at.expand(len(stratum)), torch.zeros(len(stratum), dtype=torch.float64)
    ratio = (strata.remaining[stratum] / strata.remaining[stratum + 1]).log()
    remaining = strata.remaining[stratum] * torch.exp(-ratio * torch.rand(len(stratum), generator=generator).double())
    return remaining, ratio / remaining


# -- the paper's estimator -------------------------------------------------------------------------

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
    for part in torch.arange(evaluations).split(problem.batch):
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

"""The bound in continuous time, the limit of M: no chain, but the diffusion itself, down to a last noise level.

In the clock `u = 1/B` the drift errors of Eq. (28) add up to an integral,

    -log p(k) <= 1/2 int E |sum_l p_l v_l - v_k|^2 du  +  E[-log p(k | X at the last level)],

over `u` from `1/S` to `1/B_last`. The model that this bounds follows its diffusion to `B_last` and decodes there,
which is a model like any other: the end is a term of the bound, not a cut. A switch adds its term of Eq. (32).

The states are those of a chain of many steps with one more that ends on the drawn level, so they are the
diffusion's up to that chain's own steps; `FINE` of them leave less than the usual interval shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.likelihood.estimate import FEWEST, Curve, stratified
from rdlm.likelihood.estimators import BATCH, Advance, Deal, Problem, Profile, check_finite
from rdlm.likelihood.oracle import draw_at_remaining
from rdlm.likelihood.terms import drift_error, mixture_excess, renoise
from rdlm.process.kernel import Chain

FINE = 512
"""Steps of the chain that draws the states."""

LAST = 1e-3
"""The last noise level, in units of the total noise."""


@dataclass(frozen=True, eq=False)
class Strata:
    """The shares of one path's bound: bins of noise in equal ratios, cut at the switch; the switch; the decode step."""

    chain: Chain
    remaining: Float[Tensor, " bins+1"]
    switch: int
    """The bin that begins at the switch; -1 without one."""

    @property
    def bins(self) -> int:
        """Return the number of bins; the switch comes after them, the decode step last."""
        return len(self.remaining) - 1

    def kind(self, stratum: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return 0 and 1 for bins before and after the switch, 2 for the switch and 3 for the decode step."""
        late = (stratum >= self.switch) if self.switch > 0 else torch.zeros_like(stratum, dtype=torch.bool)
        return torch.where(stratum < self.bins, late.long(), stratum - self.bins + 2)


def strata_of(chain: Chain, bins: int) -> Strata:
    """Return the strata of a chain's path."""
    total = chain.path.bridge.total
    remaining = total * LAST ** torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    if chain.switch < 0:
        return Strata(chain, remaining, -1)
    at = float(chain.grid.remaining[chain.switch + 1])  # where the chain that re-noises stands after its switch
    nearest = int((remaining[1:-1].log() - math.log(at)).abs().argmin()) + 1
    remaining[nearest] = at
    return Strata(chain, remaining, nearest)


def continuous(
    problem: Problem,
    evaluations: int,
    generator: torch.Generator | None = None,
    batch: int = BATCH,
    advance: Advance = lambda count: None,
) -> Profile:
    """Return the bound in continuous time, Eq. (28) with Eq. (30)-(32), from about so many sequences and levels.

    `problem` brings chains of `FINE` steps. Levels are log-uniform in bins; a pilot shares out the work.
    """
    if any(chain.asynchronous is not None for chain in problem.chains):
        raise InputError("the bound in continuous time has one clock for all positions: it goes with a window of 1")
    paths = len(problem.chains)
    bins = max(2, min(64, evaluations * 4 // 5 // (2 * FEWEST * paths) - 2))
    strata = [strata_of(chain, bins) for chain in problem.chains]
    shares = bins + 2
    deal = Deal(len(problem.token), generator)

    def measure(stratum: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        value = torch.zeros(len(stratum), dtype=torch.float64)
        for path in range(paths):
            own = stratum - path * shares
            kind = torch.where((own >= 0) & (own < shares), strata[path].kind(own), -1)
            for wanted in range(4):
                chosen = (kind == wanted).nonzero()[:, 0]
                row = deal.take(len(chosen)).to(problem.token.device)
                if len(row) and not (wanted == 2 and strata[path].switch < 0):
                    terms = _terms(problem, strata[path], wanted, own[chosen], row, batch, generator)
                    check_finite(terms, torch.full((len(row),), -1))
                    value[chosen] = problem.weights[path] * terms.double().cpu()
        advance(len(stratum))
        return value

    curve = stratified(measure, paths * shares, evaluations, problem.chunk(batch))
    mean, variance = curve.mean.view(paths, shares).sum(0), curve.variance.view(paths, shares).sum(0)
    # The switch counts with the bin before it, so that the curve rises at its place.
    if strata[0].switch > 0:
        mean[strata[0].switch - 1] += mean[bins]
        variance[strata[0].switch - 1] += variance[bins]
    shown = torch.cat([torch.arange(bins), torch.tensor([bins + 1])])
    curve = Curve(mean[shown], variance[shown])
    return Profile(curve.total, curve, torch.cat([strata[0].remaining, torch.zeros(1, dtype=torch.float64)]))


def _terms(
    problem: Problem,
    strata: Strata,
    kind: int,
    stratum: Int[Tensor, " n"],
    row: Int[Tensor, " n"],
    batch: int,
    generator: torch.Generator | None,
) -> Float[Tensor, " n"]:
    """Return each row's draw of its stratum's share, all of one kind."""
    chain, token = strata.chain, problem.token[row]
    late = kind == 1 or (kind == 3 and strata.switch > 0)
    bridge = chain.path.second if late and chain.path.second is not None else chain.path.bridge
    remaining, width = _remaining(strata, kind, stratum, generator)
    digit, level = chain.split(token), remaining[:, None].to(token.device).expand(token.shape)
    spread = chain.spread(level, digit)
    state = draw_at_remaining(bridge, chain.grid, digit, spread, generator)
    log_probs = problem.answer(row, batch)(state, level.to(state))
    if kind == 2:
        density = renoise(chain, token, state.dtype, generator)[1]
        return mixture_excess(density, log_probs, token).sum(-1)  # Eq. (32)
    if kind == 3:
        return -log_probs.gather(-1, token[..., None])[..., 0].sum(-1)  # Eq. (30)
    error = chain.gather(drift_error(chain, state, digit, spread.to(state), log_probs))
    return error.double().sum(-1) * (width / 2).to(token.device)


def _remaining(
    strata: Strata, kind: int, stratum: Int[Tensor, " n"], generator: torch.Generator | None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return a level of noise for each row, and how much of the clock `u` it stands for: `du = (1/B) d(-log B)`."""
    if kind > 1:
        at = strata.remaining[strata.switch if kind == 2 else -1]
        return at.expand(len(stratum)), torch.zeros(len(stratum), dtype=torch.float64)
    ratio = (strata.remaining[stratum] / strata.remaining[stratum + 1]).log()
    remaining = strata.remaining[stratum] * torch.exp(-ratio * torch.rand(len(stratum), generator=generator).double())
    return remaining, ratio / remaining

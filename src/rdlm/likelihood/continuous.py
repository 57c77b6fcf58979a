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
from rdlm.likelihood.data import BATCH, Advance, Deal, Problem, Profile, check_finite
from rdlm.likelihood.estimate import FEWEST, Curve, stratified
from rdlm.likelihood.fresh import draw_at_noise
from rdlm.likelihood.terms import drift_error, mixture_excess, renoise
from rdlm.process.chain import Chain

FINE = 512
"""Steps of the chain that draws the states."""

LAST = 1e-3
"""The last noise level, in units of the total noise."""


@dataclass(frozen=True, eq=False)
class _Levels:
    """Ends of the bins of noise on one path: equal ratios, cut at the switch."""

    noise: Float[Tensor, " bins+1"]
    switch: int
    """The bin that begins at the switch; -1 without one."""


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
    if any(chain.lanes is not None for chain in problem.chains):
        raise InputError("the bound in continuous time has one clock for all positions: leave out the window")
    paths = len(problem.chains)
    bins = max(2, min(64, evaluations * 4 // 5 // (2 * FEWEST * paths) - 2))
    levels = [_levels(chain, bins) for chain in problem.chains]
    deal = Deal(len(problem.token), generator)
    strata = bins + 2  # every bin, the switch, and the decode step

    def measure(stratum: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        value = torch.zeros(len(stratum), dtype=torch.float64)
        for part in stratum.unique().tolist():
            path, kind = divmod(part, strata)
            chosen = (stratum == part).nonzero()[:, 0]
            row = deal.take(len(chosen)).to(problem.token.device)
            terms = _terms(problem, path, levels[path], kind, row, generator)
            check_finite(terms, torch.full((len(row),), -1))
            value[chosen] = problem.weights[path] * terms.double().cpu()
        advance(len(stratum))
        return value

    curve = stratified(measure, paths * strata, evaluations, batch)
    mean, variance = curve.mean.view(paths, strata).sum(0), curve.variance.view(paths, strata).sum(0)
    # The switch belongs to the bin before it, so that the curve rises at its place.
    if levels[0].switch > 0:
        mean[levels[0].switch - 1] += mean[bins]
        variance[levels[0].switch - 1] += variance[bins]
    shown = torch.cat([torch.arange(bins), torch.tensor([bins + 1])])
    curve = Curve(mean[shown], variance[shown])
    noise = torch.cat([levels[0].noise, torch.zeros(1, dtype=torch.float64)])
    return Profile(curve.total, curve, noise)


def _levels(chain: Chain, bins: int) -> _Levels:
    total = chain.path.bridge.total
    noise = total * LAST ** torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    noise[0] = total
    if chain.switch < 0:
        return _Levels(noise, -1)
    at = float(chain.grid.noise[chain.switch + 1])  # where the chain that re-noises stands after its switch
    nearest = int((noise[1:-1].log() - math.log(at)).abs().argmin()) + 1
    noise[nearest] = at
    return _Levels(noise, nearest)


def _terms(
    problem: Problem, path: int, levels: _Levels, kind: int, row: Int[Tensor, " n"], generator: torch.Generator | None
) -> Float[Tensor, " n"]:
    """Return each row's share of one stratum: a bin of noise, the switch, or the decode step."""
    chain, token = problem.chains[path], problem.token[row]
    posterior, bins = problem.posterior(row), len(levels.noise) - 1
    if kind == bins and levels.switch < 0:
        return torch.zeros(len(row))
    ratio = torch.zeros((), dtype=torch.float64)
    if kind < bins:
        ratio = (levels.noise[kind] / levels.noise[kind + 1]).log()
        place = torch.rand(len(row), 1, generator=generator, dtype=torch.float64)
        noise = levels.noise[kind] * torch.exp(-ratio * place)
    else:
        noise = levels.noise[levels.switch if kind == bins else -1].expand(len(row), 1)
    noise = noise.to(token.device)
    late = chain.switch >= 0 and (kind == bins + 1 or levels.switch <= kind < bins)
    bridge = chain.path.second if late and chain.path.second is not None else chain.path.bridge
    digit = chain.split(token)
    level = noise.expand(token.shape)
    spread = level if chain.codec is None else level[..., None].expand(digit.shape)
    state = draw_at_noise(bridge, chain.grid, digit, spread, generator)
    log_probability = posterior(state, level.to(state))
    if kind == bins:
        density = renoise(chain, token, state.dtype, generator)[1]
        return mixture_excess(density, log_probability, token).sum(-1)
    if kind > bins:
        return -log_probability.gather(-1, token[..., None])[..., 0].sum(-1)  # Eq. (30)
    error = chain.gather(drift_error(chain, state, digit, spread.to(state), log_probability))
    # du = -d(1/B) = (1/B) d(-log B), and log B is drawn evenly from the bin.
    return error.double().sum(-1) * (ratio.to(noise.device) / noise[:, 0]) / 2

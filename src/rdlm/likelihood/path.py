"""The bound along whole paths: walk the chain to given tokens and add up log-density ratios step by step.

It costs a network call for every step of the chain, but the sum hardly varies: were the posterior exact,
it would be `-log p(tokens)` on every path. Its mean is the same bound as that of single steps.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.geometry import sphere
from rdlm.likelihood.terms import Posterior, mixture_excess, renoise
from rdlm.process.chain import Chain, draw_token_step, mean_step_log_density, step_log_density


def path_terms(
    posterior: Posterior,
    chain: Chain,
    token: Int[Tensor, "batch length"],
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "calls batch length"]:
    """Return `log q_k(step) - log q_model(step)` of each position at each step of one path per sequence.

    Summed over steps and positions the mean is an upper bound on `-log p(token)`, Eq. (28)-(30) and (32).
    """
    clocks, grid = chain.clocks, chain.grid
    offsets = clocks.offsets(token.shape[0], token.shape[1], generator).to(token.device)
    state = chain.path.bridge.start.point(dtype, token.device).repeat(*token.shape, 1)
    vertex = torch.zeros_like(state).scatter_(-1, token[..., None], 1.0)
    terms = torch.zeros(chain.calls, *token.shape, dtype=torch.float64, device=token.device)
    for step in range(chain.calls):
        local = clocks.local_step(step, offsets)
        moving = (step >= offsets) & (local < clocks.steps)
        log_probability = posterior(state, grid.noise.to(state)[local])
        after, term = _forced_step(chain, state, token, local.clamp_max(grid.steps - 1), log_probability, generator)
        after = torch.where((local == grid.steps - 1)[..., None], vertex, after)
        state = torch.where(moving[..., None], sphere.project(after), state)
        terms[step] = torch.where(moving, term, 0.0)
    return terms


def _forced_step(
    chain: Chain,
    state: Tensor,
    token: Tensor,
    local: Tensor,
    log_probability: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return the states after one step of the tokens' bridges, and the excess of each position."""
    grid, bridge = chain.grid, chain.path.bridge
    noise, gain, variance = (table.to(state)[local] for table in (grid.noise, grid.gain, grid.variance))
    move = draw_token_step(bridge, state, token, noise, gain, variance, generator)
    last = local == grid.steps - 1
    floor = torch.where(last, torch.ones_like(variance), variance)  # the decode step has no density: not used
    density = step_log_density(bridge, state, move, noise, gain, floor)
    if chain.kernel == "mixture":
        term = mixture_excess(density, log_probability, token)
    else:
        own = density.gather(-1, token[..., None])[..., 0]
        term = own - mean_step_log_density(bridge, state, move, log_probability.exp(), noise, gain, floor)
    term = torch.where(last, -log_probability.gather(-1, token[..., None])[..., 0], term)
    after = sphere.exponential(state, move)
    switch = chain.path.switch_step(grid)
    if switch is not None and switch < grid.steps - 1 and bool((chosen := local == switch).any()):
        assert chain.path.second is not None
        renoised, density = renoise(chain, chain.path.second, switch, token, state.dtype, generator)
        after = torch.where(chosen[..., None], renoised, after)
        term = torch.where(chosen, mixture_excess(density, log_probability, token), term)
    return after, term

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
    digit, offsets = chain.split(token), chain.offsets(token, generator)
    state = chain.path.bridge.start.point(dtype, token.device).repeat(*digit.shape, 1)
    terms = torch.zeros(chain.calls, *token.shape, dtype=torch.float64, device=token.device)
    for step in range(chain.calls):
        local = chain.clocks.local_step(step, offsets)
        moving = (step >= offsets) & (local < chain.grid.steps)
        log_probability = posterior(state, chain.grid.noise.to(state)[local])
        local = local.clamp_max(chain.grid.steps - 1)
        after, term = forced_step(chain, state, token, local, log_probability, generator)
        state = torch.where(chain.spread(moving, digit)[..., None], after, state)
        terms[step] = torch.where(moving, term, 0.0)
    return terms


def forced_step(
    chain: Chain,
    state: Tensor,
    token: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probability: Float[Tensor, "batch length v"],
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Float[Tensor, "batch length"]]:
    """Return the states after one step of the tokens' bridges, and the excess of each position."""
    bridge, digit = chain.path.bridge, chain.split(token)
    stride = chain.stride(chain.spread(local, digit), state)
    move = draw_token_step(bridge, state, digit, stride, generator)
    density = step_log_density(bridge, state, move, stride)
    if chain.kernel == "mixture":
        term = mixture_excess(chain.join(density), log_probability, token)
    else:
        own = density.gather(-1, digit[..., None])[..., 0]
        law = chain.marginals(log_probability.exp())
        term = chain.gather(own - mean_step_log_density(bridge, state, move, law, stride))
    after = sphere.project(sphere.exponential(state, move))
    if chain.switch >= 0 and bool((chosen := local == chain.switch).any()):
        renoised, path_density = renoise(chain, token, state.dtype, generator)
        after = torch.where(chain.spread(chosen, digit)[..., None], renoised, after)
        term = torch.where(chosen, mixture_excess(path_density, log_probability, token), term)
    last = local == chain.grid.steps - 1
    vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)
    after = torch.where(chain.spread(last, digit)[..., None], vertex, after)
    return after, torch.where(last, -log_probability.gather(-1, token[..., None])[..., 0], term)

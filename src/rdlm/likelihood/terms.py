"""The terms of an upper bound on the negative log-likelihood of the very chain that samples.

For tokens `k` and a chain of `M` network calls, with `X_m` from the chain's exact law,

    -log p(k) <= sum over m < M of E[term_m],

where the last term decodes, Eq. (30), and the others compare the bridge's step with the model's,
Eq. (28) or Eq. (29). There is no discretisation error, no time cut and no missing term.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, squared_length
from rdlm.process.chain import Chain, ChainLaw, draw_token_step, step_log_density, token_step_parts

Posterior = Callable[[Tensor, Tensor], Tensor]
"""`log p(token | state)`: states [..., length, d] and noise levels [..., length] to [..., length, v]."""


def step_terms(
    posterior: Posterior,
    chain: Chain,
    law: ChainLaw,
    token: Int[Tensor, "batch length"],
    step: Int[Tensor, " batch"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch length"]:
    """Return each position's term of the bound in nats at one common step per sequence; 0 where it rests."""
    clocks = chain.clocks
    offsets = clocks.offsets(token.shape[0], token.shape[1], generator).to(token.device)
    local = clocks.local_step(step[:, None], offsets)
    moving = (step[:, None] >= offsets) & (local < clocks.steps)
    state = law.draw(token, local, generator)
    noise = chain.grid.noise.to(state)[local]
    log_probability = posterior(state, noise)
    terms = position_terms(chain, law, state, token, local.clamp_max(clocks.steps - 1), log_probability, generator)
    return torch.where(moving, terms, torch.zeros_like(terms))


def position_terms(
    chain: Chain,
    law: ChainLaw,
    state: Float[Tensor, "batch length d"],
    token: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probability: Float[Tensor, "batch length v"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch length"]:
    """Return the term of every position at its own step of the local grid: kernel, switch or decode."""
    terms = -log_probability.gather(-1, token[..., None])[..., 0]  # decode, Eq. (30)
    switch = chain.path.switch_step(chain.grid)
    last = chain.grid.steps - 1
    for bridge, chosen in (
        (law.first.bridge, (local < law.switch) & (local < last)),
        (law.second.bridge, (local > law.switch) & (local < last)),
    ):
        if bool(chosen.any()):
            terms[chosen] = kernel_terms(
                chain, bridge, state[chosen], token[chosen], local[chosen], log_probability[chosen], generator
            )
    if switch is not None and switch < last and bool((chosen := local == switch).any()):
        density = renoise(chain, law.second.bridge, switch, token[chosen], state.dtype, generator)[1]
        terms[chosen] = mixture_excess(density, log_probability[chosen], token[chosen])
    return terms


def kernel_terms(
    chain: Chain,
    bridge: Bridge,
    state: Float[Tensor, "n d"],
    token: Int[Tensor, " n"],
    local: Int[Tensor, " n"],
    log_probability: Float[Tensor, "n v"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, " n"]:
    """Return `KL(bridge's step || model's step)`, in closed form (drift) or from a draw, Eq. (29)."""
    grid = chain.grid
    noise, gain, variance = (table.to(state)[local] for table in (grid.noise, grid.gain, grid.variance))
    if chain.kernel == "drift":  # Eq. (28): g^2 |sum_l p_l v_l - v_k|^2 / (2 s2)
        slope = bridge.slope(state[..., : bridge.vocabulary], noise[..., None])
        weight = log_probability.exp() * slope
        weight = weight.scatter_add(-1, token[..., None], -slope.gather(-1, token[..., None]))
        return gain.square() / (2 * variance) * squared_length(state, weight)
    pull, wobble = token_step_parts(bridge, state, token, noise, gain, variance, generator)
    # One draw and its mirror image: the part that is odd in the noise, most of the variance, cancels exactly.
    ahead = step_log_density(bridge, state, pull + wobble, noise, gain, variance)
    mirror = step_log_density(bridge, state, pull - wobble, noise, gain, variance)
    return (mixture_excess(ahead, log_probability, token) + mixture_excess(mirror, log_probability, token)) / 2


def renoise(
    chain: Chain,
    bridge: Bridge,
    switch: int,
    token: Int[Tensor, "..."],
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "... d"], Float[Tensor, "... v"]]:
    """Return states of the second bridge just after the switch, and the log-density of their paths per token, Eq. (32).

    The whole path up to the switch is compared, whose density is known exactly; the state at its end
    alone can only be harder to tell apart, so that the bound holds.
    """
    grid = chain.grid
    state = bridge.start.point(dtype, token.device).repeat(*token.shape, 1)
    density = torch.zeros(*token.shape, bridge.vocabulary, dtype=dtype, device=token.device)
    for step in range(switch + 1):
        level = torch.full(token.shape, step, device=token.device)
        noise, gain, variance = (table.to(state)[level] for table in (grid.noise, grid.gain, grid.variance))
        move = draw_token_step(bridge, state, token, noise, gain, variance, generator)
        density += step_log_density(bridge, state, move, noise, gain, variance)
        state = sphere.project(sphere.exponential(state, move))
    return state, density


def mixture_excess(
    density: Float[Tensor, "n v"], log_probability: Float[Tensor, "n v"], token: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return `log q_k - log sum_l p_l q_l`, Eq. (29)."""
    own = density.gather(-1, token[..., None])[..., 0]
    return own - torch.logsumexp(density + log_probability, dim=-1)

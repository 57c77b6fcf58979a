"""The terms of an upper bound on the negative log-likelihood of the chain that samples.

For tokens `k` and a chain of `M` network evaluations, with `X_m` from the chain's exact law,

    -log p(k) <= sum over m < M of E[term_m],

where the last term is the decode term, Eq. (30), and the others compare the bridge's step with the model's step,
Eq. (28) or Eq. (29). There is no discretisation error, no time cut and no missing term.

| variable | symbol |
|---|---|
| `token`, `digit` | `k`; the target of each sphere, which is a digit of `k` where tokens are split |
| `local` | `m`, each position's step on its local grid |
| `density` | `log q_l(u | x)` of a step for every token `l`, up to a constant, Eq. (29) |
| `log_probs` | `log p(l | x)`, the model's posterior |
| `pull`, `noise` | `g v_k` and `sqrt(s2) z`, the two parts of a step, Eq. (19) |
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.process.kernel import Chain, draw_token_step, step_log_density, step_log_density_parts, token_step_parts
from rdlm.process.path import Law
from rdlm.random import Rng, on_device

Posterior = Callable[[Tensor, Tensor], Tensor]
"""`log p(token | states)`: maps states [batch, length, d] (with digits: [batch, length, m, d]) and remaining noise
[batch, length] to [batch, length, v]."""


def step_terms(
    posterior: Posterior,
    chain: Chain,
    law: Law,
    token: Int[Tensor, "batch length"],
    step: Int[Tensor, " batch"],
    generator: Rng = None,
) -> Float[Tensor, "batch length"]:
    """Return each position's term of the bound in nats at one global step per sequence, times its weight, Eq. (35).

    The generator is on the CPU, where orders are drawn; the noise is drawn on the device of the tokens.
    """
    offsets = chain.offsets(token, generator)
    generator = on_device(generator, token.device)
    local = chain.token_steps.local_step(step[:, None], offsets)
    digit = chain.split(token)
    state = law.draw_at_level(digit, chain.per_sphere(local, digit), generator)  # [batch, length, (m,) d]
    log_probs = posterior(state, chain.grid.remaining.to(state)[local])
    terms = position_terms(chain, state, token, local.clamp_max(chain.grid.steps - 1), log_probs, generator)
    share = chain.token_steps.share(step[:, None], offsets)
    return torch.where(share > 0, terms, torch.zeros_like(terms)) * share


def position_terms(
    chain: Chain,
    state: Float[Tensor, ...],
    token: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probs: Float[Tensor, "batch length v"],
    generator: Rng = None,
) -> Float[Tensor, "batch length"]:
    """Return the term of every position at its local step: kernel, switch or decode, Eq. (28)-(30) and (32)."""
    decode = -log_probs.gather(-1, token[..., None])[..., 0]  # Eq. (30)
    terms = kernel_terms(chain, state, token, local, log_probs, generator)
    terms = torch.where(local == chain.grid.steps - 1, decode, terms)
    if chain.switch >= 0 and bool((chosen := local == chain.switch).any()):
        density = renoise(chain, token[chosen], state.dtype, generator)[1]
        terms[chosen] = mixture_excess(density, log_probs[chosen], token[chosen])
    return terms


def kernel_terms(
    chain: Chain,
    state: Float[Tensor, ...],
    token: Int[Tensor, ...],
    local: Int[Tensor, ...],
    log_probs: Float[Tensor, "... v"],
    generator: Rng = None,
) -> Float[Tensor, ...]:
    """Return `KL(bridge's step || model's step)`: in closed form, Eq. (28), or from one draw of the step, Eq. (29).

    Not meaningful in the decode step, which has no density. The pull does not depend on the start, so the terms are
    those of both bridges of a switching path.
    """
    bridge, digit = chain.path.bridge, chain.split(token)
    coefficients = chain.coefficients(chain.per_sphere(local, digit), state)
    if chain.kernel == "drift":  # Eq. (28): g^2 |sum_l p_l v_l - v_k|^2 / (2 s2)
        error = drift_error(chain, state, digit, coefficients.remaining, log_probs)
        return chain.gather(coefficients.gain.square() / (2 * coefficients.variance) * error)
    pull, noise = token_step_parts(bridge, state, digit, coefficients, generator)
    # Antithetic pair: one draw of the noise and its negative. The odd part, most of the variance, cancels exactly.
    weight, shift = step_log_density_parts(bridge, state, coefficients)
    middle = chain.join(weight * bridge.products(state, pull) - shift)
    odd = chain.join(weight * bridge.products(state, noise))
    plus, minus = (mixture_excess(density, log_probs, token) for density in (middle + odd, middle - odd))
    return (plus + minus) / 2


def drift_error(
    chain: Chain, state: Tensor, digit: Int[Tensor, ...], remaining: Float[Tensor, ...], log_probs: Tensor
) -> Float[Tensor, ...]:
    """Return `|sum_l p_l v_l - v_k|^2` on every sphere, Eq. (28) without its weight; `remaining` is per sphere."""
    bridge = chain.path.bridge
    slope = bridge.slope(bridge.tokens.cosines(state), remaining[..., None])
    weight = chain.marginals(log_probs.exp()) * slope
    weight = weight.scatter_add(-1, digit[..., None], -slope.gather(-1, digit[..., None]))
    return bridge.squared_length(state, weight)


def renoise(
    chain: Chain, token: Int[Tensor, ...], dtype: torch.dtype, generator: Rng = None
) -> tuple[Float[Tensor, ...], Float[Tensor, "... v"]]:
    """Return states of the second bridge just after the switch, and the log-density of their paths per token, Eq. (32).

    The densities are those of the whole path up to the switch, which are known exactly. By the data processing
    inequality the divergence of the end states alone is at most as large, so the bound holds.
    """
    bridge, digit = chain.path.second, chain.split(token)
    assert bridge is not None
    state = bridge.start.point(dtype, token.device).repeat(*digit.shape, 1)
    density = torch.zeros(*digit.shape, bridge.vocabulary, dtype=dtype, device=token.device)
    for step in range(chain.switch + 1):
        coefficients = chain.coefficients(torch.full_like(digit, step), state)
        move = draw_token_step(bridge, state, digit, coefficients, generator)
        density += step_log_density(bridge, state, move, coefficients)
        state = bridge.move(state, move)
    return state, chain.join(density)


def mixture_excess(
    density: Float[Tensor, "n v"], log_probs: Float[Tensor, "n v"], token: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return `log q_k - log sum_l p_l q_l`, Eq. (29)."""
    own = density.gather(-1, token[..., None])[..., 0]
    return own - torch.logsumexp(density + log_probs, dim=-1)

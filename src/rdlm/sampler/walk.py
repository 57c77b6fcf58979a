"""Ancestral sampling of a chain: the geodesic random walk whose likelihood `rdlm.likelihood` bounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.geometry import sphere
from rdlm.likelihood import Posterior
from rdlm.process.chain import Chain, ChainLaw, draw_mean_step, draw_token_step

Callback = Callable[[int, Tensor, Tensor], object]
"""Called with the step, the states and the model's log-probabilities before each move."""


def draw_token(log_probability: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, "..."]:
    """Return tokens drawn from log-probabilities, by the inverse of their sum in float64.

    Gumbel noise in float32 would quietly lower the temperature.
    """
    mass = log_probability.double().exp().cumsum(-1)
    point = torch.rand(mass.shape[:-1], generator=generator, dtype=mass.dtype, device=mass.device)
    # On the right of equal sums: a token of probability 0 is never drawn, not even by the point 0.
    token = torch.searchsorted(mass, (point * mass[..., -1])[..., None], right=True).squeeze(-1)
    return token.clamp_max(mass.shape[-1] - 1)


def walk(
    posterior: Posterior,
    chain: Chain,
    batch: int,
    length: int,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
    pairs: int = 16384,
) -> Int[Tensor, "batch length"]:
    """Return tokens sampled by the chain, Eq. (19), with `chain.calls` calls of the posterior."""
    token = torch.zeros(batch, length, dtype=torch.long)
    digit, offsets = chain.split(token), chain.offsets(token, generator)
    law = chain.law(pairs, generator) if chain.switch >= 0 else None
    state = chain.path.bridge.start.point().repeat(*digit.shape, 1)
    for step in range(chain.calls):
        local = chain.clocks.local_step(step, offsets)
        log_probability = posterior(state, chain.grid.noise.to(state)[local])
        if callback is not None:
            callback(step, state, log_probability)
        moving = (step >= offsets) & (local < chain.grid.steps)
        drawn = draw_token(log_probability, generator)
        after = advance(chain, law, state, drawn, local.clamp_max(chain.grid.steps - 1), log_probability, generator)
        state = torch.where(chain.spread(moving, digit)[..., None], after, state)
        token = torch.where(moving, drawn, token)
    return token


def advance(
    chain: Chain,
    law: ChainLaw | None,
    state: Tensor,
    drawn: Int[Tensor, "batch length"],
    local: Int[Tensor, "batch length"],
    log_probability: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the states after one step: the kernel's, the switch's re-noising, or the vertex of the drawn token."""
    bridge, digit = chain.path.bridge, chain.split(drawn)
    level = chain.spread(local, digit)
    noise, gain, variance = chain.coefficients(level, state)
    if chain.kernel == "mixture":
        move = draw_token_step(bridge, state, digit, noise, gain, variance, generator)
    else:
        probability = chain.marginals(log_probability.exp())
        move = draw_mean_step(bridge, state, probability, noise, gain, variance, generator)
    after = sphere.project(sphere.exponential(state, move))
    if law is not None:
        renoised = law.draw(digit, level + 1, generator)
        after = torch.where((level == chain.switch)[..., None], renoised, after)
    vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)
    return torch.where((level == chain.grid.steps - 1)[..., None], vertex, after)

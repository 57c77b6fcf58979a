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
    clocks, grid = chain.clocks, chain.grid
    offsets = clocks.offsets(batch, length, generator)
    law = chain.law(pairs, generator) if chain.path.second is not None else None
    state = chain.path.bridge.start.point().repeat(batch, length, 1)
    token = torch.zeros(batch, length, dtype=torch.long)
    for step in range(chain.calls):
        local = clocks.local_step(step, offsets)
        log_probability = posterior(state, grid.noise.to(state)[local])
        if callback is not None:
            callback(step, state, log_probability)
        moving = (step >= offsets) & (local < clocks.steps)
        state, token = _advance(chain, law, state, token, local, moving, log_probability, generator)
    return token


def _advance(
    chain: Chain,
    law: ChainLaw | None,
    state: Tensor,
    token: Tensor,
    local: Tensor,
    moving: Tensor,
    log_probability: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return states and tokens after one step of the moving positions: kernel, switch or decode."""
    grid = chain.grid
    local = local.clamp_max(grid.steps - 1)
    drawn = draw_token(log_probability, generator)
    noise, gain, variance = (table.to(state)[local] for table in (grid.noise, grid.gain, grid.variance))
    bridge = chain.path.bridge  # the pull does not depend on the start, so both bridges of a switch share it
    if chain.kernel == "mixture":
        move = draw_token_step(bridge, state, drawn, noise, gain, variance, generator)
    else:
        move = draw_mean_step(bridge, state, log_probability.exp(), noise, gain, variance, generator)
    after = sphere.exponential(state, move)
    switch = chain.path.switch_step(grid)
    if law is not None and switch is not None:
        renoised = law.draw(drawn, local + 1, generator)
        after = torch.where((local == switch)[..., None], renoised, after)
    vertex = torch.zeros_like(state).scatter_(-1, drawn[..., None], 1.0)
    after = torch.where((local == grid.steps - 1)[..., None], vertex, after)
    return torch.where(moving[..., None], sphere.project(after), state), torch.where(moving, drawn, token)

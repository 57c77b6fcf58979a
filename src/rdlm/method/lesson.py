"""What a training step of RDLM asks its network: all positions together, or chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.denoiser import Sight
from rdlm.likelihood.terms import position_terms
from rdlm.model.condition import drop
from rdlm.objective import Moment, cross_entropy, draw_chunked, draw_moment, mean_unfinished
from rdlm.randomness import on_device
from rdlm.surprisal import surprisal

if TYPE_CHECKING:
    from rdlm.method.rdlm import Rdlm


def together(
    method: Rdlm, token: Int[Tensor, "batch positions"], condition: Tensor | None, quantile: Float[Tensor, " batch"],
    step: int, generator: torch.Generator,
) -> Float[Tensor, " batch"]:  # fmt: skip
    """Return each sequence's loss where every position sees all others, Eq. (36) or (37), weighed."""
    objective, states = method.config.objective, on_device(generator, token.device)
    moment = draw_moment(objective, method.proposal, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    if objective.loss == "drift_error":
        values = _drift_error(method, token, moment, condition, states)
    else:
        state, noise = method.noisy(token, moment.time, states)
        scores = method.predict(state, noise, condition, generator)
        time = method.per_symbol(moment.time).to(token.device)
        values = cross_entropy(scores.logits, token, time, scores.evidence)
    if method.proposal.adaptive:  # it waits for the losses, which others need not
        alone = moment.synchronous
        method.proposal.observe(step, moment.common[alone], values[alone.to(values.device)])
    return values * moment.weight.to(values)


def chunk_by_chunk(
    method: Rdlm, token: Int[Tensor, "batch positions"], condition: Tensor | None, quantile: Float[Tensor, " batch"],
    step: int, generator: torch.Generator,
) -> Float[Tensor, " batch"]:  # fmt: skip
    """Return each sequence's loss where every chunk sees itself and the finished ones before it, Eq. (49)."""
    moment = draw_chunked(method.config.objective, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    state, noise = method.noisy(token, moment.time, on_device(generator, token.device))
    sight = Sight(moment.chunk.to(token.device), method.finished(token))
    scores = method.predict(state, noise, condition, generator, sight)
    weight = method.per_symbol(moment.weight).to(token.device)
    return (surprisal(scores.logits, token, scores.evidence) * weight).mean(-1)


def _length(method: Rdlm, token: Int[Tensor, "batch positions"]) -> int:
    return token.shape[1] // method.symbols_per_token


def _dropped(method: Rdlm, condition: Tensor | None, generator: torch.Generator) -> Tensor | None:
    return None if condition is None else drop(condition, method.config.objective.condition_dropout, generator)


def _drift_error(
    method: Rdlm, token: Tensor, moment: Moment, condition: Tensor | None, generator: torch.Generator | None
) -> Float[Tensor, " batch"]:
    """Return the drift error of the chain on the training grid, at the step of the moment's time, Eq. (37)."""
    grid = method.training_grid
    # A finished position stands at its vertex, level `steps`; its term is not counted.
    level = (method.per_symbol(moment.time) * grid.steps).long().to(token.device)
    chain = method.on_grid(method.process.mixture.paths[0], grid, "drift")
    digit = method.digits(token)
    noise = grid.noise.float().to(token.device)[level]
    state = method.draw(digit, chain.spread(noise.expand(token.shape), digit), generator)
    log_probability = method.predict(state, noise, condition, generator).log_probability()
    local = level.clamp_max(grid.steps - 1).expand(token.shape)
    terms = position_terms(chain, state, token, local, log_probability, generator)
    return mean_unfinished(terms * grid.steps, method.per_symbol(moment.time).to(terms))

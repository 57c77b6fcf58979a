"""What the rivals on token ids share: their network, their condition, their schedules and their draws.

| variable | symbol |
|---|---|
| `kept` | `alpha_t`, the probability that a token is still itself at time t: 0 at t = 0, 1 at t = 1 |
| `steps` | `m`, which goes from `alpha_m` to `alpha_{m+1}` |
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.config import Interface, NetworkConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.model.layers import drop
from rdlm.model.network import build
from rdlm.random import Draw


def token_network(config: NetworkConfig, vocabulary: int, classes: int, signal: int) -> nn.Module:
    """Return the network from ids 0 .. V, where V is the mask (or the beginning), to V logits per position."""
    return build(config, Interface(vocabulary + 1, vocabulary, classes=classes, signal=signal))


def ask(network: nn.Module, inputs: Tensor, time: Tensor | float, condition: Tensor | None) -> Tensor:
    """Return the network's logits for inputs on any device, on that device."""
    place = next((p.device for p in network.parameters()), inputs.device)
    moved = [x.to(place) if isinstance(x, Tensor) else x for x in (inputs, time, condition)]
    logits: Tensor = network(*moved)
    return logits.to(inputs.device)


def condition_of(batch: Batch) -> Tensor | None:
    """Return what conditions a batch, as a network takes it: labels [B], a signal [B, L, S], or nothing."""
    if batch.signal is not None:
        return batch.signal if batch.signal.ndim == 3 else batch.signal[..., None]
    return batch.label


def training_condition(batch: Batch, config: RunConfig, generator: torch.Generator) -> Tensor | None:
    """Return the condition with some sequences' dropped, so that the network learns to do without."""
    condition = condition_of(batch)
    if condition is None:
        return None
    return drop(condition.cpu(), config.objective.condition_dropout, generator).to(condition.device)


Rates = Callable[[Tensor, Tensor, Tensor | None, torch.Generator | None], Tensor]
"""The integrand of a continuous-time bound, [batch], from tokens, times, the condition and a generator."""


def mean_rate(rates: Rates, batch: Batch, config: RunConfig, draw: Draw) -> Float[Tensor, ""]:
    """Return the bound in nats per token for training: a shard's mean over evenly spread times."""
    generator = draw.generator()
    condition = training_condition(batch, config, generator)
    times = draw.quantiles(len(batch.ids))
    return rates(batch.ids, times, condition, generator).mean() / batch.ids.shape[1]


def rates_of(rates: Rates, batch: Batch, generator: torch.Generator | None) -> Float[Tensor, " batch"]:
    """Return each sequence's integrand at one of evenly spread times, an unbiased estimate of its bound in nats."""
    with torch.no_grad():
        return rates(batch.ids, comb(len(batch.ids), generator), condition_of(batch), generator)


def rows_of(condition: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the condition of some rows."""
    return None if condition is None else condition[rows.to(condition.device)]


def comb(count: int, generator: torch.Generator | None) -> Float[Tensor, " count"]:
    """Return evenly spaced points of [0, 1) with one common shift, in random order."""
    points = (torch.arange(count) + torch.rand((), generator=generator, dtype=torch.float64)) / count
    return points[torch.randperm(count, generator=generator)]


def spread_steps(count: int, nfe: int, generator: torch.Generator | None) -> Int[Tensor, " count"]:
    """Return a random step in 0 .. calls - 1 for each sequence, evenly spread over the batch."""
    if nfe < 1:
        raise InputError(f"at least one network call is needed, got {nfe}")
    return (comb(count, generator) * nfe).long().clamp_max(nfe - 1)


def kept(schedule: str, time: Tensor) -> Float[Tensor, ...]:
    """Return `alpha_t` in float64: t (which is log-linear in the noise's own clock), or `1 - cos(pi t / 2)`."""
    time = time.double()
    return time if schedule == "log_linear" else 1 - torch.cos(math.pi / 2 * time)


def kept_rate(schedule: str, time: Tensor) -> Float[Tensor, ...]:
    """Return `d alpha / dt` in float64."""
    time = time.double()
    return torch.ones_like(time) if schedule == "log_linear" else math.pi / 2 * torch.sin(math.pi / 2 * time)


def kept_grid(schedule: str, nfe: int) -> Float[Tensor, " levels"]:
    """Return `alpha_0 = 0 < ... < alpha_M = 1` at equally spaced times."""
    if nfe < 1:
        raise InputError(f"at least one network call is needed, got {nfe}")
    grid = kept(schedule, torch.linspace(0, 1, nfe + 1, dtype=torch.float64))
    grid[-1] = 1.0  # the cosine's rounding
    return grid


def chance(like: Int[Tensor, ...], generator: torch.Generator | None) -> Float[Tensor, ...]:
    """Return uniform numbers of [0, 1) in float64, one for each entry: float32 could not resolve the last times."""
    return torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like.device)

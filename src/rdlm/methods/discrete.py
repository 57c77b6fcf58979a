"""Functions of the baselines: networks of token ids, conditions, the schedule of discrete diffusion, random draws.

Time 0 is noise and time 1 is data. At time t a token is kept with probability `alpha_t`. The sampler of M network
evaluations goes from `alpha_m` to `alpha_{m+1}` in step m, on the grid `alpha_0 = 0 < ... < alpha_M = 1`.

| variable | symbol |
|---|---|
| `alpha` | `alpha_t`, the probability that a token is kept at time t |
| `alpha_rate` | `d alpha / dt` |
| `step`, `nfe` | `m`, `M` |
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.config import Interface, NetworkConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.model.layers import drop_condition
from rdlm.model.network import build
from rdlm.random import Rng

# -- network and condition ------------------------------------------------------------------------


def token_network(config: NetworkConfig, vocabulary: int, classes: int, signal: int) -> nn.Module:
    """Return a network from ids 0 .. V to V logits per position; id V is the mask or the start of the sequence."""
    return build(config, Interface(vocabulary + 1, vocabulary, classes=classes, signal=signal))


def logits(
    network: nn.Module, inputs: Tensor, time: Tensor | float, condition: Tensor | None, *more: Tensor
) -> Float[Tensor, "batch length v"]:
    """Return the network's output on the device of `inputs`, which may differ from the network's.

    `more` is the previous prediction, if there is one.
    """
    device = next((p.device for p in network.parameters()), inputs.device)
    moved = [x.to(device) if isinstance(x, Tensor) else x for x in (inputs, time, condition, *more)]
    output: Tensor = network(*moved)
    return output.to(inputs.device)


def condition_of(batch: Batch) -> Tensor | None:
    """Return the condition of a batch in the network's format: labels [B], a signal [B, L, S], or None."""
    if batch.signal is not None:
        return batch.signal if batch.signal.ndim == 3 else batch.signal[..., None]
    return batch.label


def training_condition(batch: Batch, config: RunConfig, generator: torch.Generator) -> Tensor | None:
    """Return the condition of a batch, dropped for random sequences, as required for classifier-free guidance."""
    condition = condition_of(batch)
    if condition is None:
        return None
    return drop_condition(condition.cpu(), config.objective.condition_dropout, generator).to(condition.device)


def condition_rows(condition: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the condition of some rows of a batch."""
    return None if condition is None else condition[rows.to(condition.device)]


def condition_at(condition: Tensor | None, part: slice) -> Tensor | None:
    """Return the condition of some positions: a signal [B, L, S] has one entry per position, labels [B] have none."""
    return condition if condition is None or condition.ndim < 3 else condition[:, part]


def check_nfe(nfe: int) -> None:
    """Raise an error unless there is at least one network evaluation."""
    if nfe < 1:
        raise InputError(f"at least one network call is needed, got {nfe}")


# -- schedule and random draws --------------------------------------------------------------------


def alpha(schedule: str, time: Tensor) -> Float[Tensor, ...]:
    """Return `alpha_t` in float64: `t` (log_linear, SEDD's name of it) or `1 - cos(pi t / 2)` (cosine)."""
    time = time.double()
    return time if schedule == "log_linear" else 1 - torch.cos(math.pi / 2 * time)


def alpha_rate(schedule: str, time: Tensor) -> Float[Tensor, ...]:
    """Return `d alpha / dt` in float64."""
    time = time.double()
    return torch.ones_like(time) if schedule == "log_linear" else math.pi / 2 * torch.sin(math.pi / 2 * time)


def alpha_grid(schedule: str, nfe: int) -> Float[Tensor, " levels"]:
    """Return `alpha_0 = 0 < ... < alpha_M = 1` at equally spaced times, in float64."""
    check_nfe(nfe)
    grid = alpha(schedule, torch.linspace(0, 1, nfe + 1, dtype=torch.float64))
    grid[-1] = 1.0  # the cosine is off by rounding
    return grid


def stratified_times(count: int, generator: Rng) -> Float[Tensor, " count"]:
    """Return equally spaced points of [0, 1) with one common random shift, in random order."""
    points = (torch.arange(count) + torch.rand((), generator=generator, dtype=torch.float64)) / count
    return points[torch.randperm(count, generator=generator)]


def stratified_steps(count: int, nfe: int, generator: Rng) -> Int[Tensor, " count"]:
    """Return a random step in 0 .. M - 1 for each sequence, stratified over the batch."""
    check_nfe(nfe)
    return (stratified_times(count, generator) * nfe).long().clamp_max(nfe - 1)


def uniform_like(ids: Int[Tensor, ...], generator: Rng) -> Float[Tensor, ...]:
    """Return a uniform number of [0, 1) for each entry of `ids`, in float64: float32 cannot resolve alpha near 1."""
    return torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(ids.device)

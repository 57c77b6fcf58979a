"""The likelihood of a reading, for comparing readings, channels or models.

| function | result | network calls |
|---|---|---|
| `observation_bound` | an upper bound on `-log p(reading)`, Eq. (58) | twice the steps per draw |
| `pseudo_log_likelihood` | a cheap score for comparing readings, not a bound | one row per position |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.api.decoding import certain, posterior_of, rows_of_call
from rdlm.api.language_model import LanguageModel
from rdlm.api.restore import Evidence, check_evidence
from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sample_mean
from rdlm.process.order import TokenSchedule, TokenSteps
from rdlm.random import generator_of


@torch.no_grad()
def pseudo_log_likelihood(model: LanguageModel, evidence: Evidence) -> float:
    """Return `sum_i log sum_k p(k | the reading elsewhere) lambda_i(k)` in nats for one window.

    Each position is predicted without its own evidence, in one row of a network call. The sum is not the likelihood of
    the reading, nor a bound on it.
    """
    given = check_evidence(model, evidence)
    length = len(given)
    if length > model.length:
        raise InputError(f"the likelihood is for one window of at most {model.length} positions, got {length}")
    total = float(evidence.double().amax(-1).sum())  # `check_evidence` has removed it
    for position in torch.arange(length).split(rows_of_call(length)):
        row = torch.arange(len(position))
        others = given.expand(len(position), -1, -1).clone()
        others[row, position] = 0.0
        law = posterior_of(model.rdlm, others)[row, position].double()  # [rows, V]
        total += float(torch.logsumexp(law + given[position].double(), -1).sum())
    return total


@torch.no_grad()
def observation_bound(
    model: LanguageModel, evidence: Evidence, draws: int = 8, steps: int | None = None, seed: int = 0
) -> Estimate:
    """Return an upper bound on `-log p(reading)` in nats for one window, Eq. (58), with its standard error.

    Sequences are drawn with the evidence and scored without it, in the same random order of positions.
    """
    given = check_evidence(model, evidence)
    if len(given) > model.length:
        raise InputError(f"the bound is for one window of at most {model.length} positions, got {len(given)}")
    offset = float(evidence.double().amax(-1).sum())  # `check_evidence` has removed it
    token_steps = TokenSchedule(1e-6, "strided").discretize(min(steps or len(given), len(given)), len(given))
    many, posterior = rows_of_call(len(given)), partial(posterior_of, model.rdlm)
    values = [
        free_energy(posterior, given, rows, token_steps, generator_of("free energy", seed, index))
        for index, rows in enumerate([many] * (draws // many) + [draws % many])
        if rows
    ]
    return sample_mean(torch.cat(values) - offset)


@torch.no_grad()
def free_energy(
    posterior: Callable[[Tensor], Tensor],
    given: Float[Tensor, "length v"],
    rows: int,
    token_steps: TokenSteps,
    generator: torch.Generator,
) -> Float[Tensor, " rows"]:
    """Return `log r(k) - log p(k) - sum_i log lambda_i(k_i)` of sequences drawn from `r`, Eq. (58).

    In every step some positions are drawn from `r`, with the evidence, and scored by `p`, without it, given those
    before.
    """
    length, size = given.shape
    offsets = token_steps.offsets(rows, length, generator).to(given.device)
    with_evidence = given.expand(rows, -1, -1).clone()
    without = torch.zeros_like(with_evidence)
    value = torch.zeros(rows, dtype=torch.float64)
    for step in range(token_steps.nfe):
        deciding = offsets == step  # [rows, length]
        if not bool(deciding.any()):
            continue
        proposal, model = (posterior(evidence).double().cpu() for evidence in (with_evidence, without))
        token = torch.multinomial(proposal.exp().flatten(0, 1), 1, generator=generator).view(rows, length)
        index = token[..., None]
        excess = (proposal - model - given.double().cpu()).gather(-1, index)[..., 0]
        value += torch.where(deciding.cpu(), excess, 0.0).sum(-1)
        known = certain(token, size).to(given)
        with_evidence = torch.where(deciding[..., None], known, with_evidence)
        without = torch.where(deciding[..., None], known, without)
    return value

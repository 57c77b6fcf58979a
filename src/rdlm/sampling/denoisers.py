"""Queries to the network, and the denoiser with guidance, temperature and self-conditioning.

A sampler is a generator. It yields a `Query` for every network evaluation, and receives log-probabilities. The caller
evaluates queries one by one, or together with those of other samplers (`batching`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rdlm.model.denoiser import BlockMask, Denoiser
from rdlm.model.transformer import Cache
from rdlm.random import check_numbers


class CachedPrefix(NamedTuple):
    """The part of a sequence that a query covers when the blocks before it are in a KV cache.

    A finished block attends to itself and to finished blocks before it, so its keys and values never change.
    """

    cache: Cache
    block: int
    """Tokens of a block."""
    finished: int
    """Tokens of finished blocks; their keys and values are kept after this query."""
    end: int
    """End of the tokens on which the network is evaluated."""


class Query(NamedTuple):
    """Network inputs of some rows."""

    state: Float[Tensor, "rows positions *spheres d"]
    remaining: Float[Tensor, "rows positions"]
    """Remaining noise of each position."""
    previous: Float[Tensor, "rows length f"] | None = None
    """The last prediction, for self-conditioned networks."""
    condition: Tensor | None = None
    """Classes, -1 for a row without one, or signals."""
    block_mask: BlockMask | None = None
    prefix: CachedPrefix | None = None
    given: Float[Tensor, "rows positions v"] | None = None
    """Evidence from another source than the states."""

    @property
    def batching_key(self) -> tuple[object, ...]:
        """Batching key: rows with equal shape and attention mask, all with evidence or none, share a forward pass."""
        mask = self.block_mask
        return self.state.shape[1:], mask and (mask.block, mask.finished is None), self.given is None

    def rows(self, rows: slice) -> Query:
        """Return some of the rows."""
        previous = None if self.previous is None else self.previous[rows]
        condition = None if self.condition is None else self.condition[rows]
        mask = None if self.block_mask is None else self.block_mask.part(rows)
        prefix = self.prefix and self.prefix._replace(cache=self.prefix.cache.rows(rows))
        given = None if self.given is None else self.given[rows]
        return Query(self.state[rows], self.remaining[rows], previous, condition, mask, prefix, given)

    def split(self, size: int = 1) -> list[Query]:
        """Return queries of at most `size` rows."""
        return [self.rows(slice(at, at + size)) for at in range(0, len(self.state), size)]

    def join(self, parts: Sequence[Query], log_probs: Sequence[Tensor]) -> Float[Tensor, "rows positions v"]:
        """Return the log-probabilities of the parts as one tensor, and merge their caches."""
        if self.prefix is not None:
            self.prefix.cache.take([part.prefix.cache for part in parts if part.prefix is not None])
        return log_probs[0] if len(log_probs) == 1 else torch.cat(list(log_probs))

    def with_unconditional(self) -> Query:
        """Return all rows with their condition, then all rows without it."""
        assert self.condition is not None
        absent = torch.full_like(self.condition, float("nan") if self.condition.is_floating_point() else -1)
        previous = None if self.previous is None else torch.cat([self.previous] * 2)
        both = torch.cat([self.condition, absent])
        return Query(torch.cat([self.state] * 2), torch.cat([self.remaining] * 2), previous, both, self.block_mask)

    @torch.no_grad()
    def evaluate(self, denoiser: Denoiser, network: nn.Module) -> Float[Tensor, "rows positions v"]:
        """Return the log-probabilities of all rows from one forward pass."""
        if self.prefix is not None:
            log_probs = self._evaluate_behind(self.prefix, denoiser, network)
        else:
            inputs = (self.state, self.remaining, self.condition, self.previous, self.block_mask, self.given)
            log_probs = denoiser(network, *inputs)
        if log_probs.device.type == "cpu":  # on other devices, reading a result would synchronise
            check_numbers(log_probs)
        return log_probs

    def _evaluate_behind(self, prefix: CachedPrefix, denoiser: Denoiser, network: nn.Module) -> Tensor:
        """Return log-probabilities of the positions behind the cache, uniform elsewhere; the cache grows."""
        symbols, positions = denoiser.layout.symbols_per_token, denoiser.layout.positions
        part = slice(prefix.cache.length // positions * symbols, prefix.end * symbols)
        mask = BlockMask(prefix.block, cache=prefix.cache)
        found = denoiser(network, self.state[:, part], self.remaining[:, part], self.condition, block_mask=mask)
        prefix.cache.keep(prefix.finished * positions)
        log_probs = found.new_full((*self.remaining.shape, found.shape[-1]), -math.log(found.shape[-1]))
        log_probs[:, part] = found
        return log_probs


def evaluated(log_probs: Float[Tensor, "... v"]) -> Bool[Tensor, "..."]:
    """Return which positions were evaluated: at the others, all tokens have exactly the same probability."""
    return log_probs.amax(-1) > log_probs.amin(-1)


Denoising = Generator[Query, Tensor, Tensor]
"""Yields queries, receives their log-probabilities, and returns the log-probabilities to sample from."""


class GuidedDenoiser:
    """Log-probabilities of tokens with guidance, temperature and self-conditioning.

    A condition with one row applies to all sequences. Self-conditioning keeps the last prediction between calls.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        condition: Tensor | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        block_mask: BlockMask | None = None,
        self_condition: bool = False,
    ) -> None:
        self.denoiser, self.condition, self.guidance, self.temperature = denoiser, condition, guidance, temperature
        self.block_mask, self.self_condition = block_mask, self_condition
        self._previous: Tensor | None = None

    def __call__(
        self,
        state: Float[Tensor, "rows positions *spheres d"],
        remaining: Float[Tensor, "rows positions"],
        prefix: CachedPrefix | None = None,
    ) -> Denoising:
        """Return guided and tempered log-probabilities; one query, or one of twice the rows where guidance is used."""
        condition = self.condition
        if condition is not None and len(condition) == 1:
            condition = condition.expand(len(state), *condition.shape[1:])
        query = Query(state, remaining, self._previous, condition, self.block_mask, prefix)
        if self.guidance == 1 or query.condition is None:
            log_probs = yield query
        else:
            log_probs = guide(self.guidance, *(yield query.with_unconditional()).chunk(2))
        if self.self_condition:
            self._previous = self.denoiser.previous(log_probs)
        return log_probs if self.temperature == 1 else self._tempered(log_probs, state, remaining)

    def _tempered(self, log_probs: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        """Return log-probabilities with the context's part divided by the temperature, the evidence as it is, Eq. (27).

        For independent tokens this samples from `p^(1/T)`. If the evidence were divided as well, the first noise would
        determine the sample. Without evidence the two parts cannot be separated, and the sum is divided.
        """
        evidence = self.denoiser.evidence(state, remaining)
        if evidence is None:
            return torch.log_softmax(log_probs / self.temperature, -1)
        return torch.log_softmax(evidence + (log_probs - evidence) / self.temperature, -1)


def guide(guidance: float, conditional: Tensor, unconditional: Tensor) -> Tensor:
    """Return log-probabilities with the condition weighted by the guidance, Eq. (45)."""
    return torch.log_softmax(unconditional + guidance * (conditional - unconditional), -1)

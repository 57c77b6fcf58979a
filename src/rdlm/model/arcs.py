"""The transition matrix of an n-gram chain, as weighted sums of rows of messages [states, batch]."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rdlm.model.ngram import Contexts


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums of rows: a sparse matrix, whose product with [rows, batch] is one `embedding_bag`.

    Most of the time goes into reading the entries: indices have 32 bits.
    """

    index: Int[Tensor, " entries"]
    offsets: Int[Tensor, " sums+1"]
    weight: Float[Tensor, " entries"]

    @staticmethod
    def of(target: Int[Tensor, " entries"], source: Int[Tensor, " entries"], weight: Tensor, sums: int) -> Sums:
        """Return the sums of `weight * row[source]` for each target in 0 .. sums - 1."""
        order = target.argsort(stable=True)
        offsets = functional.pad(torch.bincount(target, minlength=sums).cumsum(0), (1, 0))
        return Sums(source[order].int(), offsets.int(), weight[order])

    def to(self, device: torch.device) -> Sums:
        """Return the sums on a device."""
        return Sums(self.index.to(device), self.offsets.to(device), self.weight.to(device))

    def __call__(self, rows: Float[Tensor, "rows batch"]) -> Float[Tensor, "sums batch"]:
        """Return the weighted sums of rows."""
        return functional.embedding_bag(
            self.index, rows, self.offsets, mode="sum", per_sample_weights=self.weight, include_last_offset=True
        )


@dataclass(frozen=True, eq=False)
class Arcs:
    """The tables of an n-gram model as sparse matrices."""

    suffix: Int[Tensor, " n"]
    backoff: Float[Tensor, " n"]
    following: Int[Tensor, "n v"]
    probability: Float[Tensor, "n v"]
    symbol: Int[Tensor, " n"]
    """The last symbol of each state."""
    levels: tuple[tuple[slice, slice, Sums], ...]
    """For each length from 1: its rows, the rows of one symbol less, and the sums from the former to the latter."""
    by_target: Sums
    by_source: Sums
    by_symbol: Sums

    @staticmethod
    def of(contexts: Contexts) -> Arcs:
        """Return the matrices of counted contexts, whose rows are sorted by length behind the root."""
        length, suffix, weight, following = contexts.length, contexts.suffix, contexts.weight, contexts.following
        (states, vocabulary), backoff = weight.shape, contexts.backoff
        used = 1 + int((length > 0).sum())
        bounds = [0, *(1 + int(((length > 0) & (length <= level)).sum()) for level in range(int(length.max()) + 1))]
        slices = [slice(low, high) for low, high in itertools.pairwise(bounds)]  # root, length 1, 2, ...
        symbol = torch.zeros(states, dtype=torch.long, device=weight.device)
        symbol[following[0]] = torch.arange(vocabulary, device=weight.device)
        levels = []
        for shorter, level in itertools.pairwise(slices):
            if shorter.start > 0:
                symbol[level] = symbol[suffix[level]]
            rows = torch.arange(level.stop - level.start, device=weight.device)
            target = suffix[level] - shorter.start
            sums = Sums.of(target, rows, backoff[level], shorter.stop - shorter.start)
            levels.append((level, shorter, sums))
        source, target, value = _entries(contexts, used)
        everyone = torch.arange(1, used, device=weight.device)
        return Arcs(
            suffix,
            backoff,
            following,
            contexts.probability,
            symbol.int(),
            tuple(levels),
            Sums.of(target, source, value, states),
            Sums.of(source, target, value, states),
            Sums.of(symbol[1:used], everyone, torch.ones(used - 1, device=weight.device), vocabulary),
        )

    def to(self, device: torch.device) -> Arcs:
        """Return the matrices on a device."""
        return Arcs(
            self.suffix.to(device),
            self.backoff.to(device),
            self.following.to(device),
            self.probability.to(device),
            self.symbol.to(device),
            tuple((level, shorter, sums.to(device)) for level, shorter, sums in self.levels),
            self.by_target.to(device),
            self.by_source.to(device),
            self.by_symbol.to(device),
        )


def _entries(contexts: Contexts, used: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, target and weight of all arcs.

    The back-off of `h` goes to the states that `h'` leads to. Where `h` leads to a longer one, that share of the
    probability is moved there: one arc adds it, and another one subtracts it.
    """
    weight, following, suffix = contexts.weight, contexts.following, contexts.suffix
    longer = (following != following[suffix]) & (contexts.length > 0)[:, None]
    moved = torch.where(longer, contexts.backoff[:, None] * contexts.probability[suffix], 0.0)[:used]
    source, symbol = (weight[:used] + moved).nonzero(as_tuple=True)
    away, removed = moved.nonzero(as_tuple=True)
    return (
        torch.cat([source, away]),
        torch.cat([following[source, symbol], following[suffix[away], removed]]),
        torch.cat([(weight[:used] + moved)[source, symbol], -moved[away, removed]]),
    )

"""A pruned n-gram model with back-off: a variable-order Markov chain from counts of contexts.

A context is a string of up to `order - 1` symbols. A state of the chain is a kept context: the longest suffix of the
past among them. With `c(h, e)` the count of symbol `e` after context `h`, `h'` the context without its oldest symbol
and `D` a constant discount, Eq. (53),

    p(e | h) = w(h, e) + b(h) p(e | h'),      w = max(c(h, e) - D, 0) / c(h),      b(h) = 1 - sum_e w(h, e).

Contexts, and the weights `w` of a context, are kept in the order of their gain in likelihood over `h'`; dropped ones
back off to `h'`. The empty context, the root, has the frequencies of symbols mixed with the uniform distribution.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from rdlm.errors import InputError

DISCOUNT = 0.75
"""Absolute discount of counts."""

FEWEST = 8
"""Fewest occurrences of a context."""

ARCS = 10
"""Weights that are kept per state, on average."""

PART = 1 << 22
"""Symbols per batch of counting."""


@dataclass(frozen=True, eq=False)
class Contexts:
    """The states of an n-gram model; row 0 is the root, rows are sorted by length, unused rows at the end are empty."""

    length: Int[Tensor, " states"]
    """Symbols of each context."""
    suffix: Int[Tensor, " states"]
    """The state of the context without its oldest symbol; 0 for the root, -1 for unused rows."""
    oldest: Int[Tensor, " states"]
    """The oldest symbol of each context."""
    weight: Float[Tensor, "states v"]
    """`w(h, e)`; 0 where a symbol is reached through the shorter context alone."""
    following: Int[Tensor, "states v"]
    """The state after each symbol: the longest kept context with which the longer string ends."""

    @staticmethod
    def of(
        suffix: Int[Tensor, " states"], oldest: Int[Tensor, " states"], weight: Float[Tensor, "states v"]
    ) -> Contexts:
        """Return the states from what is stored of them; rows must be sorted by length."""
        (states, vocabulary), used = weight.shape, int((suffix >= 0).sum())
        length = torch.zeros_like(suffix)
        while not torch.equal(longer := 1 + length[suffix[1:used]], length[1:used]):
            length[1:used] = longer
        extension = torch.full((states, vocabulary), -1, device=suffix.device)
        extension[suffix[1:used], oldest[1:used]] = torch.arange(1, used, device=suffix.device)
        following = torch.zeros_like(extension)
        following[0] = extension[0]
        for index in range(1, int(length.max()) + 1):
            rows = (length == index).nonzero()[:, 0]
            shorter = following[suffix[rows]]  # the longest kept suffix of h'e
            longer = extension[shorter, oldest[rows, None]]  # h e, if it is kept and h' e is
            following[rows] = torch.where((length[shorter] == index) & (longer >= 0), longer, shorter)
        return Contexts(length, suffix, oldest, weight, following)

    @property
    def backoff(self) -> Float[Tensor, " states"]:
        """`b(h)` of every state; 0 for the root."""
        found = (1 - self.weight.sum(1)).clamp_min(0)
        found[0] = 0
        return found

    @property
    def probability(self) -> Float[Tensor, "states v"]:
        """`p(e | h)` of every state, Eq. (53)."""
        probability, backoff = self.weight.clone(), self.backoff
        for level in range(1, int(self.length.max()) + 1):
            rows = self.length == level
            probability[rows] += backoff[rows, None] * probability[self.suffix[rows]]
        return probability


def count_contexts(rows: Shaped[Tensor, "n length"], vocabulary: int, order: int, states: int) -> Contexts:
    """Return the chain of `states` contexts with the largest gain among those of up to `order - 1` symbols."""
    check_ngram(vocabulary, order, states)
    levels = _candidates(rows, vocabulary, order - 1, 4 * states)
    probability = _interpolated(levels)
    kept = _kept(levels, probability, states)
    return _chain([level.only(mask) for level, mask in zip(levels, kept, strict=True)], kept, states)


def check_ngram(vocabulary: int, order: int, states: int) -> None:
    """Raise InputError unless an n-gram model of this size is possible."""
    if order < 2:
        raise InputError(f"an n-gram model needs an order of at least 2, got {order}")
    if states <= vocabulary:
        raise InputError(f"an n-gram model of {vocabulary} symbols needs more than {vocabulary} states, got {states}")
    if states * vocabulary > 1 << 26:
        raise InputError(
            f"an n-gram model with {states} states of {vocabulary} symbols is too large: "
            "lower model.states, or use model.belief bigram or hmm"
        )


@dataclass(frozen=True, eq=False)
class _Level:
    """Contexts of one length."""

    suffix: Int[Tensor, " contexts"]
    """Row of the shorter context in the level before."""
    oldest: Int[Tensor, " contexts"]
    """The oldest symbol."""
    count: Float[Tensor, "contexts v"]
    """Occurrences of each symbol after the context."""

    def only(self, mask: Tensor) -> _Level:
        return _Level(self.suffix[mask], self.oldest[mask], self.count[mask])


def _candidates(rows: Tensor, vocabulary: int, longest: int, most: int) -> list[_Level]:
    """Return the frequent contexts of every length, each an extension of a frequent shorter one by an older symbol."""
    parts = rows.split(max(1, PART // rows.shape[1]))
    none = torch.zeros(1, dtype=torch.long)
    found = [
        _Level(none, none, _counted([torch.zeros_like(p, dtype=torch.int32) for p in parts], parts, 1, vocabulary))
    ]
    ids = [torch.zeros_like(part, dtype=torch.int32) for part in parts]
    for length in range(1, min(longest, rows.shape[1] - 1) + 1):
        size = len(found[-1].suffix) * vocabulary
        pairs = [_pairs(part, own, length, vocabulary) for part, own in zip(parts, ids, strict=True)]
        total = torch.zeros(size, dtype=torch.long)
        for pair in pairs:
            total += torch.bincount(pair[pair >= 0], minlength=size)
        kept = total >= (0 if length == 1 else FEWEST)  # all symbols are contexts of length 1
        if length > 1 and int(kept.sum()) > most:
            kept = total >= total.sort(descending=True).values[most]
        if not bool(kept.any()):  # few data
            break
        number = torch.where(kept, kept.cumsum(0) - 1, -1).to(torch.int32)
        chosen = kept.nonzero()[:, 0]
        ids = [torch.where(pair >= 0, number[pair.clamp_min(0)], -1) for pair in pairs]
        found.append(_Level(chosen // vocabulary, chosen % vocabulary, _counted(ids, parts, len(chosen), vocabulary)))
    return found


def _pairs(part: Tensor, ids: Tensor, length: int, vocabulary: int) -> Int[Tensor, "n length"]:
    """Return, at every position, the shorter context before it and the symbol before that; -1 where there is none."""
    older = torch.full(part.shape, -1, dtype=torch.long)
    older[:, length:] = part[:, :-length].long()
    return torch.where((ids >= 0) & (older >= 0), ids.long() * vocabulary + older, -1)


def _counted(ids: list[Tensor], parts: tuple[Tensor, ...], contexts: int, vocabulary: int) -> Float[Tensor, "c v"]:
    """Return how often each symbol follows each context."""
    total = torch.zeros(contexts * vocabulary, dtype=torch.long)
    for own, part in zip(ids, parts, strict=True):
        inside = own >= 0
        total += torch.bincount((own.long() * vocabulary + part.long())[inside], minlength=len(total))
    return total.view(contexts, vocabulary).double()


def _weights(count: Float[Tensor, "contexts v"]) -> Float[Tensor, "contexts v"]:
    return (count - DISCOUNT).clamp_min(0) / count.sum(1, keepdim=True).clamp_min(1)


def _root(count: Float[Tensor, "1 v"]) -> Float[Tensor, "1 v"]:
    """Return the frequencies, with half an occurrence of every symbol."""
    smooth = count + 0.5
    return smooth / smooth.sum(1, keepdim=True)


def _interpolated(levels: list[_Level]) -> list[Float[Tensor, "contexts v"]]:
    """Return `p(e | h)` of all contexts, Eq. (53)."""
    found = [_root(levels[0].count)]
    for level in levels[1:]:
        weight = _weights(level.count)
        found.append(weight + (1 - weight.sum(1, keepdim=True)) * found[-1][level.suffix])
    return found


def _kept(levels: list[_Level], probability: list[Tensor], states: int) -> list[Tensor]:
    """Return which contexts are kept: those with the largest gain of likelihood, and all of their suffixes."""
    value = [torch.full((1,), float("inf"), dtype=torch.float64)]
    for index, level in enumerate(levels[1:], 1):
        lower = probability[index - 1][level.suffix]
        gain = (level.count * (probability[index] / lower).log()).sum(1)
        value.append(torch.full_like(gain, float("inf")) if index == 1 else gain)
    for index in range(len(levels) - 1, 0, -1):  # the gain of a context is at least that of its longest extension
        value[index - 1].scatter_reduce_(0, levels[index].suffix, value[index], "amax")
    ranked = torch.cat(value).sort(descending=True, stable=True).indices[:states]
    kept = torch.zeros(sum(len(one) for one in value), dtype=torch.bool)
    kept[ranked] = True
    return list(kept.split([len(one) for one in value]))


def _chain(levels: list[_Level], kept: list[Tensor], states: int) -> Contexts:
    """Return the chain on the kept contexts, whose suffixes are still rows of all candidates."""
    vocabulary = levels[0].count.shape[1]
    suffix, oldest = torch.full((states,), -1), torch.zeros(states, dtype=torch.long)
    weight, excess = torch.zeros(states, vocabulary, dtype=torch.float64), torch.zeros(states, vocabulary)
    probability = torch.zeros(states, vocabulary, dtype=torch.float64)
    suffix[0], weight[0] = 0, _root(levels[0].count)[0]
    probability[0] = weight[0]
    first, before = 1, 0
    for index, level in enumerate(levels[1:], 1):
        row = (kept[index - 1].cumsum(0) - 1)[level.suffix] + before
        own = slice(first, first + len(row))
        suffix[own], oldest[own], weight[own] = row, level.oldest, _weights(level.count)
        lower = (1 - weight[own].sum(1, keepdim=True)) * probability[row]
        probability[own] = weight[own] + lower
        excess[own] = (level.count * (probability[own] / lower.clamp_min(1e-300)).log()).float()
        first, before = first + len(row), first
    found = Contexts.of(suffix, oldest, weight)
    return replace(found, weight=_pruned(found, excess).float())


def _pruned(contexts: Contexts, excess: Float[Tensor, "states v"]) -> Float[Tensor, "states v"]:
    """Return the weights with the largest excess likelihood, and those to states that `h'` does not lead to."""
    weight, following = contexts.weight, contexts.following
    needed = (following != following[contexts.suffix]) & (contexts.length > 0)[:, None]
    needed[0] = True
    candidates = excess.masked_fill(needed, float("-inf")).flatten()
    most = max(0, ARCS * len(weight) - int(needed.sum()))
    chosen = torch.zeros(weight.numel(), dtype=torch.bool)
    chosen[candidates.topk(min(most, len(candidates))).indices] = True
    chosen &= candidates > 0
    return weight.where(chosen.view_as(weight) | needed, 0.0)


# -- the chain as sparse matrices ------------------------------------------------------------


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
        moved = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "levels"}
        levels = tuple((level, shorter, sums.to(device)) for level, shorter, sums in self.levels)
        return Arcs(**{name: value.to(device) for name, value in moved.items()}, levels=levels)


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

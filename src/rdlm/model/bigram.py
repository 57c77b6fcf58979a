"""An inference layer for large vocabularies: a bigram model whose frequent pairs are the arcs of a sparse chain.

The state of the chain is the symbol itself. With `c(h, e)` the count of a pair, `c(h)` that of its first symbol and `D`
a constant discount, as in Eq. (53),

    p(e | h) = w(h, e) + b(h) q(e),      w = max(c(h, e) - D, 0) / c(h),      b(h) = 1 - sum_e w(h, e),

where `q` is proportional to the number of different symbols before `e` (Kneser and Ney, 1995). The first symbol of a
sequence has the frequencies of symbols. Kept pairs are those with the largest gain in likelihood over `q`; the weights
of dropped ones go to `b(h)`. Messages are [V, batch]; the one before the first symbol is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from rdlm.errors import InputError
from rdlm.model.belief import FORMAT, SMALLEST, Belief
from rdlm.model.ngram import DISCOUNT, Sums
from rdlm.storage.tables import cached

TABLES = ("count", "second", "log_weight", "log_start", "log_lower")
"""Buffers of the layer: how many pairs begin with each symbol; the second symbols and log-weights of the pairs, in the
order of their first symbols; the log-probabilities of the first symbol of a sequence; and log q."""

RARE = 0.5
"""Occurrences added to each symbol's count."""

NOTHING = -50.0
"""Log-weight of rows that are not used; finite, because weights in files must be."""


class Bigram(Belief):
    """A pruned bigram model with back-off; its tables are buffers, saved with the network."""

    count: Tensor
    second: Tensor
    log_weight: Tensor
    log_start: Tensor
    log_lower: Tensor
    share = 1 / 8  # a step with the chain takes five times as long as one without it

    def __init__(self, vocabulary: int, pairs: int) -> None:
        super().__init__()
        if pairs < 1:
            raise InputError(f"a bigram model needs at least 1 pair, got model.states {pairs}")
        self.vocabulary = self.states = vocabulary
        self.pairs = pairs
        # Before pairs are counted: independent symbols with equal probabilities.
        uniform = torch.full((vocabulary,), 1 / vocabulary).log()
        self.register_buffer("count", functional.pad(torch.tensor([pairs]), (0, vocabulary - 1)).int())
        self.register_buffer("second", torch.zeros(pairs, dtype=symbol_type(vocabulary)))
        self.register_buffer("log_weight", torch.full((pairs,), NOTHING))
        self.register_buffer("log_start", uniform)
        self.register_buffer("log_lower", uniform.clone())
        self._arcs: tuple[tuple[object, ...], PairArcs] | None = None

    @property
    def log_frequencies(self) -> Tensor:
        """The log-frequencies of symbols."""
        return self.log_start

    def fit(self, rows: Callable[[], Shaped[Tensor, "n length"]], digest: str = "") -> None:
        """Count the pairs of training data, or take them from the cache."""

        def make() -> dict[str, Tensor]:
            return count_pairs(rows(), self.vocabulary, self.pairs)

        parameters = {"format": FORMAT, "table": "bigrams", "data": digest, "vocabulary": self.vocabulary}
        tables = cached({**parameters, "pairs": self.pairs}, make) if digest else make()
        for name in TABLES:
            getattr(self, name).copy_(tables[name])

    def check(self) -> None:
        """Raise ValueError unless the tables are those of a bigram model; they may be from an untrusted file."""
        if not bool((self.count >= 0).all() and int(self.count.sum()) == self.pairs):
            raise ValueError("the pairs of its bigram model are not as many as there should be")
        if not bool((self.second >= 0).all() and (self.second < self.vocabulary).all()):
            raise ValueError("the pairs of its bigram model are not symbols of the vocabulary")
        first = torch.arange(self.vocabulary, device=self.count.device).repeat_interleave(self.count)
        total = torch.zeros(self.vocabulary, device=self.count.device)
        total.index_add_(0, first, self.log_weight.float().exp())
        if not bool((total < 1.01).all()):
            raise ValueError("the probabilities of its bigram model sum to more than 1")
        for law in (self.log_start, self.log_lower):
            if not bool((law.float().exp().sum() - 1).abs() < 0.01):
                raise ValueError("the frequencies of its bigram model do not sum to 1")

    @property
    def arcs(self) -> PairArcs:
        """The tables in the form that inference needs, computed once after they change."""
        key = (self.log_weight._version, self.log_weight.data_ptr(), self.count._version, self.log_weight.device)
        if self._arcs is None or self._arcs[0] != key:
            logs = (getattr(self, name).float() for name in TABLES[2:])
            self._arcs = (key, PairArcs.of(self.count.long(), self.second.long(), *logs))
        return self._arcs[1]

    @torch.no_grad()
    def predicted(self, clean: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of every symbol given the clean symbols before it."""
        arcs, before = self.arcs, self._messages_before(clean).flatten()
        known = before.clamp_min(0)
        found = torch.where((before < 0)[:, None], arcs.start, arcs.backoff[known, None] * arcs.lower)  # [B L, V]
        count = torch.where(before < 0, 0, arcs.offsets[known + 1] - arcs.offsets[known])
        row = torch.arange(len(before), device=before.device).repeat_interleave(count)
        # The arcs of a position are consecutive: their numbers are those of the first one and the next ones.
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row] + arcs.offsets[known][row]
        found.index_put_((row, arcs.second[place]), arcs.weight[place], accumulate=True)
        log_probs: Tensor = found.add_(SMALLEST).log_().unflatten(0, clean.shape)
        return log_probs

    def _messages_before(self, clean: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """Return the symbol before every position; -1 before the first."""
        return functional.pad(clean[:, :-1].long(), (1, 0), value=-1)

    def _message(self, before: Int[Tensor, " batch"]) -> Float[Tensor, "n batch"]:
        return functional.one_hot(before + 1, self.vocabulary + 1)[:, 1:].t().float()

    def _start(self, batch: int) -> Float[Tensor, "n batch"]:
        return torch.zeros(self.vocabulary, batch, device=self.log_start.device)

    def _ahead(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        arcs = self.arcs
        missing = (1 - message.sum(0)).clamp_min(0)  # 1 before the first symbol, else 0 up to rounding
        found = arcs.by_second(message).addr_(arcs.lower, arcs.backoff @ message)
        return found.addr_(arcs.start, missing)

    def _back(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        arcs = self.arcs
        return arcs.by_first(message).addr_(arcs.backoff, arcs.lower @ message)

    def _emitted(self, likelihood: Float[Tensor, "v batch"]) -> Float[Tensor, "n batch"]:
        return likelihood

    def _by_symbol(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "v batch"]:
        return message


@dataclass(frozen=True, eq=False)
class PairArcs:
    """The tables of a bigram model as sparse sums over pairs, sorted by their first symbol."""

    start: Float[Tensor, " v"]
    lower: Float[Tensor, " v"]
    backoff: Float[Tensor, " v"]
    offsets: Int[Tensor, " v+1"]
    """The first pair of each symbol."""
    second: Int[Tensor, " pairs"]
    weight: Float[Tensor, " pairs"]
    by_first: Sums
    by_second: Sums

    @staticmethod
    def of(
        count: Int[Tensor, " v"],
        second: Int[Tensor, " pairs"],
        log_weight: Float[Tensor, " pairs"],
        log_start: Float[Tensor, " v"],
        log_lower: Float[Tensor, " v"],
    ) -> PairArcs:
        """Return the sums of stored tables."""
        vocabulary, weight = len(log_lower), log_weight.exp()
        first = torch.arange(vocabulary, device=count.device).repeat_interleave(count)
        backoff = (1 - torch.zeros_like(log_lower).index_add_(0, first, weight)).clamp_min(0)
        by_first = Sums.of(first, second, weight, vocabulary)
        by_second = Sums.of(second, first, weight, vocabulary)
        start, lower = log_start.softmax(0), log_lower.softmax(0)
        return PairArcs(start, lower, backoff, by_first.offsets.long(), second, weight, by_first, by_second)


def symbol_type(vocabulary: int) -> torch.dtype:
    """Return the smallest of two integer types that has all symbols."""
    return torch.int16 if vocabulary <= torch.iinfo(torch.int16).max else torch.int32


def count_pairs(rows: Shaped[Tensor, "n length"], vocabulary: int, most: int) -> dict[str, Tensor]:
    """Return the tables of a bigram model with at most `most` pairs, those with the largest gain in likelihood."""
    symbols = rows.long()
    count = torch.bincount(symbols.flatten(), minlength=vocabulary).double() + RARE
    pair, found = torch.unique(symbols[:, :-1] * vocabulary + symbols[:, 1:], return_counts=True)
    first, second, occurrences = pair // vocabulary, pair % vocabulary, found.double()
    lower = torch.bincount(second, minlength=vocabulary).double() + RARE
    lower = lower / lower.sum()
    weight = (occurrences - DISCOUNT) / count[first]
    backoff = 1 - torch.zeros_like(count).index_add_(0, first, weight)
    gain = occurrences * (weight / (backoff[first] * lower[second])).log1p()
    kept = gain.topk(min(most, len(gain))).indices.sort().values
    rest = most - len(kept)  # pairs without weight, at the end
    number = torch.bincount(first[kept], minlength=vocabulary)
    number[-1] += rest
    return {
        "count": number.int(),
        "second": functional.pad(second[kept], (0, rest)).to(symbol_type(vocabulary)),
        "log_weight": functional.pad(weight[kept].log(), (0, rest), value=NOTHING).float(),
        "log_start": (count / count.sum()).log().float(),
        "log_lower": lower.log().float(),
    }

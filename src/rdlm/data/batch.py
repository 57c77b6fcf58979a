"""Batches in an order that depends on nothing but (seed, step): resuming needs only the step's number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rdlm.data.store import Corpus
from rdlm.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with what conditions them."""

    ids: Int[Tensor, "batch length"]
    label: Int[Tensor, " batch"] | None = None
    signal: Float[Tensor, "batch length"] | None = None


class Batches:
    """One split of a corpus, cut into rows of `length` and dealt out in a seeded order.

    A stream is cut into consecutive chunks (a rest shorter than `length` is left out); a corpus of rows
    keeps its own. Every epoch is a fresh permutation, and a batch may span two epochs.
    """

    def __init__(
        self, corpus: Corpus, split: str, *, batch_size: int, length: int | None = None, seed: int = 0
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.seed = seed
        self.rows = _rows(corpus, split, corpus.length if length is None else length)
        self.label = corpus.labels.get(split)
        self.signal = corpus.signals.get(split)

    @property
    def chunks(self) -> int:
        """Return the number of rows of an epoch."""
        return len(self.rows)

    def order(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step's whole batch."""
        place = step * self.batch_size + np.arange(self.batch_size)
        epoch, index = np.divmod(place, self.chunks)
        chosen = [permuted(index[epoch == e], self.chunks, self.seed, int(e)) for e in np.unique(epoch)]
        return np.concatenate(chosen)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this rank's share of a step's batch: every `world`-th row, so that together they are it."""
        if step < 0 or not 0 <= rank < world:
            raise InputError(f"need step >= 0 and 0 <= rank < world, got {step}, {rank}, {world}")
        if self.batch_size % world:
            raise InputError(f"batch_size {self.batch_size} does not divide among {world} processes")
        return self._take(self.order(step)[rank::world])

    def stream(self, step: int = 0, rank: int = 0, world: int = 1, ahead: int = 2) -> Iterator[Batch]:
        """Yield the batches from `step` on, without end, `ahead` of them prepared by a background thread."""
        with ThreadPoolExecutor(1, "rdlm-batch") as pool:
            waiting: deque[Future[Batch]] = deque()
            while True:
                while len(waiting) <= ahead:
                    waiting.append(pool.submit(self.batch, step, rank, world))
                    step += 1
                yield waiting.popleft().result()

    def sequential(self, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield every row once in its order, for evaluation; the last batch may be smaller."""
        rows = np.arange(rank, self.chunks, world)
        for first in range(0, len(rows), self.batch_size):
            yield self._take(rows[first : first + self.batch_size])

    def _take(self, rows: NDArray[np.int64]) -> Batch:
        return Batch(
            torch.from_numpy(self.rows[rows].astype(np.int64)),
            None if self.label is None else torch.from_numpy(self.label[rows].astype(np.int64)),
            None if self.signal is None else torch.from_numpy(self.signal[rows].astype(np.float32)),
        )


def permuted(index: NDArray[Any], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return where a permutation of 0 .. count - 1, chosen by (seed, epoch), sends each index.

    Four Feistel rounds on the two halves of the index's bits permute the next power of four; indices that
    land outside are sent on until they land inside, which keeps it a permutation and needs no memory.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.SeedSequence([seed % (1 << 64), epoch]).generate_state(4, np.uint64).astype(np.uint64)
    value = np.asarray(index, np.uint64)
    pending = np.ones(value.shape, bool)
    while pending.any():
        value[pending] = _feistel(value[pending], keys, np.uint64(half), mask)
        pending = value >= count
    return value.astype(np.int64)


def _feistel(
    value: NDArray[np.uint64], keys: NDArray[np.uint64], half: np.uint64, mask: np.uint64
) -> NDArray[np.uint64]:
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finaliser of the splitmix64 generator: every input bit moves every output bit.
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _rows(corpus: Corpus, split: str, length: int) -> NDArray[Any]:
    tokens = corpus.split(split)
    if length < 1:
        raise InputError(f"length must be at least 1, got {length}")
    if tokens.ndim == 2:
        if tokens.shape[1] != length:
            raise InputError(f"{corpus.protocol} has rows of {tokens.shape[1]} tokens, not {length}")
        return tokens
    if tokens.size < length:
        raise InputError(f"the {split} split has {tokens.size} tokens, fewer than length {length}")
    count = tokens.size // length
    return tokens[: count * length].reshape(count, length)  # [N] -> [chunks, length]

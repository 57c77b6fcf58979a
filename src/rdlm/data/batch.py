"""Batches whose rows are a function of (seed, step): a resumed run needs only the number of its step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
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
    """Rows of tokens with their labels and signals."""

    ids: Int[Tensor, "batch length"]
    label: Int[Tensor, " batch"] | None = None
    signal: Float[Tensor, "batch length"] | None = None

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> Batch:
        """Return some rows."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        label, signal = (None if tensor is None else function(tensor) for tensor in (self.label, self.signal))
        return Batch(function(self.ids), label, signal)


class Batches:
    """One split of a corpus as rows of `length` tokens, in a seeded random order.

    A stream is split into consecutive rows (a remainder shorter than `length` is dropped); a corpus of rows keeps its
    own. Every epoch is a new permutation, and a batch may span two epochs.
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

    def order(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step's batch, over all ranks."""
        position = step * self.batch_size + np.arange(self.batch_size)
        epoch, index = np.divmod(position, len(self.rows))
        return np.concatenate(
            [permuted(index[epoch == e], len(self.rows), self.seed, int(e)) for e in np.unique(epoch)]
        )

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return the share of a rank in a step's batch: every `world`-th row."""
        if step < 0 or not 0 <= rank < world:
            raise InputError(f"need step >= 0 and 0 <= rank < world, got {step}, {rank}, {world}")
        if self.batch_size % world:
            raise InputError(f"batch_size {self.batch_size} is not divisible by {world} processes")
        return self._take(self.order(step)[rank::world])

    def stream(self, step: int = 0, rank: int = 0, world: int = 1, ahead: int = 2) -> Iterator[Batch]:
        """Yield the batches from `step` on, endlessly; a background thread prepares `ahead` of them."""
        with ThreadPoolExecutor(1, "rdlm-batch") as pool:
            waiting: deque[Future[Batch]] = deque()
            while True:
                while len(waiting) <= ahead:
                    waiting.append(pool.submit(self.batch, step, rank, world))
                    step += 1
                yield waiting.popleft().result()

    def _take(self, rows: NDArray[np.int64]) -> Batch:
        return Batch(
            torch.from_numpy(self.rows[rows].astype(np.int64)),
            None if self.label is None else torch.from_numpy(self.label[rows].astype(np.int64)),
            None if self.signal is None else torch.from_numpy(self.signal[rows].astype(np.float32)),
        )


def permuted(index: NDArray[Any], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Apply the permutation of 0 .. count - 1 with the key (seed, epoch) to each index.

    Four Feistel rounds on the two halves of the bits of an index permute the range up to the next power of four;
    results outside 0 .. count - 1 are permuted again until they are inside (cycle walking). No table is stored.
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
    # The finalizer of the splitmix64 generator: every output bit depends on every input bit.
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
        shorter = f", or a data.length of at most {tokens.size:,}" if tokens.size else ""
        raise InputError(
            f"the {split} split has {tokens.size:,} tokens, fewer than a sequence of {length:,}: it takes more "
            f"data{shorter}"
        )
    count = tokens.size // length
    return tokens[: count * length].reshape(count, length)  # [N] -> [count, length]

"""The bound on held-out sequences, always the same ones with the same noise, so that two measurements compare."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from rdlm.data.batch import Batch, Batches
from rdlm.data.store import Corpus
from rdlm.methods.base import Method
from rdlm.random import generator_of
from rdlm.train.parallel import Team

PIECE = 16
"""Sequences that are measured at once. It is fixed, so that the number of processes changes nothing."""

UNITS = {"image": "bits per dimension", "dna": "bits per base", "text": "bits per character"}


@dataclass(frozen=True)
class Bound:
    """The mean bound of sequences in nats, with its standard error."""

    mean: float
    stderr: float
    tokens: int
    """Tokens per sequence."""

    @property
    def bits(self) -> float:
        """Return the bound in bits per token."""
        return self.mean / self.tokens / math.log(2)

    @property
    def margin(self) -> float:
        """Return half the width of the 95% interval, in bits per token."""
        return 1.96 * self.stderr / self.tokens / math.log(2)


def unit_of(corpus: Corpus) -> str:
    """Return what a token of this corpus is, as in `bits per character`."""
    kind = corpus.tokenizer.to_json()["kind"]
    if corpus.kind == "text" and kind != "characters":
        return f"bits per {'byte' if kind == 'bytes' else 'token'}"
    return UNITS[corpus.kind]


def held_out(corpus: Corpus, length: int | None, count: int, seed: int) -> Batch:
    """Return `count` validation sequences chosen by the seed, or all of them if there are fewer."""
    rows = Batches(corpus, "validation", batch_size=1, length=length, seed=seed).chunks
    return Batches(corpus, "validation", batch_size=min(count, rows), length=length, seed=seed).batch(0)


def measure(method: Method, batch: Batch, nfe: int, seed: int, team: Team) -> Bound:
    """Return the bound of the method as it is now on the sequences of `batch`, shared out over the team.

    All members run equally often, as sharded networks need it: who has nothing left repeats the last piece.
    """
    count = len(batch.ids)
    pieces = math.ceil(count / PIECE)
    values = torch.zeros(count, dtype=torch.float64)
    for turn in range(math.ceil(pieces / team.world)):
        mine = turn * team.world + team.rank
        piece = min(mine, pieces - 1)
        rows = slice(piece * PIECE, (piece + 1) * PIECE)
        with torch.no_grad():
            found = method.bound(on(part(batch, rows), team.device), nfe, generator_of("validation", seed, piece))
        if mine == piece:
            values[rows] = found.double().cpu()
    total = torch.tensor(team.add(values.tolist()), dtype=torch.float64)
    stderr = float(total.std()) / math.sqrt(count) if count > 1 else math.inf
    return Bound(float(total.mean()), stderr, batch.ids.shape[1])


def part(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch."""
    return Batch(
        batch.ids[rows],
        None if batch.label is None else batch.label[rows],
        None if batch.signal is None else batch.signal[rows],
    )


def on(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device."""
    return replace(
        batch,
        ids=batch.ids.to(device),
        label=None if batch.label is None else batch.label.to(device),
        signal=None if batch.signal is None else batch.signal.to(device),
    )

"""Validation during training: the bound on fixed sequences with fixed noise, so that two values can be compared."""

from __future__ import annotations

import math

import torch

from rdlm.data.batch import Batch, Batches
from rdlm.data.store import Corpus
from rdlm.methods.base import Method
from rdlm.methods.bound import Bound
from rdlm.random import generator_of
from rdlm.train.parallel import Team

BATCH = 16
"""Sequences evaluated at once; fixed, so that the result does not depend on the number of processes."""

UNITS = {"image": "bits per dimension", "dna": "bits per base", "text": "bits per character"}


def unit_of(corpus: Corpus) -> str:
    """Return the unit of a bound per token, such as `bits per character`."""
    kind = corpus.tokenizer.to_json()["kind"]
    if corpus.kind == "text" and kind != "characters":
        return f"bits per {'byte' if kind == 'bytes' else 'token'}"
    return UNITS[corpus.kind]


def held_out(corpus: Corpus, length: int | None, count: int, seed: int) -> Batch:
    """Return `count` validation sequences chosen by the seed, or all if there are fewer."""
    rows = len(Batches(corpus, "validation", batch_size=1, length=length, seed=seed).rows)
    return Batches(corpus, "validation", batch_size=min(count, rows), length=length, seed=seed).batch(0)


def validation_bound(method: Method, batch: Batch, nfe: int, seed: int, team: Team) -> Bound:
    """Return the mean bound of a method on the sequences of `batch`, which are divided among the processes.

    Sharded networks need the same number of forward passes in every process: a process without sequences left
    evaluates the last ones again and discards the result.
    """
    count = len(batch.ids)
    parts = math.ceil(count / BATCH)
    values = torch.zeros(count, dtype=torch.float64)
    for turn in range(math.ceil(parts / team.world)):
        own = turn * team.world + team.rank
        part = min(own, parts - 1)
        rows = slice(part * BATCH, (part + 1) * BATCH)
        with torch.no_grad():
            found = method.bound(batch[rows].to(team.device), nfe, generator_of("validation", seed, part))
        if own == part:
            values[rows] = found.double().cpu()
    total = torch.tensor(team.add(values.tolist()), dtype=torch.float64)
    # One sequence gives no error; JSON has no infinity, so it is as large as the bound.
    stderr = float(total.std()) / math.sqrt(count) if count > 1 else abs(float(total.mean()))
    return Bound(float(total.mean()), stderr, batch.ids.shape[1])

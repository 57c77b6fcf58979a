"""Data loading against the training step that waits for it."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure, Work, alternate, at_most
from benchmarks.subject import LETTERS, NETWORK, SMALL_TABLE, TINY, method, tokens, training_step
from rdlm.config import RunConfig
from rdlm.data.batch import Batches
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Characters


def loading(quick: bool) -> list[Figure]:
    """Return a batch from a memory-mapped file over the training step on it."""
    batch, length = (2, 256) if quick else (16, 256)
    subject = method(RunConfig(process=SMALL_TABLE, model=TINY if quick else NETWORK), LETTERS)
    with tempfile.TemporaryDirectory() as folder:
        batches = Batches(corpus(Path(folder), 10_000_000), "train", batch_size=batch, length=length)
        steps = count()
        works: dict[str, Work] = {
            "batch": lambda: batches.batch(next(steps)),
            "step": training_step(subject, tokens(LETTERS, batch, length)),
        }
        taken = alternate(works, 3 if quick else 5)
        del batches
    return [Figure.of("loading of a batch", "the training step", taken["batch"], taken["step"], at_most(0.01))]


def corpus(folder: Path, size: int) -> Corpus:
    """Return a stream of random letters in a file of `folder`, memory-mapped."""
    path = folder / "train.bin"
    np.random.default_rng(0).integers(LETTERS, size=size, dtype=np.uint8).tofile(path)
    alphabet = Characters(" abcdefghijklmnopqrstuvwxyz")
    stream = np.memmap(path, np.uint8, "r")
    return Corpus("letters", "random", "text", 256, alphabet, "none", "random", folder, {"train": stream}, {}, {})

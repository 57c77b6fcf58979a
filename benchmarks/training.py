"""The training step (loss and gradient) against what any method pays for the same network.

`layout` compares packed digits, which share the position of their token, with serial ones, which follow each other as
in the paper; `loading` compares data loading with the training step that waits for it.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from benchmarks.fixtures import (
    BLOCKWISE,
    LETTERS,
    NETWORK,
    ONE_SPHERE,
    PIECES,
    PLAIN,
    SMALL_TABLE,
    SPLIT,
    SYNCHRONOUS,
    TINY,
    WINDOWS,
    method,
    network_on_features,
    network_on_ids,
    tokens,
    training_step,
)
from benchmarks.measure import Figure, Work, alternate, at_least, at_most
from rdlm.config import DenoiserConfig, Head, RunConfig, TransformerConfig
from rdlm.data.batch import Batches
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Characters
from rdlm.process.layout import Placement

LAYOUTS: dict[str, tuple[Placement, Head]] = {
    "serial": ("serial", "digit"),
    "digit": ("packed", "digit"),
    "token": ("packed", "token"),
}
PAPER = TransformerConfig(width=768, layers=12, heads=12)


def step(quick: bool) -> list[Figure]:
    """Measure the step at d = 28, with one time per sequence and with one time per position."""
    ids = tokens(LETTERS, 2 if quick else 16, 256)
    works = {
        name: training_step(method(RunConfig(process=SMALL_TABLE, model=NETWORK, objective=objective), LETTERS), ids)
        for name, objective in (("synchronous", SYNCHRONOUS), ("windows", WINDOWS))
    }
    # Tensor sizes differ from step to step with windows: it takes a few steps until the allocator has seen them all.
    taken = alternate(works | {"ids": network_on_ids(NETWORK, LETTERS, ids)}, 3 if quick else 11)
    return [
        Figure.of(f"training step, d = 28, {name}", "the network on ids", taken[name], taken["ids"], at_most(1.05))
        for name in works
    ]


def blocks(quick: bool) -> list[Figure]:
    """Measure the blockwise step, in which the network processes a clean and a noisy copy of the sequence."""
    ids = tokens(LETTERS, 2 if quick else 8, 64 if quick else 256)
    config = RunConfig(process=SMALL_TABLE, model=NETWORK, objective=BLOCKWISE)
    works = {
        "blocks": training_step(method(config, LETTERS), ids),
        "ids": network_on_ids(NETWORK, LETTERS, ids),
        "twice": network_on_ids(NETWORK, LETTERS, torch.cat([ids, ids], dim=1)),
    }
    taken = alternate(works, 3 if quick else 5)
    name = "training step, d = 28, left to right"
    return [
        Figure.of(name, "the network on ids", taken["blocks"], taken["ids"]),
        Figure.of(name, "the network on twice as many ids", taken["blocks"], taken["twice"]),
    ]


def packed(quick: bool) -> list[Figure]:
    """Measure the step with ten digits at a position, with one softmax over all tokens or one per digit."""
    ids = tokens(PIECES, 2 if quick else 8, 128)
    network = TINY if quick else NETWORK
    figures = []
    for head in get_args(Head):
        trained = method(RunConfig(process=SPLIT, denoiser=DenoiserConfig(head=head), model=network), PIECES)
        layout = trained.process.layout if head == "digit" else None
        works = {"packed": training_step(trained, ids), "ids": network_on_ids(network, PIECES, ids, layout)}
        taken = alternate(works, 3 if quick else 5)
        name = f"training step, 30,522 tokens as packed base-3 digits, head over {head}s"
        figures.append(Figure.of(name, "the network on ids", taken["packed"], taken["ids"], at_most(1.1)))
    return figures


def unsplit(quick: bool) -> list[Figure]:
    """Measure the step whose network input is all 30,523 coordinates of the state."""
    ids = tokens(PIECES, 1 if quick else 8, 64 if quick else 128)
    network = TINY if quick else NETWORK
    states = torch.rand(*ids.shape, PIECES)
    works: dict[str, Work] = {
        "unsplit": training_step(method(RunConfig(process=ONE_SPHERE, denoiser=PLAIN, model=network), PIECES), ids),
        "features": partial(network_on_features(network, PIECES), states, ids),
    }
    taken = alternate(works, 3 if quick else 5)
    name = "training step, 30,522 tokens on one sphere"
    return [Figure.of(name, "the network on dense features", taken["unsplit"], taken["features"], at_most(1.5))]


def layout(quick: bool) -> list[Figure]:
    """Measure how many times faster the packed layout is with the small network."""
    return _layouts(TINY, 32, 3) if quick else _layouts(NETWORK, 128, 4)


def paper_layout(quick: bool) -> list[Figure]:
    """Measure the same with a network of the paper's size, which takes minutes; `quick` leaves it out."""
    return [] if quick else _layouts(PAPER, 128, 2)


def _layouts(network: TransformerConfig, length: int, turns: int) -> list[Figure]:
    ids = tokens(PIECES, 2, length)
    works = {}
    for name, (where, head) in LAYOUTS.items():
        config = RunConfig(process=replace(SPLIT, layout=where), denoiser=DenoiserConfig(head=head), model=network)
        works[name] = training_step(method(config, PIECES), ids)
    works["ids"] = network_on_ids(network, PIECES, ids)
    taken = alternate(works, turns)
    shape = f"width {network.width}, {network.layers} layers, length {length}"
    figures = [
        Figure.of(f"serial digits, {shape}", f"packed, head over {name}s", taken["serial"], taken[name], at_least(8.0))
        for name in ("token", "digit")
    ]
    # The network alone is the upper limit of what a packed step with a head over tokens can reach.
    return [*figures, Figure.of(f"serial digits, {shape}", "the network on ids", taken["serial"], taken["ids"])]


def loading(quick: bool) -> list[Figure]:
    """Measure reading a batch from a memory-mapped file over the training step on it."""
    batch, length = (2, 256) if quick else (16, 256)
    trained = method(RunConfig(process=SMALL_TABLE, model=TINY if quick else NETWORK), LETTERS)
    with tempfile.TemporaryDirectory() as folder:
        batches = Batches(corpus(Path(folder), 10_000_000), "train", batch_size=batch, length=length)
        steps = count()
        works: dict[str, Work] = {
            "batch": lambda: batches.batch(next(steps)),
            "step": training_step(trained, tokens(LETTERS, batch, length)),
        }
        taken = alternate(works, 3 if quick else 5)
        del batches
    return [Figure.of("loading of a batch", "the training step", taken["batch"], taken["step"], at_most(0.01))]


def corpus(folder: Path, size: int) -> Corpus:
    """Return a memory-mapped stream of random letters in a file of `folder`."""
    path = folder / "train.bin"
    np.random.default_rng(0).integers(LETTERS, size=size, dtype=np.uint8).tofile(path)
    alphabet = Characters(" abcdefghijklmnopqrstuvwxyz")
    stream = np.memmap(path, np.uint8, "r")
    return Corpus("letters", "random", "text", 256, alphabet, "none", "random", folder, {"train": stream}, {}, {})

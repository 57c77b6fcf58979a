"""The training step, loss and gradient, against what any method pays for the same network."""

from __future__ import annotations

from functools import partial
from typing import get_args

import torch

from benchmarks.measure import Figure, Work, alternate, at_most
from benchmarks.subject import (
    CHUNKS,
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
from rdlm.config import DenoiserConfig, Head, RunConfig


def step(quick: bool) -> list[Figure]:
    """Return the step at d = 28, with a time per sequence and with a time per position."""
    ids = tokens(LETTERS, 2 if quick else 16, 256)
    works = {
        name: training_step(method(RunConfig(process=SMALL_TABLE, model=NETWORK, objective=objective), LETTERS), ids)
        for name, objective in (("synchronous", SYNCHRONOUS), ("windows", WINDOWS))
    }
    # Windows differ in size from step to step: it takes some until the heap has had them all.
    taken = alternate(works | {"ids": network_on_ids(NETWORK, LETTERS, ids)}, 3 if quick else 11)
    return [
        Figure.of(f"training step, d = 28, {name}", "the network on ids", taken[name], taken["ids"], at_most(1.05))
        for name in works
    ]


def blocks(quick: bool) -> list[Figure]:
    """Return the step of a sequence that is learned token after token: it goes in twice, finished and noisy."""
    ids = tokens(LETTERS, 2 if quick else 8, 64 if quick else 256)
    config = RunConfig(process=SMALL_TABLE, model=NETWORK, objective=CHUNKS)
    works = {
        "chunks": training_step(method(config, LETTERS), ids),
        "ids": network_on_ids(NETWORK, LETTERS, ids),
        "twice": network_on_ids(NETWORK, LETTERS, torch.cat([ids, ids], dim=1)),
    }
    taken = alternate(works, 3 if quick else 5)
    name = "training step, d = 28, left to right"
    return [
        Figure.of(name, "the network on ids", taken["chunks"], taken["ids"]),
        Figure.of(name, "the network on twice as many ids", taken["chunks"], taken["twice"]),
    ]


def packed(quick: bool) -> list[Figure]:
    """Return the step with ten digits at a position, and one softmax over all tokens or one for each digit."""
    ids = tokens(PIECES, 2 if quick else 8, 128)
    network = TINY if quick else NETWORK
    figures = []
    for head in get_args(Head):
        subject = method(RunConfig(process=SPLIT, denoiser=DenoiserConfig(head=head), model=network), PIECES)
        layout = subject.process.layout if head == "digit" else None
        works = {"packed": training_step(subject, ids), "ids": network_on_ids(network, PIECES, ids, layout)}
        taken = alternate(works, 3 if quick else 5)
        name = f"training step, 30,522 tokens as packed base-3 digits, head over {head}s"
        figures.append(Figure.of(name, "the network on ids", taken["packed"], taken["ids"], at_most(1.1)))
    return figures


def unsplit(quick: bool) -> list[Figure]:
    """Return the step with all 30,523 coordinates of the state going in."""
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

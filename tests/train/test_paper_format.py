"""Twenty steps of the CIFAR-10 and LM1B presets, with small networks, on data of the published format.

CIFAR-10 is the real one where the user's cache holds it; LM1B's training text cannot be had from a registry, so its
sentences are made up here, with ids of the real vocabulary's size.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data import store
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Levels, wordpiece
from rdlm.methods import build
from rdlm.presets import preset
from rdlm.train.loop import train

RANDOM = np.random.default_rng(0)


def cifar10(folder: Path) -> Corpus:
    prepared = sorted((Path.home() / ".cache" / "rdlm" / "data").glob("cifar10-*"))
    if prepared:
        return store.read(prepared[0])
    rows = {split: RANDOM.integers(0, 256, (8, 3072)).astype(np.uint8) for split in store.SPLITS}
    labels = {split: np.zeros(8, np.uint8) for split in store.SPLITS}
    names, shape = tuple("abcdefghij"), (32, 32, 3)
    return Corpus("cifar10", "fixture", "image", 3072, Levels(256), "", "", folder, rows, labels, {}, names, shape)


def lm1b(folder: Path) -> Corpus:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(30518))]
    rows = {split: RANDOM.integers(0, 30522, (8, 128)).astype("<u2") for split in store.SPLITS}
    return Corpus("lm1b", "fixture", "text", 128, wordpiece(words), "", "", folder, rows, {}, {})


def shrunk(name: str) -> RunConfig:
    """Return a preset with its data format, process and objective, and a network for a test."""
    config = preset(name)
    assert isinstance(config.model, TransformerConfig)
    return replace(
        config,
        process=replace(config.process, levels=64, pairs=128),
        model=replace(config.model, width=16, layers=1, heads=2, time_width=8),
        training=replace(
            config.training,
            steps=20,
            batch=2,
            warmup=5,
            precision="float32",
            device="cpu",
            validate_every=20,
            validation_sequences=2,
            validation_nfe=2,
        ),
    )


FORMATS = [
    ("cifar10", cifar10),
    ("cifar10-paper", cifar10),
    ("lm1b", lm1b),
    ("lm1b-packed", lm1b),
    ("lm1b-paper", lm1b),
]


@pytest.mark.parametrize(("name", "corpus"), FORMATS)
def test_twenty_steps(name: str, corpus: object, tmp_path: Path) -> None:
    assert callable(corpus)
    found = corpus(tmp_path)
    result = train(shrunk(name), tmp_path / "run", build, load=lambda config: found)
    assert result.steps == 20 and result.skipped == 0
    assert result.loss is not None and math.isfinite(result.loss)
    assert result.bound is not None and math.isfinite(result.bound.bits)

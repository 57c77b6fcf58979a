"""A text and a configuration that are small enough to compare methods in a second."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rdlm.config import DataConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Characters

TEXT = "the quick brown fox jumps over the lazy dog and runs away "


def corpus(config: RunConfig) -> Corpus:
    tokenizer = Characters("".join(sorted(set(TEXT))))
    ids = tokenizer.encode(TEXT * 20).astype(np.int64)
    tokens = {"train": ids[:-320], "validation": ids[-320:]}
    return Corpus("toy", "toy", "text", 16, tokenizer, "none", "made up", Path("."), tokens, {}, {})


@pytest.fixture
def toy() -> SimpleNamespace:
    config = RunConfig(
        data=DataConfig("toy", length=16),
        process=ProcessConfig(levels=16, pairs=256),
        model=TransformerConfig(width=16, layers=1, heads=1, time_width=8),
        training=TrainingConfig(batch=4, warmup=2, ema=0.9, save_every=100, device="cpu"),
    )
    return SimpleNamespace(config=config, corpus=corpus)

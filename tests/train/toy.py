"""A method and a corpus that are small enough to train in a test: guess masked letters of a short text."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rdlm.config import DataConfig, ObjectiveConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Characters
from rdlm.random import Draw

TEXT = "the quick brown fox jumps over the lazy dog and runs away "
LENGTH = 16


def toy_corpus(config: RunConfig) -> Corpus:
    tokenizer = Characters("".join(sorted(set(TEXT))))
    ids = tokenizer.encode(TEXT * 20).astype(np.int64)
    tokens = {"train": ids[:-320], "validation": ids[-320:]}
    return Corpus("toy", "toy", "text", LENGTH, tokenizer, "none", "made up", Path("."), tokens, {}, {})


class Network(nn.Module):
    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.input = nn.Embedding(size + 1, 24)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(24, size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.input(ids)
        for block in self.blocks:
            x = x + self.dropout(block(x) + x.mean(1, keepdim=True))
        return self.head(x)


class Toy:
    """The method; `trouble` is called with each draw and may spoil or end the run."""

    def __init__(self, config: RunConfig, corpus: Corpus, trouble: Callable[[Draw], float] = lambda draw: 1.0) -> None:
        self.size = corpus.tokenizer.size
        self.network: nn.Module = Network(self.size, config.model.dropout)
        self.trouble = trouble
        self.memory = torch.zeros(3)

    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Measure nothing."""

    def loss(self, batch: Batch, draw: Draw) -> Tensor:
        spoil = self.trouble(draw)
        self.memory = torch.maximum(self.memory, torch.full((3,), spoil * draw.step))
        generator = draw.generator()
        share = 2 * torch.rand(len(batch.ids), 1, generator=generator)  # of letters to hide: in half of the rows all
        hidden = torch.rand(batch.ids.shape, generator=generator) < share
        logits = self.network(batch.ids.masked_fill(hidden, self.size))
        return spoil * nn.functional.cross_entropy(logits.flatten(0, 1), batch.ids.flatten())

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Tensor:
        logits = self.network(torch.full_like(batch.ids, self.size))
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch.ids, reduction="none")
        return loss.sum(-1) + 0.01 * torch.randn(len(loss), generator=generator)

    def generate(self, count: int, length: int, nfe: int, generator: torch.Generator | None = None) -> Tensor:
        self.network(torch.full((count, length), self.size))
        return torch.randint(-1, self.size, (count, length), generator=generator)

    def state(self) -> dict[str, Tensor]:
        return {"memory": self.memory}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.memory = state["memory"].clone()


def toy_config(**training: object) -> RunConfig:
    chosen = TrainingConfig(
        steps=20,
        batch=8,
        lr=1e-2,
        warmup=5,
        decay="cosine",
        ema=0.9,
        device="cpu",
        record_every=3,
        save_every=5,
        validate_every=10,
        validation_sequences=18,
        validation_nfe=2,
    )
    model = TransformerConfig(dropout=0.1)
    return RunConfig(data=DataConfig("toy"), model=model, training=replace(chosen, **training))


FEW = 0.1
"""Blockwise share of a shard of few sequences: none in some steps of a process, one in others."""


def blockwise_config(blockwise: float = 0.5, **training: object) -> RunConfig:
    """RDLM on the toy corpus, half of each shard blockwise: two forward passes per step; levels measured at step 25."""
    model = TransformerConfig(width=16, layers=1, heads=2, dropout=0.1)
    process, objective = (
        ProcessConfig(levels=16, pairs=256, block=1),
        ObjectiveConfig(blockwise=blockwise, block_sizes=(1, 4)),
    )
    return replace(toy_config(**{"steps": 28, **training}), model=model, process=process, objective=objective)


def coded_config(**training: object) -> RunConfig:
    """RDLM on the toy corpus with learned codes, whose gradient takes a forward pass of its own."""
    process = ProcessConfig(levels=16, pairs=256, codes="learned", dimension=6)
    model = TransformerConfig(width=16, layers=1, heads=2, dropout=0.1)
    return replace(toy_config(**training), model=model, process=process)


def failing(step: int, once: Path, how: str = "kill") -> Callable[[Draw], float]:
    """Return a trouble that strikes at a step, the first time only: `once` is its mark."""

    def trouble(draw: Draw) -> float:
        if draw.step == step and draw.shard == draw.shards - 1 and not once.exists():
            once.touch()
            if how == "raise":
                raise RuntimeError("struck")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)
        return 1.0

    return trouble


def spoiling(*steps: int) -> Callable[[Draw], float]:
    """Return a trouble that makes the loss of some steps undefined."""
    return lambda draw: math.nan if draw.step in steps else 1.0

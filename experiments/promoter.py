"""The paper's Table 4: promoters generated for transcription signals, evaluated by a predictor of their activity.

    rdlm train promoter-paper --data.file promoters.npz --out runs/promoter            # 100,000 steps: a GPU
    python -m experiments.promoter runs/promoter --file promoters.npz --predictor sei_activity:activity

For the signal of every test sequence a sequence is generated in 300 steps; the figure is the mean squared error between
the predicted activities of the generated and of the real sequence. The published predictor is Sei, which no package
registry has: the flag names a user-defined function, `activity(ids [n, 1024]) -> [n]` with 0 to 3 for A, C, G, T. For
Sei it pads the one-hot sequences to 4,096 positions by 0.25 for every base, and takes the mean of the outputs whose
target is H3K4me3. `experiments.dna` is the same comparison with labels and a predictor that is trained here.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rdlm
from experiments.row_cache import Row
from experiments.trial import commit, write_csv
from rdlm import data
from rdlm.api.language_model import LanguageModel
from rdlm.data.batch import Batch, Batches
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.rdlm import Rdlm
from rdlm.random import generator_of

STEPS = 300
"""Sampling steps of the published protocol."""

ROWS = 64
"""Sequences per batch."""

Predictor = Callable[[Tensor], Tensor]


def predictor_of(name: str) -> Predictor:
    """Return the function `module:function` of the user."""
    module, _, function = name.partition(":")
    try:
        found: Predictor = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--predictor {name!r} is not module:function of a module that can be imported: {error}"
        ) from None
    return found


@torch.no_grad()
def generated(model: LanguageModel, batch: Batch, steps: int, generator: torch.Generator) -> Tensor:
    """Return a sequence for the signal of every row."""
    condition = batch.signal if isinstance(model.method, Rdlm) else discrete.condition_of(batch)
    model.method.network.eval()
    drawn: Any = model.method.generate
    found: Tensor = drawn(len(batch.ids), batch.ids.shape[1], steps, generator, condition=condition)
    return found


def measured(
    model: LanguageModel, file: Path, predict: Predictor, count: int | None, steps: int, seed: int, split: str = "test"
) -> Row:
    """Return the mean squared error of predicted activities over a split, or over its first `count` sequences."""
    corpus = data.load("promoter", file=file)
    if not model.about.get("signal"):
        raise InputError(f"{model.name} was trained without a signal: this needs a run of promoter or promoter-paper")
    total = len(corpus.split(split)) if count is None else min(count, len(corpus.split(split)))
    rows = Batches(corpus, split, batch_size=total, seed=0).batch(0)
    errors = []
    for number, at in enumerate(range(0, total, ROWS)):
        batch = rows[slice(at, at + ROWS)]
        made = generated(model, batch, steps, generator_of("promoter", seed, number))
        errors.append((predict(made) - predict(batch.ids)).double().square())
    error = torch.cat(errors)
    row: Row = {"method": model.config.method, "protocol": corpus.protocol, "mse": float(error.mean())}
    row |= {"stderr": float(error.std() / total**0.5) if total > 1 else None, "sequences": total, "steps": steps}
    return row | {"split": split, "seed": seed, "commit": commit()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate, evaluate, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run of promoter or promoter-paper, or of a baseline on the same corpus")
    parser.add_argument("--file", type=Path, required=True, help="the data that it was trained on")
    parser.add_argument("--predictor", required=True, help="your function, as module:function")
    parser.add_argument("--sequences", type=int, default=None, help="test sequences; all by default")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=None, help="also write the row to this file")
    given = parser.parse_args(arguments)
    predict = predictor_of(given.predictor)
    row = measured(rdlm.load(given.model), given.file, predict, given.sequences, given.steps, given.seed)
    print(json.dumps(row))
    if given.csv is not None:
        write_csv(given.csv, [row])


if __name__ == "__main__":
    main()

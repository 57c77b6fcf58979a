"""Measure the effect of guidance: `python benchmarks/guidance.py [RUN] [--json]` on a run of `digits`.

Without RUN, a small model is trained first in `runs/guidance` (width 96, 3 layers, 1,000 steps, minutes on one core)
and reused the next time.

Samples are drawn for every class at several guidance weights, Eq. (45) in docs/theory.md, and classified by a
support-vector machine that was trained on the real digits. Weight 0 ignores the class: one in ten is right by chance.
`spread` is the root mean square distance of samples from the mean of their class relative to that of the real digits:
the variety that guidance costs. Target: weight 2 has more correct samples than weight 0, and not fewer than weight 1.
Needs scikit-learn (extra `dev`).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.svm import SVC  # type: ignore[import-untyped]

from rdlm.api.generate import generate
from rdlm.api.language_model import LanguageModel, load
from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.store import Corpus
from rdlm.display.text_table import print_json, table
from rdlm.methods import build
from rdlm.presets import preset
from rdlm.train.loop import train
from rdlm.train.run import load_corpus

OWN = Path("runs/guidance")
WEIGHTS = (0.0, 1.0, 2.0, 4.0)
COLUMNS = ("guidance", "samples", "right", "low", "high", "spread")


def small() -> RunConfig:
    """Return the preset `digits` at a size that trains in minutes."""
    config = preset("digits")
    training = replace(config.training, steps=1000, lr=2e-3, warmup=50)
    model = TransformerConfig(width=96, layers=3, heads=4, time_width=32, time_scale=10.0, dropout=0.1, places=64)
    return replace(config, model=model, training=training)


class Judge:
    """A classifier trained on the real digits; its accuracy on held-out digits is the first row."""

    def __init__(self, corpus: Corpus) -> None:
        self.classifier = SVC(gamma=0.001).fit(corpus.train, corpus.labels["train"])
        self.spread = deviation(np.asarray(corpus.train, float), corpus.labels["train"])

    def row(self, image: NDArray[Any], label: NDArray[Any], **setting: object) -> dict[str, object]:
        hits = int((self.classifier.predict(image) == label).sum())
        low, high = wilson(hits, len(label))
        spread = deviation(np.asarray(image, float), label) / self.spread
        found = {"samples": len(label), "right": hits / len(label), "low": low, "high": high, "spread": spread}
        return {**setting, **found}


def deviation(image: NDArray[Any], label: NDArray[Any]) -> float:
    """Return the root mean square distance of images from the mean of their class."""
    of_class = (image[label == one] for one in np.unique(label))
    squares = [((each - each.mean(0)) ** 2).sum() / max(1, len(each) - 1) for each in of_class]
    return math.sqrt(sum(squares) / len(squares))


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95% interval of a share, which stays within [0, 1]."""
    share, shrink = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return middle - half, middle + half


def samples(model: LanguageModel, weight: float, each: int, steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return `each` images of every class, and their classes."""
    classes = list(model.about["classes"])
    made = [
        generate(model, num=each, steps=steps, label=name, guidance=weight, seed=1000 * number, batch=each, rows=each)
        for number, name in enumerate(classes)
    ]
    return torch.cat([one.tokens for one in made]).numpy(), np.arange(len(classes)).repeat(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run of digits; by default a small one is trained")
    parser.add_argument("--guidance", type=float, nargs="+", default=WEIGHTS, help="guidance weights")
    parser.add_argument("--each", type=int, default=20, help="samples per class")
    parser.add_argument("--steps", type=int, default=32, help="sampler steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.run is None:
        train(small(), OWN, build)
    model = load(arguments.run or OWN)
    corpus = load_corpus(model.config)
    judge = Judge(corpus)
    rows = [judge.row(corpus.validation, corpus.labels["validation"], guidance="real digits")]
    for weight in arguments.guidance:
        rows.append(judge.row(*samples(model, weight, arguments.each, arguments.steps), guidance=weight))
    if arguments.json:
        print_json({"rows": rows})
    else:
        print(table(rows, COLUMNS))


if __name__ == "__main__":
    main()

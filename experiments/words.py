"""Words: word pieces by learned codes, by digits, by erasure and from left to right, at equal time.

    python -m experiments.words --seconds 240 --out runs/words                         # 30,522 word pieces of BERT
    python -m experiments.words --tokenizer bpe --seconds 240 --out runs/words-bpe     # 4,096 byte pairs
    python -m experiments.words --restore words text8                                  # words from misread letters
    python -m experiments.words --search 0.004 0.008 0.016                             # short trials of learning rates
    python -m experiments.words --table --out runs/words --csv docs/data/words.csv     # what has been measured so far

WikiText-2 in sequences of 64 tokens. All rows have the same transformer, batches and optimizer, start at the
frequencies of tokens where the head has one output per token, and are trained for the same processor time of one core:
the time of a step is measured first, and gives the number of steps, over which the learning rate decays. Bounds are in
nats per token of validation sequences, each method in its orders. Tokens drawn independently by their training
frequencies (`unigram`) are what every model must beat.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from experiments.changes import changed
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.api import language_model
from rdlm.config import DataConfig, DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch, Batches
from rdlm.data.store import Corpus
from rdlm.data.word_evidence import LETTERS
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences, size_of
from rdlm.likelihood.estimate import CONFIDENCE
from rdlm.methods.base import Method
from rdlm.methods.bound import Setting, measure_bound, repeated_bound
from rdlm.methods.mdlm import MDLM
from rdlm.methods.objective import CODES_EVERY
from rdlm.methods.rdlm import Rdlm
from rdlm.model.network import MovingAverage, use_precision
from rdlm.presets import NO_BLOCKS, SMALL
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw, generator_of
from rdlm.storage.files import write_atomic
from rdlm.train.loop import train
from rdlm.train.optimizer import Optimizer
from rdlm.train.run import load_corpus

BASE = RunConfig(
    data=DataConfig("wikitext-2", length=64, tokenizer="wordpiece"),
    process=ProcessConfig(order="synchronous"),
    denoiser=DenoiserConfig(),
    model=TransformerConfig(width=128, layers=4, heads=4, frequencies=True, tie=True),
    objective=NO_BLOCKS,
    training=replace(SMALL, batch=8, warmup=20, ema=0.99, validation_sequences=32, precision="bfloat16"),
)
"""Serial digits have an output for each digit, so `frequencies` has no effect on them."""

ABOVE = {"belief": "bigram", "states": 400_000}
"""The inference layer; digits have none."""

UNTIED = {"tie": False}
"""Digits have fewer inputs than the head has outputs."""

ROWS: dict[str, dict[str, Any]] = {
    "learned codes of 16 numbers": {"process": {"codes": "learned"}},
    "packed base-32 digits": {"process": {"base": 32}, "model": UNTIED},
    "masked": {"method": "mdlm"},
    "autoregressive": {"method": "autoregressive"},
    "serial base-3 digits": {
        "process": {"base": 3, "layout": "serial"},
        "denoiser": {"head": "digit"},
        "model": UNTIED,
    },
}
"""Name -> changes to the base; a method is a value, the rest are keys of sections."""

ROWS |= {
    f"{name}, above bigrams": {**ROWS[name], "model": ABOVE}
    for name in ("learned codes of 16 numbers", "masked", "autoregressive")
}

LR = 0.0125
"""The best of 0.002, 0.005 and 0.0125 for autoregression, in its first 70 steps."""

TIMED = 3 * CODES_EVERY
"""Steps whose time is measured."""

SEARCHED = 60
"""Steps of a trial of a learning rate."""

SEQUENCES = 512


def configuration(name: str, tokenizer: Any, seed: int, lr: float | None = None) -> RunConfig:
    """Return the configuration of a row."""
    change = dict(ROWS[name])
    method: Any = change.pop("method", "rdlm")
    data = replace(BASE.data, tokenizer=tokenizer, vocabulary=4096 if tokenizer == "bpe" else BASE.data.vocabulary)
    training = replace(BASE.training, seed=seed, lr=lr or LR)
    return replace(changed(replace(BASE, data=data, training=training), change), method=method)


class Trial:
    """A training loop without checkpoints and validation."""

    def __init__(self, config: RunConfig, corpus: Corpus) -> None:
        torch.manual_seed(config.training.seed)
        self.method, self.config = methods.build(config, corpus), config
        use_precision(self.method.network, config.training.precision)
        self.method.network.train()
        self.optimizer = Optimizer(self.method.network, config.training)
        self.average = MovingAverage(self.method.network, config.training.ema)
        self.batches = Batches(corpus, "train", batch_size=config.training.batch, length=config.data.length)

    def step(self, step: int) -> tuple[float, float]:
        """Make a training step; return the loss and the processor time."""
        began = time.process_time()
        loss = self.method.loss(self.batches.batch(step), Draw(self.config.training.seed, step))
        loss.backward()
        self.optimizer.update(step, self.optimizer.norm())
        self.optimizer.zero_grad()
        self.average.update(self.method.network)
        return float(loss.detach()), time.process_time() - began


def steps_within(config: RunConfig, corpus: Corpus, seconds: float) -> int:
    """Return the number of training steps that take this processor time, from the mean of some."""
    trial = Trial(config, corpus)
    return max(1, round(seconds / statistics.mean(trial.step(step)[1] for step in range(TIMED))))


def search(name: str, tokenizer: str, lrs: Sequence[float]) -> None:
    """Print the loss of a row in the last third of short trials, on the same batches, at each learning rate."""
    corpus = load_corpus(configuration(name, tokenizer, 0))
    found = {}
    for lr in lrs:
        config = configuration(name, tokenizer, 0, lr)
        trial = Trial(replace(config, training=replace(config.training, steps=SEARCHED)), corpus)
        losses = [trial.step(step)[0] for step in range(SEARCHED)][-SEARCHED // 3 :]
        found[f"{lr:g}"] = round(sum(losses) / len(losses), 4)
    print(json.dumps({"row": name, "steps": SEARCHED, "loss": found}), flush=True)


def bounds(method: Method, batch: Batch, length: int) -> Iterator[tuple[str, float, float]]:
    """Yield order and network calls with the bound and its standard error in nats per token.

    With one token per call the random and the strided order are the same.
    """
    if isinstance(method, Rdlm):
        for order, schedule in (("synchronous", None), ("strided", TokenSchedule(1e-3, "strided"))):
            setting = Setting(64, token_schedule=schedule)
            total = measure_bound(method, batch, setting, len(batch.ids), generator_of("words", order)).total
            yield f"{order}, 64", total.value / length, total.stderr / length
    else:
        order = "strided" if isinstance(method, MDLM) else "left-to-right"
        if isinstance(method, MDLM):
            method.order = "strided"
        bound = repeated_bound(method, batch, 64, 0, most=3)
        yield f"{order}, 64", bound.mean / length, bound.stderr / length


def unigram(corpus: Corpus, batch: Batch) -> float:
    """Return nats per token of the batch, drawn independently by the frequencies of the training tokens."""
    count = torch.bincount(corpus.rows().long().flatten(), minlength=corpus.tokenizer.size).double() + 0.5
    return float(-(count / count.sum()).log()[batch.ids.long()].mean())


def run(name: str, tokenizer: str, seed: int, seconds: float, sequences: int, out: Path) -> None:
    """Train and measure one row, unless its result exists."""
    config = configuration(name, tokenizer, seed)
    label = f"{name.replace(' ', '-')}-{tokenizer}-{seconds:g}-{seed}"
    result = out / "results" / f"{label}.json"
    if result.is_file():
        return
    corpus = load_corpus(config)
    steps = steps_within(config, corpus, seconds)
    config = replace(config, training=replace(config.training, steps=steps, validate_every=steps, save_every=steps))
    began = time.process_time()
    trained = train(config, out / label, methods.build)
    used = time.process_time() - began
    model = language_model.load(out / label)
    batch = held_out_sequences(corpus, "validation", model.length, sequences, 0)
    tokens_per_word = batch.ids.numel() / size_of(model, batch, corpus).words / len(batch.ids)
    row = {"row": name, "tokenizer": tokenizer, "seed": seed, "lr": config.training.lr, "steps": steps}
    row |= {"seconds": seconds, "processor_seconds": round(used), "parameters": trained.parameters}
    row |= {"unigram": round(unigram(corpus, batch), 4), "commit": commit()}
    with torch.no_grad():
        found = [
            {
                "order, calls": order,
                "nats": round(value, 4),
                "low": round(value - CONFIDENCE * error, 4),
                "high": round(value + CONFIDENCE * error, 4),
                "nats_per_word": round(value * tokens_per_word, 3),
            }
            for order, value, error in bounds(model.method, batch, model.length)
        ]
    write_atomic(result, json.dumps(row | {"bounds": found}, indent=1, allow_nan=False) + "\n")
    print(json.dumps(row | {"bounds": found}), flush=True)


def misread(text: str, error: float, generator: torch.Generator) -> str:
    """Return a text in which each letter is another one with this probability."""
    wrong = torch.rand(len(text), generator=generator) < error
    other = torch.randint(1, len(LETTERS), (len(text),), generator=generator).tolist()
    return "".join(
        LETTERS[(LETTERS.index(char) + other[at]) % len(LETTERS)] if char in LETTERS and wrong[at] else char
        for at, char in enumerate(text)
    )


def restored_words(names: Sequence[str], passages: int, error: float) -> Iterator[dict[str, object]]:
    """Yield the share of words that are right, as read and restored by models, in passages of the test split."""
    corpus = load_corpus(BASE)
    ids = held_out_sequences(corpus, "test", BASE.data.length or 64, passages, 0).ids.tolist()
    # Brackets and question marks have a meaning in readings.
    texts = [re.sub("[^a-z0-9 .,;:'()-]", " ", corpus.tokenizer.decode(row)) for row in ids]
    generator = generator_of("misread")
    readings = [misread(text, error, generator) for text in texts]
    right: dict[str, list[list[bool]]] = {"as read": [_right(*pair) for pair in zip(texts, readings, strict=True)]}
    for name in names:
        model = language_model.load(name)
        found = [model.restore(one, "symmetric", error).text for one in readings]
        right[name] = [_right(*pair) for pair in zip(texts, found, strict=True)]
    for name, passage in right.items():
        share = torch.tensor([statistics.mean(one) for one in passage])
        mean, margin = float(share.mean()), CONFIDENCE * float(share.std()) / len(share) ** 0.5
        words = sum(len(one) for one in passage)
        yield {"model": name, "words": words, "right": round(mean, 4), "margin": round(margin, 4)}


def _right(text: str, found: str) -> list[bool]:
    """Return whether each word of letters is right; the places of words are those of the text."""
    return [found[word.start() : word.end()] == word.group() for word in re.finditer("[a-z]+", text)]


def collected(out: Path) -> list[dict[str, object]]:
    """Return one row for every measured order."""
    rows = []
    for path in sorted((out / "results").glob("*.json")):
        row = json.loads(path.read_text("utf-8"))
        rows += [row | bound for bound in row.pop("bounds")]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows, or print the table of what has been measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", choices=("wordpiece", "bpe"), default="wordpiece")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="names of rows")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="processor time of each training")
    parser.add_argument("--restore", nargs="*", default=(), help="models that restore misread words")
    parser.add_argument("--search", nargs="*", type=float, default=(), help="learning rates to try for each row")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="validation sequences of a bound")
    parser.add_argument("--out", type=Path, default=Path("runs/words"))
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--csv", type=Path, default=None, help="also write the table to this file")
    options = parser.parse_args(arguments)
    for name in options.rows if options.search else ():
        search(name, options.tokenizer, options.search)
    if options.restore:
        print(table(found := list(restored_words(options.restore, 24, 0.1)), list(found[0])))
    if options.search or options.restore:
        return
    if not options.table:
        for seed, name in product(options.seeds, options.rows):
            run(name, options.tokenizer, seed, options.seconds, options.sequences, options.out)
    rows = collected(options.out)
    print(table(rows, list(rows[0]) if rows else []))
    if options.csv is not None and rows:
        write_csv(options.csv, rows, ("row", "tokenizer", "seed", "seconds", "order, calls"))


if __name__ == "__main__":
    main()

"""Words: word pieces by learned codes, by digits, by erasure and from left to right, at equal time.

    python -m experiments.words --minutes 20 --out runs/words                          # 30,522 word pieces of BERT
    python -m experiments.words --tokenizer bpe --minutes 20 --out runs/words-bpe      # 4,096 byte pairs
    python -m experiments.words --table --out runs/words --csv docs/data/words.csv     # what has been measured so far

WikiText-2 in sequences of 64 tokens. All rows have the same transformer, batches and optimizer, start at the
frequencies of tokens where the head has one output per token, and are trained for the same minutes of one core; the
steps differ. Bounds are in nats per token of validation sequences, each method in its orders. Tokens drawn
independently by their training frequencies (`unigram`) are what every model must beat.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.changes import changed
from rdlm import methods
from rdlm.api import language_model
from rdlm.config import DataConfig, DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.data.store import Corpus
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.methods.base import Method
from rdlm.methods.bound import Setting, measure_bound, repeated_bound
from rdlm.methods.mdlm import MDLM
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import NO_BLOCKS, SMALL
from rdlm.process.order import TokenSchedule
from rdlm.random import generator_of
from rdlm.storage.files import write_atomic
from rdlm.train.loop import train
from rdlm.train.run import load_corpus

BASE = RunConfig(
    data=DataConfig("wikitext-2", length=64, tokenizer="wordpiece"),
    process=ProcessConfig(order="synchronous"),
    denoiser=DenoiserConfig(),
    model=TransformerConfig(width=128, layers=4, heads=4, frequencies=True),
    objective=NO_BLOCKS,
    training=replace(SMALL, steps=1_000_000, batch=16, validation_sequences=32, precision="bfloat16"),
)
"""Serial digits have an output for each digit, so `frequencies` has no effect on them."""

ROWS: dict[str, dict[str, Any]] = {
    "learned codes of 16 numbers": {"process": {"codes": "learned"}, "denoiser": {"features": "mean"}},
    "packed base-32 digits": {"process": {"base": 32}},
    "masked": {"method": "mdlm"},
    "autoregressive": {"method": "autoregressive"},
    "serial base-3 digits": {"process": {"base": 3, "layout": "serial"}, "denoiser": {"head": "digit"}},
}
"""Name -> changes to the base; a method is a value, the rest are keys of sections."""

GIVEN = ("model.width", "model.layers", "training.batch", "training.validation_sequences")
SEQUENCES = 512


def configuration(name: str, tokenizer: Any, seed: int) -> RunConfig:
    """Return the configuration of a row."""
    change = dict(ROWS[name])
    method: Any = change.pop("method", "rdlm")
    data = replace(BASE.data, tokenizer=tokenizer, vocabulary=4096 if tokenizer == "bpe" else BASE.data.vocabulary)
    base = replace(BASE, data=data, training=replace(BASE.training, seed=seed))
    return replace(changed(base, change), method=method)


def bounds(method: Method, batch: Batch, length: int) -> Iterator[tuple[str, float, float]]:
    """Yield order and network calls with the bound and its standard error in nats per token."""
    if isinstance(method, Rdlm):
        for order in ("synchronous", "random", "strided"):
            schedule = None if order == "synchronous" else TokenSchedule(1e-3, order)  # type: ignore[arg-type]
            setting = Setting(64, token_schedule=schedule)
            total = measure_bound(method, batch, setting, 2 * SEQUENCES, generator_of("words", order)).total
            yield f"{order}, 64", total.value / length, total.stderr / length
    else:
        orders = ("random", "strided") if isinstance(method, MDLM) else ("left-to-right",)
        for order in orders:
            if isinstance(method, MDLM):
                method.order = order  # type: ignore[assignment]
            bound = repeated_bound(method, batch, 64, 0, most=2)
            yield f"{order}, 64", bound.mean / length, bound.stderr / length


def unigram(corpus: Corpus, batch: Batch) -> float:
    """Return nats per token of the batch, drawn independently by the frequencies of the training tokens."""
    count = torch.bincount(corpus.rows().long().flatten(), minlength=corpus.tokenizer.size).double() + 0.5
    return float(-(count / count.sum()).log()[batch.ids.long()].mean())


def run(name: str, tokenizer: str, seed: int, minutes: float, out: Path) -> None:
    """Train and measure one row, unless its result exists."""
    label = f"{name.replace(' ', '-')}-{tokenizer}-{minutes:g}-{seed}"
    result = out / "results" / f"{label}.json"
    if result.is_file():
        return
    config = configuration(name, tokenizer, seed)
    trained = train(config, out / label, methods.build, minutes=minutes, given=GIVEN)
    model, corpus = language_model.load(out / label), load_corpus(config)
    batch = held_out_sequences(corpus, "validation", model.length, SEQUENCES, 0)
    row = {"row": name, "tokenizer": tokenizer, "seed": seed, "minutes": minutes, "steps": trained.steps}
    row |= {"parameters": trained.parameters, "unigram": round(unigram(corpus, batch), 4)}
    with torch.no_grad():
        found = [
            {"order, calls": order, "nats": round(value, 4), "stderr": round(error, 4)}
            for order, value, error in bounds(model.method, batch, model.length)
        ]
    write_atomic(result, json.dumps(row | {"bounds": found}, indent=1, allow_nan=False) + "\n")
    print(json.dumps(row | {"bounds": found}), flush=True)


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
    parser.add_argument("--minutes", type=float, default=20.0, help="of training, for each row and seed")
    parser.add_argument("--out", type=Path, default=Path("runs/words"))
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--csv", type=Path, default=None, help="also write the table to this file")
    options = parser.parse_args(arguments)
    if not options.table:
        for seed in options.seeds:
            for name in options.rows:
                run(name, options.tokenizer, seed, options.minutes, options.out)
    rows = collected(options.out)
    print(table(rows, list(rows[0]) if rows else []))
    if options.csv is not None and rows:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

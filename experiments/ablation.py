"""Ablation of the continuous process: one change at a time, compared with masked and autoregressive models.

    python -m experiments.ablation --seeds 0 1 2 --out runs/ablation        # all rows; hours; continues where it was
    python -m experiments.ablation --only belief masked --seeds 0           # rows whose names begin so
    python -m experiments.ablation --table --csv docs/data/ablation.csv     # what has been measured so far

All rows have the same data (text8-74m), optimizer, number of steps and, within 3%, parameters: 1.07M, 64 characters,
batches of 16. Bounds are in bits per character on validation sequences, in each row's orders.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from experiments.changes import changed, chosen
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.api import language_model
from rdlm.config import DataConfig, DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.methods.base import Method
from rdlm.methods.bound import Setting, measure_bound, repeated_bound
from rdlm.methods.mdlm import MDLM
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import SMALL
from rdlm.process.order import TokenSchedule
from rdlm.random import generator_of
from rdlm.storage.files import write_atomic
from rdlm.train.loop import train
from rdlm.train.run import load_corpus

BASE = RunConfig(
    data=DataConfig("text8", length=64, protocol="text8-74m"),
    process=ProcessConfig(),
    denoiser=DenoiserConfig(),
    model=TransformerConfig(width=128, layers=5, heads=4, time_scale=10.0),
    training=replace(SMALL, steps=3000, batch=16, save_every=500, validation_sequences=64, precision="bfloat16"),
)
"""The continuous process, synchronous: levels by information, no time input, one-hot codes."""


def belief(order: int) -> dict[str, Any]:
    """Return the change to an n-gram model below the network."""
    return {"model": {"belief": "ngram", "order": order}}


HMM: dict[str, Any] = {"model": {"belief": "hmm", "states": 256}}
ERASURE: dict[str, Any] = {"objective": {"asynchronous": 1.0, "narrow": 1.0, "order": "random"}}

ROWS: dict[str, dict[str, Any]] = {
    "before": {"objective": {"proposal": "uniform"}, "denoiser": {"time": True}},
    "levels by information": {"denoiser": {"time": True}},
    "no time input": {},
    "masked": {"method": "mdlm"},
    "belief 6-gram": belief(6),
    "masked, belief 6-gram": {"method": "mdlm", **belief(6)},
    "autoregressive": {"method": "autoregressive"},
    "codes 16": {"process": {"codes": "learned", "dimension": 16}},
    "mixed levels": {"objective": {"mixed": 0.5}},
    "mixed levels alone": {"objective": {"mixed": 1.0}},
    "codes 16, mixed levels": {"process": {"codes": "learned", "dimension": 16}, "objective": {"mixed": 0.5}},
    "more noise": {"process": {"total": 0.075}},
    "deeper": {"model": {"width": 96, "layers": 9}},
    "belief 3-gram": belief(3),
    "belief 4-gram": belief(4),
    "belief 5-gram": belief(5),
    "belief hmm": HMM,
    "masked, belief 3-gram": {"method": "mdlm", **belief(3)},
    "masked, belief 4-gram": {"method": "mdlm", **belief(4)},
    "masked, belief 5-gram": {"method": "mdlm", **belief(5)},
    "masked, belief hmm": {"method": "mdlm", **HMM},
    "autoregressive, belief 6-gram": {"method": "autoregressive", **belief(6)},
    "codes 8": {"process": {"codes": "learned", "dimension": 8}},
    "codes 28": {"process": {"codes": "learned", "dimension": 28}},
    "erasures": ERASURE,
    "one network for all orders": {
        "objective": {"asynchronous": 0.35, "narrow": 1.0, "order": "random", "mixed": 0.3, "blockwise": 0.3}
    },
    "left to right": {"objective": {"blockwise": 1.0, "block_sizes": (1,)}},
}
"""Name -> changes to the base; a method is a value, the rest are keys of sections."""

RATES = (1e-3, 4e-3)
"""Learning rates of the search, beside that of the base; more if the best of them is at an end."""

ROWS |= {
    f"{name}, lr {rate:g}": {**ROWS[name], "training": {"lr": rate}}
    for name in ("no time input", "masked", "autoregressive", "codes 16")
    for rate in RATES
}

ORDERS = {
    "synchronous, 64": Setting(64),
    "synchronous, 256": Setting(256),
    "random, 64": Setting(64, token_schedule=TokenSchedule(1e-3, "random")),
    "strided, 16": Setting(16, token_schedule=TokenSchedule(1e-3, "strided")),
    "left-to-right, 64": Setting(64, token_schedule=TokenSchedule(1e-3, "random", 1)),
}
"""Orders of RDLM, with the number of network calls; from left to right where the row trains it."""

MASKED_ORDERS: tuple[tuple[Literal["random", "strided"], int], ...] = (("random", 64), ("strided", 64), ("strided", 16))
"""Orders and network calls of masked diffusion."""

SEQUENCES, EVALUATIONS = 1024, 4096

KEY = ("row", "steps", "order, calls")
"""Columns that identify a row of the table; rows that have been measured elsewhere stay in the CSV."""


def configuration(name: str, seed: int, steps: int) -> RunConfig:
    """Return the configuration of a row."""
    change = dict(ROWS[name])
    method: Any = change.pop("method", "rdlm")
    training = replace(BASE.training, seed=seed, steps=steps, validate_every=steps)
    return replace(changed(replace(BASE, training=training), change), method=method)


def measure(folder: Path, config: RunConfig) -> dict[str, dict[str, float]]:
    """Return the bounds of a trained row by order, in bits per character with their standard errors."""
    model, corpus = language_model.load(folder), load_corpus(config)
    batch = held_out_sequences(corpus, "validation", model.length, SEQUENCES, 0)
    scale = 1 / (model.length * math.log(2))
    found = {}
    with torch.no_grad():
        for order, value, error in _bounds(model.method, batch):
            found[order] = {"bits": value * scale, "stderr": error * scale}
    return found


def _bounds(method: Method, batch: Batch) -> Iterator[tuple[str, float, float]]:
    """Yield orders with bound and standard error in nats per sequence."""
    if isinstance(method, Rdlm):
        blocks = method.config.objective.blockwise > 0
        for order, setting in ORDERS.items():
            if setting.token_schedule is not None and setting.token_schedule.block and not blocks:
                continue
            total = measure_bound(method, batch, setting, EVALUATIONS, generator_of("ablation", order)).total
            yield order, total.value, total.stderr
    elif isinstance(method, MDLM):
        for method.order, nfe in MASKED_ORDERS:
            bound = repeated_bound(method, batch, nfe, 0, most=8)
            yield f"{method.order}, {nfe}", bound.mean, bound.stderr
    else:
        bound = repeated_bound(method, batch, 64, 0, most=3)
        yield "left-to-right, 64", bound.mean, bound.stderr


def run(name: str, seed: int, steps: int, out: Path) -> None:
    """Train and measure one row with one seed, unless its result exists."""
    label = f"{name.replace(', ', '-').replace(' ', '-')}-{steps}-{seed}"
    result = out / "results" / f"{label}.json"
    if result.is_file():
        return
    config = configuration(name, seed, steps)
    trained = train(config, out / label, methods.build)
    row = {"name": name, "seed": seed, "steps": trained.steps, "parameters": trained.parameters}
    row |= {"seconds": round(trained.seconds, 1), "commit": commit(), "bounds": measure(out / label, config)}
    write_atomic(result, json.dumps(row, indent=1, allow_nan=False) + "\n")
    print(json.dumps(row), flush=True)


def collected(out: Path) -> list[dict[str, object]]:
    """Return the mean over seeds of every row and order, with its standard error over seeds where there are several."""
    found: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for path in sorted((out / "results").glob("*.json")):
        row = json.loads(path.read_text("utf-8"))
        for order in row["bounds"]:
            found.setdefault((row["name"], row["steps"], order), []).append(row)
    places = {name: place for place, name in enumerate(ROWS)}
    rows = []
    for (name, steps, order), runs in sorted(found.items(), key=lambda item: (places.get(item[0][0], 99), item[0])):
        values = [one["bounds"][order]["bits"] for one in runs]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        within = math.sqrt(sum(one["bounds"][order]["stderr"] ** 2 for one in runs)) / len(runs)
        row = {"row": name, "steps": steps, "order, calls": order, "bits": round(statistics.mean(values), 4)}
        row |= {"stderr_over_seeds": None if error is None else round(error, 4), "stderr_of_estimate": round(within, 4)}
        row |= {"seeds": " ".join(str(one["seed"]) for one in runs), "parameters": runs[0]["parameters"]}
        row |= {"commit": " ".join(sorted({one.get("commit", "") for one in runs}))}
        rows.append(row | {"seconds": round(statistics.mean(one["seconds"] for one in runs), 1)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows, or print the table of what has been measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of row names; all if not given")
    parser.add_argument("--exactly", nargs="*", default=[], help="row names")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=BASE.training.steps)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--csv", type=Path, default=None, help="also write the rows into this table")
    options = parser.parse_args(arguments)
    if not options.table:
        names = options.exactly or chosen(ROWS, options.only)
        for seed in options.seeds:
            for name in names:
                run(name, seed, options.steps, options.out)
    rows = collected(options.out)
    print(table(rows, list(rows[0]) if rows else []))
    if options.csv is not None and rows:
        write_csv(options.csv, rows, KEY)


if __name__ == "__main__":
    main()

"""A trial: train one configuration and measure its bound. Several analyses are lists of trials."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rdlm import methods
from rdlm.api import language_model
from rdlm.config import RunConfig
from rdlm.display.figure import canvas
from rdlm.evaluate.evaluate import held_out_sequences, size_of
from rdlm.evaluate.metrics import likelihood
from rdlm.methods.bound import Setting, measure_bound
from rdlm.random import generator_of
from rdlm.storage.files import write_atomic
from rdlm.train.loop import train
from rdlm.train.run import load_corpus


@dataclass(frozen=True)
class Budget:
    """The cost of measuring the bound of a trial."""

    nfe: int = 64
    sequences: int = 256
    evaluations: int = 512


def trial(name: str, config: RunConfig, folder: Path, budget: Budget) -> dict[str, object]:
    """Return the row of a configuration: its validation bound after training in `folder`, which resumes a run there."""
    result = train(config, folder, methods.build)
    model, corpus = language_model.load(folder), load_corpus(config)
    batch = held_out_sequences(corpus, "validation", model.length, budget.sequences, config.training.seed)
    generator = generator_of("trial", config.training.seed)
    with torch.no_grad():
        setting = Setting(budget.nfe, token_schedule=model.rdlm.token_schedule)
        profile = measure_bound(model.rdlm, batch, setting, budget.evaluations, generator)
    bits = likelihood(profile.total, size_of(model, batch, corpus), model.kind, "")["bits_per_character"]
    return {
        "name": name,
        "bits_per_character": bits.value,
        "stderr": bits.stderr,
        "low": bits.low,
        "high": bits.high,
        "calls": budget.nfe,
        "parameters": result.parameters,
        "training_steps": result.steps,
        "seconds": round(result.seconds, 1),
    }


def plot_trials(rows: Sequence[Mapping[str, object]], title: str, path: Path) -> None:
    """Plot the bounds of trials with their intervals."""
    with canvas(path, height=max(3.5, 0.3 * len(rows))) as (axis,):
        for place, row in enumerate(rows):
            value, high = float(str(row["bits_per_character"])), float(str(row["high"]))
            axis.errorbar([value], [place], xerr=[high - value], marker="o", capsize=4)
        axis.set_yticks(range(len(rows)), [str(row["name"]) for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel(f"bits per character at {rows[0]['calls']} calls (95% interval)")
        axis.set_title(title)


def commit() -> str:
    """Return the commit of the checkout, with a `+` if tracked files have changed since; empty without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def write_csv(path: Path, rows: Sequence[Mapping[str, object]], key: Sequence[str] = ()) -> None:
    """Write rows as a table; columns are in the order in which the rows have them, most complete row first.

    With a key, the columns that identify a row, rows of an existing file that are not among the new ones stay.
    """
    table: list[Mapping[str, object]] = [{name: _rounded(value) for name, value in row.items()} for row in rows]
    if key and path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            found: list[Mapping[str, object]] = [*csv.DictReader(file), *table]
        table = list({tuple(str(row.get(name, "")) for name in key): row for row in found}.values())
    columns = dict.fromkeys(name for row in sorted(table, key=len, reverse=True) for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomic(path, text.getvalue())


def _rounded(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value

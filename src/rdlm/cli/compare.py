"""`rdlm compare`: train several methods with one network, corpus and budget, and compare them; `rdlm methods`."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from rdlm.cli.train import FromPreset
from rdlm.config import READ_EVIDENCE, MethodName, RunConfig
from rdlm.display.text_table import print_json, print_result, say, table
from rdlm.errors import InputError

COLUMNS = ["method", "order", "best", "bound", "low", "high", "verdict", "unigram", "bigram", "± bigram"]
COLUMNS += ["sampling_calls", "relative_step_cost", "steps", "rate", "seeds", "parameters"]
METHOD_COLUMNS = ("method", "process", "number", "certificate", "paper")

MINUTES = {"": 1.0, "s": 1 / 60, "m": 1.0, "h": 60.0}


BUDGET_REPEATS = 8
"""Largest number of estimates of a bound in a comparison with a time limit."""


@dataclass(frozen=True)
class Compare(FromPreset):
    """Train methods in turn with equal steps, tokens and optimiser, and measure the bound of each in all its orders.

    Every key of the configuration is an option; its default is the preset's. The same command continues an interrupted
    comparison, which exits with code 130 after Ctrl-C and 143 after SIGTERM.
    """

    methods: str = "rdlm,mdlm,autoregressive"
    """Methods, separated by commas, or all; `rdlm methods` lists them. With an inference layer (model.belief), all
    means the methods that accept evidence."""
    steps: int | None = None
    """Optimiser steps of each method; by default the preset's, unless --budget is given."""
    budget: str | None = None
    """Time limit of the whole command, including evaluation, such as 90s, 30m or 2h, in place of --steps. Where they
    would take more than two fifths of it, there are fewer sequences, estimates and samples."""
    nfe: int = 64
    """Network calls M of every bound and every sampler."""
    sequences: int | None = None
    """Validation sequences per bound; by default 256, or what fits into the --budget."""
    samples: int | None = None
    """Generated sequences for measuring sample quality; by default 64, or what fits into the --budget."""
    seeds: int = 1
    """Number of training seeds per method, from --training.seed upwards; with several, bounds are means with intervals
    over seeds."""
    lrs: str = ""
    """Learning rates, separated by commas: every method takes the best one after short trials. If that is the smallest
    or the largest, up to four beyond it are tried. Empty: the preset's learning rate for all."""
    trial: int = 300
    """Steps of each trial of a learning rate."""
    out: Path | None = None
    """Folder of the runs and results; by default runs/compare-NAME."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Compare, report, and return the exit code."""
        began = time.monotonic()  # before torch is imported
        logging.basicConfig(format="rdlm: %(message)s")
        if self.config.method != "rdlm":
            raise InputError(f"choose the methods by --methods, not by --method {self.config.method}")
        if self.steps is not None and (self.budget is not None or self.steps < 1):
            raise InputError(f"give --steps of at least 1, or a --budget, not both; got {self.steps} and {self.budget}")
        minutes = None if self.budget is None else minutes_of(self.budget)
        from rdlm.evaluate.compare import Comparison, compare

        out = self.out or Path("runs") / f"compare-{Path(self.source).stem}"
        methods = methods_of(self.methods, self.config)
        lrs = lrs_of(self.lrs)
        given = tuple(name for name in ("sequences", "samples") if getattr(self, name) is not None)
        sequences, samples = (256 if self.sequences is None else self.sequences), self.samples
        counts = (self.nfe, sequences, 64 if samples is None else samples)
        comparison = Comparison(self.config, methods, *counts, lrs, self.trial, self.seeds, given=given)
        if minutes is not None:
            comparison = replace(comparison, repeats=BUDGET_REPEATS)
        rows = compare(comparison, out, steps=self.steps, minutes=minutes, began=began)
        _draw(rows, out)
        self._show(rows, out)
        return 0

    def _show(self, rows: list[dict[str, Any]], out: Path) -> None:
        if self.json:
            print_json({"rows": rows, "calls": self.nfe, "out": str(out)})
            return
        print(table([row | _words(row) for row in rows], COLUMNS))
        for note in filter(None, map(_note, rows)):
            print(f"note: {note}")
        if self.lrs:
            _show_trials(rows)
        seeds = "sequences and noise, with one training seed"
        if self.seeds > 1:
            seeds = f"{self.seeds} training seeds (Student's t), all measured on the same sequences"
        floor = next(row["quality"] for row in rows if row["best"])
        print(
            f"\n{rows[0]['unit']} of {rows[0]['sequences']} validation sequences with {self.nfe} calls; 95% intervals "
            f"over {seeds}; unigram and bigram: divergence of {rows[0]['samples']} samples in the best order from "
            "data, in bits; "
            f"other data have {floor['unigram_divergence_of_data']['value']:.4f} and "
            f"{floor['bigram_divergence_of_data']['value']:.4f}."
        )


def _note(row: dict[str, Any]) -> str | None:
    """Return the notes on the bound of a row."""
    from rdlm.display.figure import label_of

    notes = [] if row["trained_for_order"] else ["not trained for this order"]
    notes += [] if row["note"] is None else [row["note"]]
    return f"{label_of(row)} is {', and '.join(notes)}" if notes else None


def _show_trials(rows: list[dict[str, Any]]) -> None:
    """Print the bounds of all learning rates that were tried, and which method's best is not inside of them."""
    found, edges = [], []
    for row in rows:
        if row["best"]:
            lrs = [float(lr) for lr in row["trials"]]
            bounds = zip(lrs, row["trials"].values(), strict=True)
            found += [{"method": row["method"], "lr": lr, "bound": b, "chosen": lr == row["rate"]} for lr, b in bounds]
            edges += [row["method"]] if row["rate"] in (min(lrs), max(lrs)) else []
    print(f"\nlearning rates, {rows[0]['unit']} after the trial steps (-: diverged)")
    print(table(found, ("method", "lr", "bound", "chosen")))
    for name in edges:
        print(f"note: the best learning rate of {name} is at the edge of those tried; a better one may lie beyond")


def _draw(rows: list[dict[str, Any]], out: Path) -> None:
    from importlib.util import find_spec

    from rdlm.display.figure import draw_comparison

    written = [out / "compare.json"]
    if find_spec("matplotlib") is not None:
        draw_comparison(rows, out / "compare.png")
        written.append(out / "compare.png")
    say(f"wrote {' and '.join(map(str, written))}")


def _words(row: dict[str, Any]) -> dict[str, Any]:
    words = {"verdict": "bound" if row["claims_bound"] else "not a bound", "best": "*" if row["best"] else ""}
    if row["quality"] is None:
        return words
    unigram, bigram = (row["quality"][f"{name}_divergence"] for name in ("unigram", "bigram"))
    return {**words, "unigram": unigram["value"], "bigram": bigram["value"], "± bigram": 1.96 * bigram["stderr"]}


def methods_of(text: str, config: RunConfig) -> tuple[MethodName, ...]:
    """Return the methods of a list such as rdlm,mdlm; all: every one that the configuration allows."""
    if text == "all":
        return get_args(MethodName) if config.model.belief == "none" else READ_EVIDENCE
    return cast("tuple[MethodName, ...]", tuple(filter(None, text.split(","))))


def minutes_of(text: str) -> float:
    """Return the minutes of a duration such as 90s, 30m, 2h or 30."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--budget {text!r} is not a duration such as 90s, 30m or 2h")
    return float(match[1]) * MINUTES[match[2]]


def lrs_of(text: str) -> tuple[float, ...]:
    """Return the learning rates of a list such as 1e-3,2e-3."""
    try:
        return tuple(float(lr) for lr in filter(None, text.split(",")))
    except ValueError:
        raise InputError(f"--lrs {text!r} is not a list of numbers such as 1e-3,2e-3") from None


@dataclass(frozen=True)
class Methods:
    """List the methods: process, kind of likelihood, certificate and paper.

    A likelihood is exact or a bound, for the sampler with the same number of network calls, or an estimate. The
    certificate is its excess over the entropy of a known source, with the exact posterior.
    """

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """List the methods and return 0."""
        rows = rows_of_methods()
        text = table(rows, METHOD_COLUMNS) + (
            "\n\nexact, bound: for the sampler with the same number of calls; certificate: excess over the entropy of"
            "\nan independent source with the exact posterior and 64 calls. PixelCNN++, Sparse Transformer,"
            "\nTransformer-XL and other architectures of autoregression are represented by autoregressive on the"
            "\ncommon network."
        )
        print_result({"rows": rows}, text, self.json)
        return 0


def rows_of_methods() -> list[dict[str, object]]:
    """Return a row for every method."""
    from rdlm.methods import METHODS

    rows: list[dict[str, object]] = []
    for name, kind in METHODS.items():
        card = getattr(kind, "card", None)
        row: dict[str, object] = {"method": name}
        if card is not None:
            certificate = "none: not a bound" if card.slack is None else f"holds, within {card.slack:g}%"
            certificate = "holds, at the entropy" if card.slack == 0 else certificate
            certificate += f" ({card.reason})" if card.reason else ""
            row |= {"process": card.process, "number": card.number, "certificate": certificate}
            row |= {"slack_percent": card.slack, "paper": card.paper}
        rows.append(row)
    return rows

"""The continuous process against masked diffusion over training budget and width: bounds and their ratio.

    python -m experiments.budgets --seeds 0 --csv docs/data/budgets.csv       # about an hour; continues where it was
    python -m experiments.budgets --table --csv docs/data/budgets.csv --plot docs/figures/budgets.png

Data, optimizer, batches and bounds are those of `experiments.ablation`, but the learning rate is constant and the
weights are averaged, so that one run gives the bound at every budget: it is measured at each number of steps and
continued. The two rows of the ablation are learned codes in 16 dimensions, the best synchronous process, and masked
diffusion, each measured in its best order, that with the lowest bound of those in the table.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import ablation
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.config import RunConfig, TransformerConfig
from rdlm.display.figure import canvas
from rdlm.display.text_table import table
from rdlm.storage.files import write_atomic
from rdlm.train.loop import train

STEPS = (1500, 3000, 6000, 12000)
WIDTHS = (64, 128)
METHODS = ("codes 16", "masked")
"""Rows of the ablation: the continuous process and masked diffusion."""


def configuration(method: str, width: int, seed: int, steps: int) -> RunConfig:
    """Return the configuration of a run up to a number of steps."""
    config = ablation.configuration(method, seed, steps)
    assert isinstance(config.model, TransformerConfig)
    training = replace(config.training, decay="constant", ema=0.998)
    return replace(config, model=replace(config.model, width=width), training=training)


def run(method: str, width: int, seed: int, steps: int, out: Path) -> None:
    """Continue one run up to a number of steps and measure it, unless its result exists."""
    folder = out / f"{method.replace(' ', '-')}-{width}-{seed}"
    result = out / "results" / f"{folder.name}-{steps}.json"
    if result.is_file():
        return
    config = configuration(method, width, seed, steps)
    # The number of steps is the only change, and with a constant learning rate it changes no step.
    trained = train(config, folder, methods.build, accept_changes=True)
    row: dict[str, Any] = {"method": method, "width": width, "seed": seed, "steps": steps}
    row |= {"parameters": trained.parameters, "seconds": round(trained.seconds, 1), "commit": commit()}
    row["bounds"] = ablation.measure(folder, config)
    write_atomic(result, json.dumps(row, indent=1, allow_nan=False) + "\n")
    print(json.dumps(row), flush=True)


def collected(out: Path) -> list[dict[str, Any]]:
    """Return one row for every run, budget and order."""
    rows = []
    for path in sorted((out / "results").glob("*.json")):
        row = json.loads(path.read_text("utf-8"))
        bounds = row.pop("bounds")
        rows += [row | {"order, calls": order} | bound for order, bound in bounds.items()]
    return sorted(rows, key=lambda row: (row["width"], row["method"], row["seed"], row["steps"]))


def lowest(rows: Sequence[Mapping[str, Any]], method: str, orders: str = "") -> dict[tuple[int, int, int], float]:
    """Return (width, steps, seed) -> the lowest bound of a method, in the orders whose names begin with `orders`."""
    found: dict[tuple[int, int, int], float] = {}
    for row in rows:
        if row["method"] == method and row["order, calls"].startswith(orders):
            key = (row["width"], row["steps"], row["seed"])
            found[key] = min(found.get(key, math.inf), row["bits"])
    return found


def mean_by_width(values: Mapping[tuple[int, int, int], float]) -> dict[int, dict[int, float]]:
    """Return width -> steps -> the mean over seeds."""
    found: dict[int, dict[int, list[float]]] = {}
    for (width, steps, _), value in sorted(values.items()):
        found.setdefault(width, {}).setdefault(steps, []).append(value)
    return {width: {steps: sum(v) / len(v) for steps, v in by.items()} for width, by in found.items()}


def ratios(rows: Sequence[Mapping[str, Any]], orders: str = "") -> dict[int, dict[int, float]]:
    """Return width -> steps -> the ratio of the bounds, continuous over masked, as the mean over common seeds.

    Each method has the lowest bound of its orders; with `orders`, the continuous process only of orders that begin so.
    """
    continuous, masked = lowest(rows, METHODS[0], orders), lowest(rows, METHODS[1])
    return mean_by_width({key: bits / masked[key] for key, bits in continuous.items() if key in masked})


def trend(ratio: Mapping[int, float]) -> float:
    """Return the change of the ratio per doubling of the steps, by least squares; NaN for fewer than two budgets."""
    if len(ratio) < 2:
        return math.nan
    x = [math.log2(steps) for steps in ratio]
    y, middle = list(ratio.values()), sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the lowest bounds of both methods, and their ratio with its trend, over the steps."""
    kinds = (("synchronous", METHODS[0], "synchronous", "-"), ("best order", METHODS[0], "", ":"))
    with canvas(path, columns=2) as (bounds, ratio):
        for label, method, orders, line in (*kinds, ("best order", METHODS[1], "", "--")):
            for width, found in mean_by_width(lowest(rows, method, orders)).items():
                name, color = f"{method}, {label}, width {width}", f"C{WIDTHS.index(width)}"
                bounds.plot(list(found), list(found.values()), line, color=color, marker="o", ms=3, label=name)
        for label, _, orders, line in kinds:
            for width, found in ratios(rows, orders).items():
                name, color = f"{label}, width {width}: {trend(found):+.3f} per doubling", f"C{WIDTHS.index(width)}"
                ratio.plot(list(found), list(found.values()), line, color=color, marker="o", ms=3, label=name)
        ratio.axhline(1.0, color="black", lw=0.8)
        steps = sorted({row["steps"] for row in rows})
        for axis, label in ((bounds, "bits per character (upper bound)"), (ratio, f"{METHODS[0]} / {METHODS[1]}")):
            axis.set(xscale="log", xlabel="training steps", ylabel=label)
            axis.set_xticks(steps, [f"{one:,}" for one in steps])
            axis.minorticks_off()
            axis.legend(fontsize=6, handlelength=4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the budgets, or print the table of what has been measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--steps", nargs="*", type=int, default=list(STEPS))
    parser.add_argument("--out", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--csv", type=Path, default=None, help="also write the table to this file")
    parser.add_argument("--plot", type=Path, default=None, help="also draw the figure")
    options = parser.parse_args(arguments)
    if not options.table:
        for seed in options.seeds:
            for steps in sorted(options.steps):
                for width in options.widths:
                    for method in METHODS:
                        run(method, width, seed, steps, options.out)
    rows = collected(options.out)
    print(table(rows, list(rows[0]) if rows else []))
    if options.csv is not None and rows:
        write_csv(options.csv, rows)
    if options.plot is not None and rows:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()

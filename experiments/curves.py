"""Training loss and validation bound of several runs: `python -m experiments.curves RUN ... --out FILE.png`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rdlm.display.figure import canvas
from rdlm.errors import InputError
from rdlm.train import record


def draw_curves(runs: Sequence[Path], path: Path) -> None:
    """Plot the training loss of each run over its steps, and its validation bounds with their intervals."""
    with canvas(path, columns=2) as (losses, bounds):
        for number, run in enumerate(runs):
            lines = record.read_lines(run)
            if not lines:
                raise InputError(f"{run} has no training record: give folders written by rdlm train")
            steps = [line for line in lines if line["kind"] == "step" and line["loss"] is not None]
            found = [line for line in lines if line["kind"] == "validation"]
            colour = f"C{number}"
            losses.plot([x["step"] for x in steps], [x["loss"] for x in steps], color=colour, label=run.name)
            bounds.errorbar(
                [x["step"] for x in found],
                [x["bits"] for x in found],
                [x["margin"] for x in found],
                color=colour,
                marker="o",
                markersize=3,
                capsize=2,
                label=run.name,
            )
        losses.set(xlabel="step", ylabel="training loss, nats per token")
        bounds.set(xlabel="step", ylabel="validation bound, bits per token")
        losses.legend()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--out", type=Path, required=True, help="file of the figure")
    options = parser.parse_args()
    draw_curves(options.runs, options.out)

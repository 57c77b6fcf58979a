"""`rdlm analyze`: the paper's analyses, each a table and a picture."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rdlm.errors import InputError
from rdlm.report import print_json, table

Name = Literal["objectives", "splitting", "transition", "radial", "speed"]


@dataclass(frozen=True)
class Analyze:
    """Repeat an analysis of the paper at a scale of minutes on two cores, or at its own.

    objectives: drift error, cross-entropy, cross-entropy with importance sampling; 6 minutes. splitting: one sphere,
    one with its top coordinates marked, digits; 9 minutes. transition: discrepancies of the laws from the simulation;
    3 minutes. radial: how bridges close in on their tokens; 1 minute. speed: a training step by law; 1 minute.
    """

    name: Annotated[Name, tyro.conf.Positional]
    """Which analysis."""
    paper_scale: bool = False
    """The paper's sizes: networks and budgets that want accelerators, more samples elsewhere."""
    steps: int | None = None
    """Training steps of each run, for objectives and splitting."""
    seed: int = 0
    """Seed of all draws."""
    out: Path | None = None
    """Folder of the table (JSON), the picture, and the runs; runs/analysis-NAME if not given."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Run the analysis, write its table and picture, print the table, and return 0."""
        if self.steps is not None and (self.steps < 1 or self.name not in ("objectives", "splitting")):
            raise InputError("--steps is a number of training steps, for objectives and splitting alone")
        out = self.out or Path("runs") / f"analysis-{self.name}"
        rows = self._rows(out)
        result = {"analysis": self.name, "paper_scale": self.paper_scale, "seed": self.seed, "rows": rows}
        from rdlm.storage import write_atomic

        path = out / f"{self.name}.json"
        write_atomic(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
        if self.json:
            print_json(result)
        else:
            print(table(rows, list(rows[0])))
        print(f"rdlm: wrote {path} and {path.with_suffix('.png')}", file=sys.stderr)
        return 0

    def _rows(self, out: Path) -> list[dict[str, object]]:
        from rdlm.analysis import objectives, speed, splitting

        if self.name == "objectives":
            return objectives.run(out, self.paper_scale, self.steps, self.seed)
        if self.name == "splitting":
            return splitting.run(out, self.paper_scale, self.steps, self.seed)
        if self.name == "speed":
            return speed.run(out, self.paper_scale, seed=self.seed)
        return self._transition(out) if self.name == "transition" else self._radial(out)

    def _transition(self, out: Path) -> list[dict[str, object]]:
        import torch

        from rdlm.analysis import transition

        generator = torch.Generator().manual_seed(self.seed)
        scale = 4 if self.paper_scale else 1
        cases = [transition.Case(c.dimension, scale * c.samples, scale * c.steps) for c in transition.CASES]
        rows = [r for case in cases for start in transition.STARTS for r in transition.compare(case, start, generator)]
        transition.plot(rows, out / "transition.png")
        return [asdict(row) for row in rows]

    def _radial(self, out: Path) -> list[dict[str, object]]:
        import torch

        from rdlm.analysis import radial

        paths = 5000 if self.paper_scale else 500
        radial.plot_radial(out / "radial.png", self.seed, paths)
        generator = torch.Generator().manual_seed(self.seed)
        clock = radial.SCHEDULES["geometric, rising (the paper's)"]
        rows: list[dict[str, object]] = []
        for dimension in radial.DIMENSIONS:
            grid = radial.fine_grid(clock.total)
            quantiles = radial.radial_quantiles(dimension, grid, paths, generator)
            for time in (0.1, 0.3, 0.5, 0.7, 0.9):
                level = int((grid.noise > clock.remaining(time)).sum())
                low, median, high = quantiles[level].tolist()
                rows.append({"dimension": dimension, "time": time, "10%": low, "median": median, "90%": high})
        return rows

"""`rdlm analyze`: the analyses of the paper and of sample quality, each with a table and a figure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rdlm.display.text_table import print_json, say, table
from rdlm.errors import InputError

Name = Literal["objectives", "splitting", "changes", "transition", "radial", "speed", "frontier", "steps"]
Rows = list[dict[str, object]]

_TRIAL = {"bits_per_character": "upper bound at `calls` network calls on validation sequences", "interval": "95%"}
CONVENTIONS: dict[str, dict[str, str]] = {
    "objectives": _TRIAL,
    "splitting": _TRIAL,
    "changes": _TRIAL,
    "transition": {
        "value": "squared maximum mean discrepancy from the simulation, unbiased",
        "low, high": "95% of the values under random exchanges between the two sets",
    },
    "radial": {"10%, median, 90%": "angle to the token, radians, logarithm bridge from the mask"},
    "speed": {
        "step_seconds": "median processor time of states, forward, loss and backward",
        "states_seconds": "the same for drawing the states alone",
    },
}
"""Meaning of the columns of each table; those of frontier and steps depend on the scorer."""


@dataclass(frozen=True)
class Analyze:
    """Repeat an analysis of the paper, at a small scale on two cores or at the paper's scale.

    objectives: drift error, cross-entropy, cross-entropy with importance sampling; 6 minutes. splitting: one sphere,
    one sphere with its top coordinates marked, digits; 9 minutes. changes: one change at a time to bridge, evidence,
    noise, start, law, times, features, windows; an hour. transition: discrepancy of the laws from the simulation; three
    minutes. radial: how bridges approach their tokens; 1 minute. speed: a training step by law; 1 minute.
    frontier: generative perplexity against entropy of samples of a RUN, by temperature, steps and solver; 2 minutes.
    steps: bound and sample quality of a RUN against network calls, by solver, grid, window and order; an hour; the
    same command continues an interrupted table. Needs a checkout of the repository.
    """

    name: Annotated[Name, tyro.conf.Positional]
    """Name of the analysis."""
    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """Folder of a run or a checkpoint, for frontier and steps."""
    paper_scale: bool = False
    """Use the paper's sizes: networks and training budgets that need accelerators, and more samples elsewhere."""
    steps: int | None = None
    """Training steps of each run, for objectives, splitting and changes."""
    only: str | None = None
    """Prefixes of the names of changes, separated by semicolons, such as 'noise; windows: all'; by default all."""
    scorer: str | None = None
    """Scorer of samples, for frontier and steps: an autoregressive run, or a causal model of transformers."""
    temperatures: str | None = None
    """Temperatures of each curve of frontier (default 0.5,0.7,0.85,1,1.15) or row of steps (default 0.8,1,1.2)."""
    sampler_steps: str | None = None
    """Numbers of sampler steps for frontier (default 16,64; at the paper's scale 64,256,1024), or of network calls for
    steps (default 4,8,16,32,64,128,256)."""
    solvers: str | None = None
    """Solvers, such as mixture,drift, for frontier (default mixture) and steps (default all)."""
    grids: str | None = None
    """Grids, such as time,information, for steps; by default all that the model supports."""
    window: float | None = None
    """Share of the sampling time during which one token moves, for frontier; by default the model's."""
    widths: str | None = None
    """Windows for steps, as shares of the sampling time, 0 being a single step; by default 0.5,0.25,0."""
    samples: int = 32
    """Samples per point, for frontier and steps."""
    seed: int = 0
    """Random seed."""
    out: Path | None = None
    """Folder of the table (JSON, CSV and text), the figure, and the runs; by default runs/analysis-NAME."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Run the analysis, write its table and figure, print the table, and return 0."""
        self._check()
        out = self.out or Path("runs") / f"analysis-{self.name}"
        of_run = {"frontier": self._frontier, "steps": self._steps}
        rows, conventions = of_run.get(self.name, self._analysis)(out)
        result: dict[str, object] = {"analysis": self.name, "paper_scale": self.paper_scale, "seed": self.seed}
        result |= {"rows": rows, "conventions": conventions}
        from rdlm.storage.files import write_atomic

        path = out / f"{self.name}.json"
        columns = [name for name in dict.fromkeys(key for row in reversed(rows) for key in row) if name != "sample"]
        text = "\n".join([table(rows, columns), *(f"{name}: {rule}" for name, rule in conventions.items())])
        write_atomic(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
        write_atomic(path.with_suffix(".txt"), text + "\n")
        from experiments.trial import commit, write_csv

        about = {"seed": self.seed, "commit": commit()}
        write_csv(path.with_suffix(".csv"), [{name: row.get(name) for name in columns} | about for row in rows])
        if self.json:
            print_json(result)
        else:
            print(text)
        say(f"wrote {path}, and .csv, .txt and .png beside it")
        return 0

    def _check(self) -> None:
        if self.steps is not None and (self.steps < 1 or self.name not in ("objectives", "splitting", "changes")):
            raise InputError("--steps (training steps, at least 1) is only for objectives, splitting and changes")
        if self.only is not None and self.name != "changes":
            raise InputError(f"--only is for the analysis changes, not for {self.name}")
        if self.name == "frontier" and (self.model is None or self.scorer is None):
            raise InputError("frontier needs a run and a scorer: rdlm analyze frontier RUN --scorer RUN")
        if self.name == "steps" and self.model is None:
            raise InputError("steps needs a run: rdlm analyze steps RUN --scorer RUN")
        if self.name not in ("frontier", "steps") and (self.model is not None or self.scorer is not None):
            raise InputError(f"a run and a scorer are for frontier and steps, not for {self.name}")

    def _analysis(self, out: Path) -> tuple[Rows, dict[str, str]]:
        """Return the table of an analysis of the paper and the meaning of its columns, and write the figure."""
        from experiments import changes, objectives, radial, speed, splitting, transition

        if self.name == "objectives":
            rows = objectives.run(out, self.paper_scale, self.steps, self.seed)
        elif self.name == "splitting":
            rows = splitting.run(out, self.paper_scale, self.steps, self.seed)
        elif self.name == "changes":
            only = [start.strip() for start in (self.only or "").split(";") if start.strip()]
            rows = changes.run(out, self.paper_scale, self.steps, self.seed, only)
        elif self.name == "speed":
            rows = speed.run(out, self.paper_scale, seed=self.seed)
        elif self.name == "radial":
            rows = radial.run(out, self.paper_scale, self.seed)
        else:
            rows = transition.run(out, self.paper_scale, self.seed)
        return rows, CONVENTIONS[self.name]

    def _frontier(self, out: Path) -> tuple[Rows, dict[str, str]]:
        """Return the table of the frontier and the meaning of its columns, and write the figure."""
        import rdlm
        from experiments import frontier
        from rdlm.display.progress import bar
        from rdlm.evaluate.metrics import scorer_of
        from rdlm.train.run import held_out, load_corpus_of_model

        steps = self.sampler_steps or ",".join(map(str, frontier.PAPER_STEPS if self.paper_scale else frontier.STEPS))
        wanted = frontier.Frontier(
            tuple(_numbers("temperatures", self.temperatures)) if self.temperatures else frontier.TEMPERATURES,
            tuple(map(int, _numbers("sampler-steps", steps))),
            tuple((self.solvers or "mixture").split(",")),
            self.window,
            self.samples,
            self.seed,
        )
        assert self.model is not None and self.scorer is not None  # checked by `_check`
        model, scorer = rdlm.load(self.model), scorer_of(self.scorer)
        data = held_out(load_corpus_of_model(model.config), model.length, self.samples, self.seed).ids
        with bar(wanted.cost, "frontier", "step") as progress:
            rows = list(frontier.measure(model, data, scorer, wanted, progress.update))
        frontier.plot(rows, scorer.name, out / "frontier.png")
        return rows, frontier.conventions(scorer)

    def _steps(self, out: Path) -> tuple[Rows, dict[str, str]]:
        """Return the table over network calls and the meaning of its columns, and write the figure."""
        import rdlm
        from experiments import steps
        from experiments.row_cache import RowCache
        from rdlm.display.progress import bar
        from rdlm.evaluate.metrics import scorer_of
        from rdlm.train.run import held_out, load_corpus_of_model

        assert self.model is not None  # checked by `_check`
        model, scorer = rdlm.load(self.model), scorer_of(self.scorer) if self.scorer else None
        wanted = steps.Steps(
            grids=steps.grids_of(model),
            block=model.rdlm.token_schedule.block,
            length=model.length,
            samples=self.samples,
            seed=self.seed,
        )
        if self.sampler_steps:
            wanted = replace(wanted, nfe=tuple(map(int, _numbers("sampler-steps", self.sampler_steps))))
        if self.solvers:
            wanted = replace(wanted, solvers=tuple(self.solvers.split(",")))
        if self.grids:
            wanted = replace(wanted, grids=tuple(self.grids.split(",")))
        if self.widths:
            wanted = replace(wanted, widths=tuple(_numbers("widths", self.widths)))
        if self.temperatures:
            wanted = replace(wanted, temperatures=tuple(_numbers("temperatures", self.temperatures)))
        data = held_out(load_corpus_of_model(model.config), model.length, max(512, 2 * self.samples), self.seed)
        with bar(wanted.cost, "steps", "call") as progress:
            rows = list(steps.measure(model, data, scorer, wanted, progress.update, RowCache(out / "rows.jsonl")))
        steps.plot(rows, out / "steps.png")
        return rows, steps.conventions(scorer)


def _numbers(flag: str, text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--{flag} takes numbers such as 1,2,4; got {text!r}") from None
    return found

"""Methods side by side: one network, one corpus, one budget, one evaluator.

FOLDER/
    METHOD/ ...      the run of each method, as `rdlm train` leaves it
    pace.json        seconds per step before the start, and the steps that a budget was found to allow
    compare.json     the rows, written after each evaluation
    compare.png      bounds and sample quality

The methods train in turn, a slice of steps each, so that whatever else the machine does hits all of them alike. A
comparison that was stopped continues with the same command.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from rdlm.config import MethodName, RunConfig
from rdlm.data.store import Corpus
from rdlm.errors import InputError, unknown
from rdlm.evaluation.sample import divergences
from rdlm.method import build
from rdlm.model.config import TransformerConfig
from rdlm.progress import bar
from rdlm.randomness import generator_of
from rdlm.storage import write_atomic
from rdlm.training.checkpoint import read_json
from rdlm.training.interruption import InterruptedRunError, Interruption
from rdlm.training.loop import accumulate, update, write_line
from rdlm.training.parallel import Team, team
from rdlm.training.record import Record
from rdlm.training.run import Build, Run, load_corpus, opened
from rdlm.training.validation import held_out, measure, unit_of

SLICE = 50
"""Steps that a method trains before it is the next one's turn."""

PILOT = 3
"""Rounds, and steps of a round, from which the pace is taken, after one step to warm up."""

REFERENCE: MethodName = "autoregressive"
"""The method whose step is the unit of cost; sampling takes it a call per token, whatever is allowed."""

PIECE = 16
"""Sequences that are generated at once."""

DATA = 1024
"""Validation sequences that samples are held against."""


@dataclass(frozen=True)
class Contest:
    """What is compared, and by what."""

    config: RunConfig
    """The configuration that all methods share."""
    methods: tuple[MethodName, ...]
    calls: int = 64
    """Network calls M of every bound and of every sampler."""
    sequences: int = 256
    """Validation sequences of a bound."""
    samples: int = 64
    """Generated sequences for the sample quality."""

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in get_args(MethodName):
                raise unknown("method", name, get_args(MethodName))
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"a comparison needs methods, each named once, got {', '.join(self.methods) or 'none'}")
        for key in ("calls", "sequences", "samples"):
            if getattr(self, key) < 1:
                raise InputError(f"--{key} must be at least 1, got {getattr(self, key)}")

    def configuration(self, method: MethodName, steps: int) -> RunConfig:
        """Return the configuration of one method's run."""
        return replace(self.config, method=method, training=replace(self.config.training, steps=steps))

    @property
    def setting(self) -> dict[str, int]:
        """Return what an evaluation depends on besides the weights."""
        return {"calls": self.calls, "sequences": self.sequences, "samples": self.samples}


@dataclass(frozen=True, eq=False)
class Entrant:
    """A method in the comparison: its run, open and resumed, and its record."""

    name: MethodName
    run: Run
    record: Record


def compare(
    contest: Contest, folder: Path, *, steps: int | None = None, minutes: float | None = None,
    load: Callable[[RunConfig], Corpus] = load_corpus, make: Build = build,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train the methods in turn, evaluate each, and return their rows; `minutes` are for the training of all of them.

    SIGTERM and SIGINT save every run and raise InterruptedRunError.
    """
    corpus = load(contest.config)
    with ExitStack() as stack:
        members = stack.enter_context(team(contest.config.training.device))
        if members.world > 1:
            raise InputError("rdlm compare runs in one process; torchrun would change what a step costs")
        found = _pace(contest, folder, members, corpus, make, minutes)
        budget = found.get("steps") if steps is None else steps
        total = contest.config.training.steps if budget is None else budget
        interruption = stack.enter_context(Interruption())
        entrants = [
            stack.enter_context(_entered(contest.configuration(name, total), folder / name, members, corpus, make))
            for name in contest.methods
        ]
        _race(entrants, total, interruption)
        rows = [_row(contest, entrant, folder) for entrant in entrants]
        return _finish(contest, folder, rows, found)


@contextmanager
def _entered(config: RunConfig, folder: Path, members: Team, corpus: Corpus, make: Build) -> Iterator[Entrant]:
    with opened(config, folder, members, make, load=lambda _: corpus) as run, Record(folder, run.counters.step) as record:
        yield Entrant(config.method, run, record)


# -- training ----------------------------------------------------------------------------------------


def _race(entrants: Sequence[Entrant], total: int, interruption: Interruption) -> None:
    """Bring every run to `total` steps, in turn."""
    begin = sum(entrant.run.counters.step for entrant in entrants)
    with bar(total * len(entrants), "compare", "step", begin) as progress:
        for target in [*range(SLICE, total, SLICE), total]:
            for entrant in entrants:
                progress.set_postfix_str(entrant.name)
                progress.update(_advance(entrant, target, interruption))
            for entrant in entrants:
                _save(entrant, done=target == total or bool(interruption.received))
            if interruption.received:
                raise InterruptedRunError(interruption.received, min(e.run.counters.step for e in entrants))


def _advance(entrant: Entrant, target: int, interruption: Interruption) -> int:
    """Train up to the step `target`, and return how many steps that took."""
    run, counters = entrant.run, entrant.run.counters
    first, begin = counters.step, time.monotonic()
    run.network.train()
    while counters.step < target and not interruption.received:
        loss, norm = accumulate(run)
        update(run, loss, norm)
        counters.step += 1
    if (taken := counters.step - first) > 0:
        spent = time.monotonic() - begin
        counters.seconds += spent
        write_line(run, entrant.record, taken * run.config.training.batch * run.length / spent)
    return taken


def _save(entrant: Entrant, done: bool) -> None:
    run, every = entrant.run, entrant.run.config.training.save_every
    if done or run.counters.step // every > run.saved // every:
        entrant.record.sync()
        run.save()


# -- cost --------------------------------------------------------------------------------------------


def _pace(
    contest: Contest, folder: Path, members: Team, corpus: Corpus, make: Build, minutes: float | None
) -> dict[str, Any]:
    """Return seconds per step where the runs will not say it, and the steps that fit into a budget.

    A budget is turned into steps once: a comparison that continues keeps them.
    """
    path = folder / "pace.json"
    if path.exists():
        found = read_json(path)
        if set(found["seconds"]) >= {*contest.methods} and (minutes is None or "steps" in found):
            return found
    reference = isinstance(contest.config.model, TransformerConfig)
    if minutes is None and (REFERENCE in contest.methods or not reference):
        return {}
    names = dict.fromkeys((*contest.methods, REFERENCE) if reference else contest.methods)
    seconds = _pilot([contest.configuration(name, 1 + PILOT * PILOT) for name in names], members, corpus, make)
    found = {"seconds": seconds}
    if minutes is not None:
        found["steps"] = max(1, int(60 * minutes / sum(seconds[name] for name in contest.methods)))
    write_atomic(path, json.dumps(found, indent=2) + "\n")
    return found


def _pilot(configs: Sequence[RunConfig], members: Team, corpus: Corpus, make: Build) -> dict[str, float]:
    """Return each method's seconds per step: the median over a few interleaved rounds of runs that are thrown away."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        interruption = stack.enter_context(Interruption())
        entrants = [stack.enter_context(_entered(c, place / c.method, members, corpus, make)) for c in configs]
        spent: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
        for target in range(1, 2 + PILOT * PILOT, PILOT):
            for entrant in entrants:
                begin = entrant.run.counters.seconds
                _advance(entrant, target, interruption)
                spent[entrant.name].append((entrant.run.counters.seconds - begin) / PILOT)
            if interruption.received:
                raise InterruptedRunError(interruption.received, 0)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


def _relative_costs(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> list[float | None]:
    """Return the cost of a step relative to the autoregressive one's, from the runs if it takes part."""
    own = {row["method"]: row["seconds_per_step"] for row in rows}
    seconds = own if REFERENCE in own else found.get("seconds", {})
    if REFERENCE not in seconds:
        return [None] * len(rows)
    return [seconds[row["method"]] / seconds[REFERENCE] for row in rows]


# -- evaluation --------------------------------------------------------------------------------------


def _row(contest: Contest, entrant: Entrant, folder: Path) -> dict[str, Any]:
    """Return the row of a trained method; one that stands in compare.json already is not measured again."""
    key = {"method": entrant.name, "steps": entrant.run.counters.step, **contest.setting}
    path = folder / "compare.json"
    rows: list[dict[str, Any]] = read_json(path)["rows"] if path.exists() else []
    for row in rows:
        if all(row.get(name) == value for name, value in key.items()):
            return row
    row = {**key, **_measured(contest, entrant)}
    others = [other for other in rows if other["method"] != entrant.name]
    write_atomic(path, json.dumps({"rows": [*others, row]}, indent=2) + "\n")
    return row


def _measured(contest: Contest, entrant: Entrant) -> dict[str, Any]:
    """Return the bound on validation sequences and the quality of samples, with the averaged weights."""
    run, seed = entrant.run, entrant.run.config.training.seed
    wanted = contest.config.data.length
    with run.averaged():
        bound = measure(run.method, held_out(run.corpus, wanted, contest.sequences, seed), contest.calls, seed, run.team)
        samples = _samples(run, contest.samples, contest.calls)
    data = held_out(run.corpus, wanted, DATA, seed).ids
    quality = divergences(samples, data, run.corpus.tokenizer.size)
    stderr = bound.margin / 1.96
    return {
        "bound": bound.bits, "stderr": stderr, "low": bound.bits - bound.margin, "high": bound.bits + bound.margin,
        "unit": unit_of(run.corpus), "claims_bound": run.method.claims_bound,
        "sampling_calls": run.length if entrant.name == REFERENCE else contest.calls,
        "parameters": run.parameter_count, "protocol": run.corpus.protocol, "seed": seed,
        "seconds_per_step": run.counters.seconds / max(run.counters.step, 1), "loss": run.counters.loss,
        "skipped": run.counters.skipped, "quality": {name: asdict(metric) for name, metric in quality.items()},
        "sample": run.corpus.tokenizer.decode([i for i in samples[0].tolist() if i >= 0]),
    }  # fmt: skip


def _samples(run: Run, count: int, calls: int) -> torch.Tensor:
    generator = generator_of("compare", run.config.training.seed)
    pieces = [min(PIECE, count - first) for first in range(0, count, PIECE)]
    return torch.cat([run.method.generate(piece, run.length, calls, generator) for piece in pieces])


def _finish(contest: Contest, folder: Path, rows: list[dict[str, Any]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows with their relative costs, and write them."""
    costs = _relative_costs(rows, found)
    rows = [{**row, "relative_step_cost": cost} for row, cost in zip(rows, costs, strict=True)]
    write_atomic(folder / "compare.json", json.dumps({"rows": rows, **contest.setting}, indent=2) + "\n")
    return rows

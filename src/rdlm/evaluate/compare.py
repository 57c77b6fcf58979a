"""Several runs that train in turn, a slice of steps each: whatever else the machine does hits all of them alike.

Which learning rate suits a method: every method tries the same few, for the same few steps, and takes its best.

Methods side by side: one network, one corpus, one budget, one evaluator.

FOLDER/
    METHOD/ ...      the run of each method, as `rdlm train` leaves it
    search/ ...      short runs of each method at each learning rate, where several are to choose from
    lrs.json       what those came to
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
from typing import Any

import torch
from torch import Tensor

from rdlm.config import MethodName, RunConfig, TransformerConfig
from rdlm.data.store import Corpus
from rdlm.display.figure import canvas
from rdlm.display.progress import bar
from rdlm.errors import InputError, unknown
from rdlm.evaluate.samples import divergences
from rdlm.methods import METHODS, build
from rdlm.methods.bound import repeated_bound
from rdlm.random import generator_of
from rdlm.storage.files import read_json, write_atomic
from rdlm.train.interruption import Interruption
from rdlm.train.loop import accumulate, update, write_line
from rdlm.train.parallel import Team, team
from rdlm.train.record import Record
from rdlm.train.run import Build, Run, load_corpus, open_run
from rdlm.train.validation import held_out, unit_of

SLICE = 50
"""Steps that a run trains before it is the next one's turn."""

PILOT = 3
"""Rounds, and steps of a round, from which the pace is taken, after one step to warm up."""


@dataclass(frozen=True, eq=False)
class Entrant:
    """A run in the race, open and resumed, with its record."""

    name: MethodName
    run: Run
    record: Record


@contextmanager
def entered(config: RunConfig, folder: Path, members: Team, corpus: Corpus, build: Build) -> Iterator[Entrant]:
    """Yield the run of a configuration as an entrant."""
    with (
        open_run(config, folder, members, build, load=lambda _: corpus) as run,
        Record(folder, run.counters.step) as record,
    ):
        yield Entrant(config.method, run, record)


def race(entrants: Sequence[Entrant], total: int, interruption: Interruption) -> None:
    """Bring every run to `total` steps, in turn; an interruption saves all of them and raises InterruptedRunError."""
    begin = sum(entrant.run.counters.step for entrant in entrants)
    with bar(total * len(entrants), "compare", "step", begin) as progress:
        for target in [*range(SLICE, total, SLICE), total]:
            for entrant in entrants:
                progress.set_postfix_str(entrant.name)
                progress.update(_advance(entrant, target, interruption))
            for entrant in entrants:
                _save(entrant, done=target == total or bool(interruption.received))
            interruption.raise_if_received(min(entrant.run.counters.step for entrant in entrants))


def pace(configs: Sequence[RunConfig], members: Team, corpus: Corpus, build: Build) -> dict[str, float]:
    """Return each method's seconds per step: the median over a few rounds of runs that are thrown away."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        interruption = stack.enter_context(Interruption())
        entrants = [stack.enter_context(entered(c, place / c.method, members, corpus, build)) for c in configs]
        spent: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
        for target in range(1, 2 + PILOT * PILOT, PILOT):
            for entrant in entrants:
                begin = entrant.run.counters.seconds
                _advance(entrant, target, interruption)
                spent[entrant.name].append((entrant.run.counters.seconds - begin) / PILOT)
            interruption.raise_if_received(0)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


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


Judge = Callable[[Entrant], float]
"""What a rate is chosen by, of a run at its end: the lower the better."""


def search(
    configs: Sequence[RunConfig],
    lrs: Sequence[float],
    folder: Path,
    members: Team,
    corpus: Corpus,
    make: Build,
    judge: Judge,
    interruption: Interruption,
) -> dict[str, float]:
    """Return the best rate of each configuration's method; the configurations say how many steps a trial takes.

    The trials run in turn, like the comparison itself. What each of them came to stands in `lrs.json`; a method whose
    trials stand there already is not tried again.
    """
    path = folder / "lrs.json"
    trials: dict[str, dict[str, float]] = read_json(path) if path.exists() else {}
    fresh = [config for config in configs if set(trials.get(config.method, {})) != {f"{lr:g}" for lr in lrs}]
    if fresh:
        with ExitStack() as stack:
            entrants = [
                stack.enter_context(entered(_at(config, lr), _place(folder, config, lr), members, corpus, make))
                for config in fresh
                for lr in lrs
            ]
            race(entrants, fresh[0].training.steps, interruption)
            for config in fresh:
                trials[config.method] = {
                    f"{entrant.run.config.training.lr:g}": judge(entrant)
                    for entrant in entrants
                    if entrant.name == config.method
                }
                write_atomic(path, json.dumps(trials, indent=2) + "\n")
    return {config.method: _best(trials[config.method], lrs) for config in configs}


def _best(found: dict[str, float], lrs: Sequence[float]) -> float:
    return min(lrs, key=lambda lr: found[f"{lr:g}"])


def _at(config: RunConfig, lr: float) -> RunConfig:
    return replace(config, training=replace(config.training, lr=lr))


def _place(folder: Path, config: RunConfig, lr: float) -> Path:
    return folder / "search" / f"{config.method}-{lr:g}"


REFERENCE: MethodName = "autoregressive"
"""The method whose step is the unit of cost; sampling takes it a call per token, whatever is allowed."""

PIECE = 64
"""Sequences that are generated at once."""

JUDGED = 32
"""Most sequences by which a learning rate is judged: all rates by the same ones, so that few tell them apart."""

DATA = 1024
"""Validation sequences that samples are held against."""


@dataclass(frozen=True)
class Contest:
    """What is compared, and by what."""

    config: RunConfig
    """The configuration that all methods share."""
    methods: tuple[MethodName, ...]
    nfe: int = 64
    """Network calls M of every bound and of every sampler."""
    sequences: int = 256
    """Validation sequences of a bound."""
    samples: int = 64
    """Generated sequences for the sample quality."""
    lrs: tuple[float, ...] = ()
    """Learning rates that every method chooses from by its own measure; none: the configuration's."""
    trial: int = 300
    """Steps of a trial of a rate."""

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"a comparison needs methods, each named once, got {', '.join(self.methods) or 'none'}")
        if not all(lr > 0 for lr in self.lrs):
            raise InputError(f"--lrs must be positive, got {', '.join(f'{lr:g}' for lr in self.lrs)}")
        for key in ("nfe", "sequences", "samples", "trial"):
            if getattr(self, key) < 1:
                raise InputError(f"--{key} must be at least 1, got {getattr(self, key)}")

    def configuration(self, method: MethodName, steps: int) -> RunConfig:
        """Return the configuration of one method's run."""
        return replace(self.config, method=method, training=replace(self.config.training, steps=steps))

    @property
    def setting(self) -> dict[str, int]:
        """Return what an evaluation depends on besides the weights."""
        return {"calls": self.nfe, "sequences": self.sequences, "samples": self.samples}


def compare(
    contest: Contest,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    load: Callable[[RunConfig], Corpus] = load_corpus,
    make: Build = build,
) -> list[dict[str, Any]]:
    """Train the methods in turn, evaluate each, and return their rows; `minutes` are for the training of all of them.

    SIGTERM and SIGINT save every run and raise InterruptedRunError.
    """
    corpus = load(contest.config)
    with ExitStack() as stack:
        members = stack.enter_context(team(contest.config.training.device))
        if members.world > 1:
            raise InputError("rdlm compare runs in one process; torchrun would change what a step costs")
        found = _known_pace(contest, folder, members, corpus, make, minutes)
        budget = found.get("steps") if steps is None else steps
        total = contest.config.training.steps if budget is None else budget
        interruption = stack.enter_context(Interruption())
        configs = [contest.configuration(name, total) for name in contest.methods]
        if contest.lrs:
            lrs = _searched(contest, folder, members, corpus, make, interruption)
            configs = [replace(c, training=replace(c.training, lr=lrs[c.method])) for c in configs]
        entrants = [stack.enter_context(entered(c, folder / c.method, members, corpus, make)) for c in configs]
        race(entrants, total, interruption)
        rows = []
        for entrant in entrants:
            interruption.raise_if_received(total)
            rows.append(_row(contest, entrant, folder))
        return _finish(contest, folder, rows, found)


def _searched(
    contest: Contest, folder: Path, members: Team, corpus: Corpus, make: Build, interruption: Interruption
) -> dict[str, float]:
    """Return the learning rate of each method: the best of all that it tried, by its bound after the trials' steps."""
    trials = [contest.configuration(name, contest.trial) for name in contest.methods]
    sequences = min(contest.sequences, JUDGED)
    batch = held_out(corpus, contest.config.data.length, sequences, contest.config.training.seed)

    def judge(entrant: Entrant) -> float:
        interruption.raise_if_received(contest.trial)
        with entrant.run.averaged():
            return repeated_bound(entrant.run.method, batch, contest.nfe, contest.config.training.seed).bits

    return search(trials, contest.lrs, folder, members, corpus, make, judge, interruption)


# -- cost --------------------------------------------------------------------------------------------


def _known_pace(
    contest: Contest, folder: Path, members: Team, corpus: Corpus, make: Build, minutes: float | None
) -> dict[str, Any]:
    """Return seconds per step where the runs will not say it, and the steps that fit into a budget.

    A budget is turned into steps once: a comparison that continues keeps them.
    """
    path = folder / "pace.json"
    before = read_json(path) if path.exists() else {}
    if set(before.get("seconds", {})) >= {*contest.methods} and (minutes is None or "steps" in before):
        return before
    reference = isinstance(contest.config.model, TransformerConfig)
    if minutes is None and (REFERENCE in contest.methods or not reference):
        return before
    names = dict.fromkeys((*contest.methods, REFERENCE) if reference else contest.methods)
    configs = [contest.configuration(name, contest.config.training.steps) for name in names]
    found: dict[str, Any] = {**before, "seconds": pace(configs, members, corpus, make)}
    if minutes is not None and "steps" not in found:
        found["steps"] = max(1, int(60 * minutes / sum(found["seconds"][name] for name in contest.methods)))
    write_atomic(path, json.dumps(found, indent=2) + "\n")
    return found


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
        bound = repeated_bound(run.method, held_out(run.corpus, wanted, contest.sequences, seed), contest.nfe, seed)
        samples = _samples(run, contest.samples, contest.nfe)
    data = held_out(run.corpus, wanted, DATA, seed).ids
    quality = divergences(samples, data, run.corpus.tokenizer.size)
    stderr = bound.margin / 1.96
    return {
        "bound": bound.bits,
        "stderr": stderr,
        "low": bound.bits - bound.margin,
        "high": bound.bits + bound.margin,
        "unit": unit_of(run.corpus),
        "claims_bound": run.method.claims_bound,
        "sampling_calls": run.length if entrant.name == REFERENCE else contest.nfe,
        "parameters": run.parameter_count,
        "lr": run.config.training.lr,
        "protocol": run.corpus.protocol,
        "seed": seed,
        "seconds_per_step": run.counters.seconds / max(run.counters.step, 1),
        "loss": run.counters.loss,
        "skipped": run.counters.skipped,
        "quality": {name: asdict(metric) for name, metric in quality.items()},
        "sample": run.corpus.tokenizer.decode([i for i in samples[0].tolist() if i >= 0]),
    }


def _samples(run: Run, count: int, nfe: int) -> Tensor:
    generator = generator_of("compare", run.config.training.seed)
    pieces = [min(PIECE, count - first) for first in range(0, count, PIECE)]
    return torch.cat([run.method.generate(piece, run.length, nfe, generator) for piece in pieces])


def _finish(contest: Contest, folder: Path, rows: list[dict[str, Any]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows with their relative costs, and write them."""
    costs = _relative_costs(rows, found)
    rows = [{**row, "relative_step_cost": cost} for row, cost in zip(rows, costs, strict=True)]
    write_atomic(folder / "compare.json", json.dumps({"rows": rows, **contest.setting}, indent=2) + "\n")
    return rows


def draw_comparison(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw every method's bound and the divergence of its samples, with 95% intervals; hollow is not a bound."""
    names = [row["method"] for row in rows]
    with canvas(path, columns=2) as (left, right):
        for place, row in enumerate(rows):
            face = None if row["claims_bound"] else "white"
            left.errorbar(row["bound"], place, xerr=1.96 * row["stderr"], fmt="o", markerfacecolor=face)
            metric = row["quality"]["bigram_divergence"]
            right.errorbar(metric["value"], place, xerr=1.96 * metric["stderr"], fmt="o")
        floor = rows[0]["quality"]["bigram_divergence_of_data"]["value"]
        right.axvline(floor, color="black", linestyle="--", linewidth=0.8)
        left.set(xlabel=f"{rows[0]['unit']}, {rows[0]['calls']} calls (hollow: not a bound)", yticks=range(len(names)))
        right.set(xlabel="bigram divergence of samples, bits (dashed: data)", yticks=range(len(names)))
        for axis in (left, right):
            axis.set_yticklabels(names)
            axis.invert_yaxis()

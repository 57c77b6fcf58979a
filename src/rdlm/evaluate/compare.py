"""Methods side by side: one network, one corpus, one budget, one evaluator.

FOLDER/
    METHOD/ ...      the run of each method, as `rdlm train` writes it
    search/ ...      short runs of each method at each learning rate, if there are several to choose from
    rates.json       the bounds of those runs
    pace.json        seconds per step of each method, and the number of steps that fit into the time budget
    compare.json     the rows, written after each evaluation
    compare.png      bounds and sample quality

The methods train in turn, `SLICE` steps each (`race`), so that other load on the machine affects all of them equally.
The same command continues a comparison that was interrupted.
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
from jaxtyping import Int
from torch import Tensor

from rdlm.config import READ_EVIDENCE, MethodName, RunConfig, TransformerConfig
from rdlm.data.store import Corpus
from rdlm.display.figure import canvas
from rdlm.display.progress import bar
from rdlm.errors import InputError, unknown
from rdlm.evaluate.samples import divergences
from rdlm.methods import METHODS, build
from rdlm.methods.bound import Bound, repeated_bound, uniform_note
from rdlm.random import generator_of
from rdlm.storage.files import read_json, write_atomic
from rdlm.train.interruption import Interruption
from rdlm.train.loop import accumulate, update, write_line
from rdlm.train.parallel import Team, team
from rdlm.train.record import Record
from rdlm.train.run import Build, Run, load_corpus, open_run
from rdlm.train.validation import held_out, unit_of

REFERENCE: MethodName = "autoregressive"
"""The method whose training step is the unit of cost. It samples with one network call per token."""

SLICE = 50
"""Training steps of one method before the next one continues."""

PILOT = 3
"""Rounds, and steps per round, from which the seconds per step are measured, after one step of warm-up."""

SAMPLE_BATCH = 64
"""Sequences that are generated at once."""

TRIAL_SEQUENCES = 32
"""Most sequences for the bound of a trial; the same ones for all learning rates, so that few are enough."""

DATA_SEQUENCES = 1024
"""Validation sequences to which samples are compared."""


@dataclass(frozen=True)
class Contest:
    """The methods that are compared, and the settings of their evaluation."""

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
    """Learning rates from which every method takes the one with its lowest bound; empty: the configuration's."""
    trial: int = 300
    """Training steps of a trial of a learning rate."""

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
        """Return the configuration of the run of one method; one that reads no evidence has no inference layer."""
        model = self.config.model if method in READ_EVIDENCE else replace(self.config.model, belief="none")
        training = replace(self.config.training, steps=steps)
        return replace(self.config, method=method, model=model, training=training)

    @property
    def setting(self) -> dict[str, int]:
        """The settings of an evaluation, which a row on disk must match to be reused."""
        return {"calls": self.nfe, "sequences": self.sequences, "samples": self.samples}


@dataclass(frozen=True, eq=False)
class Entrant:
    """An open run that takes part in the race, with its record."""

    name: MethodName
    run: Run
    record: Record


@dataclass(frozen=True, eq=False)
class Session:
    """What all runs of a comparison share: its folder, the processes, the corpus and the method builder."""

    folder: Path
    members: Team
    corpus: Corpus
    make: Build

    @contextmanager
    def entered(self, config: RunConfig, folder: Path) -> Iterator[Entrant]:
        """Yield the run of a configuration in a folder, resumed if it exists."""
        with (
            open_run(config, folder, self.members, self.make, load=lambda _: self.corpus) as run,
            Record(folder, run.counters.step) as record,
        ):
            yield Entrant(config.method, run, record)


def compare(
    contest: Contest,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    load: Callable[[RunConfig], Corpus] = load_corpus,
    make: Build = build,
) -> list[dict[str, Any]]:
    """Train the methods in turn, evaluate each, and return their rows; `minutes` is the training time of all together.

    SIGTERM and SIGINT save every run and raise InterruptedRunError.
    """
    corpus = load(contest.config)
    with ExitStack() as stack:
        members = stack.enter_context(team(contest.config.training.device))
        if members.world > 1:
            raise InputError("rdlm compare runs in one process; torchrun would change the cost of a step")
        session = Session(folder, members, corpus, make)
        costs = _step_costs(contest, session, minutes)
        budget = costs.get("steps") if steps is None else steps
        total = contest.config.training.steps if budget is None else budget
        interruption = stack.enter_context(Interruption())
        configs = [contest.configuration(name, total) for name in contest.methods]
        if contest.lrs:
            lrs = _search_lrs(contest, session, interruption)
            configs = [_with_lr(config, lrs[config.method]) for config in configs]
        entrants = [stack.enter_context(session.entered(config, folder / config.method)) for config in configs]
        race(entrants, total, interruption)
        rows = []
        for entrant in entrants:
            interruption.raise_if_received(total)
            rows.append(_row(contest, entrant, folder))
        return _finish(contest, folder, rows, costs)


# -- training in turn ------------------------------------------------------------------------------------------------


def race(entrants: Sequence[Entrant], total: int, interruption: Interruption) -> None:
    """Train every run to step `total`, in turn; an interruption saves all of them and raises InterruptedRunError."""
    begin = sum(entrant.run.counters.step for entrant in entrants)
    with bar(total * len(entrants), "compare", "step", begin) as progress:
        for target in [*range(SLICE, total, SLICE), total]:
            for entrant in entrants:
                progress.set_postfix_str(entrant.name)
                progress.update(_advance(entrant, target, interruption))
            for entrant in entrants:
                _save(entrant, done=target == total or bool(interruption.received))
            interruption.raise_if_received(min(entrant.run.counters.step for entrant in entrants))


def _advance(entrant: Entrant, target: int, interruption: Interruption) -> int:
    """Train up to step `target`, and return the number of steps taken."""
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


# -- learning rates --------------------------------------------------------------------------------------------------


def _search_lrs(contest: Contest, session: Session, interruption: Interruption) -> dict[str, float]:
    """Return the learning rate of each method that has its lowest bound after `contest.trial` steps.

    The trials train in turn, like the comparison. Their bounds are kept in `rates.json`; a method whose trials are all
    there is not trained again.
    """
    path = session.folder / "rates.json"
    trials: dict[str, dict[str, float]] = read_json(path) if path.exists() else {}
    wanted = {f"{lr:g}" for lr in contest.lrs}
    missing = [name for name in contest.methods if set(trials.get(name, {})) != wanted]
    if missing:
        with ExitStack() as stack:
            entrants = []
            for name in missing:
                config = contest.configuration(name, contest.trial)
                for lr in contest.lrs:
                    place = session.folder / "search" / f"{name}-{lr:g}"
                    entrants.append(stack.enter_context(session.entered(_with_lr(config, lr), place)))
            race(entrants, contest.trial, interruption)
            for name in missing:
                own = [entrant for entrant in entrants if entrant.name == name]
                trials[name] = {
                    f"{entrant.run.config.training.lr:g}": _trial_bound(contest, entrant, interruption)
                    for entrant in own
                }
                write_atomic(path, json.dumps(trials, indent=2) + "\n")
    return {name: _best(trials[name], contest.lrs) for name in contest.methods}


def _trial_bound(contest: Contest, entrant: Entrant, interruption: Interruption) -> float:
    """Return the bound of a trial in bits per token, with the averaged weights."""
    interruption.raise_if_received(contest.trial)
    run, seed = entrant.run, contest.config.training.seed
    batch = held_out(run.corpus, contest.config.data.length, min(contest.sequences, TRIAL_SEQUENCES), seed)
    with run.averaged():
        return repeated_bound(run.method, batch, contest.nfe, seed).bits


def _best(bounds: dict[str, float], lrs: Sequence[float]) -> float:
    return min(lrs, key=lambda lr: bounds[f"{lr:g}"])


def _with_lr(config: RunConfig, lr: float) -> RunConfig:
    return replace(config, training=replace(config.training, lr=lr))


# -- cost ------------------------------------------------------------------------------------------------------------


def _step_costs(contest: Contest, session: Session, minutes: float | None) -> dict[str, Any]:
    """Return the content of pace.json: seconds per step, if they are needed, and the steps within the time budget.

    A budget is converted to steps once: a comparison that is continued keeps them.
    """
    path = session.folder / "pace.json"
    before = read_json(path) if path.exists() else {}
    if set(before.get("seconds", {})) >= {*contest.methods} and (minutes is None or "steps" in before):
        return before
    reference = isinstance(contest.config.model, TransformerConfig)
    if minutes is None and (REFERENCE in contest.methods or not reference):
        return before  # the runs themselves measure the seconds per step
    names = dict.fromkeys((*contest.methods, REFERENCE) if reference else contest.methods)
    configs = [contest.configuration(name, contest.config.training.steps) for name in names]
    found: dict[str, Any] = {**before, "seconds": seconds_per_step(configs, session)}
    if minutes is not None and "steps" not in found:
        found["steps"] = max(1, int(60 * minutes / sum(found["seconds"][name] for name in contest.methods)))
    write_atomic(path, json.dumps(found, indent=2) + "\n")
    return found


def seconds_per_step(configs: Sequence[RunConfig], session: Session) -> dict[str, float]:
    """Return the median seconds per step of each method, from short runs that are deleted."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        interruption = stack.enter_context(Interruption())
        entrants = [stack.enter_context(session.entered(config, place / config.method)) for config in configs]
        spent: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
        for target in range(1, 2 + PILOT * PILOT, PILOT):
            for entrant in entrants:
                begin = entrant.run.counters.seconds
                _advance(entrant, target, interruption)
                spent[entrant.name].append((entrant.run.counters.seconds - begin) / PILOT)
            interruption.raise_if_received(0)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


def _relative_costs(rows: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[float | None]:
    """Return the cost of a step relative to the reference's, from the runs if the reference takes part."""
    own = {row["method"]: row["seconds_per_step"] for row in rows}
    seconds = own if REFERENCE in own else costs.get("seconds", {})
    if REFERENCE not in seconds:
        return [None] * len(rows)
    return [seconds[row["method"]] / seconds[REFERENCE] for row in rows]


# -- evaluation ------------------------------------------------------------------------------------------------------


def _row(contest: Contest, entrant: Entrant, folder: Path) -> dict[str, Any]:
    """Return the row of a trained method, from compare.json if it has been measured with these settings."""
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
    run, seed, length = entrant.run, entrant.run.config.training.seed, contest.config.data.length
    with run.averaged():
        bound = repeated_bound(run.method, held_out(run.corpus, length, contest.sequences, seed), contest.nfe, seed)
        samples = _samples(run, contest.samples, contest.nfe)
    data = held_out(run.corpus, length, DATA_SEQUENCES, seed).ids
    quality = divergences(samples, data, run.corpus.tokenizer.size)
    return {
        "bound": bound.bits,
        "stderr": bound.margin / 1.96,
        "low": bound.bits - bound.margin,
        "high": bound.bits + bound.margin,
        "unit": unit_of(run.corpus),
        "claims_bound": run.method.claims_bound,
        "note": _note(run, bound),
        "sampling_calls": run.length if entrant.name == REFERENCE else contest.nfe,
        "parameters": run.parameter_count,
        "rate": run.config.training.lr,
        "protocol": run.corpus.protocol,
        "seed": seed,
        "seconds_per_step": run.counters.seconds / max(run.counters.step, 1),
        "loss": run.counters.loss,
        "skipped": run.counters.skipped,
        "quality": {name: asdict(metric) for name, metric in quality.items()},
        "sample": run.corpus.tokenizer.decode([i for i in samples[0].tolist() if i >= 0]),
    }


def _note(run: Run, bound: Bound) -> str | None:
    """Return the remark on a bound that is worse than the uniform code."""
    size, unit = run.corpus.tokenizer.size, unit_of(run.corpus)
    return uniform_note(bound.mean, bound.tokens, size, run.config, unit, bound.tokens)


def _samples(run: Run, count: int, nfe: int) -> Int[Tensor, "count length"]:
    generator = generator_of("compare", run.config.training.seed)
    sizes = [min(SAMPLE_BATCH, count - first) for first in range(0, count, SAMPLE_BATCH)]
    return torch.cat([run.method.generate(size, run.length, nfe, generator) for size in sizes])


def _finish(contest: Contest, folder: Path, rows: list[dict[str, Any]], costs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows with their relative costs, and write them."""
    relative = _relative_costs(rows, costs)
    rows = [{**row, "relative_step_cost": cost} for row, cost in zip(rows, relative, strict=True)]
    write_atomic(folder / "compare.json", json.dumps({"rows": rows, **contest.setting}, indent=2) + "\n")
    return rows


def draw_comparison(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the bound of every method and the divergence of its samples, with 95% intervals; hollow: not a bound."""
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

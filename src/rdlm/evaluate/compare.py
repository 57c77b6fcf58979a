"""Comparison of methods: one network, one corpus, one budget, one evaluator.

FOLDER/
    METHOD/ ...      the run of each method with the first seed, as `rdlm train` writes it
    METHOD-seed1/    the run with the next seed, if there are several, and so on
    search/ ...      short runs of each method at each learning rate, if they are searched
    rates.json       the bounds of those runs
    pace.json        seconds per step of each method, and the number of steps that fit into the time budget
    measured.json    the bound of every run in every order, written after each measurement
    compare.json     the rows: the bound of every method in every order
    compare.png      bounds and sample quality

The runs train in turn, `SLICE` steps each (`train_in_turn`), so that other load on the machine affects all of them
equally. The same command continues a comparison that was interrupted.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.config import READ_EVIDENCE, MethodName, RunConfig, TransformerConfig
from rdlm.data.store import Corpus
from rdlm.display.progress import bar
from rdlm.display.text_table import say
from rdlm.errors import DivergedError, InputError, unknown
from rdlm.evaluate.evaluate import OrderedMethod, orders_of
from rdlm.evaluate.metrics import divergences, over_seeds
from rdlm.methods import METHODS, build
from rdlm.methods.base import Method
from rdlm.methods.bound import REPEATS, Bound, repeated_bound
from rdlm.random import generator_of
from rdlm.storage.files import read_json, write_atomic
from rdlm.train.fit import best_lr, next_lr
from rdlm.train.interruption import Interruption
from rdlm.train.loop import accumulate_or_restore, let_signals_in, note_on, seconds_of, update, write_line
from rdlm.train.parallel import Team, team
from rdlm.train.record import Record, open_trackers
from rdlm.train.run import Build, Run, held_out, load_corpus, open_run, unit_of

REFERENCE: MethodName = "autoregressive"
"""The method whose training step is the unit of cost. It samples with one network call per token."""

SLICE = 50
"""Training steps of one method before the next one continues."""

PILOT = 3
"""Rounds, and steps per round, from which the seconds per step are measured, after one step of warm-up."""

SAMPLE_BATCH = 64
"""Sequences that are generated at once."""

TRIAL_SEQUENCES = 32
"""Largest number of sequences for the bound of a trial; few suffice, because all learning rates use the same ones."""

TRIAL_PATHS = 8
"""The same for estimates along whole paths, which evaluate the network in every step."""

MOST, MOST_SEEDS = 1 << 20, 100
"""Largest counts of a comparison; the runs of all seeds are in memory at the same time."""

EVALUATION_SHARE, SLACK = 0.4, 0.1
"""Shares of a time budget: the largest one of bounds and samples, and that for work slower than measured."""

FIXED_SECONDS, FEWEST_SEQUENCES, FEWEST_SAMPLES = 5.0, 16, 8
"""Seconds of a budget for saving and the figure; sequences of a bound, and samples, below which it does not go."""

DATA_SEQUENCES = 1024
"""Validation sequences to which samples are compared."""

EXTENSIONS = 4
"""Largest number of learning rates per method beyond the given ones."""

Trials = dict[MethodName, dict[float, float]]
"""Bounds in bits per token by method and learning rate; infinity: the run diverged."""


@dataclass(frozen=True)
class Comparison:
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
    """Initial learning rates of the search for the lowest bound of each method; empty: that of the configuration."""
    trial: int = 300
    """Training steps of a trial of a learning rate."""
    seeds: int = 1
    """Number of training seeds of every method, from that of the configuration upwards."""
    repeats: int = REPEATS[1]
    """Largest number of estimates of a bound; with fewer, its interval is wider."""
    given: tuple[str, ...] = ()
    """Which of `sequences` and `samples` the user has given; a time budget does not change them."""

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"--methods needs methods, each named once, got {', '.join(self.methods) or 'none'}")
        if not all(lr > 0 for lr in self.lrs):
            raise InputError(f"--lrs must be positive, got {', '.join(f'{lr:g}' for lr in self.lrs)}")
        for key in ("nfe", "sequences", "samples", "trial", "seeds"):
            most = MOST_SEEDS if key == "seeds" else MOST
            if not 1 <= getattr(self, key) <= most:
                raise InputError(f"--{key} must be at least 1 and at most {most:,}, got {getattr(self, key)}")
        belief = self.config.model.belief
        unfit = [name for name in self.methods if name not in READ_EVIDENCE]
        if belief != "none" and unfit:
            raise InputError(
                f"model.belief {belief} is an inference layer for methods that read evidence: "
                f"{', '.join(READ_EVIDENCE)} can be compared, {', '.join(unfit)} cannot without --model.belief none"
            )

    def configuration(self, method: MethodName, steps: int, index: int = 0) -> RunConfig:
        """Return the configuration of the run of one method with one of the seeds."""
        training = replace(self.config.training, steps=steps, seed=self.config.training.seed + index)
        return replace(self.config, method=method, training=training)

    def chosen_lr(self, bounds: Mapping[float, float]) -> float:
        """Return the learning rate of the runs of a method, from the bounds of its trials."""
        return best_lr(bounds)

    @property
    def setting(self) -> dict[str, int]:
        """The settings of an evaluation, which a row on disk must match to be reused."""
        return {"calls": self.nfe, "sequences": self.sequences, "samples": self.samples}


@dataclass(frozen=True, eq=False)
class OpenRun:
    """An open run of one of the methods, with its record."""

    name: MethodName
    run: Run
    record: Record


@dataclass(frozen=True, eq=False)
class Session:
    """The common parts of all runs of a comparison: its folder, the processes, the corpus and the method builder."""

    folder: Path
    members: Team
    corpus: Corpus
    make: Build

    @contextmanager
    def opened(self, config: RunConfig, folder: Path) -> Iterator[OpenRun]:
        """Yield the run of a configuration in a folder, resumed if it exists."""
        with (
            open_run(config, folder, self.members, self.make, load=lambda _: self.corpus) as run,
            Record(folder, run.counters.step, open_trackers((), folder, run.counters.step, {})) as record,
        ):
            let_signals_in(run)
            yield OpenRun(config.method, run, record)

    def open_all(
        self, stack: ExitStack, runs: Iterable[tuple[RunConfig, Path]], interruption: Interruption
    ) -> list[OpenRun]:
        """Return the runs of these configurations in their folders, until the stack is closed; a signal ends this."""
        entries = []
        for config, folder in runs:
            interruption.raise_if_received(0)
            entries.append(stack.enter_context(self.opened(config, folder)))
        return entries


def compare(
    comparison: Comparison,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    began: float | None = None,
    load: Callable[[RunConfig], Corpus] = load_corpus,
    make: Build = build,
) -> list[dict[str, Any]]:
    """Train all runs in turn, measure each in all orders of its method, and return a row per method and order.

    `minutes` after `began` is the time of all: steps are chosen, and fewer sequences, samples and estimates where they
    would take more than `EVALUATION_SHARE` of it. SIGTERM and SIGINT save every run and raise InterruptedRunError.
    """
    end = None if minutes is None else (began or time.monotonic()) + 60 * minutes
    corpus = load(comparison.config)
    with ExitStack() as stack:
        members = stack.enter_context(team(comparison.config.training.device))
        if members.world > 1:
            raise InputError("rdlm compare runs in one process; torchrun would change the cost of a step")
        session = Session(folder, members, corpus, make)
        interruption = stack.enter_context(Interruption())
        costs = _step_costs(comparison, session, end, interruption)
        if minutes is not None:
            comparison = replace(comparison, **costs.get("effort", {}))
        budget = costs.get("steps") if steps is None else steps
        total = comparison.config.training.steps if budget is None else budget
        entries, trials = stack.enter_context(trained_runs(comparison, session, total, interruption))
        rows = []
        for name in comparison.methods:
            own = [entry for entry in entries if entry.name == name]
            rows += _rows(comparison, own, folder, interruption)
        return _finish(comparison, folder, rows, costs, trials)


@contextmanager
def trained_runs(
    comparison: Comparison, session: Session, total: int, interruption: Interruption
) -> Iterator[tuple[list[OpenRun], Trials]]:
    """Yield the runs of all methods and seeds, trained for `total` steps, and the trials of learning rates."""
    trials = _search_lrs(comparison, session, interruption) if comparison.lrs else {}
    with ExitStack() as stack:
        entries = session.open_all(stack, _runs(comparison, session.folder, total, trials), interruption)
        train_in_turn(entries, total, interruption)
        yield entries, trials


def _runs(comparison: Comparison, folder: Path, steps: int, trials: Trials) -> Iterator[tuple[RunConfig, Path]]:
    """Yield configuration and folder of every run, the methods with the first seed before those with the next."""
    for index in range(comparison.seeds):
        for name in comparison.methods:
            config = comparison.configuration(name, steps, index)
            yield (
                _with_lr(config, comparison.chosen_lr(trials[name])) if trials else config,
                folder / (f"{name}-seed{index}" if index else name),
            )


# -- training in turn ------------------------------------------------------------------------------------------------


def train_in_turn(
    entries: Sequence[OpenRun], total: int, interruption: Interruption, drop_diverged: bool = False
) -> list[OpenRun]:
    """Train every run to step `total`, in turn, and return the runs that got there: all, unless diverged ones may drop.

    An interruption saves all of them and raises InterruptedRunError.
    """
    begin = sum(entry.run.counters.step for entry in entries)
    running = list(entries)
    with bar(total * len(entries), "compare", "step", begin) as progress:

        def advance(entry: OpenRun, target: int) -> None:
            progress.set_postfix_str(entry.run.folder.name)
            progress.update(_advance(entry, target, interruption))

        for target in [*range(SLICE, total, SLICE), total]:
            running = _remaining(running, partial(advance, target=target), drop_diverged)
            done = target == total or bool(interruption.received)
            running = _remaining(running, partial(_save, done=done), drop_diverged)
            interruption.raise_if_received(min((entry.run.counters.step for entry in running), default=0))
    return running


def _remaining(entries: Sequence[OpenRun], act: Callable[[OpenRun], None], drop_diverged: bool) -> list[OpenRun]:
    """Apply a function to every run and return those for which it raised no DivergedError, if these may drop."""
    remaining = []
    for entry in entries:
        try:
            act(entry)
        except DivergedError:
            if not drop_diverged:
                raise
        else:
            remaining.append(entry)
    return remaining


def _advance(entry: OpenRun, target: int, interruption: Interruption) -> int:
    """Train up to step `target`, and return the number of steps taken."""
    run, counters = entry.run, entry.run.counters
    first, begin = counters.step, time.monotonic()
    run.network.train()
    while counters.step < target and not interruption.received:
        if (found := accumulate_or_restore(run, interruption)) is None:
            break
        update(run, *found)
        counters.step += 1
    if (taken := counters.step - first) > 0:
        spent = time.monotonic() - begin
        counters.seconds += spent
        write_line(run, entry.record, taken * run.config.training.batch * run.length / spent)
    return taken


def _save(entry: OpenRun, done: bool) -> None:
    run, every = entry.run, entry.run.config.training.save_every
    if done or run.counters.step // every > run.saved // every:
        entry.record.sync()
        run.save()


# -- learning rates --------------------------------------------------------------------------------------------------


def _search_lrs(comparison: Comparison, session: Session, interruption: Interruption) -> Trials:
    """Return the bounds of each method after `comparison.trial` steps with the first seed, by learning rate.

    While the best rate of a method is the smallest or the largest, the next one beyond it is tried, too. All trials of
    a round train in turn, like the comparison. Their bounds are kept in `rates.json` and not measured again.
    """
    path = session.folder / "rates.json"
    known: dict[str, dict[str, float | None]] = read_json(path) if path.exists() else {}
    tried = {name: [float(f"{lr:g}") for lr in comparison.lrs] for name in comparison.methods}
    for extension in range(EXTENSIONS + 1):
        missing = [(name, lr) for name in tried for lr in tried[name] if f"{lr:g}" not in known.get(name, {})]
        for name, lr, bound in _run_trials(comparison, session, interruption, missing):
            known.setdefault(name, {})[f"{lr:g}"] = bound if math.isfinite(bound) else None
            write_atomic(path, json.dumps(known, indent=2) + "\n")
        trials = {name: {lr: _finite(known[name][f"{lr:g}"]) for lr in sorted(tried[name])} for name in tried}
        beyond = {name: next_lr(bounds) for name, bounds in trials.items()}
        if extension == EXTENSIONS or not any(beyond.values()):
            break
        for name, further in beyond.items():
            tried[name] += [] if further is None else [further]
    for name, bounds in trials.items():
        if all(map(math.isinf, bounds.values())):
            raise DivergedError(f"{name} diverged with every learning rate: {', '.join(f'{lr:g}' for lr in bounds)}")
    return trials


def _run_trials(
    comparison: Comparison, session: Session, interruption: Interruption, wanted: Sequence[tuple[MethodName, float]]
) -> Iterator[tuple[MethodName, float, float]]:
    """Yield method, learning rate and bound of short runs; infinity for one that diverged."""
    with ExitStack() as stack:
        runs = [
            (
                _with_lr(comparison.configuration(name, comparison.trial), lr),
                session.folder / "search" / f"{name}-{lr:g}",
            )
            for name, lr in wanted
        ]
        entries = session.open_all(stack, runs, interruption)
        trained = train_in_turn(entries, comparison.trial, interruption, drop_diverged=True)
        for entry in entries:
            interruption.raise_if_received(comparison.trial)
            with interruption.ending(comparison.trial):
                bound = _trial_bound(comparison, entry) if entry in trained else math.inf
            yield entry.name, entry.run.config.training.lr, bound


def _trial_bound(comparison: Comparison, entry: OpenRun) -> float:
    """Return the bound of a trial in bits per token, in the order of the configuration, with the averaged weights."""
    run, seed = entry.run, comparison.config.training.seed
    most = TRIAL_PATHS if run.method.bound_estimator == "path" else TRIAL_SEQUENCES
    batch = held_out(run.corpus, comparison.config.data.length, min(comparison.sequences, most), seed)
    with run.averaged():
        return repeated_bound(run.method, batch, comparison.nfe, seed, comparison.repeats).bits


def _finite(bound: float | None) -> float:
    return math.inf if bound is None or math.isnan(bound) else bound


def _with_lr(config: RunConfig, lr: float) -> RunConfig:
    return replace(config, training=replace(config.training, lr=lr))


# -- cost ------------------------------------------------------------------------------------------------------------


def _step_costs(
    comparison: Comparison, session: Session, end: float | None, interruption: Interruption
) -> dict[str, Any]:
    """Return the content of pace.json: seconds per step, if they are needed, and what fits into the time until `end`.

    A budget is converted once to steps and to the effort of the evaluation: a comparison that is continued keeps them.
    """
    path = session.folder / "pace.json"
    before = read_json(path) if path.exists() else {}
    if set(before.get("seconds", {})) >= {*comparison.methods} and (end is None or "steps" in before):
        return before
    reference = isinstance(comparison.config.model, TransformerConfig)
    if end is None and (REFERENCE in comparison.methods or not reference):
        return before  # the runs themselves measure the seconds per step
    names = dict.fromkeys((*comparison.methods, REFERENCE) if reference else comparison.methods)
    configs = [comparison.configuration(name, comparison.config.training.steps) for name in names]
    found: dict[str, Any] = {**before, "seconds": seconds_per_step(configs, session, interruption)}
    if end is not None and "steps" not in found:
        with interruption.ending(0):
            costs = evaluation_costs(comparison, session)
        seconds = sum(found["seconds"][name] for name in comparison.methods)
        fitted = fit_evaluation(comparison, costs, EVALUATION_SHARE * (end - time.monotonic()))
        others = fitted_seconds(fitted, costs) + seconds * comparison.trial * len(comparison.lrs)
        left = (end - time.monotonic() - FIXED_SECONDS - others) * (1 - SLACK)
        found["steps"] = max(1, int(left / (comparison.seeds * seconds)))
        found["effort"] = {name: getattr(fitted, name) for name in ("sequences", "samples", "repeats")}
        note = "" if left > 0 else ", more than the budget: give fewer --methods, --sequences, --samples or --lrs"
        say(
            f"budget: {found['steps']} steps of each run, {fitted.sequences} sequences and up to {fitted.repeats} "
            f"estimates of a bound, {fitted.samples} samples; about {others:.0f} s of evaluation and trials{note}"
        )
    write_atomic(path, json.dumps(found, indent=2) + "\n")
    return found


def fitted_seconds(comparison: Comparison, costs: tuple[float, float]) -> float:
    """Return an upper estimate of the seconds of all bounds and samples, from those of `evaluation_costs`."""
    return costs[0] * comparison.repeats * comparison.sequences * comparison.seeds + costs[1] * comparison.samples


def fit_evaluation(comparison: Comparison, costs: tuple[float, float], seconds: float) -> Comparison:
    """Return the comparison with fewer estimates, and sequences and samples that are not given, to fit into seconds."""
    if fitted_seconds(comparison, costs) <= seconds:
        return comparison
    few = replace(comparison, repeats=REPEATS[0])
    if (share := seconds / fitted_seconds(few, costs)) >= 1:
        return few

    def fitted(name: str, count: int, fewest: int) -> int:
        return count if name in comparison.given else max(min(fewest, count), int(share * count))

    sequences = fitted("sequences", few.sequences, FEWEST_SEQUENCES)
    return replace(few, sequences=sequences, samples=fitted("samples", few.samples, FEWEST_SAMPLES))


def seconds_per_step(configs: Sequence[RunConfig], session: Session, interruption: Interruption) -> dict[str, float]:
    """Return the median seconds per step of each method, from short runs that are deleted."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = [(config, place / config.method) for config in configs]
        entries = session.open_all(stack, runs, interruption)
        spent: dict[str, list[float]] = {entry.name: [] for entry in entries}
        for target in range(1, 2 + PILOT * PILOT, PILOT):
            for entry in entries:
                begin = entry.run.counters.seconds
                _advance(entry, target, interruption)
                spent[entry.name].append((entry.run.counters.seconds - begin) / PILOT)
            interruption.raise_if_received(0)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


def evaluation_costs(comparison: Comparison, session: Session) -> tuple[float, float]:
    """Return the seconds of one estimate for one sequence in all orders of all methods, and of a sample of each."""
    estimate, sample, count, seed = 0.0, 0.0, min(4, comparison.sequences), comparison.config.training.seed
    few = held_out(session.corpus, comparison.config.data.length, count, seed)
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        for name in comparison.methods:
            config = comparison.configuration(name, 1)
            with session.opened(config, Path(place) / name) as entry, entry.run.averaged():
                orders = orders_of(entry.run.method, comparison.nfe, entry.run.length)
                for ordered in {one.method: one for one in orders}.values():
                    bound = partial(ordered.method.bound, few, ordered.nfe, generator_of("compare", 0))
                    bound()  # makes tables
                    estimate += seconds_of(bound) / len(few.ids)
                sample += seconds_of(partial(_samples, entry.run, orders[-1], count)) / count
    return estimate, sample


def _relative_costs(rows: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[float | None]:
    """Return the cost of a step relative to the reference's, from the runs if the reference is one of them."""
    own = {row["method"]: row["seconds_per_step"] for row in rows}
    seconds = own if REFERENCE in own else costs.get("seconds", {})
    if REFERENCE not in seconds:
        return [None] * len(rows)
    return [seconds[row["method"]] / seconds[REFERENCE] for row in rows]


# -- evaluation ------------------------------------------------------------------------------------------------------


def _rows(
    comparison: Comparison, entries: Sequence[OpenRun], folder: Path, interruption: Interruption
) -> list[dict[str, Any]]:
    """Return the rows of one method, one for each order, from its runs with all seeds.

    Samples are drawn with the first seed in the best order, the one with the lowest bound.
    """
    runs = [_measured(comparison, entry, folder, interruption) for entry in entries]
    rows = [over_seeds(of_order) for of_order in zip(*runs, strict=True)]
    best = min(range(len(rows)), key=lambda place: rows[place]["bound"])
    interruption.raise_if_received(rows[best]["steps"])
    with interruption.ending(rows[best]["steps"]):
        found = _quality(comparison, entries[0], runs[0][best], folder)
    nothing = dict.fromkeys(found)
    return [{**row, "best": place == best, **(found if place == best else nothing)} for place, row in enumerate(rows)]


def _measured(comparison: Comparison, entry: OpenRun, folder: Path, interruption: Interruption) -> list[dict[str, Any]]:
    """Return the measurements of a trained run in each order, from measured.json if they exist."""
    run, known, rows = entry.run, dict[Method, Bound](), []
    batch = held_out(run.corpus, comparison.config.data.length, comparison.sequences, comparison.config.training.seed)
    for ordered in orders_of(run.method, comparison.nfe, run.length):
        interruption.raise_if_received(run.counters.step)
        key = {"method": entry.name, "order": ordered.order, "seed": run.config.training.seed}
        key |= {"steps": run.counters.step, **comparison.setting}
        row = next((row for row in _stored(folder) if all(row.get(name) == key[name] for name in key)), None)
        if row is None:
            if ordered.method not in known:
                with interruption.ending(run.counters.step), run.averaged():
                    seed = run.config.training.seed
                    known[ordered.method] = repeated_bound(ordered.method, batch, ordered.nfe, seed, comparison.repeats)
            row = {**key, **_measurement(run, ordered, known[ordered.method])}
            _store(folder, row)
        rows.append(row)
    return rows


def _measurement(run: Run, ordered: OrderedMethod, bound: Bound) -> dict[str, Any]:
    """Return the bound of a run in one order, in bits per token, with its attributes."""
    return {
        "bound": bound.bits,
        "stderr": bound.margin / 1.96,
        "low": bound.bits - bound.margin,
        "high": bound.bits + bound.margin,
        "unit": unit_of(run.corpus),
        "claims_bound": run.method.claims_bound,
        "trained_for_order": ordered.trained,
        "note": note_on(run, bound),
        "sampling_calls": ordered.nfe,
        "parameters": run.parameter_count,
        "rate": run.config.training.lr,
        "protocol": run.corpus.protocol,
        "seconds_per_step": run.counters.seconds / max(run.counters.step, 1),
        "loss": run.counters.loss,
        "skipped": run.counters.skipped,
    }


def _quality(comparison: Comparison, entry: OpenRun, measured: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return quality and one example of the samples of a run in the order of a measurement, which then has them."""
    if "quality" not in measured:
        run = entry.run
        (ordered,) = (
            found for found in orders_of(run.method, comparison.nfe, run.length) if found.order == measured["order"]
        )
        with run.averaged():
            samples = _samples(run, ordered, comparison.samples)
        data = held_out(run.corpus, comparison.config.data.length, DATA_SEQUENCES, comparison.config.training.seed).ids
        quality = divergences(samples, data, run.corpus.tokenizer.size)
        measured["quality"] = {name: asdict(metric) for name, metric in quality.items()}
        measured["sample"] = run.corpus.tokenizer.decode([i for i in samples[0].tolist() if i >= 0])
        _store(folder, measured)
    return {name: measured[name] for name in ("quality", "sample")}


def _stored(folder: Path) -> list[dict[str, Any]]:
    """Return the measurements in measured.json."""
    path = folder / "measured.json"
    found: list[dict[str, Any]] = read_json(path)["runs"] if path.exists() else []
    return found


def _store(folder: Path, row: dict[str, Any]) -> None:
    """Write a measurement, replacing one of the same run and order."""
    same = ("method", "order", "seed")
    others = [other for other in _stored(folder) if any(other[name] != row[name] for name in same)]
    write_atomic(folder / "measured.json", json.dumps({"runs": [*others, row]}, indent=2) + "\n")


def _samples(run: Run, ordered: OrderedMethod, count: int) -> Int[Tensor, "count length"]:
    generator = generator_of("compare", run.config.training.seed)
    sizes = [min(SAMPLE_BATCH, count - first) for first in range(0, count, SAMPLE_BATCH)]
    return torch.cat([ordered.method.generate(size, run.length, ordered.nfe, generator) for size in sizes])


def _finish(
    comparison: Comparison, folder: Path, rows: list[dict[str, Any]], costs: dict[str, Any], trials: Trials
) -> list[dict[str, Any]]:
    """Return the rows with their relative costs and the trials of learning rates, and write them."""
    finished = []
    for row, cost in zip(rows, _relative_costs(rows, costs), strict=True):
        tried = {
            f"{lr:g}": bound if math.isfinite(bound) else None for lr, bound in trials.get(row["method"], {}).items()
        }
        finished.append({**row, "relative_step_cost": cost, "trials": tried or None})
    write_atomic(folder / "compare.json", json.dumps({"rows": finished, **comparison.setting}, indent=2) + "\n")
    return finished

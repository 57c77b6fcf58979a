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

The runs train in turn, `SLICE` steps each (`race`), so that other load on the machine affects all of them equally. The
same command continues a comparison that was interrupted.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from rdlm.display.progress import bar, say
from rdlm.errors import DivergedError, InputError, unknown
from rdlm.evaluate.order_bounds import OrderedMethod, orders_of
from rdlm.evaluate.samples import divergences
from rdlm.likelihood.estimate import student
from rdlm.methods import METHODS, build
from rdlm.methods.base import Method
from rdlm.methods.bound import REPEATS, Bound, repeated_bound, uniform_note
from rdlm.random import generator_of
from rdlm.storage.files import read_json, write_atomic
from rdlm.train.interruption import Interruption
from rdlm.train.loop import accumulate_or_restore, let_signals_in, seconds_of, update, write_line
from rdlm.train.parallel import Team, team
from rdlm.train.record import Record, open_trackers
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
"""Largest number of sequences for the bound of a trial; few suffice, because all learning rates use the same ones."""

TRIAL_PATHS = 8
"""The same for estimates along whole paths, which evaluate the network in every step."""

DATA_SEQUENCES = 1024
"""Validation sequences to which samples are compared."""

EXTENSIONS = 4
"""Largest number of learning rates per method beyond the given ones."""

FEW_SEEDS = {1: 12.706, 2: 4.303}
"""97.5% quantiles of Student's t for few degrees of freedom, for which the expansion in `student` is too narrow."""


Trials = dict[MethodName, dict[float, float]]
"""Bounds in bits per token by method and learning rate; infinity: the run diverged."""


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
    """Initial learning rates of the search for the lowest bound of each method; empty: that of the configuration."""
    trial: int = 300
    """Training steps of a trial of a learning rate."""
    seeds: int = 1
    """Number of training seeds of every method, from that of the configuration upwards."""
    repeats: int = REPEATS[1]
    """Largest number of estimates of a bound; with fewer, its interval is wider."""

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"a comparison needs methods, each named once, got {', '.join(self.methods) or 'none'}")
        if not all(lr > 0 for lr in self.lrs):
            raise InputError(f"--lrs must be positive, got {', '.join(f'{lr:g}' for lr in self.lrs)}")
        for key in ("nfe", "sequences", "samples", "trial", "seeds"):
            if getattr(self, key) < 1:
                raise InputError(f"--{key} must be at least 1, got {getattr(self, key)}")
        belief = self.config.model.belief
        unfit = [name for name in self.methods if name not in READ_EVIDENCE]
        if belief != "none" and unfit:
            raise InputError(
                f"model.belief {belief} is an inference layer for methods that read evidence: "
                f"{', '.join(READ_EVIDENCE)} can take part, {', '.join(unfit)} cannot without --model.belief none"
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
class Entrant:
    """An open run that takes part in the race, with its record."""

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
    def entered(self, config: RunConfig, folder: Path) -> Iterator[Entrant]:
        """Yield the run of a configuration in a folder, resumed if it exists."""
        with (
            open_run(config, folder, self.members, self.make, load=lambda _: self.corpus) as run,
            Record(folder, run.counters.step, open_trackers((), folder, run.counters.step, {})) as record,
        ):
            let_signals_in(run)
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
    """Train all runs in turn, measure each in all orders of its method, and return a row per method and order.

    `minutes` is the time of all, evaluation included. SIGTERM and SIGINT save every run and raise InterruptedRunError.
    """
    corpus = load(contest.config)
    with ExitStack() as stack:
        members = stack.enter_context(team(contest.config.training.device))
        if members.world > 1:
            raise InputError("rdlm compare runs in one process; torchrun would change the cost of a step")
        session = Session(folder, members, corpus, make)
        interruption = stack.enter_context(Interruption())
        costs = _step_costs(contest, session, minutes, interruption)
        budget = costs.get("steps") if steps is None else steps
        total = contest.config.training.steps if budget is None else budget
        entrants, trials = stack.enter_context(trained_runs(contest, session, total, interruption))
        rows = []
        for name in contest.methods:
            own = [entrant for entrant in entrants if entrant.name == name]
            rows += _rows(contest, own, folder, interruption)
        return _finish(contest, folder, rows, costs, trials)


@contextmanager
def trained_runs(
    contest: Contest, session: Session, total: int, interruption: Interruption
) -> Iterator[tuple[list[Entrant], Trials]]:
    """Yield the runs of all methods and seeds, trained for `total` steps, and the trials of learning rates."""
    trials = _search_lrs(contest, session, interruption) if contest.lrs else {}
    with ExitStack() as stack:
        entrants = [
            stack.enter_context(session.entered(config, place))
            for config, place in _runs(contest, session.folder, total, trials)
        ]
        race(entrants, total, interruption)
        yield entrants, trials


def _runs(contest: Contest, folder: Path, steps: int, trials: Trials) -> Iterator[tuple[RunConfig, Path]]:
    """Yield configuration and folder of every run, the methods with the first seed before those with the next."""
    for index in range(contest.seeds):
        for name in contest.methods:
            config = contest.configuration(name, steps, index)
            yield (
                _with_lr(config, contest.chosen_lr(trials[name])) if trials else config,
                folder / (f"{name}-seed{index}" if index else name),
            )


# -- training in turn ------------------------------------------------------------------------------------------------


def race(
    entrants: Sequence[Entrant], total: int, interruption: Interruption, drop_diverged: bool = False
) -> list[Entrant]:
    """Train every run to step `total`, in turn, and return the runs that got there: all, unless diverged ones may drop.

    An interruption saves all of them and raises InterruptedRunError.
    """
    begin = sum(entrant.run.counters.step for entrant in entrants)
    running = list(entrants)
    with bar(total * len(entrants), "compare", "step", begin) as progress:

        def advance(entrant: Entrant, target: int) -> None:
            progress.set_postfix_str(entrant.run.folder.name)
            progress.update(_advance(entrant, target, interruption))

        for target in [*range(SLICE, total, SLICE), total]:
            running = _remaining(running, partial(advance, target=target), drop_diverged)
            done = target == total or bool(interruption.received)
            running = _remaining(running, partial(_save, done=done), drop_diverged)
            interruption.raise_if_received(min((entrant.run.counters.step for entrant in running), default=0))
    return running


def _remaining(entrants: Sequence[Entrant], act: Callable[[Entrant], None], drop_diverged: bool) -> list[Entrant]:
    """Apply a function to every run and return those for which it raised no DivergedError, if these may drop."""
    remaining = []
    for entrant in entrants:
        try:
            act(entrant)
        except DivergedError:
            if not drop_diverged:
                raise
        else:
            remaining.append(entrant)
    return remaining


def _advance(entrant: Entrant, target: int, interruption: Interruption) -> int:
    """Train up to step `target`, and return the number of steps taken."""
    run, counters = entrant.run, entrant.run.counters
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
        write_line(run, entrant.record, taken * run.config.training.batch * run.length / spent)
    return taken


def _save(entrant: Entrant, done: bool) -> None:
    run, every = entrant.run, entrant.run.config.training.save_every
    if done or run.counters.step // every > run.saved // every:
        entrant.record.sync()
        run.save()


# -- learning rates --------------------------------------------------------------------------------------------------


def _search_lrs(contest: Contest, session: Session, interruption: Interruption) -> Trials:
    """Return the bounds of each method after `contest.trial` steps with the first seed, by learning rate.

    While the best rate of a method is the smallest or the largest, the next one beyond it is tried, too. All trials of
    a round train in turn, like the comparison. Their bounds are kept in `rates.json` and not measured again.
    """
    path = session.folder / "rates.json"
    known: dict[str, dict[str, float | None]] = read_json(path) if path.exists() else {}
    tried = {name: [float(f"{lr:g}") for lr in contest.lrs] for name in contest.methods}
    for extension in range(EXTENSIONS + 1):
        missing = [(name, lr) for name in tried for lr in tried[name] if f"{lr:g}" not in known.get(name, {})]
        for name, lr, bound in _run_trials(contest, session, interruption, missing):
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
    contest: Contest, session: Session, interruption: Interruption, wanted: Sequence[tuple[MethodName, float]]
) -> Iterator[tuple[MethodName, float, float]]:
    """Yield method, learning rate and bound of short runs; infinity for one that diverged."""
    with ExitStack() as stack:
        entrants = []
        for name, lr in wanted:
            config = _with_lr(contest.configuration(name, contest.trial), lr)
            entrants.append(stack.enter_context(session.entered(config, session.folder / "search" / f"{name}-{lr:g}")))
        trained = race(entrants, contest.trial, interruption, drop_diverged=True)
        for entrant in entrants:
            interruption.raise_if_received(contest.trial)
            with interruption.ending(contest.trial):
                bound = _trial_bound(contest, entrant) if entrant in trained else math.inf
            yield entrant.name, entrant.run.config.training.lr, bound


def _trial_bound(contest: Contest, entrant: Entrant) -> float:
    """Return the bound of a trial in bits per token, in the order of the configuration, with the averaged weights."""
    run, seed = entrant.run, contest.config.training.seed
    most = TRIAL_PATHS if run.method.bound_estimator == "path" else TRIAL_SEQUENCES
    batch = held_out(run.corpus, contest.config.data.length, min(contest.sequences, most), seed)
    with run.averaged():
        return repeated_bound(run.method, batch, contest.nfe, seed, contest.repeats).bits


def _finite(bound: float | None) -> float:
    return math.inf if bound is None or math.isnan(bound) else bound


def best_lr(bounds: Mapping[float, float]) -> float:
    """Return the learning rate with the lowest bound, the smallest of several."""
    return min(sorted(bounds), key=lambda lr: bounds[lr])


def next_lr(bounds: Mapping[float, float]) -> float | None:
    """Return the learning rate beyond the best one if that is the largest or the smallest; None if it is inside.

    The factor is that between the two nearest rates, or 2.
    """
    lrs, best = sorted(bounds), best_lr(bounds)
    if best == lrs[-1] and math.isfinite(bounds[best]):
        beyond = best * (best / lrs[-2] if len(lrs) > 1 else 2.0)
    elif best == lrs[0]:
        beyond = best / (lrs[1] / best if len(lrs) > 1 else 2.0)
    else:
        return None
    return float(f"{beyond:g}")


def _with_lr(config: RunConfig, lr: float) -> RunConfig:
    return replace(config, training=replace(config.training, lr=lr))


# -- cost ------------------------------------------------------------------------------------------------------------


def _step_costs(
    contest: Contest, session: Session, minutes: float | None, interruption: Interruption
) -> dict[str, Any]:
    """Return the content of pace.json: seconds per step, if they are needed, and the steps within the time budget.

    A budget is converted to steps once: a comparison that is continued keeps them.
    """
    path, began = session.folder / "pace.json", time.monotonic()
    before = read_json(path) if path.exists() else {}
    if set(before.get("seconds", {})) >= {*contest.methods} and (minutes is None or "steps" in before):
        return before
    reference = isinstance(contest.config.model, TransformerConfig)
    if minutes is None and (REFERENCE in contest.methods or not reference):
        return before  # the runs themselves measure the seconds per step
    names = dict.fromkeys((*contest.methods, REFERENCE) if reference else contest.methods)
    configs = [contest.configuration(name, contest.config.training.steps) for name in names]
    found: dict[str, Any] = {**before, "seconds": seconds_per_step(configs, session, interruption)}
    if minutes is not None and "steps" not in found:
        seconds = sum(found["seconds"][name] for name in contest.methods)
        with interruption.ending(0):
            evaluation = evaluation_seconds(contest, session)
        others = evaluation + seconds * contest.trial * len(contest.lrs)
        left = 60 * minutes - others - (time.monotonic() - began)
        found["steps"] = max(1, round(left / (contest.seeds * seconds)))
        note = "" if left > 0 else ", more than the budget: give fewer --sequences or --samples"
        say(f"budget: {found['steps']} steps of each run, about {others:.0f} s of evaluation and trials{note}")
    write_atomic(path, json.dumps(found, indent=2) + "\n")
    return found


def seconds_per_step(configs: Sequence[RunConfig], session: Session, interruption: Interruption) -> dict[str, float]:
    """Return the median seconds per step of each method, from short runs that are deleted."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entrants = [stack.enter_context(session.entered(config, place / config.method)) for config in configs]
        spent: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
        for target in range(1, 2 + PILOT * PILOT, PILOT):
            for entrant in entrants:
                begin = entrant.run.counters.seconds
                _advance(entrant, target, interruption)
                spent[entrant.name].append((entrant.run.counters.seconds - begin) / PILOT)
            interruption.raise_if_received(0)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


def evaluation_seconds(contest: Contest, session: Session) -> float:
    """Return an upper estimate of the seconds of all bounds and samples, extrapolated from a few sequences."""
    total, count = 0.0, min(4, contest.sequences)
    few = held_out(session.corpus, contest.config.data.length, count, contest.config.training.seed)
    with tempfile.TemporaryDirectory() as place:
        for name in contest.methods:
            with session.entered(contest.configuration(name, 1), Path(place) / name) as entrant, entrant.run.averaged():
                for ordered in orders_of(entrant.run.method, contest.nfe, entrant.run.length):
                    bound = partial(repeated_bound, ordered.method, few, ordered.nfe, 0, REPEATS[0])
                    bound()  # makes tables
                    each = seconds_of(bound) / REPEATS[0] / len(few.ids)
                    total += each * contest.repeats * contest.sequences * contest.seeds
                total += seconds_of(partial(_samples, entrant.run, ordered, count)) / count * contest.samples
    return total


def _relative_costs(rows: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[float | None]:
    """Return the cost of a step relative to the reference's, from the runs if the reference takes part."""
    own = {row["method"]: row["seconds_per_step"] for row in rows}
    seconds = own if REFERENCE in own else costs.get("seconds", {})
    if REFERENCE not in seconds:
        return [None] * len(rows)
    return [seconds[row["method"]] / seconds[REFERENCE] for row in rows]


# -- evaluation ------------------------------------------------------------------------------------------------------


def _rows(
    contest: Contest, entrants: Sequence[Entrant], folder: Path, interruption: Interruption
) -> list[dict[str, Any]]:
    """Return the rows of one method, one for each order, from its runs with all seeds.

    Samples are drawn with the first seed in the best order, the one with the lowest bound.
    """
    runs = [_measured(contest, entrant, folder, interruption) for entrant in entrants]
    rows = [over_seeds(of_order) for of_order in zip(*runs, strict=True)]
    best = min(range(len(rows)), key=lambda place: rows[place]["bound"])
    interruption.raise_if_received(rows[best]["steps"])
    with interruption.ending(rows[best]["steps"]):
        found = _quality(contest, entrants[0], runs[0][best], folder)
    nothing = dict.fromkeys(found)
    return [{**row, "best": place == best, **(found if place == best else nothing)} for place, row in enumerate(rows)]


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a method and order: the mean of its runs with several seeds and the interval over them.

    `stderr` remains the standard error over sequences and noise. All runs are measured on the same sequences, so it is
    the mean of theirs.
    """
    bounds = [run["bound"] for run in runs]
    row = {key: value for key, value in runs[0].items() if key not in ("quality", "sample")}
    row |= {"seeds": len(runs), "stderr_over_seeds": None, "bounds": bounds, "interval": "sequences and noise"}
    if len(runs) == 1:
        return row
    mean, stderr = statistics.fmean(bounds), statistics.stdev(bounds) / math.sqrt(len(runs))
    margin = FEW_SEEDS.get(len(runs) - 1, student(len(runs) - 1)) * stderr
    row |= {key: statistics.fmean(run[key] for run in runs) for key in ("stderr", "seconds_per_step", "loss")}
    row |= {"bound": mean, "low": mean - margin, "high": mean + margin, "stderr_over_seeds": stderr}
    row |= {"interval": "seeds", "skipped": sum(run["skipped"] for run in runs)}
    return row | {"note": next((run["note"] for run in runs if run["note"] is not None), None)}


def _measured(contest: Contest, entrant: Entrant, folder: Path, interruption: Interruption) -> list[dict[str, Any]]:
    """Return the measurements of a trained run in each order, from measured.json if they exist."""
    run, known, rows = entrant.run, dict[Method, Bound](), []
    batch = held_out(run.corpus, contest.config.data.length, contest.sequences, contest.config.training.seed)
    for ordered in orders_of(run.method, contest.nfe, run.length):
        interruption.raise_if_received(run.counters.step)
        key = {"method": entrant.name, "order": ordered.order, "seed": run.config.training.seed}
        key |= {"steps": run.counters.step, **contest.setting}
        row = next((row for row in _stored(folder) if all(row.get(name) == key[name] for name in key)), None)
        if row is None:
            if ordered.method not in known:
                with interruption.ending(run.counters.step), run.averaged():
                    seed = run.config.training.seed
                    known[ordered.method] = repeated_bound(ordered.method, batch, ordered.nfe, seed, contest.repeats)
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
        "note": _note(run, bound),
        "sampling_calls": ordered.nfe,
        "parameters": run.parameter_count,
        "rate": run.config.training.lr,
        "protocol": run.corpus.protocol,
        "seconds_per_step": run.counters.seconds / max(run.counters.step, 1),
        "loss": run.counters.loss,
        "skipped": run.counters.skipped,
    }


def _quality(contest: Contest, entrant: Entrant, measured: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return quality and one example of the samples of a run in the order of a measurement, which then has them."""
    if "quality" not in measured:
        run = entrant.run
        (ordered,) = (
            found for found in orders_of(run.method, contest.nfe, run.length) if found.order == measured["order"]
        )
        with run.averaged():
            samples = _samples(run, ordered, contest.samples)
        data = held_out(run.corpus, contest.config.data.length, DATA_SEQUENCES, contest.config.training.seed).ids
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


def _note(run: Run, bound: Bound) -> str | None:
    """Return the note on a bound that is worse than the uniform code."""
    size, unit = run.corpus.tokenizer.size, unit_of(run.corpus)
    return uniform_note(bound.mean, bound.tokens, size, run.config, unit, bound.tokens)


def _samples(run: Run, ordered: OrderedMethod, count: int) -> Int[Tensor, "count length"]:
    generator = generator_of("compare", run.config.training.seed)
    sizes = [min(SAMPLE_BATCH, count - first) for first in range(0, count, SAMPLE_BATCH)]
    return torch.cat([ordered.method.generate(size, run.length, ordered.nfe, generator) for size in sizes])


def _finish(
    contest: Contest, folder: Path, rows: list[dict[str, Any]], costs: dict[str, Any], trials: Trials
) -> list[dict[str, Any]]:
    """Return the rows with their relative costs and the trials of learning rates, and write them."""
    finished = []
    for row, cost in zip(rows, _relative_costs(rows, costs), strict=True):
        tried = {
            f"{lr:g}": bound if math.isfinite(bound) else None for lr, bound in trials.get(row["method"], {}).items()
        }
        finished.append({**row, "relative_step_cost": cost, "trials": tried or None})
    write_atomic(folder / "compare.json", json.dumps({"rows": finished, **contest.setting}, indent=2) + "\n")
    return finished

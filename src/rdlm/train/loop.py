"""The training loop."""

from __future__ import annotations

import json
import math
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from rdlm.config import RunConfig, TrainingConfig
from rdlm.data.store import Corpus
from rdlm.display.progress import bar
from rdlm.display.text_table import say
from rdlm.errors import DivergedError, InterruptedRunError
from rdlm.methods.bound import Bound, uniform_note
from rdlm.model.network import parameter_count
from rdlm.random import Draw, generator_of
from rdlm.storage import config_file, run_folder
from rdlm.storage.files import explained_write_errors, write_atomic
from rdlm.storage.memory import keep_freed_memory
from rdlm.train import optimizer
from rdlm.train.fit import (
    CAUTION,
    HALF,
    Pace,
    described_fit,
    fit_training,
    in_bfloat16,
    keeps_network,
    largest_affordable,
    sizes,
    with_given,
)
from rdlm.train.interruption import AbandonedError, Interruption
from rdlm.train.parallel import Team, gradient_sync, team
from rdlm.train.record import Record, Tracker, TrackerName, check_trackers, open_trackers
from rdlm.train.report import write_report
from rdlm.train.run import (
    VALIDATION_BATCH,
    Build,
    Run,
    load_corpus,
    open_run,
    training_batches,
    unit_of,
    validation_bound,
)

SAMPLES = 4
"""Samples in the report."""

MEASURING_SHARE = 0.02
"""Share of the time for measuring how long a validation takes."""

LATEST, FEWEST_MEASURED = 5, 3
"""Steps whose time is compared with the one measured at the beginning; the median counts. The first step alone can take
many times as long."""

MEASURED_SECONDS = 0.5
"""Seconds that these steps take together at least: behind another process, a step of a millisecond takes fifty."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    steps: int
    seconds: float
    loss: float | None
    skipped: int
    parameters: int
    protocol: str
    unit: str
    bound: Bound | None
    """The bound of the last validation."""
    leads: bool
    """Whether this process is the leader, which prints."""
    note: str | None = None
    """The note on a bound that is worse than the uniform code."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values; the bound and its interval are in `unit`."""
        bound = None
        if self.bound is not None:
            # A wide interval may extend below 0, where no bound can be.
            low, high = max(0.0, self.bound.bits - self.bound.margin), self.bound.bits + self.bound.margin
            bound = {"value": self.bound.bits, "low": low, "high": high, "stderr": self.bound.margin / 1.96}
        plain = ("protocol", "parameters", "steps", "seconds", "loss", "skipped", "unit", "note")
        return {"run": str(self.folder), **{name: getattr(self, name) for name in plain}, "bound": bound}


def train(
    config: RunConfig,
    folder: Path,
    build: Build,
    *,
    minutes: float | None = None,
    given: Collection[str] | None = None,
    began: float | None = None,
    accept_changes: bool = False,
    load: Callable[[RunConfig], Corpus] = load_corpus,
    track: Sequence[TrackerName | Tracker] = (),
) -> Result:
    """Start or continue the run in `folder` and return its result; stop `minutes` after `began`.

    With `given`, the dotted keys that the user has set, the other keys are chosen by the minutes, which then include
    validation, samples and the report. After SIGTERM or SIGINT, save and raise InterruptedRunError; raise DivergedError
    if the run diverges. The record is also sent to the trackers `track`.
    """
    check_trackers(track)
    keep_freed_memory()
    with ExitStack() as stack:
        advice = "free some disk space, and the same command continues from the last checkpoint"
        stack.enter_context(explained_write_errors(folder, advice))
        members = stack.enter_context(team(config.training.device))
        budget = Budget(minutes, began, given if members.world == 1 else None)
        fit = partial(budget.fit, build=build, members=members, folder=folder)
        run = stack.enter_context(open_run(config, folder, members, build, accept_changes, load, fit))
        interruption = stack.enter_context(Interruption())
        record = None
        if members.leads:
            trackers = open_trackers(track, folder, run.counters.step, config_file.to_dict(run.config))
            record = stack.enter_context(Record(folder, run.counters.step, trackers))
        progress = stack.enter_context(progress_of(run, budget))
        train_steps(run, budget, interruption, record, progress)
        return conclude(run, budget, interruption)


def train_steps(
    run: Run, budget: Budget, interruption: Interruption, record: Record | None, progress: tqdm[Any]
) -> None:
    """Train up to the last step of the configuration or the end of the time, with validations and checkpoints."""
    training, counters = run.config.training, run.counters
    timer = Timer(counters.step, counters.seconds)
    run.network.train()
    if run.alone:
        let_signals_in(run)
    last = counters.step >= training.steps
    while not last:
        with budget.step():
            found = accumulate_or_restore(run, interruption, run.alone)
        if found is None:
            run.save()
            raise InterruptedRunError(interruption.received, counters.step)
        loss, norm = found
        over_here = time.monotonic() >= budget.training_end(training)
        loss, signalled, over = run.team.add([loss / run.team.world, bool(interruption.received), over_here])
        update(run, loss, norm)
        counters.step += 1
        counters.seconds = timer.seconds
        last = counters.step == training.steps or (over > 0 and not signalled)

        progress.update()
        if counters.step % training.record_every == 0 or last:
            tokens_per_second = timer.tokens_per_second(counters.step, training.batch * run.length)
            write_line(run, record, tokens_per_second)
            progress.set_postfix_str(summary(run, tokens_per_second))
        if counters.step % training.validate_every == 0 or last:
            try:
                with interruption.abandonable(run.alone), budget.validation(len(run.held_out.ids)):
                    validate(run, record)
            except AbandonedError:
                signalled = 1.0
            timer.pause(counters.step)
        best_now = counters.best is not None and counters.best["step"] == counters.step
        if counters.step % training.save_every == 0 or best_now or last or signalled:
            if record is not None:
                record.sync()
            run.save()
            timer.pause(counters.step)
        if signalled:
            raise InterruptedRunError(interruption.received or signal.SIGTERM, counters.step)


def conclude(run: Run, budget: Budget, interruption: Interruption) -> Result:
    """Draw the samples of a finished run, write its report, and return its result."""
    result = result_of(run)
    with interruption.ending(run.counters.step, run.alone):
        samples = draw_samples(run, budget.affordable_nfe(run.config.training.validation_nfe))
    if run.team.leads:
        write_report(run.config, run.corpus, result.to_json(), samples, run.folder)
    return result


def accumulate_or_restore(
    run: Run, interruption: Interruption, possible: bool = True
) -> tuple[float, torch.Tensor] | None:
    """Return `accumulate(run)`; if a signal ends it, restore the state before it and return None."""
    before = {name: tensor.clone() for name, tensor in run.method.state().items()}
    try:
        with interruption.abandonable(possible):
            return accumulate(run)
    except AbandonedError:
        run.method.load_state(before)
        return None


def let_signals_in(run: Run) -> None:
    """Give parameters a hook without effect: between its calls during a backward pass Python handles signals."""
    for parameter in run.network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: None)


def accumulate(run: Run) -> tuple[float, torch.Tensor]:
    """Compute the mean gradient over all shards; return the mean loss of this process and the norm of the gradient.

    The rows and the random numbers of shard j depend on the step and on j, not on the process that computes it.
    """
    seed, parts = run.config.training.seed, run.config.training.accumulate
    step, losses = run.counters.step, []
    run.method.renew(run.held_out, Draw(seed, step))
    run.state_before = {name: tensor.clone() for name, tensor in run.method.state().items()}
    run.optimizer.zero_grad()
    for part in range(parts):
        draw = Draw(seed, step, run.team.rank * parts + part, run.shards)
        batch = run.batches.batch(step, draw.shard, draw.shards).to(run.team.device)
        # Dropout uses the global generator of torch.
        torch.manual_seed(generator_of("network", seed, step, draw.shard, draw.shards).initial_seed())
        with gradient_sync(run.method.network, run.network, last=part == parts - 1):
            loss = run.method.loss(batch, draw)
            (loss / parts).backward()
        losses.append(loss.detach())
    return float(torch.stack(losses).double().mean()), run.optimizer.norm()


def update(run: Run, loss: float, norm: torch.Tensor) -> None:
    """Update the weights and their average; skip the step if the loss or the gradient is not finite."""
    counters = run.counters
    if not (math.isfinite(loss) and norm.isfinite()):
        counters.skipped_in_row += 1
        run.method.load_state(run.state_before)
        untrained = counters.updates == 0 and counters.step + 1 >= run.config.training.steps
        if untrained or counters.skipped_in_row >= run.config.training.tolerance:
            raise DivergedError(dump(run, loss, float(norm)))
        return
    run.optimizer.update(counters.step, norm)
    run.average.update(run.network)
    counters.updates += 1
    counters.skipped_in_row = 0
    counters.window += 1
    counters.window_loss += loss
    counters.window_norm += float(norm)


def dump(run: Run, loss: float, norm: float) -> str:
    """Write the batch of the step and the parameters with non-finite gradients to a file; return the error message."""
    step = run.counters.step
    path = run.folder / f"nonfinite-{step:08d}.json"
    broken = run.optimizer.nonfinite_gradients()
    if run.team.leads:
        content = {
            "step": step,
            "loss": repr(loss),
            "norm": repr(norm),
            "parameters": broken,
            "rows": run.batches.order(step).tolist(),
            "ids": run.batches.batch(step).ids.tolist(),
        }
        write_atomic(path, json.dumps(content) + "\n")
    where = f" in {', '.join(broken[:3])}{' and others' if len(broken) > 3 else ''}" if broken else ""
    return (
        f"step {step}: loss {loss:g}, gradient norm {norm:g}{where}, not finite for {run.counters.skipped_in_row} "
        f"steps in a row; the batch is in {path}; a lower --training.lr or --training.clip may help"
    )


def write_line(run: Run, record: Record | None, tokens_per_second: float) -> None:
    """Write the means since the last line to the record, and reset them."""
    counters = run.counters
    if counters.window:
        counters.loss = counters.window_loss / counters.window
    if record is not None:
        record.write(
            "step",
            counters.step,
            loss=counters.loss if counters.window else None,
            norm=counters.window_norm / counters.window if counters.window else None,
            lr=optimizer.lr(run.config.training, counters.step - 1),
            skipped=counters.skipped,
            seconds=round(counters.seconds, 3),
            tokens_per_second=round(tokens_per_second, 1),
        )
    counters.window, counters.window_loss, counters.window_norm = 0, 0.0, 0.0


def validate(run: Run, record: Record | None) -> None:
    """Evaluate the bound with the averaged weights and store it, also as the best one if it is.

    One that is not finite is reported and not stored: JSON has no such numbers, and the checkpoint could not be read.
    """
    training, counters = run.config.training, run.counters
    with run.averaged():
        bound = validation_bound(run.method, run.held_out, training.validation_nfe, training.seed, run.team)
    if not (math.isfinite(bound.mean) and math.isfinite(bound.stderr)):
        counters.validation = None
        if record is not None:
            say(f"step {counters.step}: the validation bound is {bound.mean:g} nats, not finite, and is not stored")
        return
    counters.validation = {"step": counters.step, "bound": bound.mean, "stderr": bound.stderr}
    if counters.best is None or bound.mean < counters.best["bound"]:
        counters.best = counters.validation
    if record is not None:
        record.write(
            "validation", counters.step, bound=bound.mean, stderr=bound.stderr, bits=bound.bits, margin=bound.margin
        )


def summary(run: Run, tokens_per_second: float) -> str:
    """Return the text of the progress bar."""
    loss = "-" if run.counters.loss is None else f"{run.counters.loss:.3f}"
    bound = last_bound(run)
    validation = "" if bound is None else f", {bound.bits:.3f} {unit_of(run.corpus)}"
    return f"loss {loss}, {tokens_per_second:,.0f} tokens/s{validation}"


def last_bound(run: Run) -> Bound | None:
    """Return the bound of the last validation."""
    found = run.counters.validation
    return None if found is None else Bound(found["bound"], found["stderr"], run.length)


def draw_samples(run: Run, nfe: int) -> list[list[int]]:
    """Return sequences generated with the averaged weights in `nfe` network calls, the same in all processes."""
    training = run.config.training
    with run.averaged(), torch.no_grad():
        generator = generator_of("samples", training.seed)
        ids = run.method.generate(SAMPLES, run.length, nfe, generator)
    samples: list[list[int]] = ids.tolist()
    return samples


def result_of(run: Run) -> Result:
    """Return the result of the run so far."""
    counters, bound, unit = run.counters, last_bound(run), unit_of(run.corpus)
    trained = (counters.step, counters.seconds, counters.loss, counters.skipped)
    note = None if bound is None else note_on(run, bound)
    return Result(run.folder, *trained, run.parameter_count, run.corpus.protocol, unit, bound, run.team.leads, note)


def note_on(run: Run, bound: Bound) -> str | None:
    """Return the note on a bound that is worse than the uniform code; None if it is better."""
    size, unit = run.corpus.tokenizer.size, unit_of(run.corpus)
    return uniform_note(bound.mean, bound.tokens, size, run.config, unit, bound.tokens)


def progress_of(run: Run, budget: Budget) -> tqdm[Any]:
    """Return the progress of a run; without a number of steps if the time limits it."""
    timed = budget.minutes is not None and budget.given is None
    name = f"{run.folder.name} ({budget.minutes:g} minutes)" if timed else run.folder.name
    return bar(None if timed else run.config.training.steps, name, "step", run.counters.step)


def trial_of(config: RunConfig, corpus: Corpus, build: Build, members: Team) -> Run:
    """Return a run without a folder, which is measured and discarded."""
    torch.manual_seed(config.training.seed)
    run = Run(config, build(config, corpus), corpus, training_batches(config, corpus, members.world), Path(), members)
    run.network.train()
    return run


def measured_step(run: Run) -> float:
    """Return the seconds of a training step of a trial."""

    def step() -> None:
        loss, norm = accumulate(run)
        update(run, loss, norm)
        run.counters.step += 1

    first = seconds_of(step)  # makes tables
    return seconds_of(step) if first > 5 else (seconds_of(step) + seconds_of(step) + seconds_of(step)) / 3


def measured_pace(run: Run, step: float, left: float) -> Pace:
    """Return the seconds of steps, validation and sampling of a trial; with few repetitions if little time is left."""
    nfe, seed, generator = run.config.training.validation_nfe, run.config.training.seed, generator_of("samples", 0)

    def validate_some(rows: int) -> None:
        validation_bound(run.method, run.held_out[:rows], nfe, seed, run.team)

    def sample(calls: int) -> None:
        with torch.no_grad():
            run.method.generate(SAMPLES, run.length, calls, generator)

    first = seconds_of(partial(validate_some, 1))  # makes the table of the chain
    rows = max(1, min(VALIDATION_BATCH, len(run.held_out.ids), int(MEASURING_SHARE * left / first)))
    return Pace(step, seconds_of(partial(validate_some, rows)) / rows, seconds_of(partial(sample, 2)) / 2)


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long a function takes."""
    began = time.monotonic()
    work()
    return max(time.monotonic() - began, 1e-6)


class Budget:
    """The time limit of a run, and the work that fits into it."""

    def __init__(self, minutes: float | None, began: float | None, given: Collection[str] | None) -> None:
        self.minutes, self.given = minutes, given
        self.end = math.inf if minutes is None else (began or time.monotonic()) + 60 * minutes
        self.pace: Pace | None = None
        self._seconds = deque[float]()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context manager: compare the seconds of a training step with those measured at the beginning."""
        began = time.monotonic()
        yield
        self._seconds.append(time.monotonic() - began)
        while len(self._seconds) > LATEST and sum(self._seconds) - self._seconds[0] >= MEASURED_SECONDS:
            self._seconds.popleft()

    @contextmanager
    def validation(self, sequences: int) -> Iterator[None]:
        """Context manager: measure a validation again, since few sequences cost more each than the many measured."""
        began = time.monotonic()
        yield
        if self.pace is not None:
            seconds = (time.monotonic() - began) / (sequences * self.slowness)
            self.pace = replace(self.pace, sequence=seconds)

    @property
    def slowness(self) -> float:
        """The ratio, at least 1, of the seconds of the latest steps to those measured: the load of the machine may
        change."""
        if self.pace is None or len(self._seconds) < FEWEST_MEASURED or sum(self._seconds) < MEASURED_SECONDS:
            return 1.0
        return max(1.0, statistics.median(self._seconds) / self.pace.step)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def fit(self, config: RunConfig, corpus: Corpus, build: Build, members: Team, folder: Path) -> RunConfig:
        """Return the configuration that fits into the time; an existing run in the folder keeps its size."""
        if self.given is None or self.minutes is None:
            return config
        trial = partial(trial_of, corpus=corpus, build=build, members=members)

        @cache
        def step_of(one: RunConfig) -> float:
            return measured_step(trial(one))

        old, done = run_folder.progress(folder)
        if old is None:
            candidates = list(sizes(config, self.given))
            config = largest_affordable(candidates, step_of, self.left)
            half = in_bfloat16(candidates[candidates.index(config) :], self.given)
            if half and step_of(half[0]) < HALF * step_of(config):
                config = largest_affordable(half, step_of, self.left)
        else:
            model = config.model if keeps_network(self.given) else old.model
            wanted = config.training.steps
            config = replace(config, model=model, training=with_given(old.training, config.training, self.given))
            config = replace(config, training=replace(config.training, steps=wanted))
        self.pace = measured_pace(trial(config), step_of(config), self.left())
        config = fit_training(config, self.given, self.pace, self.left(), done)
        if members.leads:
            say(described_fit(config, self.minutes, parameter_count(build(config, corpus).network)))
        return config

    def training_end(self, training: TrainingConfig) -> float:
        """Return the time at which training has to end."""
        return self.end - (
            0.0 if self.pace is None else self.slowness * (self.pace.reserve(training, CAUTION) + self.pace.step)
        )

    def affordable_nfe(self, nfe: int) -> int:
        """Return the network calls for samples: `nfe`, or fewer where they would exceed the time."""
        if self.pace is None:
            return nfe
        return max(1, min(nfe, int((self.left() - 1) / (self.slowness * self.pace.call))))


class Timer:
    """Measures training time, and the speed of the steps without validation and saving."""

    def __init__(self, step: int, before: float) -> None:
        self._start = self._mark = time.monotonic()
        self._before, self._step = before, step

    @property
    def seconds(self) -> float:
        """The training time of the run, including that before it was resumed."""
        return self._before + time.monotonic() - self._start

    def tokens_per_second(self, step: int, tokens: int) -> float:
        """Return the tokens per second since the last call or pause."""
        speed = (step - self._step) * tokens / max(time.monotonic() - self._mark, 1e-9)
        self.pause(step)
        return speed

    def pause(self, step: int) -> None:
        """Restart the measurement of speed, after validation or saving."""
        self._mark, self._step = time.monotonic(), step

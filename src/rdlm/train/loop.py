"""The training loop, top to bottom."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rdlm.config import RunConfig
from rdlm.data.store import Corpus
from rdlm.display.progress import bar
from rdlm.errors import DivergedError
from rdlm.random import Draw, generator_of
from rdlm.storage.files import room, write_atomic
from rdlm.train import optimizer
from rdlm.train.interruption import InterruptedRunError, Interruption
from rdlm.train.parallel import gradients, team
from rdlm.train.record import Record
from rdlm.train.report import write_report
from rdlm.train.run import Build, Run, load_corpus, opened
from rdlm.train.validation import Bound, measure, on, unit_of

SAMPLES = 4
"""Sequences that the report shows."""


@dataclass(frozen=True)
class Result:
    """How a run stands when it ends."""

    folder: Path
    steps: int
    seconds: float
    loss: float | None
    skipped: int
    parameters: int
    protocol: str
    unit: str
    bound: Bound | None
    """The last validation's."""
    leads: bool
    """Whether this process is the one that speaks."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, the bound with its interval in `unit`."""
        bound = None
        if self.bound is not None:
            low, high = self.bound.bits - self.bound.margin, self.bound.bits + self.bound.margin
            bound = {"value": self.bound.bits, "low": low, "high": high, "stderr": self.bound.margin / 1.96}
        return {
            "run": str(self.folder),
            "protocol": self.protocol,
            "parameters": self.parameters,
            "steps": self.steps,
            "seconds": self.seconds,
            "loss": self.loss,
            "skipped": self.skipped,
            "bound": bound,
            "unit": self.unit,
        }


def train(
    config: RunConfig,
    folder: Path,
    build: Build,
    *,
    minutes: float | None = None,
    accept_changes: bool = False,
    load: Callable[[RunConfig], Corpus] = load_corpus,
) -> Result:
    """Train, or go on training, the run in `folder`, and return how it ended; `minutes` ends it early.

    SIGTERM and SIGINT save and raise InterruptedRunError; a run that diverges raises DivergedError.
    """
    training = config.training
    with ExitStack() as stack:
        stack.enter_context(room(folder, "make room, and the same command continues from the last checkpoint"))
        members = stack.enter_context(team(training.device))
        run = stack.enter_context(opened(config, folder, members, build, accept_changes, load))
        counters = run.counters
        interruption = stack.enter_context(Interruption())
        record = stack.enter_context(Record(folder, counters.step)) if members.leads else None
        progress = stack.enter_context(bar(training.steps, folder.name, "step", counters.step))
        run.network.train()
        clock = Clock(counters.step, counters.seconds, minutes)

        while counters.step < training.steps:
            loss, norm = accumulate(run)
            loss, signalled, over = members.add([loss / members.world, bool(interruption.received), clock.over])
            update(run, loss, norm)
            counters.step += 1
            counters.seconds = clock.seconds
            last = counters.step == training.steps or (over > 0 and not signalled)

            progress.update()
            if counters.step % training.record_every == 0 or last:
                tokens_per_second = clock.rate(counters.step, training.batch * run.length)
                write_line(run, record, tokens_per_second)
                progress.set_postfix_str(summary(run, tokens_per_second))
            if counters.step % training.validate_every == 0 or last:
                validate(run, record)
                clock.pause(counters.step)
            best_now = counters.best is not None and counters.best["step"] == counters.step
            if counters.step % training.save_every == 0 or best_now or last or signalled:
                if record is not None:
                    record.sync()
                run.save()
                clock.pause(counters.step)
            if signalled:
                raise InterruptedRunError(interruption.received or signal.SIGTERM, counters.step)
            if last:
                break

        result = outcome(run)
        samples = draw_samples(run)
        if members.leads:
            write_report(config, run.corpus, result.to_json(), samples, folder)
        return result


def accumulate(run: Run) -> tuple[float, torch.Tensor]:
    """Leave the mean gradient over all shards in the network; return this member's mean loss, and the whole norm.

    Shard j of a step has its own rows and its own randomness, whichever process it falls to.
    """
    seed, parts = run.config.training.seed, run.config.training.accumulate
    step, losses = run.counters.step, []
    run.before = {name: tensor.clone() for name, tensor in run.method.state().items()}
    run.optimizer.clear()
    for part in range(parts):
        draw = Draw(seed, step, run.team.rank * parts + part, run.shards)
        batch = on(run.batches.batch(step, draw.shard, draw.shards), run.team.device)
        # Dropout draws from torch's global generator.
        torch.manual_seed(generator_of("network", seed, step, draw.shard, draw.shards).initial_seed())
        with gradients(run.method.network, run.network, last=part == parts - 1):
            loss = run.method.loss(batch, draw)
            (loss / parts).backward()
        losses.append(loss.detach())
    return float(torch.stack(losses).double().mean()), run.optimizer.norm()


def update(run: Run, loss: float, norm: torch.Tensor) -> None:
    """Move the weights and their average, or, where a number is not finite, count that and leave them alone."""
    counters = run.counters
    if not (math.isfinite(loss) and norm.isfinite()):
        counters.skipped_in_row += 1
        run.method.load_state(run.before)
        if counters.skipped_in_row >= run.config.training.tolerance:
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
    """Write the step's batch and where its gradient broke; return the message."""
    step = run.counters.step
    path = run.folder / f"nonfinite-{step:08d}.json"
    broken = run.optimizer.broken()
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
    """Add the means since the last line to the record, and begin anew."""
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
    """Measure the bound with the averaged weights and note whether it is the best so far."""
    training, counters = run.config.training, run.counters
    with run.averaged():
        bound = measure(run.method, run.held_out, training.validation_nfe, training.seed, run.team)
    counters.validation = {"step": counters.step, "bound": bound.mean, "stderr": bound.stderr}
    if math.isfinite(bound.mean) and (counters.best is None or bound.mean < counters.best["bound"]):
        counters.best = counters.validation
    if record is not None:
        record.write(
            "validation", counters.step, bound=bound.mean, stderr=bound.stderr, bits=bound.bits, margin=bound.margin
        )


def summary(run: Run, tokens_per_second: float) -> str:
    """Return what the progress bar says."""
    loss = "-" if run.counters.loss is None else f"{run.counters.loss:.3f}"
    found = last_bound(run)
    held = "" if found is None else f", {found.bits:.3f} {unit_of(run.corpus)}"
    return f"loss {loss}, {tokens_per_second:,.0f} tokens/s{held}"


def last_bound(run: Run) -> Bound | None:
    """Return the bound of the last validation."""
    found = run.counters.validation
    return None if found is None else Bound(found["bound"], found["stderr"], run.length)


def draw_samples(run: Run) -> list[list[int]]:
    """Return sequences generated with the averaged weights, the same for every member."""
    training = run.config.training
    with run.averaged(), torch.no_grad():
        generator = generator_of("samples", training.seed)
        ids = run.method.generate(SAMPLES, run.length, training.validation_nfe, generator)
    samples: list[list[int]] = ids.tolist()
    return samples


def outcome(run: Run) -> Result:
    """Return how the run stands."""
    counters = run.counters
    return Result(
        run.folder,
        counters.step,
        counters.seconds,
        counters.loss,
        counters.skipped,
        run.parameter_count,
        run.corpus.protocol,
        unit_of(run.corpus),
        last_bound(run),
        run.team.leads,
    )


class Clock:
    """Time spent, its limit, and the speed of the steps alone."""

    def __init__(self, step: int, before: float, minutes: float | None) -> None:
        self._begin = self._mark = time.monotonic()
        self._before, self._limit = before, math.inf if minutes is None else 60 * minutes
        self._step = step

    @property
    def seconds(self) -> float:
        """Return the run's training time, earlier parts included."""
        return self._before + time.monotonic() - self._begin

    @property
    def over(self) -> bool:
        """Return whether this part has used its minutes."""
        return time.monotonic() - self._begin >= self._limit

    def rate(self, step: int, tokens: int) -> float:
        """Return tokens per second since the last call or pause, at so many per step."""
        speed = (step - self._step) * tokens / max(time.monotonic() - self._mark, 1e-9)
        self.pause(step)
        return speed

    def pause(self, step: int) -> None:
        """Begin to measure speed anew, after what was not a step."""
        self._mark, self._step = time.monotonic(), step

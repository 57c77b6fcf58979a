"""Spoilt checkpoints by the thousand, against everything that reads them: nothing may crash, hang, grow or run."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation import SPOILS, STEP

import rdlm
from rdlm import cli
from rdlm.errors import DamagedFileError, InputError
from rdlm.method import build
from rdlm.training.parallel import Team
from rdlm.training.run import Run, load_corpus, training_batches

SECONDS = 20.0
"""The longest that one reading may take, on a machine that does other things too."""

MEGABYTES = 512
"""How much more memory all readings together may need at their peak."""

OPTIONS = {
    "data.length": 8, "model.width": 4, "model.layers": 1, "model.heads": 1, "model.time-width": 2,
    "process.levels": 4, "process.pairs": 4, "training.steps": 2, "training.batch": 2, "training.device": "cpu",
    "training.validation-sequences": 2, "training.validation-calls": 2, "training.warmup": 0,
}  # fmt: skip


@dataclass
class Outcome:
    """What came of the readings."""

    refused: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    """Damage that leaves a checkpoint what it says it is, such as another learning rate, signed."""
    defects: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown: float = 0.0
    """Megabytes."""
    executed: bool = False

    @property
    def tried(self) -> int:
        return self.refused.total() + self.read.total()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.refused + other.refused, self.read + other.read, self.defects + other.defects,
            max(self.slowest, other.slowest), max(self.grown, other.grown), self.executed or other.executed,
        )  # fmt: skip


def seed_runs(place: Path) -> list[Path]:
    """Return two small finished runs, one over letters, one over learnt subwords."""
    place.mkdir(parents=True, exist_ok=True)
    book = place / "book.txt"
    book.write_text("some text of mine, and then some more of it. " * 80)
    runs = []
    for kind in ("characters", "bpe"):
        more = {"data.tokenizer": kind, "data.vocabulary": 300, "process.base": 17} if kind == "bpe" else {}
        options = [word for key, value in (OPTIONS | more).items() for word in (f"--{key}", str(value))]
        run = place / kind
        assert cli.main(["train", "textfile", "--data.file", str(book), "--out", str(run), *options, "--json"]) == 0
        runs.append(run)
    return runs


def resumable(run: Path) -> Run:
    """Return a run that can be asked again and again to continue from a folder."""
    config = rdlm.load(run).config
    corpus = load_corpus(config)
    return Run(config, build(config, corpus), corpus, training_batches(config, corpus, 1), run, Team())


def fuzz(place: Path, count: int, seed: int = 0) -> Outcome:
    """Return what came of `count` spoilt checkpoints."""
    seeds = seed_runs(place / "seeds")
    resumables = [resumable(run) for run in seeds]
    outcome, begin = Outcome(), 0.0
    names, weights = list(SPOILS), [weight for weight, _ in SPOILS.values()]
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        chosen = rng.randrange(len(seeds))
        work, name = place / "work", rng.choices(names, weights)[0]
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(seeds[chosen], work / "run", ignore=shutil.ignore_patterns("tensorboard", "report.html"))
        SPOILS[name][1](rng, work / "run")
        label = f"{name} (seed {seed}, number {number})"
        run_again(work / "run", resumables[chosen], rng, label, name, outcome)
        outcome.executed |= (work / "canary").exists()
        if number == min(100, count - 1):
            begin = _peak()  # after everything that is loaded once
    outcome.grown = _peak() - begin
    shutil.rmtree(place / "work", ignore_errors=True)
    return outcome


def run_again(run: Path, again: Run, rng: random.Random, label: str, name: str, outcome: Outcome) -> None:
    """Load the folder as a model, and continue the run in it."""
    begin = time.monotonic()

    def resume() -> Any:
        again.folder = run
        again.resume(accept_changes=rng.random() < 0.5)

    loads = [lambda: rdlm.load(run), lambda: rdlm.load(run / STEP, averaged=False)]
    good = 0
    for read in (rng.choice(loads), resume):
        try:
            with limited(SECONDS):
                read()
            good += 1
        except (InputError, DamagedFileError):
            pass
        except BaseException:
            outcome.defects.append(f"{label}: {traceback.format_exc()}")
    (outcome.read if good == 2 else outcome.refused)[name] += 1
    outcome.slowest = max(outcome.slowest, time.monotonic() - begin)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still reading after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> float:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024 if os.uname().sysname == "Linux" else kilobytes / 1024**2

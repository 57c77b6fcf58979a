"""Fuzzing of checkpoints and published models: no reader may crash, hang, execute code or use much memory."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mutation import CHECKPOINT, PUBLISHED, SPOILS, STEP, Shelf

import rdlm
from rdlm.api import publish as publication
from rdlm.cli import main as cli
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods import build
from rdlm.train.parallel import Team
from rdlm.train.run import Run, load_corpus, training_batches

SECONDS = 20.0
"""The longest that one reading may compute; it may wait, on a machine that does other things too, ten times as long."""

MEGABYTES = 512
"""How much more memory all readings together may need at their peak."""

OPTIONS = {
    "data.length": 8,
    "model.width": 4,
    "model.layers": 1,
    "model.heads": 1,
    "model.time-width": 2,
    "model.states": 64,
    "process.levels": 4,
    "process.pairs": 4,
    "training.steps": 2,
    "training.batch": 2,
    "training.device": "cpu",
    "training.validation-sequences": 2,
    "training.validation-nfe": 2,
    "training.warmup": 0,
}


LEFT_OUT = shutil.ignore_patterns("tensorboard", "report.html", "evaluation-*", "samples*")
"""What a run's folder holds beside what is read."""


@dataclass
class Outcome:
    """The results of reading corrupted folders."""

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

    @property
    def lost(self) -> list[str]:
        """All defects."""
        executed = ["a payload was executed"] if self.executed else []
        return self.defects + executed + ([f"reading took {self.grown:.0f} MB"] if self.grown > MEGABYTES else [])

    def line(self) -> str:
        """Return the results as one line of text."""
        return (
            f"files: {self.tried} spoilt, {self.refused.total()} refused, {self.read.total()} harmless, slowest "
            f"{self.slowest:.1f} s, {self.grown:.0f} MB grown; lost: {len(self.lost)}"
        )

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.refused + other.refused,
            self.read + other.read,
            self.defects + other.defects,
            max(self.slowest, other.slowest),
            max(self.grown, other.grown),
            self.executed or other.executed,
        )


@dataclass(frozen=True)
class Seed:
    """An intact folder, and the functions that read it."""

    folder: Path
    shelf: Shelf
    again: Run | None = None
    """A run that can be asked again and again to continue from a folder."""

    def readers(self, run: Path, rng: random.Random) -> list[Callable[[], object]]:
        """Return the functions that read a corrupted copy of the folder."""
        if self.again is None:
            return [lambda: rdlm.load(run), lambda: publication.evaluations(rdlm.load(run))]
        loads = [lambda: rdlm.load(run), lambda: rdlm.load(run / STEP, averaged=False)]
        return [rng.choice(loads), partial(resume, self.again, run, rng.random() < 0.5)]


def resume(again: Run, run: Path, accept_changes: bool) -> None:
    """Continue a run in another folder."""
    again.folder = run
    again.resume(accept_changes=accept_changes)


def seeds_in(place: Path) -> list[Seed]:
    """Return two small runs, with characters and with BPE, and the models published from them."""
    runs = seed_runs(place)
    found = [Seed(run, CHECKPOINT, resumable(run)) for run in runs]
    for run, dtype in zip(runs, ("float32", "float16"), strict=True):
        quick = ("--nfe", "2", "--evaluations", "8", "--sequences", "2", "--samples", "0", "--json")
        assert cli.main(["evaluate", str(run), *quick]) == 0
        published = place / f"published-{run.name}"
        assert cli.main(["publish", str(run), str(published), "--dtype", dtype, "--json"]) == 0
        found.append(Seed(published, PUBLISHED))
    return found


def seed_runs(place: Path) -> list[Path]:
    """Return two small finished runs, one with characters and one with BPE."""
    place.mkdir(parents=True, exist_ok=True)
    book = place / "book.txt"
    book.write_text("some text of mine, and then some more of it. " * 80)
    runs = []
    for kind in ("characters", "bpe"):
        pairs = {"data.tokenizer": kind, "data.vocabulary": 300, "process.base": 17, "model.belief": "none"}
        more = pairs if kind == "bpe" else {}
        options = [word for key, value in (OPTIONS | more).items() for word in (f"--{key}", str(value))]
        run = place / kind
        assert cli.main(["train", "textfile", "--data.file", str(book), "--out", str(run), *options, "--json"]) == 0
        runs.append(run)
    return runs


def resumable(run: Path) -> Run:
    """Return a run that can be resumed repeatedly from a folder."""
    config = rdlm.load(run).config
    corpus = load_corpus(config)
    return Run(config, build(config, corpus), corpus, training_batches(config, corpus, 1), run, Team())


def fuzz(place: Path, count: int, seed: int = 0) -> Outcome:
    """Read `count` corrupted folders and return the results."""
    seeds = seeds_in(place / "seeds")
    outcome, begin = Outcome(), 0.0
    names, weights = list(SPOILS), [weight for weight, _ in SPOILS.values()]
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        chosen = rng.choice(seeds)
        work, name = place / "work", rng.choices(names, weights)[0]
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(chosen.folder, work / "run", ignore=LEFT_OUT)
        SPOILS[name][1](rng, work / "run", chosen.shelf)
        kind = f"{chosen.shelf.state}: {name}"
        read_all(chosen.readers(work / "run", rng), f"{kind} (seed {seed}, number {number})", kind, outcome)
        outcome.executed |= (work / "canary").exists()
        if number % 1000 == 999:
            print(f"fuzz: {number + 1} of {count} spoilt, {len(outcome.defects)} defects", file=sys.stderr, flush=True)
        if number == min(100, count - 1):
            begin = _peak()  # after everything that is loaded once
    outcome.grown = _peak() - begin
    shutil.rmtree(place / "work", ignore_errors=True)
    return outcome


def read_all(readers: Sequence[Callable[[], object]], label: str, kind: str, outcome: Outcome) -> None:
    """Read a corrupted folder in every way; an error of the expected kind or a correct result is fine."""
    begin, good = time.monotonic(), 0
    for read in readers:
        try:
            with limited(SECONDS):
                read()
            good += 1
        except (InputError, DamagedFileError):
            pass
        except BaseException:
            outcome.defects.append(f"{label}: {traceback.format_exc()}")
    (outcome.read if good == len(readers) else outcome.refused)[kind] += 1
    outcome.slowest = max(outcome.slowest, time.monotonic() - begin)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after this processor time, or ten times this wall-clock time."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still reading after {seconds:g} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}
    before = {number: signal.signal(number, late) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def _peak() -> float:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024 if os.uname().sysname == "Linux" else kilobytes / 1024**2

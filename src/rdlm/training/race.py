"""Several runs that train in turn, a slice of steps each: whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rdlm.config import MethodName, RunConfig
from rdlm.data.store import Corpus
from rdlm.progress import bar
from rdlm.training.interruption import Interruption
from rdlm.training.loop import accumulate, update, write_line
from rdlm.training.parallel import Team
from rdlm.training.record import Record
from rdlm.training.run import Build, Run, opened

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
        opened(config, folder, members, build, load=lambda _: corpus) as run,
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
            interruption.obey(min(entrant.run.counters.step for entrant in entrants))


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
            interruption.obey(0)
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

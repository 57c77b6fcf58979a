"""Which learning rate suits a method: every method tries the same few, for the same few steps, and takes its best."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rdlm.config import RunConfig
from rdlm.data.store import Corpus
from rdlm.storage import read_json, write_atomic
from rdlm.training.interruption import Interruption
from rdlm.training.parallel import Team
from rdlm.training.race import Entrant, entered, race
from rdlm.training.run import Build

Judge = Callable[[Entrant], float]
"""What a rate is chosen by, of a run at its end: the lower the better."""


def search(
    configs: Sequence[RunConfig], rates: Sequence[float], folder: Path, members: Team, corpus: Corpus, make: Build,
    judge: Judge, interruption: Interruption,
) -> dict[str, float]:  # fmt: skip
    """Return the best rate of each configuration's method; the configurations say how many steps a trial takes.

    The trials run in turn, like the comparison itself. What each of them came to stands in `rates.json`; a method whose
    trials stand there already is not tried again.
    """
    path = folder / "rates.json"
    trials: dict[str, dict[str, float]] = read_json(path) if path.exists() else {}
    fresh = [config for config in configs if set(trials.get(config.method, {})) != {f"{rate:g}" for rate in rates}]
    if fresh:
        with ExitStack() as stack:
            entrants = [
                stack.enter_context(entered(_at(config, rate), _place(folder, config, rate), members, corpus, make))
                for config in fresh
                for rate in rates
            ]
            race(entrants, fresh[0].training.steps, interruption)
            for config in fresh:
                trials[config.method] = {
                    f"{entrant.run.config.training.rate:g}": judge(entrant)
                    for entrant in entrants
                    if entrant.name == config.method
                }
                write_atomic(path, json.dumps(trials, indent=2) + "\n")
    return {config.method: _best(trials[config.method], rates) for config in configs}


def _best(found: dict[str, float], rates: Sequence[float]) -> float:
    return min(rates, key=lambda rate: found[f"{rate:g}"])


def _at(config: RunConfig, rate: float) -> RunConfig:
    return replace(config, training=replace(config.training, rate=rate))


def _place(folder: Path, config: RunConfig, rate: float) -> Path:
    return folder / "search" / f"{config.method}-{rate:g}"

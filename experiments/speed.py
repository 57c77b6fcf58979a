"""The speed of a training step without simulation against one with it, at equal batch and network.

The exact law draws states from a table, the normal law from two numbers per level, the simulated law steps through
every bridge in all dimensions. The paper reports a factor of 50 for its network and hardware. The ratio depends on the
network, which costs the same in all three cases; the time of the states alone is therefore listed as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.display.figure import canvas
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import preset
from rdlm.process.law import LawName, cached_law
from rdlm.random import Draw

VOCABULARY = 27
STEPS_OF_SIMULATION = 500
LAWS: tuple[LawName, ...] = ("exact", "normal", "simulated")


def run(out: Path, paper_scale: bool = False, repeats: int | None = None, seed: int = 0) -> list[dict[str, object]]:
    """Return a row for each law: seconds of a training step and of its states alone, and ratios to the simulation."""
    small = RunConfig(model=TransformerConfig(width=64, layers=2, heads=4))
    base = preset("text8-paper") if paper_scale else small
    count, length = (64, 256) if paper_scale else (16, 64)
    process = ProcessConfig(levels=STEPS_OF_SIMULATION, pairs=4096)
    ids = torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))
    rows: list[dict[str, object]] = []
    for law in LAWS:
        torch.manual_seed(seed)
        method = Rdlm(replace(base, process=replace(process, law=law)), VOCABULARY)
        times = repeats or (3 if law == "simulated" else 10)
        step = _seconds(partial(_step, method, ids), times)
        table = cached_law(law, method.process.bridge, method.training_grid, process.pairs)
        remaining = method.process.schedule.remaining(torch.linspace(0.01, 0.99, count))[:, None].expand(ids.shape)
        states = _seconds(partial(table.draw, ids, remaining), times)
        rows.append({"law": law, "step_seconds": step, "states_seconds": states, "batch": count, "length": length})
    slow = rows[-1]
    for row in rows:
        for part in ("step", "states"):
            row[f"{part}_speedup"] = float(str(slow[f"{part}_seconds"])) / float(str(row[f"{part}_seconds"]))
    _plot(rows, out / "speed.png")
    return rows


def _step(method: Rdlm, ids: torch.Tensor) -> None:
    method.network.zero_grad()
    method.loss(Batch(ids), Draw(0, 0)).backward()


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median processor time; the first run, which builds tables, is not counted."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def _plot(rows: list[dict[str, object]], path: Path) -> None:
    with canvas(path) as (axis,):
        place = range(len(rows))
        axis.bar([i - 0.2 for i in place], [float(str(r["step_seconds"])) for r in rows], 0.4, label="training step")
        axis.bar([i + 0.2 for i in place], [float(str(r["states_seconds"])) for r in rows], 0.4, label="states alone")
        axis.set_xticks(list(place), [str(r["law"]) for r in rows])
        axis.set_yscale("log")
        axis.set_ylabel("seconds of processor time")
        axis.set_title("A training step by law of the states")
        axis.legend()

"""Two processes, a thread each, against one: by the wall clock, since waiting is the point, and by processor time."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Figure, at_least
from benchmarks.subject import LETTERS, NETWORK, SMALL_TABLE, TINY, method, tokens, training_step
from rdlm.config import RunConfig
from rdlm.storage.files import write_atomic

WORLD = 2


def parallel(quick: bool) -> list[Figure]:
    """Return the tokens per second of two processes over twice those of one, taking turns within the same two."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "taken.json"
        try:
            spawn(_member, (folder, quick), WORLD)
        except ProcessExitedException:
            if not found.is_file():  # else all is measured: once in a while gloo's threads abort a process that leaves
                raise
        taken: dict[str, list[float]] = json.loads(found.read_text())
    note = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    wall, busy = (
        Figure.of(f"two processes, {clock}", "twice one process", taken[f"{clock} one"], taken[f"{clock} two"])
        for clock in ("wall clock", "processor time")
    )
    return [
        Figure(wall.name, wall.against, wall.ratios, at_least(0.85), wall.seconds, note),
        Figure(busy.name, busy.against, busy.ratios, None, busy.seconds, "what the exchange itself costs"),
    ]


def _member(rank: int, folder: str, quick: bool) -> None:
    """Take turns: the first process alone while the other waits, then both together."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    subject = method(RunConfig(process=SMALL_TABLE, model=TINY if quick else NETWORK), LETTERS)
    alone, shared = subject.network, DistributedDataParallel(subject.network)
    work = training_step(subject, tokens(LETTERS, 4, 128 if quick else 256))
    taken: dict[str, list[float]] = {
        f"{clock} {n}": [] for clock in ("wall clock", "processor time") for n in ("one", "two")
    }
    for turn in range(4 if quick else 8):
        for number, network in (("one", alone), ("two", shared)):
            subject.network = network
            distributed.barrier()
            wall, busy = _timed(work) if number == "two" or rank == 0 else (0.0, 0.0)
            if turn > 0:
                taken[f"wall clock {number}"].append(wall)
                taken[f"processor time {number}"].append(busy)
    if rank == 0:
        write_atomic(Path(folder) / "taken.json", json.dumps(taken))
    distributed.barrier()
    distributed.destroy_process_group()


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(2):
        work()
    return time.perf_counter() - wall, time.process_time() - busy

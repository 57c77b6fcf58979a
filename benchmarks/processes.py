"""What is measured in processes of its own: peak memory, the start of the command line, two processes against one.

`python -m benchmarks.processes (rdlm | network) BATCH LENGTH WIDTH LAYERS` prints by how many bytes a training step on
one sphere of 30,523 coordinates raises the peak memory.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.fixtures import (
    LETTERS,
    NETWORK,
    ONE_SPHERE,
    PIECES,
    PLAIN,
    SMALL_TABLE,
    TINY,
    method,
    network_on_features,
    tokens,
    training_step,
)
from benchmarks.measure import Figure, Work, alternate, at_least, at_most, children_time, within
from rdlm.config import RunConfig, TransformerConfig
from rdlm.storage.files import write_atomic

ROOT = Path(__file__).parents[1]
FLOAT = 4
"""Bytes of a number in float32."""

ALLOWED = 0.5
"""Seconds within which the command line must answer."""
LIGHT = "import sys; from rdlm.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
CASES = {"rdlm --help": ["--help"], "rdlm with a wrong flag": ["train", "demo", "--no-such-flag"]}

WORLD = 2
"""Processes of `parallel`."""


# -- peak memory -----------------------------------------------------------------------------------------------------


def memory(quick: bool) -> list[Figure]:
    """Measure the peak of a step over that of the network on dense features, and over logits and states alone."""
    batch, length, width, layers = (8, 64, 64, 2) if quick else (8, 128, 256, 6)
    peaks = {
        name: [_peak(name, batch, length, width, layers) for _ in range(1 if quick else 3)]
        for name in ("rdlm", "network")
    }
    both = batch * length * (30522 + 30523) * FLOAT
    name, note = "peak memory, 30,522 tokens on one sphere", "activations included"
    against = [peak / both for peak in peaks["rdlm"]]
    network = [ours / theirs for ours, theirs in zip(peaks["rdlm"], peaks["network"], strict=True)]
    least = sum(peaks["network"]) / len(peaks["network"]) / both
    return [
        Figure(name, "logits and states alone", against, at_most(1.3), None, f"{note}; the network alone {least:.2f}"),
        Figure(name, "the network on dense features", network, None, None, note),
    ]


def _peak(trained: str, *sizes: int) -> int:
    command = [sys.executable, "-m", "benchmarks.processes", trained, *map(str, sizes)]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def _in_memory(now: bool) -> int:
    """Return the resident bytes of this process now, or at its peak.

    Linux reports both for this program alone; `ru_maxrss` there includes the parent's peak. Other systems report only
    `ru_maxrss`.
    """
    page = Path("/proc/self/status")
    if page.exists():
        kilobytes = re.search(rf"{'VmRSS' if now else 'VmHWM'}:\s+(\d+) kB", page.read_text())
        assert kilobytes is not None
        return 1024 * int(kilobytes[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def print_peak(trained: str, batch: int, length: int, width: int, layers: int) -> None:
    """Print the bytes that a training step needs beyond what was in memory before it."""
    torch.set_num_threads(1)
    config = TransformerConfig(width=width, layers=layers)
    few, ids = tokens(PIECES, 1, 1), tokens(PIECES, batch, length)
    # A small step first loads the libraries and builds the tables.
    if trained == "rdlm":
        subject = method(RunConfig(process=ONE_SPHERE, denoiser=PLAIN, model=config), PIECES)
        training_step(subject, few)()
        before = _in_memory(now=True)
        training_step(subject, ids)()
    else:
        step = network_on_features(config, PIECES)
        step(torch.rand(1, 1, PIECES), few)
        before = _in_memory(now=True)
        step(torch.rand(*ids.shape, PIECES), ids)
    print(_in_memory(now=False) - before)


# -- start of the command line ---------------------------------------------------------------------------------------


def startup(quick: bool) -> list[Figure]:
    """Measure `rdlm --help` and a wrong flag over the start of Python alone, in processor seconds."""
    works: dict[str, Work] = {name: _command("-m", "rdlm", *arguments) for name, arguments in CASES.items()}
    taken = alternate(works | {"python": _command("-c", "pass")}, 3 if quick else 9, children_time, least=0.0)
    figures = []
    for name, arguments in CASES.items():
        note = "without torch" if _command("-c", LIGHT, *arguments)() == 0 else "imports torch"
        figures.append(Figure.of(name, "python -c pass", taken[name], taken["python"], within(ALLOWED), note))
    return figures


def _command(*arguments: str) -> Work:
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=False, capture_output=True).returncode


# -- two processes ---------------------------------------------------------------------------------------------------


def parallel(quick: bool) -> list[Figure]:
    """Measure the tokens per second of two processes with one thread each over twice those of one process.

    Both are timed in turn within the same two processes: by the wall clock, because waiting is part of the cost, and by
    processor time.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "taken.json"
        try:
            spawn(_member, (folder, quick), WORLD)
        except ProcessExitedException:
            if not found.is_file():  # gloo's threads sometimes abort a process that exits after the measurement
                raise
        taken: dict[str, list[float]] = json.loads(found.read_text())
    note = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    wall, busy = (
        Figure.of(f"two processes, {clock}", "twice one process", taken[f"{clock} one"], taken[f"{clock} two"])
        for clock in ("wall clock", "processor time")
    )
    return [
        Figure(wall.name, wall.against, wall.ratios, at_least(0.85), wall.seconds, note),
        Figure(busy.name, busy.against, busy.ratios, None, busy.seconds, "the cost of the exchange itself"),
    ]


def _member(rank: int, folder: str, quick: bool) -> None:
    """Time the first process alone while the other waits, then both together, in turn."""
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


if __name__ == "__main__":
    print_peak(sys.argv[1], *map(int, sys.argv[2:]))

"""A small run of `rdlm train` in a separate process, for fault injection and bitwise comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from process import Forked, Process, become_ordinary

from rdlm.errors import DamagedFileError
from rdlm.storage import checkpoint
from rdlm.train import record

ROOT = Path(__file__).parents[1]

TINY = {
    "data.length": 16,
    "model.width": 8,
    "model.layers": 1,
    "model.heads": 1,
    "model.time-width": 4,
    "model.states": 64,
    "model.dropout": 0.1,
    "process.levels": 16,
    "process.pairs": 64,
    "objective.proposal": "adaptive",
    "training.batch": 4,
    "training.device": "cpu",
    "training.warmup": 10,
    "training.ema": 0.99,
    "training.record-every": 1,
    "training.save-every": 4,
    "training.validate-every": 50,
    "training.validation-sequences": 4,
    "training.validation-nfe": 4,
}
"""Dropout, an adaptive proposal and a moving average: all that a run can carry along."""

ALONE = [sys.executable, "-m", "rdlm"]
PAIR = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "20",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
    "-m",
    "rdlm",
]


@dataclass(frozen=True)
class Victim:
    """The folder of a run, its configuration, and the way to start it."""

    run: Path
    book: Path
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    launcher: list[str] | None = None
    """What starts a process anew; None forks this one."""

    def moved(self, run: Path, launcher: list[str] | None = None) -> Victim:
        """Return the same run in another folder."""
        return replace(self, run=run, launcher=launcher or self.launcher)

    def start(self, prepare: Callable[[], None] = lambda: None) -> Process:
        """Return the started process, which calls `prepare` first and writes its messages to a file."""
        chosen = TINY | {"training.steps": self.steps} | self.options
        options = [word for key, value in chosen.items() for word in (f"--{key}", str(value))]
        arguments = ["train", "textfile", "--data.file", str(self.book), "--out", str(self.run), *options]
        if self.launcher is None:
            return Forked(arguments, self.book.parent, self._messages, prepare)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with self._messages.open("wb") as messages:
            return subprocess.Popen(
                [*self.launcher, *arguments],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                preexec_fn=lambda: (become_ordinary(), prepare()),
                start_new_session=True,
                cwd=self.book.parent,
            )

    def finish(self) -> None:
        """Continue the run to its end, which must succeed."""
        code = self.start().wait(timeout=600)
        if code:
            raise AssertionError(f"exit code {code}: {self.messages[-2000:]}")

    @property
    def _messages(self) -> Path:
        return self.book.parent / f"{self.run.name}.messages"

    @property
    def messages(self) -> str:
        """The messages of the last process."""
        return self._messages.read_text(errors="replace")

    @property
    def newest(self) -> int:
        """The step of the newest complete checkpoint, 0 without one."""
        for path in sorted(self.run.glob("checkpoint-*"), reverse=True):
            try:
                return int(checkpoint.verify(path)["step"])
            except DamagedFileError as error:
                raise AssertionError(f"a checkpoint is there, but not whole: {error}") from None
        return 0

    def half_written(self) -> list[Path]:
        """The partly written checkpoints."""
        return list(self.run.glob(".checkpoint-*.part"))


def traces(run: Path) -> dict[str, bytes]:
    """Return the content of a finished run: weights, averages, moments, proposal, counters, and the record of every
    step.

    The loss and the norm of each step depend on its batch, its noise and its dropout: they show the order of the data
    and the state of the random numbers. Timings are left out.
    """
    path = sorted(run.glob("checkpoint-*"))[-1]
    state = checkpoint.verify(path)
    found = {name: (path / name).read_bytes() for name in state["files"]}
    counters = {key: value for key, value in state["counters"].items() if key != "seconds"}
    clocked = {"seconds", "tokens_per_second"}
    lines = [{key: value for key, value in line.items() if key not in clocked} for line in record.read_lines(run)]
    return found | {"counters": json.dumps(counters).encode(), "record": json.dumps(lines).encode()}


def different(one: Path, other: Path) -> tuple[list[str], int]:
    """Return the names of the differing parts of two finished runs, and the number of compared bytes."""
    a, b = traces(one), traces(other)
    names = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    return names, sum(map(len, a.values()))


def wait_until(condition: Callable[[], object], process: Process, seconds: float = 300.0) -> bool:
    """Return whether the condition became true while the process was running."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if condition():
            return True
        if time.monotonic() > end:
            raise AssertionError(f"nothing happened within {seconds:g} s")
        time.sleep(0.0005)
    return False

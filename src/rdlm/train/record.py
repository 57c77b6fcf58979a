"""The record for TensorBoard: event files, written at once and by this thread.

torch's own writer has a thread that writes: on a full disk it prints a traceback, and what it lost in its last moments
nobody is told.

The numbers that a run carries along, and how they are read back from a checkpoint.

The record of a run: `record.jsonl`, one JSON object a line, and TensorBoard's files where it is installed.

Lines of kind `step` hold means since the last one; lines of kind `validation` hold a bound in nats per sequence.
After a resume the lines beyond the checkpoint's step are cut off, since they will be written again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from rdlm.errors import DamagedFileError


class Board:
    """An open event file, which hides what an interrupted run wrote after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        seconds, rest = divmod(time.time_ns(), 10**9)
        self._file = (folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}.{os.getpid()}").open("xb")
        self._record = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Add a step's numbers, which are on their way to the disk when this returns."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        shown = [Summary.Value(tag=f"{kind}/{name}", simple_value=value) for name, value in values.items()]
        self._add(Event(step=step, summary=Summary(value=shown)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._record.write(event.SerializeToString())
        self._file.flush()


def board(folder: Path, step: int) -> Board | None:
    """Return the board in a run's folder; None where TensorBoard is not installed."""
    return None if importlib.util.find_spec("tensorboard") is None else Board(folder / "tensorboard", step)


@dataclass
class Counters:
    """The numbers that a run carries along; all of them stand in its checkpoints."""

    step: int = 0
    """Steps taken, the skipped ones included."""
    updates: int = 0
    """Steps that moved the weights."""
    skipped_in_row: int = 0
    seconds: float = 0.0
    """Time spent training, resumed parts added up."""
    window: int = 0
    """Updates since the last line of the record, whose losses and norms these are sums of."""
    window_loss: float = 0.0
    window_norm: float = 0.0
    loss: float | None = None
    """Mean loss in the last line of the record."""
    validation: dict[str, Any] | None = None
    """Step, bound and standard error of the last validation, in nats per sequence."""
    best: dict[str, Any] | None = None
    """The same of the best one."""

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped because a number was not finite."""
        return self.step - self.updates


WHOLE = ("step", "updates", "skipped_in_row", "window")


def read(path: Path, state: Mapping[str, Any]) -> Counters:
    """Return the counters of a checkpoint's state; numbers of another kind, or that disagree, are damage."""
    found = state.get("counters")
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(Counters)}:
        raise DamagedFileError(f"{path / 'state.json'} is damaged: its counters are not those of a run")
    for name, value in found.items():
        if not _suits(name, value):
            raise DamagedFileError(f"{path / 'state.json'} is damaged: its counter {name} is {value!r:.80}")
    counters = Counters(**found)
    measured = [bound["step"] for bound in (counters.validation, counters.best) if bound is not None]
    parts = [counters.updates, counters.skipped, counters.skipped_in_row, counters.window, *measured]
    if counters.step != state["step"] or not all(0 <= part <= counters.step for part in parts):
        raise DamagedFileError(f"{path / 'state.json'} is damaged: its counters do not agree with its step")
    return counters


def _suits(name: str, value: object) -> bool:
    if name in ("validation", "best"):
        return value is None or (
            isinstance(value, dict)
            and set(value) == {"step", "bound", "stderr"}
            and type(value["step"]) is int
            and all(type(value[key]) in (int, float) for key in ("bound", "stderr"))
        )
    if name == "loss" and value is None:
        return True
    return type(value) is int if name in WHOLE else type(value) in (int, float)


NAME = "record.jsonl"


class Record:
    """An open record, to which lines are added."""

    def __init__(self, folder: Path, step: int) -> None:
        cut(folder / NAME, step)
        self._file = (folder / NAME).open("a", encoding="utf-8")
        self._board = board(folder, step)

    def write(self, kind: str, step: int, **values: float | int | str | None) -> None:
        """Add a line, which is on its way to the disk when this returns."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
            self._board.write(kind, step, numbers)

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's record; a half-written last line is left out."""
    path = folder / NAME
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        found = [_parsed(line) for line in file]
    return [line for line in found if line is not None]


def cut(path: Path, step: int) -> None:
    """Cut a record off before its first line that is beyond `step` or not whole; no disk space is needed."""
    if not path.exists():
        return
    keep = 0
    with path.open("rb") as file:
        for raw in file:
            line = _parsed(raw.decode(errors="replace"))
            if line is None or line["step"] > step:
                break
            keep += len(raw)
    os.truncate(path, keep)


def _parsed(line: str) -> dict[str, Any] | None:
    """Return a whole line's object, or None."""
    try:
        found = json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None

"""The record for TensorBoard: event files, written at once and by this thread.

torch's own writer has a thread that writes: on a full disk it prints a traceback, and what it lost in its last moments
nobody is told.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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

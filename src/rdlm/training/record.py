"""The record of a run: `record.jsonl`, one JSON object a line, and TensorBoard's files where it is installed.

Lines of kind `step` hold means since the last one; lines of kind `validation` hold a bound in nats per sequence.
After a resume the lines beyond the checkpoint's step are cut off, since they will be written again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from rdlm.training.board import board

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

"""Rows that are kept as they are made: a table that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

Row = dict[str, object]
Work = Callable[[], Row]


def afresh(key: object, work: Work) -> Row:
    """Return the row that `work` makes, whatever its key."""
    return work()


class Memo:
    """A file of rows, a JSON object a line, each with the digest of what it is a row of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            whole = [line for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
            # The end of a line that was being written when the table was stopped would spoil the next one.
            os.truncate(path, sum(len(line.encode()) for line in whole))
            self._rows = {kept["of"]: kept["row"] for kept in map(json.loads, whole)}

    def __call__(self, key: object, work: Work) -> Row:
        """Return the row of a key, which is whatever its `repr` says: from the file, or made now and kept."""
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        if digest not in self._rows:
            self._rows[digest] = work()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": digest, "row": self._rows[digest]}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self._rows[digest]

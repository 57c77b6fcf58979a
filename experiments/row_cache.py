"""A cache of table rows on disk: a table that was interrupted continues with the rows that are missing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

Row = dict[str, object]
Work = Callable[[], Row]


def uncached(key: object, work: Work) -> Row:
    """Return a newly computed row, without a cache."""
    return work()


class RowCache:
    """A file with one JSON object per line: a row, and the digest of everything it depends on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            whole = [line for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
            # Cut off a line that was only partly written when the process was killed.
            os.truncate(path, sum(len(line.encode()) for line in whole))
            self._rows = {kept["of"]: kept["row"] for kept in map(json.loads, whole)}

    def __call__(self, key: object, work: Work) -> Row:
        """Return the row of a key from the file, or compute and store it; keys are equal if their `repr` is."""
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        if digest not in self._rows:
            self._rows[digest] = work()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": digest, "row": self._rows[digest]}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self._rows[digest]

"""Progress on standard error: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tqdm import tqdm

SECONDS: Final = 5.0
"""Time between two lines of progress."""


def bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> tqdm[Any]:
    """Return a progress bar on a terminal, elsewhere one that prints a line every `SECONDS`.

    With several processes, only the leader prints lines.
    """
    if not sys.stderr.isatty():
        return _Lines(total, label, unit, initial)
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        initial=initial,
        file=sys.stderr,
        dynamic_ncols=True,
        leave=False,
        unit_scale=unit == "B",
    )


class _Lines(tqdm):  # type: ignore[type-arg]
    """Progress as lines: the steps done and in total, the time elapsed and the time left."""

    def __init__(self, total: int | None, label: str, unit: str, initial: int) -> None:
        super().__init__(total=total, initial=initial, disable=True)
        self.label, self.first, self.note = label, initial, ""
        self.divisor = 1e6 if unit == "B" else 1.0
        self.things = "MB" if unit == "B" else unit if unit.endswith("s") else f"{unit}s"
        self.began = self.last = time.monotonic()
        self.leads = os.environ.get("RANK", "0") == "0"

    def update(self, n: float | None = 1) -> None:
        """Count `n` steps, and print a line if the last one is `SECONDS` old."""
        self.n, now = self.n + (n or 0), time.monotonic()
        if now - self.last >= SECONDS and self.leads:
            self.last = now
            print(f"rdlm: {self._line(now - self.began)}", file=sys.stderr, flush=True)

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Set the text at the end of a line."""
        self.note = s

    def _line(self, seconds: float) -> str:
        done, note = self.n - self.first, f", {self.note}" if self.note else ""
        count = f"{self.n / self.divisor:.0f}"
        if self.total is None:
            return f"{self.label}: {count} {self.things}, {seconds:.0f} s{note}"
        left = seconds * (self.total - self.n) / max(done, 1)
        whole = f"{self.total / self.divisor:.0f}"
        return f"{self.label}: {count} of {whole} {self.things}, {seconds:.0f} s, {left:.0f} s left{note}"


@contextmanager
def steps(total: int, label: str, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that counts steps: a bar on a terminal, elsewhere a line every `SECONDS`."""
    with bar(total, label, unit) as shown:
        yield shown.update

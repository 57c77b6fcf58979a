"""Standard error: messages, and progress as bars on a terminal and as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tqdm import tqdm

SECONDS: Final = 5.0
"""Time between two lines of progress."""


def say(message: str) -> None:
    """Print a message of the program."""
    print(f"rdlm: {message}", file=sys.stderr, flush=True)


def bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> tqdm[Any]:
    """Return a progress bar; it is disabled if standard error is not a terminal."""
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        initial=initial,
        file=sys.stderr,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
        leave=False,
        unit_scale=unit == "B",
    )


@contextmanager
def steps(total: int, label: str, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that counts steps: a bar on a terminal, elsewhere a line every `SECONDS`."""
    if sys.stderr.isatty():
        with bar(total, label, unit) as shown:
            yield shown.update
        return
    began = last = time.monotonic()
    done = 0

    def report(count: int) -> None:
        nonlocal done, last
        done, now = done + count, time.monotonic()
        if now - last >= SECONDS:
            last = now
            left = (now - began) * (total - done) / max(done, 1)
            print(f"rdlm: {label}: {done} of {total} {unit}, {now - began:.0f} s, {left:.0f} s left", file=sys.stderr)

    yield report

"""Standard error: messages, and progress bars, which are drawn on a terminal only."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


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

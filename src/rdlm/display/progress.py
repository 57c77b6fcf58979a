"""Progress bars for people, on standard error, silent when nobody watches."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> tqdm[Any]:
    """Return a progress bar with an estimate; it draws only where standard error is a terminal."""
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

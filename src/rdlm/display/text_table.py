"""Output of results: one JSON object, or a text table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence


def print_json(result: Mapping[str, object]) -> None:
    """Print `result` as one JSON object on standard output; numbers that are not finite become null."""
    print(json.dumps(_finite(result), indent=2, allow_nan=False))


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return `columns` of `rows` as aligned text with a header, numbers right-aligned, without a final newline.

    Floats have four significant digits, large ones an exponent; missing keys and None are shown as a dash.
    """
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [any(_is_number(row.get(column)) for row in rows) for column in columns]

    def line(texts: Sequence[str]) -> str:
        fitted = zip(texts, widths, numeric, strict=True)
        return "  ".join(t.rjust(width) if right else t.ljust(width) for t, width, right in fitted).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, cells)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        if abs(value) >= 1e9:
            return f"{value:.3e}"
        return f"{value:.0f}" if abs(value) >= 9999.5 else f"{value:#.4g}".removesuffix(".")
    return str(value)


def _finite(value: object) -> object:
    """Return `value` with all infinities and NaNs in it replaced by None, because JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

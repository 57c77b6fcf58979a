"""Output of results (one JSON object, or a text table) and of messages, with control characters escaped."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
"""Control characters of terminals, except tab and line break, and characters that reverse the order of text."""

_OWN = r"\A\r|\r(?=\n)|\x1b\[[0-9;]*m|\x1b\[A"
"""Allowed control sequences: the beginning of a progress bar, colours, and the move to another bar."""


def printable(text: str) -> str:
    """Return a text with control characters as escapes such as \\x1b: texts and names of others may contain any."""
    return re.sub(_CONTROL, _escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


class PrintableStream:
    """A text stream that writes control characters as escapes, except those of colours and progress bars."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        self._inner.write(re.sub(f"({_OWN})|{_CONTROL}", lambda found: found[1] or _escape(found), text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def say(message: str) -> None:
    """Print a message of the program on standard error."""
    print(f"rdlm: {message}", file=sys.stderr, flush=True)


def print_json(result: Mapping[str, object]) -> None:
    """Print `result` as one JSON object on standard output; numbers that are not finite become null."""
    print(json.dumps(_finite(result), indent=2, allow_nan=False))


def print_result(result: Mapping[str, object], text: str, as_json: bool) -> None:
    """Print the result of a command, as one JSON object or as text."""
    if as_json:
        print_json(result)
    else:
        print(text)


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

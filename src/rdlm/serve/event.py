"""Server-sent events: how the service writes a stream."""

from __future__ import annotations

import json
from typing import Final

HEADERS: Final = {"X-Accel-Buffering": "no"}
"""Asks a proxy to pass events on as they come."""


def data(content: object, event: str | None = None) -> bytes:
    """Return an event; a text goes as it is, everything else as JSON, which has no line breaks of its own."""
    body = content if isinstance(content, str) else json.dumps(content, allow_nan=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {body}\n\n".encode()


def pulse() -> bytes:
    """Return a comment, which every client passes over: it only shows that the stream lives."""
    return b": at work\n\n"

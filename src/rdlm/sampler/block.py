"""Block-wise generation: windows slide along a sequence that is longer than those the model was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rdlm.errors import InputError


class Stretch(NamedTuple):
    """A window: positions `begin` to `end`, of which those from `fresh` on are new."""

    begin: int
    fresh: int
    end: int


def stretches(length: int, context: int, block: int | None = None) -> Iterator[Stretch]:
    """Yield the windows of at most `context` positions that cover `length`; each but the first adds a block.

    A block is half the context if not given; a long one needs fewer windows, a short one sees more of what is written.
    """
    size = max(1, context // 2) if block is None else block
    if not 1 <= size <= context:
        raise InputError(f"a block must have 1 to {context} tokens, the model's length, got {size}")
    end = min(length, context)
    yield Stretch(0, 0, end)
    while end < length:
        fresh, end = end, min(length, end + size)
        yield Stretch(max(0, end - context), fresh, end)

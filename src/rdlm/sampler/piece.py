"""Pieces: how much of a large tensor to work on at once.

Intermediate results in fresh memory cost more than their arithmetic, because its pages must be found and cleared first.
In pieces they stay where they are, in the cache.
"""

from __future__ import annotations

import sys

from torch import Tensor

CACHED = 2**19
"""Numbers of one tensor that a CPU works on at once."""


def rows_of(like: Tensor, width: int) -> int:
    """Return how many rows of so many numbers to work on at once: on a CPU as many as stay in its cache, else all."""
    return max(1, CACHED // width) if like.device.type == "cpu" else sys.maxsize

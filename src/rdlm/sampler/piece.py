"""Pieces: how much of a large tensor to work on at once.

Intermediate results in fresh memory cost more than their arithmetic, because its pages must be found and cleared first.
In pieces they stay where they are, in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

CACHED = 2**19
"""Numbers of one tensor that a CPU works on at once."""


def pieces(width: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows of all tensors after the other: on a CPU as many of so many numbers as stay in its cache."""
    size = max(1, CACHED // width)
    if not tensors[0].is_cpu or len(tensors[0]) <= size:
        yield tensors
    else:
        yield from zip(*(one.split(size) for one in tensors), strict=True)

"""Starts: points of the sphere at one angle to every token, from which a bridge sets out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdlm.errors import InputError


@dataclass(frozen=True)
class Start:
    """The point `sqrt(1-l) e_mask + sqrt(l/V) sum_k e_k`, Eq. (34), on the sphere of `V + 1` coordinates.

    The tokens are the first `vocabulary` coordinates, the mask is the last one. `spread` is `l`.
    """

    vocabulary: int
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise InputError(f"a vocabulary needs at least 2 tokens, got {self.vocabulary}")
        if not 0 <= self.spread <= 1:
            raise InputError(f"the spread of a start must lie in [0, 1], got {self.spread}")

    @property
    def dimension(self) -> int:
        """Return `d`, the number of coordinates, the mask's included."""
        return self.vocabulary + 1

    @property
    def token_coordinate(self) -> float:
        """Return the start's coordinate on each token, the cosine of its angle to it."""
        return math.sqrt(self.spread / self.vocabulary)

    @property
    def mask_coordinate(self) -> float:
        """Return the start's coordinate on the mask."""
        return math.sqrt(1 - self.spread)

    @property
    def angle(self) -> float:
        """Return `r_0`, the start's angle to every token."""
        return math.acos(self.token_coordinate)

    def point(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Return the start as a vector [d], Eq. (34)."""
        point = torch.full((self.dimension,), self.token_coordinate, dtype=dtype, device=device)
        point[-1] = self.mask_coordinate
        return point


def masked(vocabulary: int) -> Start:
    """Return the mask's vertex, the start that generalises masked diffusion."""
    return Start(vocabulary, 0.0)


def uniform(vocabulary: int) -> Start:
    """Return the normalised vector of ones, the mask's coordinate included, as in the paper."""
    return Start(vocabulary, vocabulary / (vocabulary + 1))


def from_point(point: Tensor) -> Start:
    """Return the start at a given vector [d]; an error when its angles to the tokens differ."""
    tokens = point[:-1].double()
    norm = point.double().norm().item()
    if not abs(norm - 1) <= 1e-4:  # NaN fails the comparison
        raise InputError(f"a start must lie on the unit sphere, got a vector of length {norm:g}")
    spread = tokens.max().item() - tokens.min().item()
    if spread > 1e-4 or point.min().item() < -1e-4:
        raise InputError(
            "a start must have non-negative coordinates and the same one on every token, "
            f"got token coordinates from {tokens.min().item():g} to {tokens.max().item():g}"
        )
    return Start(len(tokens), min(1.0, len(tokens) * tokens.mean().item() ** 2))

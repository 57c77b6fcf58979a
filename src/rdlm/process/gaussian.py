"""The Gaussian channel: observations `a c_k + sqrt(a) z` of a token's vector, the bridge of flat space, Eq. (56).

A state is `x = B u`, with `u` the sum of all observations so far and `a = 1/B - 1/S` their strength: a bridge from the
origin to `c_k` with total noise `S`. The chain's coefficients, Eq. (18), are exact for it, so that schedules, grids and
token schedules are those of the sphere. It is the limit of the sphere's Brownian bridge for `S -> 0`, and the channel
of Bayesian flow networks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm import random as numbers
from rdlm.errors import InputError
from rdlm.geometry import special
from rdlm.process.channel import Channel
from rdlm.process.tokens import Tokens
from rdlm.random import Rng


@dataclass(frozen=True)
class Origin:
    """The zero vector: no observation."""

    vocabulary: int
    dimension: int
    token_weight: float = 0.0

    def point(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Return the start as a vector [d]."""
        return torch.zeros(self.dimension, dtype=dtype, device=device)


@dataclass(frozen=True)
class Gaussian(Channel):
    """Gaussian observations of unit vectors, Eq. (56), as a bridge of flat space with total noise `total`."""

    start: Origin
    total: float
    points: Tokens | None = field(compare=False)
    kind: Literal["gaussian"] = "gaussian"

    def __post_init__(self) -> None:
        if not 0 < self.total < float("inf"):
            raise InputError(f"the total noise S of a bridge must be positive, got {self.total}")

    @staticmethod
    def of(tokens: Tokens, total: float) -> Gaussian:
        """Return the channel for tokens at given points."""
        return Gaussian(Origin(tokens.vocabulary, tokens.coordinates), total, tokens)

    @property
    def dimension(self) -> int:
        """`d`, the number of coordinates of a token's vector."""
        return self.start.dimension

    def with_points(self, points: Tokens) -> Gaussian:
        """Return the same channel with the tokens at other points."""
        return replace(self, points=points)

    def check_evidence(self) -> None:
        """The evidence is exact at any noise."""

    def log_likelihood(
        self, state: Float[Tensor, "... d"], remaining: Float[Tensor, ...] | float
    ) -> Float[Tensor, "... v"]:
        """Return `<u, c_k> = <x, c_k> / B` for every token, Eq. (56); at the smallest noise where `B = 0`."""
        level = torch.as_tensor(remaining, dtype=state.dtype, device=state.device)
        return self.tokens.cosines(state / level.clamp_min(special.SMALLEST_NOISE)[..., None])

    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        """Return 1: the pull is `c_k - x`."""
        return torch.ones_like(cosine)

    def token_direction(
        self, state: Float[Tensor, "... d"], token: Int[Tensor, ...], weight: Float[Tensor, ...]
    ) -> Float[Tensor, "... d"]:
        """Return `w (c_k - x)`."""
        return self.tokens.add_(-weight[..., None] * state, token, weight)

    def mixture_direction(
        self, state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]
    ) -> Float[Tensor, "... d"]:
        """Return `sum_k w_k (c_k - x)`."""
        return self.tokens.add_mean_(-weight.sum(-1, keepdim=True) * state, weight)

    def squared_length(self, state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
        """Return the squared length of `mixture_direction`."""
        return self.mixture_direction(state, weight).square().sum(-1)

    def squared_distance(self, state: Float[Tensor, "... d"], cosine: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
        """Return `|c_k - x|^2` for unit vectors."""
        return state.square().sum(-1, keepdim=True) + 1 - 2 * cosine

    def products(self, state: Float[Tensor, "... d"], step: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        """Return `<c_k - x, u>`."""
        return self.tokens.cosines(step) - (state * step).sum(-1, keepdim=True)

    def noise(self, state: Float[Tensor, "... d"], generator: Rng = None) -> Float[Tensor, "... d"]:
        """Return a standard normal vector at each state."""
        return numbers.normal(state.shape, generator, state.dtype, state.device)

    def move(self, state: Float[Tensor, "... d"], step: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return the sum of state and step."""
        return state + step

    def move_(
        self,
        state: Float[Tensor, "... d"],
        ambient: Float[Tensor, "... d"],
        scale: Float[Tensor, ...] | None,
        weight: Float[Tensor, ...],
    ) -> Float[Tensor, "... d"]:
        """Return `x + s (a - w x)`."""
        step = ambient.addcmul_(state, weight[..., None], value=-1)
        return state + (step if scale is None else step.mul_(scale[..., None]))

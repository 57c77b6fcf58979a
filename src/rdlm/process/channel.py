"""Channels: the steps of a chain, in which the state of a position gains information about its token.

Chains, bounds and samplers are written in terms of a channel: its start, the pull of a step towards a token, the noise
of the step, and the evidence of a state. Two families of channels exist,

| class | channel | states |
|---|---|---|
| `Bridge` (`bridge`) | bridges of the sphere, Brownian or the paper's | points of the sphere, from start to token |
| `Gaussian` (here) | Gaussian observations, the limit of small noise | vectors of flat space, from the origin |

and a third needs no states: with one step per position (`rdlm.process.order`) a token is erased or known, and the step
that reveals it is the decode step, Eq. (30).

A channel fixes the geometry by five functions of a state `x` and a token's vector `c_k`: the slope `f_k`, the direction
of the pull (`f_k (c_k - <x, c_k> x)` on the sphere, `c_k - x` in flat space), its length, the noise and the move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm import random as numbers
from rdlm.errors import InputError
from rdlm.geometry import special
from rdlm.process.tokens import Codes, Tokens, Vertices
from rdlm.random import Rng

TILE = 2**20
"""Scores to which evidence is added at once on a CPU; the fastest size measured."""


class StartPoint(Protocol):
    """The state of every position before the first step."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""

    @property
    def token_weight(self) -> float:
        """The squared length of the start's part on the tokens."""

    def point(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Return the start as a vector [d]."""


class Channel(ABC):
    """The steps that move a state towards its token, for total noise `total` and tokens at given points."""

    start: StartPoint
    """The state of every position before the first step."""
    total: float
    kind: str
    """The name of the channel, as in `process.bridge`."""
    points: Tokens | None
    """The points of the tokens; None: vertices."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """`d`, the number of coordinates of a state."""

    @cached_property
    def tokens(self) -> Tokens:
        """The points of the tokens."""
        return Vertices(self.start.vocabulary) if self.points is None else self.points

    @cached_property
    def vocabulary(self) -> int:
        """`V`, the number of tokens."""
        return self.start.vocabulary

    @abstractmethod
    def check_evidence(self) -> None:
        """Raise InputError if the evidence is not accurate at the total noise."""

    @abstractmethod
    def log_likelihood(
        self, state: Float[Tensor, "... d"], remaining: Float[Tensor, ...] | float
    ) -> Float[Tensor, "... v"]:
        """Return the evidence of a state for every token up to a common constant, Eq. (25) or (56)."""

    def add_log_likelihood_(
        self, scores: Float[Tensor, "... v"], state: Float[Tensor, "... d"], remaining: Float[Tensor, ...]
    ) -> None:
        """Add the evidence of states to the scores of all tokens, in place and in tiles, which saves memory."""
        fixed = self.with_points(self.tokens.fixed(scores)) if isinstance(self.tokens, Codes) else self
        level = remaining.expand(state.shape[:-1])
        rows = scores.view(-1, scores.shape[-1]), state.reshape(-1, self.dimension), level.reshape(-1)
        size = max(1, TILE // scores.shape[-1]) if scores.device.type == "cpu" else max(1, len(rows[0]))
        for begin in range(0, len(rows[0]), size):
            own, x, b = (part[begin : begin + size] for part in rows)
            own.add_(fixed.log_likelihood(x, b))

    @abstractmethod
    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        """Return `f`, the factor of the direction towards a token, as a function of `<x, c_k>`, Eq. (10)."""

    @abstractmethod
    def token_direction(
        self, state: Float[Tensor, "... d"], token: Int[Tensor, ...], weight: Float[Tensor, ...]
    ) -> Float[Tensor, "... d"]:
        """Return `w` times the direction towards one token per position; with `w = f_k` the pull, Eq. (10)."""

    @abstractmethod
    def mixture_direction(
        self, state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]
    ) -> Float[Tensor, "... d"]:
        """Return the sum over tokens of `w_k` times their direction, Eq. (11), without a tensor [v, d]."""

    @abstractmethod
    def squared_length(self, state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
        """Return the squared length of `mixture_direction`, Eq. (11)."""

    @abstractmethod
    def squared_distance(self, state: Float[Tensor, "... d"], cosine: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
        """Return the squared length of the direction towards every token, given `<x, c_k>`."""

    @abstractmethod
    def products(self, state: Float[Tensor, "... d"], step: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        """Return the product of a step with the direction towards every token."""

    @abstractmethod
    def noise(self, state: Float[Tensor, "... d"], generator: Rng = None) -> Float[Tensor, "... d"]:
        """Return a standard normal step at each state."""

    @abstractmethod
    def move(self, state: Float[Tensor, "... d"], step: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return the states after a step, Eq. (19)."""

    @abstractmethod
    def move_(
        self,
        state: Float[Tensor, "... d"],
        ambient: Float[Tensor, "... d"],
        scale: Float[Tensor, ...] | None,
        weight: Float[Tensor, ...],
    ) -> Float[Tensor, "... d"]:
        """Return the states after the step `s (a - w x)`, tangent to the sphere where there is one, Eq. (19).

        `ambient` is `a`: noise plus tokens' vectors of total weight `weight`, both in units of `scale`; it is
        overwritten.
        """

    @abstractmethod
    def with_points(self, points: Tokens) -> Channel:
        """Return the channel with the tokens at other points."""

    def mean_pull(
        self, state: Float[Tensor, "... d"], probability: Float[Tensor, "... v"], remaining: Float[Tensor, ...]
    ) -> Float[Tensor, "... d"]:
        """Return `sum_l p_l v_l`, the mean of the pulls towards all tokens, Eq. (11)."""
        slope = self.slope(self.tokens.cosines(state), remaining[..., None])
        return self.mixture_direction(state, probability * slope)


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
    """Observations `a c_k + sqrt(a) z` of a token's unit vector, Eq. (56), a bridge of flat space.

    A state is `x = B u`, with `u` the sum of all observations so far and `a = 1/B - 1/S` their strength: a bridge from
    the origin to `c_k` with total noise `S`. The chain's coefficients, Eq. (18), are exact for it, so that schedules,
    grids and token schedules are those of the sphere. It is the limit of the sphere's Brownian bridge for `S -> 0`, and
    the channel of Bayesian flow networks.
    """

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

    def log_likelihood(self, state: Tensor, remaining: Tensor | float) -> Tensor:
        """Return `<u, c_k> = <x, c_k> / B` for every token, Eq. (56); at the smallest noise where `B = 0`."""
        level = torch.as_tensor(remaining, dtype=state.dtype, device=state.device)
        return self.tokens.cosines(state / level.clamp_min(special.SMALLEST_NOISE)[..., None])

    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        """Return 1: the pull is `c_k - x`."""
        return torch.ones_like(cosine)

    def token_direction(self, state: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        """Return `w (c_k - x)`."""
        return self.tokens.add_(-weight[..., None] * state, token, weight)

    def mixture_direction(self, state: Tensor, weight: Tensor) -> Tensor:
        """Return `sum_k w_k (c_k - x)`."""
        return self.tokens.add_mean_(-weight.sum(-1, keepdim=True) * state, weight)

    def squared_length(self, state: Tensor, weight: Tensor) -> Tensor:
        """Return the squared length of `mixture_direction`."""
        return self.mixture_direction(state, weight).square().sum(-1)

    def squared_distance(self, state: Tensor, cosine: Tensor) -> Tensor:
        """Return `|c_k - x|^2` for unit vectors."""
        return state.square().sum(-1, keepdim=True) + 1 - 2 * cosine

    def products(self, state: Tensor, step: Tensor) -> Tensor:
        """Return `<c_k - x, u>`."""
        return self.tokens.cosines(step) - (state * step).sum(-1, keepdim=True)

    def noise(self, state: Tensor, generator: Rng = None) -> Tensor:
        """Return a standard normal vector at each state."""
        return numbers.normal(state.shape, generator, state.dtype, state.device)

    def move(self, state: Tensor, step: Tensor) -> Tensor:
        """Return the sum of state and step."""
        return state + step

    def move_(self, state: Tensor, ambient: Tensor, scale: Tensor | None, weight: Tensor) -> Tensor:
        """Return `x + s (a - w x)`."""
        step = ambient.addcmul_(state, weight[..., None], value=-1)
        return state + (step if scale is None else step.mul_(scale[..., None]))

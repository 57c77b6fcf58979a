"""Channels: the steps of a chain, in which the state of a position gains information about its token.

Chains, bounds and samplers are written in terms of a channel: its start, the pull of a step towards a token, the noise
of the step, and the evidence of a state. Two families of channels exist,

| class | channel | states |
|---|---|---|
| `Bridge` (`bridge`) | bridges of the sphere, Brownian or the paper's | points of the sphere, from start to token |
| `Gaussian` (`gaussian`) | Gaussian observations, the limit of small noise | vectors of flat space, from the origin |

and a third needs no states: with one step per position (`rdlm.process.order`) a token is erased or known, and the step
that reveals it is the decode step, Eq. (30).

A channel fixes the geometry by five functions of a state `x` and a token's vector `c_k`: the slope `f_k`, the direction
of the pull (`f_k (c_k - <x, c_k> x)` on the sphere, `c_k - x` in flat space), its length, the noise and the move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

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

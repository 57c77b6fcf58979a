"""Tokens as points: unit vectors `c_k`, one-hot or learned, and all products of states with them.

On a sphere the mask is one more coordinate, the last one, on which every `c_k` is 0: the angle from the mask's vertex
to every token is then `pi / 2`, and nothing in the law of a bridge depends on the vectors themselves, Eq. (55).
"""

from __future__ import annotations

import copy
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.errors import InputError
from rdlm.random import Rng

MANY_TOKENS = 1024
"""Number of tokens from which the evidence of codes is interpolated (error: 1e-5 nats) and not stored."""


class Vertices:
    """One-hot vectors: each token has its own coordinate, so products are coordinates."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = self.coordinates = vocabulary

    def cosines(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        """Return the coordinates of the tokens, a view."""
        return x[..., : self.vocabulary]

    def cosine(self, x: Float[Tensor, "... d"], token: Int[Tensor, ...]) -> Float[Tensor, ...]:
        """Return the coordinate of one token per position."""
        return x.gather(-1, token[..., None])[..., 0]

    def at(self, token: Int[Tensor, ...], like: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return one-hot vectors."""
        return torch.zeros_like(like).scatter_(-1, token[..., None], 1.0)

    def add_(
        self, x: Float[Tensor, "... d"], token: Int[Tensor, ...], weight: Float[Tensor, ...]
    ) -> Float[Tensor, "... d"]:
        """Return `x` with the weights added to the tokens' coordinates, in place."""
        return x.scatter_add_(-1, token[..., None], weight[..., None])

    def add_mean_(self, x: Float[Tensor, "... d"], *weights: Float[Tensor, "... v"]) -> Float[Tensor, "... d"]:
        """Return `x` with the (product of the) weights added to all tokens' coordinates, in place."""
        own = x[..., : self.vocabulary]
        own.addcmul_(*weights) if len(weights) == 2 else own.add_(*weights)
        return x

    def mean_product(self, x: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
        """Return `sum_k w_k x_k`."""
        return (weight * x[..., : self.vocabulary]).sum(-1)

    def mean_squares(
        self, x: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]
    ) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
        """Return `|w|^2` and `(sum_k w_k x_k)^2`."""
        return weight.square().sum(-1), self.mean_product(x, weight).square()


class Codes(nn.Module):
    """Learned unit vectors: the rows of `weight`, normalised wherever they are used, Eq. (55).

    Only a copy from `learning` passes gradients to the rows: states, evidence and steps are otherwise constants.
    """

    def __init__(self, vocabulary: int, coordinates: int, generator: Rng = None) -> None:
        """Draw random rows, orthonormal ones where there are enough coordinates."""
        super().__init__()
        if coordinates < 3:
            raise InputError(f"codes need at least 3 dimensions, got process.dimension {coordinates}")
        self.vocabulary, self.coordinates = vocabulary, coordinates
        weight = torch.randn(vocabulary, coordinates, generator=generator)
        if coordinates >= vocabulary:
            weight = torch.linalg.qr(weight.T).Q.T  # orthonormal rows
        self.weight = nn.Parameter(functional.normalize(weight, dim=-1))
        self._constant = True
        self._vectors: Tensor | None = None

    @staticmethod
    def arc(vocabulary: int, coordinates: int) -> Codes:
        """Return points at equal distances on a half circle, which are not trained: codes of ordered tokens."""
        codes = Codes(vocabulary, coordinates, torch.Generator().manual_seed(0))
        angle = torch.linspace(0, math.pi, vocabulary, dtype=torch.float64)
        points = torch.stack([angle.cos(), angle.sin()], -1)  # [V, 2]
        points = functional.pad(points, (0, coordinates - 2)).float()
        codes.weight = nn.Parameter(points, requires_grad=False)
        return codes

    @property
    def learned(self) -> bool:
        """Whether training changes the vectors."""
        return self.weight.requires_grad

    def learning(self) -> Codes:
        """Return the same codes, with the same parameter, through which gradients flow."""
        found = copy.copy(self)
        found._constant = False
        return found

    def fixed(self, like: Tensor) -> Codes:
        """Return a copy with vectors that are normalised once, in the type of `like`; for many small products."""
        found = copy.copy(self)
        found._vectors = self.vectors(like)
        return found

    @torch.no_grad()
    def normalise(self) -> None:
        """Set the length of every row to 1; after an update of the rows."""
        self.weight.copy_(functional.normalize(self.weight, dim=-1))

    def vectors(self, like: Tensor) -> Float[Tensor, "v c"]:
        """Return the unit vectors of all tokens in the type of `like`."""
        if self._vectors is not None:
            return self._vectors
        weight = self.weight.detach() if self._constant else self.weight
        return functional.normalize(weight.to(like), dim=-1)

    def cosines(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        """Return `<x, c_k>` for every token, one product of matrices."""
        return x[..., : self.coordinates] @ self.vectors(x).T

    def cosine(self, x: Float[Tensor, "... d"], token: Int[Tensor, ...]) -> Float[Tensor, ...]:
        """Return `<x, c_k>` for one token per position."""
        return (x[..., : self.coordinates] * self.vectors(x)[token]).sum(-1)

    def at(self, token: Int[Tensor, ...], like: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return the vectors of tokens, 0 on the mask."""
        return functional.pad(self.vectors(like)[token], (0, like.shape[-1] - self.coordinates))

    def add_(
        self, x: Float[Tensor, "... d"], token: Int[Tensor, ...], weight: Float[Tensor, ...]
    ) -> Float[Tensor, "... d"]:
        """Return `x + w c_k` for one token per position, in place."""
        x[..., : self.coordinates].add_(weight[..., None] * self.vectors(x)[token])
        return x

    def add_mean_(self, x: Float[Tensor, "... d"], *weights: Float[Tensor, "... v"]) -> Float[Tensor, "... d"]:
        """Return `x + sum_k w_k c_k`, in place; two weights are multiplied."""
        weight = weights[0] * weights[1] if len(weights) == 2 else weights[0]
        x[..., : self.coordinates].add_(weight @ self.vectors(x))
        return x

    def mean_product(self, x: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
        """Return `<x, sum_k w_k c_k>`."""
        return (x[..., : self.coordinates] * (weight @ self.vectors(x))).sum(-1)

    def mean_squares(
        self, x: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]
    ) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
        """Return `|m|^2` and `<x, m>^2` for `m = sum_k w_k c_k`, from one product of matrices."""
        mean = weight @ self.vectors(x)
        return mean.square().sum(-1), (x[..., : self.coordinates] * mean).sum(-1).square()


Tokens = Vertices | Codes
"""The points of `vocabulary` tokens in the first `coordinates` coordinates of a state."""

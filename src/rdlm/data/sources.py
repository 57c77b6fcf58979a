"""Toy sources of known entropy, against which bounds are certified."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError


@dataclass(frozen=True)
class Source:
    """A joint distribution over `length` positions of `states` states, stored as a table."""

    name: str
    log_joint: Tensor
    """log p of every sequence, one axis per position: [states] * length, float64."""

    @property
    def length(self) -> int:
        """Return the number of positions."""
        return self.log_joint.dim()

    @property
    def states(self) -> int:
        """Return the number of states of a position."""
        return self.log_joint.shape[0]

    @property
    def entropy(self) -> float:
        """Return the entropy of a sequence in nats, with 0 log 0 = 0."""
        return float(torch.special.entr(self.log_joint.exp()).sum())

    @property
    def log_prior(self) -> Float[Tensor, "length states"]:
        """Return the marginal log-probabilities of each position."""
        others = [[j for j in range(self.length) if j != i] for i in range(self.length)]
        return torch.stack([self.log_joint.logsumexp(axes) if axes else self.log_joint for axes in others])

    def draw(self, count: int, generator: torch.Generator | None = None) -> Int[Tensor, "count length"]:
        """Return `count` sequences, by inversion of the cumulative distribution in float64."""
        cumulative = self.log_joint.exp().flatten().cumsum(0)
        level = torch.rand(count, generator=generator, dtype=torch.float64) * cumulative[-1]
        code = torch.searchsorted(cumulative, level, right=True).clamp(max=cumulative.numel() - 1)
        return torch.stack(torch.unravel_index(code, self.log_joint.shape), dim=-1)


def uniform(states: int) -> Source:
    """Return the one-position source of `states` equally likely states, entropy log(states)."""
    return _independent(f"uniform-{states}", torch.ones(_at_least_two(states), dtype=torch.float64))


def skewed(states: int) -> Source:
    """Return the one-position Zipf-Mandelbrot source p_k ~ (k + 0.868)^-0.8036.

    Its entropy is 1.018 nats for 3 states and 2.927 nats for 27, between Zipf's law and the uniform distribution.
    """
    rank = torch.arange(_at_least_two(states), dtype=torch.float64)
    return _independent(f"skewed-{states}", (rank + 0.868) ** -0.8036)


def markov(length: int = 2) -> Source:
    """Return positions of 3 states, each repeating the one before with probability 3/4.

    The start is (1/2, 1/3, 1/6), so the entropy of two is 1.0114 + 0.7356 = 1.7470 nats, 0.33 below independence.
    """
    joint, move = markov_law()
    for _ in range(length - 1):
        joint = joint[..., None] * move
    return Source("markov-3" if length == 2 else f"markov-3, {length} positions", joint.log())


def markov_law() -> tuple[Float[Tensor, " states"], Float[Tensor, "states states"]]:
    """Return the probabilities of the first state and of the next one after each state of the source `markov`."""
    move = torch.full((3, 3), 1 / 8, dtype=torch.float64).fill_diagonal_(3 / 4)
    return torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64), move


def _independent(name: str, weight: Tensor) -> Source:
    return Source(name, (weight / weight.sum()).log())


def _at_least_two(states: int) -> int:
    if states < 2:
        raise InputError(f"a source needs at least 2 states, got {states}")
    return states

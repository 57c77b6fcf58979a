"""Toy sources of known entropy, against which bounds are certified."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        """The number of positions."""
        return self.log_joint.dim()

    @property
    def states(self) -> int:
        """The number of states of a position."""
        return self.log_joint.shape[0]

    @property
    def entropy(self) -> float:
        """The entropy of a sequence in nats, with 0 log 0 = 0."""
        return float(torch.special.entr(self.log_joint.exp()).sum())

    @property
    def support(self) -> Int[Tensor, "s length"]:
        """The sequences of positive probability."""
        return (self.log_joint > -math.inf).nonzero()

    def log_prob(self, token: Int[Tensor, "... length"]) -> Float[Tensor, ...]:
        """Return the log-probability of sequences."""
        return self.log_joint[token.unbind(-1)]

    def relabelled(self, order: Int[Tensor, " states"]) -> Source:
        """Return the source in which state `k` is called `order[k]`."""
        joint, inverse = self.log_joint, order.argsort()
        for axis in range(self.length):
            joint = joint.index_select(axis, inverse)
        return Source(f"{self.name}, relabelled", joint)

    @property
    def log_prior(self) -> Float[Tensor, "length states"]:
        """The marginal log-probabilities of each position."""
        others = [[j for j in range(self.length) if j != i] for i in range(self.length)]
        return torch.stack([self.log_joint.logsumexp(axes) if axes else self.log_joint for axes in others])

    def draw(self, count: int, generator: torch.Generator | None = None) -> Int[Tensor, "count length"]:
        """Return `count` sequences, by inversion of the cumulative distribution in float64."""
        cumulative = self.log_joint.exp().flatten().cumsum(0)
        level = torch.rand(count, generator=generator, dtype=torch.float64) * cumulative[-1]
        code = torch.searchsorted(cumulative, level, right=True).clamp(max=cumulative.numel() - 1)
        return torch.stack(torch.unravel_index(code, self.log_joint.shape), dim=-1)


def uniform(states: int, length: int = 1) -> Source:
    """Return independent positions of `states` equally likely states, entropy `length * log(states)`."""
    return _independent("uniform", torch.ones(_at_least_two(states), dtype=torch.float64), length)


def skewed(states: int, length: int = 1) -> Source:
    """Return independent positions with Zipf-Mandelbrot probabilities p_k ~ (k + 0.868)^-0.8036.

    The entropy of one is 1.018 nats for 3 states and 2.927 nats for 27, between Zipf's law and the uniform
    distribution.
    """
    rank = torch.arange(_at_least_two(states), dtype=torch.float64)
    return _independent("skewed", (rank + 0.868) ** -0.8036, length)


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


def markov_two(length: int = 6, states: int = 2) -> Source:
    """Return a Markov chain of order 2: with probability 0.7 a position is the sum of the two before it, mod `states`.

    The first two positions are uniform, and the other states share the rest; so the entropy is
    `2 log(states) + (length - 2) h` with h = 0.611 nats for two states.
    """
    code = torch.arange(_at_least_two(states))
    move = torch.full((states, states, states), 0.3 / (states - 1), dtype=torch.float64)
    move[code[:, None], code, (code[:, None] + code) % states] = 0.7
    joint = torch.full((states,) * min(length, 2), 1 / states ** min(length, 2), dtype=torch.float64)
    for _ in range(length - 2):
        joint = joint[..., None] * move
    return Source(f"markov2-{states}x{length}", joint.log())


def copies(states: int = 4, length: int = 3) -> Source:
    """Return one uniform state, repeated at every position: entropy log(states), whatever the length."""
    return supported(f"copies-{states}x{length}", [[k] * length for k in range(_at_least_two(states))])


def parity(length: int = 4) -> Source:
    """Return bits whose sum is even: any `length - 1` of them are independent, and all together are not."""
    bits = torch.cartesian_prod(*[torch.arange(2)] * length)
    return supported(f"parity-2x{length}", bits[bits.sum(1) % 2 == 0].tolist())


def twin_digits(length: int = 1) -> Source:
    """Return independent tokens of 4 states that are 00 or 11 in base 2: two equal digits, entropy log 2 each."""
    tokens = torch.cartesian_prod(*[torch.tensor([0, 3])] * length).view(-1, length)
    return supported(f"digits-4x{length}", tokens.tolist(), states=4)


def supported(name: str, sequences: Sequence[Sequence[int]], states: int | None = None) -> Source:
    """Return the uniform distribution on the given sequences; `states` is the largest plus one by default."""
    listed = torch.tensor(sequences)
    states = int(listed.max()) + 1 if states is None else states
    joint = torch.full((states,) * listed.shape[1], -math.inf, dtype=torch.float64)
    joint[tuple(listed.T)] = -math.log(len(sequences))
    return Source(name, joint)


def _independent(kind: str, weight: Tensor, length: int) -> Source:
    law = weight / weight.sum()
    joint = law
    for _ in range(length - 1):
        joint = joint[..., None] * law
    return Source(f"{kind}-{len(weight)}" + (f"x{length}" if length > 1 else ""), joint.log())


def _at_least_two(states: int) -> int:
    if states < 2:
        raise InputError(f"a source needs at least 2 states, got {states}")
    return states

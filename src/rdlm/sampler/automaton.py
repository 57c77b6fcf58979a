"""Finite automata over tokens, and exact inference with them: marginals and joint draws of what they accept.

A model's probabilities are a product over positions. Restricted to the sequences that an automaton accepts they
are a Markov chain over its states, whose sums run backward once, and forward once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.sampler.noise import pick_token

Choice = Callable[[Tensor], Tensor]
"""What becomes of the log-probabilities [..., v] of one position before a token is drawn from them."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton; its last state is the dead one, which nothing leaves."""

    table: Int[Tensor, "states v"]
    """The next state for each state and token."""
    accepting: Bool[Tensor, " states"]
    start: int = 0

    def run(self, token: Int[Tensor, "batch n"], state: Int[Tensor, " batch"] | None = None) -> Int[Tensor, " batch"]:
        """Return the state after reading tokens, from the start or from given states."""
        state = torch.full((len(token),), self.start) if state is None else state
        for column in token.T:
            state = self.table[state, column]
        return state

    def alive(self, allowed: Bool[Tensor, "n v"]) -> Bool[Tensor, " states"]:
        """Return from which states some string of allowed tokens, one per row, is accepted."""
        alive = self.accepting
        for row in allowed.flip(0):
            alive = (alive[self.table] & row).any(-1)
        return alive


@dataclass(frozen=True, eq=False)
class Restriction:
    """An automaton at work on a stretch of positions: where each sample enters and in which states it may leave."""

    automaton: Automaton
    entry: Int[Tensor, " batch"]
    end: Bool[Tensor, " states"]

    def backward(self, log_probability: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch steps states"]:
        """Return the log-mass of accepted rests from each position and state on, [batch, n + 1, states]."""
        batch, length, _ = log_probability.shape
        table = self.automaton.table
        mass = torch.full((batch, length + 1, len(table)), -torch.inf, dtype=torch.float64)
        mass[:, -1, self.end] = 0.0
        for i in reversed(range(length)):
            mass[:, i] = (log_probability[:, i, None] + mass[:, i + 1][:, table]).logsumexp(-1)
        return mass

    def marginals(self, log_probability: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch n v"]:
        """Return each position's log-probabilities among the accepted sequences."""
        law = log_probability.double().cpu()
        mass, table = self.backward(law), self.automaton.table
        place = torch.nn.functional.one_hot(self.entry, len(table)).double()  # the law of the state
        result = torch.empty_like(law)
        for i in range(law.shape[1]):
            onward = law[:, i, None] + mass[:, i + 1][:, table]  # [batch, states, v]
            joint = place[..., None] * torch.softmax(onward, -1).nan_to_num(0.0)
            result[:, i] = joint.sum(1)
            place = torch.zeros_like(place).index_add_(1, table.flatten(), joint.flatten(1))
        return result.log().to(log_probability)

    def draw(
        self, log_probability: Float[Tensor, "batch n v"], point: Float[Tensor, "batch n"], choice: Choice
    ) -> Int[Tensor, "batch n"]:
        """Return sequences drawn jointly from the accepted ones, left to right, `choice` applied at each position."""
        law = log_probability.double().cpu()
        mass, table, state = self.backward(law), self.automaton.table, self.entry
        token = torch.empty(law.shape[:2], dtype=torch.long)
        for i in range(law.shape[1]):
            onward = law[:, i] + mass[:, i + 1].gather(1, table[state])
            token[:, i] = pick_token(choice(torch.log_softmax(onward, -1)), point[:, i].cpu())
            state = table[state, token[:, i]]
        return token.to(log_probability.device)


def spellings(vocabulary: int, base: int, digits: int) -> Automaton:
    """Return the automaton over digits that accepts the codes of existing tokens, Eq. (39).

    State `2 j` has read `j` digits that begin the last token's code, `2 j + 1` a smaller beginning.
    """
    last = [(vocabulary - 1) // base ** (digits - 1 - j) % base for j in range(digits)]
    dead = 2 * digits + 2
    table = torch.full((dead + 1, base), dead)
    for j, limit in enumerate(last):
        table[2 * j, :limit] = 2 * j + 3
        table[2 * j, limit] = 2 * j + 2
        table[2 * j + 1] = 2 * j + 3
    accepting = torch.zeros(dead + 1, dtype=torch.bool)
    accepting[2 * digits : 2 * digits + 2] = True
    return Automaton(table, accepting)

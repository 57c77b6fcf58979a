"""The model as a walk sees it: a network with condition, guidance and memory of its last prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.denoiser import Sight
from rdlm.method.rdlm import Rdlm
from rdlm.sampler.recall import Recall


def tempered(
    method: Rdlm,
    law: Float[Tensor, "batch positions v"],
    state: Float[Tensor, "batch positions *spheres d"],
    noise: Float[Tensor, "batch positions"],
    temperature: float,
) -> Float[Tensor, "batch positions v"]:
    """Return the law with what the context says divided by the temperature, and the evidence as it is, Eq. (27).

    Then the samples of independent tokens have the law `p^(1/T)`. Sharpening the evidence, too, would make the
    first noise decide. Without evidence the two cannot be told apart, and all is divided.
    """
    denoiser = method.denoiser
    if not denoiser.config.evidence:
        return torch.log_softmax(law / temperature, -1)
    level = noise[..., None] if denoiser.whole else noise
    evidence = denoiser.bridge.log_likelihood(state, level)
    evidence = denoiser.codec.evidence(evidence) if denoiser.whole else evidence
    return torch.log_softmax(evidence + (law - evidence) / temperature, -1)


def guided(
    conditional: Float[Tensor, "batch positions v"], free: Float[Tensor, "batch positions v"], guidance: float
) -> Float[Tensor, "batch positions v"]:
    """Return the law with the condition weighed by the guidance, Eq. (45), from those with and without it."""
    return torch.log_softmax(free + guidance * (conditional - free), -1)


class Predictor:
    """`log p(token | states)` of a method's network, called for so many sequences at a time.

    A matrix product's rounding depends on the number of its rows. With `rows = 1` a sample depends on nothing but
    its seed, whatever else is in the batch. A condition of one row is that of all sequences.
    """

    def __init__(
        self,
        method: Rdlm,
        condition: Tensor | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        rows: int = 1,
        sight: Sight | None = None,
    ) -> None:
        self.method, self.condition, self.guidance, self.temperature = method, condition, guidance, temperature
        self.rows, self.sight = rows, sight
        self._previous: Tensor | None = None

    def __call__(
        self,
        state: Float[Tensor, "batch positions *spheres d"],
        noise: Float[Tensor, "batch positions"],
        recall: Recall | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return log-probabilities, guided where there is a condition, Eq. (45), and tempered."""
        with torch.no_grad():
            some = [slice(at, at + self.rows) for at in range(0, len(state), self.rows)]
            if recall is None:
                parts = [self._rows(rows, state, noise) for rows in some]
            else:
                parts = self._recalled(some, state, noise, recall)
            law = parts[0] if len(parts) == 1 else torch.cat(parts)
            if self.method.config.model.self_condition:
                self._previous = self.method.denoiser.previous(law)
            return law if self.temperature == 1 else tempered(self.method, law, state, noise, self.temperature)

    def _recalled(self, some: Sequence[slice], state: Tensor, noise: Tensor, recall: Recall) -> list[Tensor]:
        """Return what is said of some sequences after the other about the chunk that runs; they are not guided."""
        asked = [recall.rows(rows) for rows in some]
        laws = [
            one.law(self.method, state[rows], noise[rows], self._given(rows, len(state)))
            for rows, one in zip(some, asked, strict=True)
        ]
        recall.remember(asked)
        return laws

    def _given(self, rows: slice, count: int) -> Tensor | None:
        """Return the condition of some of so many sequences."""
        if self.condition is None:
            return None
        alike = len(self.condition) == 1
        return (self.condition.expand(count, *self.condition.shape[1:]) if alike else self.condition)[rows]

    def _rows(self, rows: slice, state: Tensor, noise: Tensor) -> Tensor:
        previous = None if self._previous is None else self._previous[rows]
        condition = self._given(rows, len(state))
        if condition is None or self.guidance == 1:
            return self._ask(state[rows], noise[rows], condition, previous)
        absent = torch.full_like(condition, float("nan") if condition.is_floating_point() else -1)
        twice = None if previous is None else torch.cat([previous, previous])
        both = self._ask(
            torch.cat([state[rows]] * 2), torch.cat([noise[rows]] * 2), torch.cat([condition, absent]), twice
        )
        conditional, free = both.chunk(2)
        return guided(conditional, free, self.guidance)

    def _ask(self, state: Tensor, noise: Tensor, condition: Tensor | None, previous: Tensor | None) -> Tensor:
        return self.method.denoiser(self.method.network, state, noise, condition, previous, self.sight)

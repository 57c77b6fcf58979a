"""The model as a walk sees it: a network with condition, guidance and memory of its last prediction."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import BlockMask
from rdlm.sampling.batching import Forward, Query
from rdlm.sampling.recall import Recall


def tempered(
    method: Rdlm,
    law: Float[Tensor, "batch positions v"],
    state: Float[Tensor, "batch positions *spheres d"],
    remaining: Float[Tensor, "batch positions"],
    temperature: float,
) -> Float[Tensor, "batch positions v"]:
    """Return the law with what the context says divided by the temperature, and the evidence as it is, Eq. (27).

    Then the samples of independent tokens have the law `p^(1/T)`. Sharpening the evidence, too, would make the
    first noise decide. Without evidence the two cannot be told apart, and all is divided.
    """
    if temperature == 1:
        return law
    denoiser = method.denoiser
    if not denoiser.config.evidence:
        return torch.log_softmax(law / temperature, -1)
    level = remaining[..., None] if denoiser.whole else remaining
    evidence = denoiser.bridge.log_likelihood(state, level)
    evidence = denoiser.layout.evidence(evidence) if denoiser.whole else evidence
    return torch.log_softmax(evidence + (law - evidence) / temperature, -1)


def asked(query: Query, guidance: float) -> Query:
    """Return what the network is asked: a guided law needs its answer with the conditions and without them."""
    return query if guidance == 1 or query.condition is None else query.twice()


def guided(
    answer: Float[Tensor, "rows positions v"], query: Query, guidance: float
) -> Float[Tensor, "batch positions v"]:
    """Return the law with the condition weighed by the guidance, Eq. (45), where it was asked for with and without."""
    if len(answer) == len(query.state):
        return answer
    conditional, free = answer.chunk(2)
    return torch.log_softmax(free + guidance * (conditional - free), -1)


class Predictor:
    """`log p(token | states)` of a method's network.

    A matrix product's rounding depends on the number of its rows. Where `forward` asks, rows share calls so that each
    is answered as if it had been asked alone: a sample depends on nothing but its seed, whatever else is in the batch.
    Without it so many `rows` go at a time. A condition of one row is that of all sequences.
    """

    def __init__(
        self,
        method: Rdlm,
        condition: Tensor | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        rows: int = 1,
        block_mask: BlockMask | None = None,
        forward: Forward | None = None,
    ) -> None:
        self.method, self.condition, self.guidance, self.temperature = method, condition, guidance, temperature
        self.rows, self.block_mask, self.forward = rows, block_mask, forward
        self._previous: Tensor | None = None

    def __call__(
        self,
        state: Float[Tensor, "batch positions *spheres d"],
        remaining: Float[Tensor, "batch positions"],
        recall: Recall | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return log-probabilities, guided where there is a condition, Eq. (45), and tempered."""
        query = Query(state, remaining, self._previous, self._given(len(state)), self.block_mask, recall)
        law = guided(self._ask(asked(query, self.guidance)), query, self.guidance)
        if self.method.config.model.self_condition:
            self._previous = self.method.denoiser.previous(law)
        return tempered(self.method, law, state, remaining, self.temperature)

    def _ask(self, query: Query) -> Float[Tensor, "rows positions v"]:
        if self.forward is not None:
            return self.forward([query])[0]
        parts = query.parts(self.rows)
        return query.whole(parts, [part.answer(self.method) for part in parts])

    def _given(self, count: int) -> Tensor | None:
        """Return the condition of so many sequences."""
        if self.condition is None or len(self.condition) > 1:
            return self.condition
        return self.condition.expand(count, *self.condition.shape[1:])

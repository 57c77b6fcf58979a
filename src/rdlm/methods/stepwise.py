"""Chains of M steps: the bound from one random step per sequence, and the sampler that takes all of them.

A forward process corrupts tokens `x` to states `z_M = x, z_{M-1}, ..., z_0`; the model goes back from `z_0` in M steps,
each with one network evaluation, and the last of them draws the tokens. For every network, Eq. (70),

    -log p(x)  <=  KL(q(z_0 | x) || p(z_0))  +  sum over m < M of  E KL(q(z_{m+1} | z_m, x) || p(z_{m+1} | z_m))

A method defines the first state, the states of the forward process, the terms and the steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, check_nfe
from rdlm.random import Rng


class Stepwise(Baseline, ABC):
    """A method whose sampler is a Markov chain of `steps` steps, and whose bound is a sum over them, Eq. (70)."""

    claims_bound = True

    def steps(self, length: int, nfe: int) -> int:
        """Return the steps M of a chain for a number of network evaluations."""
        return self.sampling_nfe(length, nfe)

    def prior(self, token: Int[Tensor, "batch length"], steps: int) -> Float[Tensor, " batch"] | float:
        """Return `KL(q(z_0 | x) || p(z_0))` of each sequence in nats; 0 if the first state is independent of `x`."""
        return 0.0

    @abstractmethod
    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return first states of the sampler, [count, length, ...]."""

    @abstractmethod
    def noisy(
        self, token: Int[Tensor, "batch length"], step: Int[Tensor, " batch"], steps: int, generator: Rng
    ) -> Tensor:
        """Return states `z_m ~ q(z_m | x)` for a step m of each sequence, [batch, length, ...]."""

    @abstractmethod
    def terms(
        self,
        token: Int[Tensor, "batch length"],
        state: Tensor,
        step: Int[Tensor, " batch"],
        steps: int,
        condition: Tensor | None,
        generator: Rng,
    ) -> Float[Tensor, "batch length"]:
        """Return, at every position, the term of step m or an unbiased estimate of it in nats."""

    @abstractmethod
    def advance(self, state: Tensor, step: int, steps: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the states after a step; after the last one, token ids [count, length]."""

    @torch.no_grad()
    def bound(self, batch: Batch, nfe: int, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        check_nfe(nfe)
        token, steps = batch.ids, self.steps(batch.ids.shape[1], nfe)
        step = discrete.stratified_steps(len(token), steps, generator).to(token.device)
        state = self.noisy(token, step, steps, generator)
        terms = self.terms(token, state, step, steps, discrete.condition_of(batch), generator)  # [B, L]
        return steps * terms.double().sum(-1) + self.prior(token, steps)

    @torch.no_grad()
    def generate(
        self, count: int, length: int, nfe: int, generator: Rng = None, condition: Tensor | None = None
    ) -> Int[Tensor, "count length"]:
        """Return token ids after M = `nfe` steps."""
        check_nfe(nfe)
        steps = self.steps(length, nfe)
        state = self.initial(count, length, generator)
        for step in range(steps):
            state = self.advance(state, step, steps, condition, generator)
        return state

"""Chains of M steps: the bound from one random step per sequence, and the sampler that takes all of them.

A forward process corrupts tokens `x` to states `z_M = x, z_{M-1}, ..., z_0`; the model goes back from `z_0` in M steps,
each with one network evaluation, and the last of them draws the tokens. For every network, Eq. (70),

    -log p(x)  <=  KL(q(z_0 | x) || p(z_0))  +  sum over m < M of  E KL(q(z_{m+1} | z_m, x) || p(z_{m+1} | z_m))

A method defines the first state, the states of the forward process, the terms and the steps.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.methods import discrete
from rdlm.methods.base import Baseline
from rdlm.random import Rng


class Stepwise(Baseline):
    """A method whose sampler is a Markov chain of `steps` steps, and whose bound is a sum over them, Eq. (70)."""

    def steps(self, length: int, nfe: int) -> int:
        """Return the steps M of a chain for a number of network evaluations."""
        return self.sampling_nfe(length, nfe)

    def time(self, step: Int[Tensor, " batch"], steps: int) -> Float[Tensor, " batch"]:
        """Return the network's time before step m, by default `m / M`."""
        return step / steps

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
    def log_probs(
        self, state: Tensor, time: Float[Tensor, " batch"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return the predicted log-probabilities of the tokens, by one evaluation of the network."""

    @abstractmethod
    def terms(
        self,
        log_probs: Float[Tensor, "batch length v"],
        token: Int[Tensor, "batch length"],
        state: Tensor,
        step: Int[Tensor, " batch"],
        steps: int,
        generator: Rng,
    ) -> Float[Tensor, "batch length"]:
        """Return, at every position, the term of step m or an unbiased estimate of it in nats."""

    @abstractmethod
    def advance(
        self, log_probs: Float[Tensor, "batch length v"], state: Tensor, step: int, steps: int, generator: Rng
    ) -> Tensor:
        """Return the states after a step; after the last one, token ids [count, length]."""

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        steps = self.steps(token.shape[1], nfe)
        step = discrete.stratified_steps(len(token), steps, generator).to(token.device)
        state = self.noisy(token, step, steps, generator)
        log_probs = self.log_probs(state, self.time(step, steps), condition)
        terms = self.terms(log_probs, token, state, step, steps, generator)  # [B, L]
        return steps * terms.double().sum(-1) + self.prior(token, steps)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return token ids after M = `nfe` steps."""
        steps = self.steps(length, nfe)
        state = self.initial(count, length, generator)
        for step in range(steps):
            time = self.time(torch.tensor(step), steps).expand(count)
            state = self.advance(self.log_probs(state, time, condition), state, step, steps, generator)
        return state

"""Score entropy (SEDD): a network that estimates ratios of probabilities between neighbouring states.

The score `s_j` estimates `q_t(z with token j at this position) / q_t(z)`. The loss compares the estimated jump rates
with the true ones and is the continuous-time bound. The sampler is the analytic one (Tweedie's formula for jumps): it
computes the distribution one step less noisy from the scores. There are two graphs:

    absorb     s_j = alpha / (1 - alpha) exp(l_j) at masked positions; unlike in MDLM, sum exp(l_j) is not constrained
    uniform    s_j = exp(l_j) for every other token

The sampler normalises its steps for every network, so that the bound of M steps holds for the sampler that runs:
`absorb` divides by the sum of the weights, `uniform` clamps every probability to at least its share of uniform noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Card, DiscreteDiffusion
from rdlm.methods.stepwise import Stepwise
from rdlm.methods.udlm import kl_divergence, marginal, noisy, posterior, ratio_excess, true_log_ratio
from rdlm.random import Rng, draw_token

UNIFORM_START = 1e-3
"""Alpha at time 0 of the uniform graph; at 0 all scores would be 1, and Tweedie's formula divides by alpha."""

UNIFORM_END = 1e-4
"""Least share of uniform noise in a step of the uniform graph, the last one included."""


@dataclass(frozen=True)
class Absorbing:
    """Tokens jump to the mask; the logits are `l + log V`, so that an untrained network predicts uniform tokens."""

    vocabulary: int
    start: float = 0.0

    def prior(self) -> float:
        """Return 0: at time 0 all positions are masked."""
        return 0.0

    def initial(self, count: int, length: int, generator: Rng) -> Int[Tensor, "count length"]:
        """Return masked positions."""
        return torch.full((count, length), self.vocabulary)

    def noisy(self, token: Tensor, alpha: Tensor, generator: Rng) -> Int[Tensor, "batch length"]:
        """Return tokens, masked with probability 1 - alpha."""
        return torch.where(discrete.uniform_like(token, generator) < alpha[:, None], token, self.vocabulary)

    def score_entropy(
        self, logits: Tensor, token: Tensor, state: Tensor, alpha: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `(sum_j exp(l_j) - 1 - l_x) / (1 - alpha)` at masked positions."""
        log_weight = logits - math.log(self.vocabulary)
        log_weight_x = log_weight.gather(-1, token[..., None])[..., 0]
        value = (log_weight.exp().sum(-1) - 1 - log_weight_x) / (1 - alpha)[:, None]
        return torch.where(state == self.vocabulary, value, 0.0)

    def step_kl(
        self, logits: Tensor, token: Tensor, state: Tensor, now: Tensor, later: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `log(1 - g + g sum_j exp(l_j)) - g l_x` at masked positions, g the probability of unmasking."""
        unmask = ((later - now) / (1 - now))[:, None]
        log_weight = logits - math.log(self.vocabulary)
        log_weight_x = log_weight.gather(-1, token[..., None])[..., 0]
        norm = torch.logaddexp(torch.log1p(-unmask), unmask.log() + log_weight.logsumexp(-1))
        return torch.where(state == self.vocabulary, norm - unmask * log_weight_x, 0.0)

    def step(
        self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor, generator: Rng
    ) -> Int[Tensor, "batch length"]:
        """Return states after unmasking to j with weight `g exp(l_j)`, or not with weight `1 - g`."""
        unmask = ((later - now) / (1 - now)).view(-1, 1, 1)
        log_weight = unmask.log() + logits - math.log(self.vocabulary)
        stay = torch.log1p(-unmask).expand(*state.shape, 1)
        log_weight = torch.cat((log_weight, stay), dim=-1)  # [B, L, V + 1]: the mask is state V
        drawn = draw_token(torch.log_softmax(log_weight, dim=-1), generator)
        return torch.where(state == self.vocabulary, drawn, state)


@dataclass(frozen=True)
class Uniform:
    """Tokens jump to any other token at equal rates."""

    vocabulary: int
    start: float = UNIFORM_START

    def prior(self) -> float:
        """Return `KL(q(z | x) || uniform)` at the alpha of the start."""
        kept = self.start + (1 - self.start) / self.vocabulary
        other = (1 - self.start) / self.vocabulary
        return math.log(self.vocabulary) + kept * math.log(kept) + (self.vocabulary - 1) * other * math.log(other)

    def initial(self, count: int, length: int, generator: Rng) -> Int[Tensor, "count length"]:
        """Return uniform tokens."""
        return torch.randint(self.vocabulary, (count, length), generator=generator)

    def noisy(self, token: Tensor, alpha: Tensor, generator: Rng) -> Int[Tensor, "batch length"]:
        """Return tokens, resampled uniformly with probability 1 - alpha."""
        return noisy(token, alpha, self.vocabulary, generator)

    def score_entropy(
        self, logits: Tensor, token: Tensor, state: Tensor, alpha: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `sum over j != z of (s_j - r_j - r_j log(s_j / r_j)) / (alpha V)`."""
        log_odds = (alpha * self.vocabulary / (1 - alpha)).log()[:, None, None]
        log_ratio = true_log_ratio(token, state, log_odds, self.vocabulary)
        return ratio_excess(logits, log_ratio, state) / (alpha * self.vocabulary)[:, None]

    def step_kl(
        self, logits: Tensor, token: Tensor, state: Tensor, now: Tensor, later: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return the KL divergence between the true step and Tweedie's."""
        true = functional.one_hot(token, self.vocabulary).double()
        q = posterior(marginal(true, later), state, now / later)
        return kl_divergence(q, self._tweedie(logits, state, now, later))

    def step(
        self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor, generator: Rng
    ) -> Int[Tensor, "batch length"]:
        """Return states drawn from Tweedie's step."""
        return draw_token(self._tweedie(logits, state, now, later).log(), generator)

    def _tweedie(self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor) -> Float[Tensor, "batch length v"]:
        """Return the distribution of the less noisy state.

        `q_now = a q_later + (1 - a) / V` is solved for `q_later`, which is clamped to its share of uniform noise.
        """
        # The score of the current state is 1. Only ratios matter, so a softmax normalises without overflow.
        log_score = logits.scatter(-1, state[..., None], 0.0)
        q_now = torch.softmax(log_score, dim=-1)
        keep = (now / later).view(-1, 1, 1)
        least = (1 - later).clamp_min(UNIFORM_END).view(-1, 1, 1) / self.vocabulary
        q_later = ((q_now - (1 - keep) / self.vocabulary) / keep).maximum(least)
        return posterior(q_later, state, keep)


class SEDD(Stepwise, DiscreteDiffusion):
    """Score-entropy diffusion: a network of log-scores, a graph of jumps, and a schedule."""

    card = Card("masked or uniform tokens, by ratios", "bound", "SEDD", 0.0)

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        super().__init__(config, vocabulary, classes, signal)
        self.graph = Absorbing(vocabulary) if config.discrete.graph == "absorb" else Uniform(vocabulary)

    def limit(self, batch: Batch, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return the estimate of the bound for M to infinity, the prior term included."""
        return super().limit(batch, generator) + self.graph.prior() * batch.ids.shape[1]

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the score entropy, summed over positions."""
        time = time.double().to(token.device)
        alpha, rate = self._rescaled(discrete.alpha(self.schedule, time)), discrete.alpha_rate(self.schedule, time)
        state = self.graph.noisy(token, alpha, generator)
        logits = self.log_probs(state, time, condition)
        return rate * (1 - self.graph.start) * self.graph.score_entropy(logits, token, state, alpha).sum(-1)

    def _rescaled(self, alpha: Tensor) -> Tensor:
        """Return alpha mapped from [0, 1] to [start, 1]."""
        return self.graph.start + (1 - self.graph.start) * alpha

    def log_probs(self, state: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the network's logits in float64: log-scores, from which the graph computes those of its jumps."""
        return discrete.logits(self.network, state, time.float(), condition).double()

    def prior(self, token: Tensor, steps: int) -> float:
        """Return the divergence of the graph's first states, for all positions."""
        return self.graph.prior() * token.shape[1]

    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return the initial states of the graph."""
        return self.graph.initial(count, length, generator)

    def noisy(self, token: Tensor, step: Tensor, steps: int, generator: Rng) -> Tensor:
        """Return tokens after the jumps of the graph."""
        return self.graph.noisy(token, self._grid(steps, token)[step], generator)

    def terms(
        self, log_probs: Tensor, token: Tensor, state: Tensor, step: Tensor, steps: int, generator: Rng
    ) -> Tensor:
        """Return `KL(true step || analytic step)`."""
        grid = self._grid(steps, token)
        return self.graph.step_kl(log_probs, token, state, grid[step], grid[step + 1])

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return states after one analytic step."""
        grid = self._grid(steps, state)
        return self.graph.step(log_probs, state, grid[step], grid[step + 1], generator)

    def _grid(self, steps: int, like: Tensor) -> Float[Tensor, " levels"]:
        """Return alpha at all levels of a chain."""
        return self._rescaled(discrete.alpha_grid(self.schedule, steps)).to(like.device)

"""Score entropy (SEDD): a network that estimates ratios of probabilities between neighbouring states.

`s_j` stands for `q_t(z with token j at this position) / q_t(z)`. Its loss compares the estimated rates of jumps with
the true ones, and is the continuous-time bound. The sampler is the analytic one (Tweedie's formula for jumps): it
infers the law one step less noisy from the scores. Two graphs:

    absorb     s_j = alpha / (1 - alpha) exp(l_j) at hidden positions; unlike in masked diffusion, sum exp(l_j) is free
    uniform    s_j = exp(l_j) for every other token

The sampler's steps are made probabilities for every network, so that the bound of M calls holds for what runs: in
`absorb` the weights are normalised, in `uniform` a probability is never taken for smaller than the noise makes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Baseline
from rdlm.methods.udlm import blurred, divergence, noisy, ratio_excess, reverse, true_log_ratio
from rdlm.random import Draw, draw_token

UNIFORM_START = 1e-3
"""Kept probability at which the uniform graph starts: scores at 0 are all 1, and Tweedie's formula divides by it."""

UNIFORM_END = 1e-4
"""Share of uniform noise that the last step of the uniform graph still allows for."""


class Graph(Protocol):
    """Where tokens jump; laws and scores have the tokens on their last axis, times come as kept probabilities."""

    @property
    def start(self) -> float:
        """Return the kept probability at time 0."""

    def prior(self) -> float:
        """Return `KL(state at time 0 || what sampling starts from)` per position, in nats."""

    def begin(self, count: int, length: int, generator: torch.Generator | None) -> Int[Tensor, "count length"]:
        """Return states from which sampling starts."""

    def noisy(self, token: Tensor, alpha: Tensor, generator: torch.Generator | None) -> Int[Tensor, "batch length"]:
        """Return states at time t given their tokens."""

    def score_entropy(
        self, logits: Tensor, token: Tensor, state: Tensor, alpha: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return the rate of the continuous-time bound per unit of `alpha`."""

    def term(
        self, logits: Tensor, token: Tensor, state: Tensor, now: Tensor, later: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return KL(true step || the sampler's step) from one kept probability to a later one."""

    def step(
        self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor, generator: torch.Generator | None
    ) -> Int[Tensor, "batch length"]:
        """Return the states after one step of the sampler."""


@dataclass(frozen=True)
class Absorb:
    """Tokens jump to the mask; the network's logits are `l + log V`, so that new weights predict the uniform law."""

    vocabulary: int
    start: float = 0.0

    def prior(self) -> float:
        """Return 0: at time 0 everything is hidden."""
        return 0.0

    def begin(self, count: int, length: int, generator: torch.Generator | None) -> Int[Tensor, "count length"]:
        """Return masks."""
        return torch.full((count, length), self.vocabulary)

    def noisy(self, token: Tensor, alpha: Tensor, generator: torch.Generator | None) -> Int[Tensor, "batch length"]:
        """Return tokens that are hidden with probability 1 - alpha."""
        return torch.where(discrete.chance(token, generator) < alpha[:, None], token, self.vocabulary)

    def score_entropy(
        self, logits: Tensor, token: Tensor, state: Tensor, alpha: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `(sum_j exp(l_j) - 1 - l_x) / (1 - alpha)` at hidden positions."""
        log_weight = logits - math.log(self.vocabulary)
        own = log_weight.gather(-1, token[..., None])[..., 0]
        value = (log_weight.exp().sum(-1) - 1 - own) / (1 - alpha)[:, None]
        return torch.where(state == self.vocabulary, value, 0.0)

    def term(
        self, logits: Tensor, token: Tensor, state: Tensor, now: Tensor, later: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `log(1 - g + g sum_j exp(l_j)) - g l_x` at hidden positions, g the probability of being revealed."""
        reveal = ((later - now) / (1 - now))[:, None]
        log_weight = logits - math.log(self.vocabulary)
        own = log_weight.gather(-1, token[..., None])[..., 0]
        norm = torch.logaddexp(torch.log1p(-reveal), reveal.log() + log_weight.logsumexp(-1))
        return torch.where(state == self.vocabulary, norm - reveal * own, 0.0)

    def step(
        self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor, generator: torch.Generator | None
    ) -> Int[Tensor, "batch length"]:
        """Return states in which hidden positions are revealed by weight `g exp(l_j)` against `1 - g`."""
        reveal = ((later - now) / (1 - now)).view(-1, 1, 1)
        log_weight = reveal.log() + logits - math.log(self.vocabulary)
        stay = torch.log1p(-reveal).expand(*state.shape, 1)
        weight = torch.cat((log_weight, stay), dim=-1)  # the mask is state V, the last
        drawn = draw_token(torch.log_softmax(weight, dim=-1), generator)
        return torch.where(state == self.vocabulary, drawn, state)


@dataclass(frozen=True)
class AnyToken:
    """Tokens jump to any token, uniformly."""

    vocabulary: int
    start: float = UNIFORM_START

    def prior(self) -> float:
        """Return the divergence of a token that is kept with the start's probability from a uniform one."""
        kept = self.start + (1 - self.start) / self.vocabulary
        other = (1 - self.start) / self.vocabulary
        return math.log(self.vocabulary) + kept * math.log(kept) + (self.vocabulary - 1) * other * math.log(other)

    def begin(self, count: int, length: int, generator: torch.Generator | None) -> Int[Tensor, "count length"]:
        """Return uniform tokens."""
        return torch.randint(self.vocabulary, (count, length), generator=generator)

    def noisy(self, token: Tensor, alpha: Tensor, generator: torch.Generator | None) -> Int[Tensor, "batch length"]:
        """Return tokens that are drawn anew with probability 1 - alpha."""
        return noisy(token, alpha, self.vocabulary, generator)

    def score_entropy(
        self, logits: Tensor, token: Tensor, state: Tensor, alpha: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return `sum over j != z of (s_j - r_j - r_j log(s_j / r_j)) / (alpha V)`."""
        log_odds = (alpha * self.vocabulary / (1 - alpha)).log()[:, None, None]
        truth = true_log_ratio(token, state, log_odds, self.vocabulary)
        return ratio_excess(logits, truth, state) / (alpha * self.vocabulary)[:, None]

    def term(
        self, logits: Tensor, token: Tensor, state: Tensor, now: Tensor, later: Tensor
    ) -> Float[Tensor, "batch length"]:
        """Return the divergence of Tweedie's step from the true one."""
        truth = functional.one_hot(token, self.vocabulary).double()
        true_step = reverse(blurred(truth, later), state, now / later)
        return divergence(true_step, self._tweedie(logits, state, now, later))

    def step(
        self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor, generator: torch.Generator | None
    ) -> Int[Tensor, "batch length"]:
        """Return states drawn by Tweedie's step."""
        return draw_token(self._tweedie(logits, state, now, later).log(), generator)

    def _tweedie(self, logits: Tensor, state: Tensor, now: Tensor, later: Tensor) -> Float[Tensor, "batch length v"]:
        """Return the law of the less noisy state.

        `q_now = a q_later + (1 - a) / V` is solved for `q_later`, which must hold at least its share of noise.
        """
        # The score of the state itself is 1. The largest is taken out: only proportions count.
        log_score = logits.scatter(-1, state[..., None], 0.0)
        law = torch.softmax(log_score, dim=-1)
        keep = (now / later).view(-1, 1, 1)
        least = (1 - later).clamp_min(UNIFORM_END).view(-1, 1, 1) / self.vocabulary
        sharper = ((law - (1 - keep) / self.vocabulary) / keep).maximum(least)
        return reverse(sharper, state, keep)


class SEDD(Baseline):
    """The method: a network of log-scores, a graph of jumps, and a schedule."""

    claims_bound = True

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config = config
        self.schedule = config.discrete.schedule
        graphs: dict[str, Graph] = {"absorb": Absorb(vocabulary), "uniform": AnyToken(vocabulary)}
        self.graph = graphs[config.discrete.graph]
        self.network: nn.Module = discrete.token_network(config.model, vocabulary, classes, signal)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the score entropy in nats per token, at evenly spread times."""
        return discrete.mean_rate(self._rates, batch, self.config, draw)

    def limit(self, batch: Batch, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of the bound for M to infinity."""
        return discrete.rates_of(self._rates, batch, generator) + self.graph.prior() * batch.ids.shape[1]

    def _rates(
        self, token: Tensor, time: Tensor, condition: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, " batch"]:
        time = time.double().to(token.device)
        alpha, rate = self._kept(discrete.kept(self.schedule, time)), discrete.kept_rate(self.schedule, time)
        state = self.graph.noisy(token, alpha, generator)
        logits = self.log_score(state, time, condition)
        return rate * (1 - self.graph.start) * self.graph.score_entropy(logits, token, state, alpha).sum(-1)

    def _kept(self, alpha: Tensor) -> Tensor:
        return self.graph.start + (1 - self.graph.start) * alpha

    def log_score(
        self, state: Int[Tensor, "batch length"], time: Float[Tensor, " batch"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return the network's logits in float64, from which the graph makes scores."""
        return discrete.ask(self.network, state, time.float(), condition).double()

    @torch.no_grad()
    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        token = batch.ids
        grid = self._kept(discrete.kept_grid(self.schedule, nfe)).to(token.device)
        step = discrete.spread_steps(len(token), nfe, generator).to(token.device)
        state = self.graph.noisy(token, grid[step], generator)
        logits = self.log_score(state, step / nfe, discrete.condition_of(batch))
        terms = self.graph.term(logits, token, state, grid[step], grid[step + 1])
        return nfe * terms.sum(-1) + self.graph.prior() * token.shape[1]

    @torch.no_grad()
    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids after `nfe` analytic steps."""
        grid = self._kept(discrete.kept_grid(self.schedule, nfe))
        state = self.graph.begin(count, length, generator)
        for step in range(nfe):
            logits = self.log_score(state, torch.full((count,), step / nfe), condition)
            state = self.graph.step(logits, state, grid[step], grid[step + 1], generator)
        return state

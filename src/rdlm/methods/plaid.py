"""Gaussian diffusion of learned vectors: Plaid, trained on its bound, and Diffusion-LM as a variant.

The vectors `c_k` are learned unit vectors. The chain is the drift chain of `gaussian_codes` at the times `m / (M - 1)`,

    Plaid           a = A (exp(9 s) - 1) / (exp(9) - 1)      logits of the network + <u, c_l>, the evidence
    Diffusion-LM    a = D g / (1 - g) with `g = 1 - sqrt(1 - t + 1e-4)`      logits of the network alone

with the bound of Eq. (74). Plaid's schedule is learned: the last strength A, and `s(t)`, which is piecewise linear and
grows from 0 to 1. Its loss is the bound in continuous time, Eq. (79): network, vectors and A minimise

    1/2 int a'(t) E |c_k - sum_l p_l c_l|^2 dt  +  E[-log p_k at t = 1]

which does not depend on `s`; the slopes of `s` minimise the second moment of its estimate at a random time. An eighth
of the sequences has the second part. Diffusion-LM's loss is the squared error without the weight a', and the second
part; it is not its bound. Self-conditioning is `model.self_condition`. Not implemented: Plaid's warm-up of the output
prior and its adaptive split of the batch; of Diffusion-LM, vectors of free length and a decoder without the network.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rdlm.config import Interface, RunConfig
from rdlm.methods.base import Card
from rdlm.methods.gaussian_codes import GaussianCodes
from rdlm.model.network import build
from rdlm.process.tokens import Codes
from rdlm.random import Rng

STEEPNESS, LAST = 9.0, 3.0
"""Range of the logarithm of the strength, and the logarithm of the last strength before training, of Plaid."""

SLOPES = 64
"""Pieces of equal length of Plaid's learned schedule."""

DECODED = 1 / 8
"""Share of sequences whose loss is that of the last call."""

OFFSET = 1e-4
"""Offset of the square-root schedule of Diffusion-LM."""


class LearnedVectors(GaussianCodes):
    """Gaussian diffusion of learned vectors: noisy vectors in, distributions of tokens out."""

    evidence = True
    """Whether the likelihood of a position's own state is added to its logits."""

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.dimension = self.spread = config.plaid.dimension
        super().__init__(config, vocabulary, classes, signal)

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from noisy vectors to logits, with the learned vectors."""
        interface = Interface(self.dimension, self.vocabulary, classes=classes, signal=signal)
        network = build(self.config.model, interface)
        self.learned = network.codes = Codes(self.vocabulary, self.dimension)
        return network

    @abstractmethod
    def level(self, time: Float[Tensor, " batch"]) -> tuple[Tensor, Tensor]:
        """Return the levels of times, of which the strength is a function, and their derivatives."""

    @abstractmethod
    def weight(self, level: Tensor) -> Tensor:
        """Return the weight of the squared error in the loss, with respect to levels."""

    def times(self, steps: int) -> Float[Tensor, " steps"]:
        """Return the levels of the times `m / (M - 1)`."""
        return self.level(torch.linspace(0, 1, steps, dtype=torch.float64))[0].detach()

    def codes(self, like: Tensor) -> Float[Tensor, "v d"]:
        """Return the unit vectors, through which gradients flow."""
        return self.learned.learning().vectors(like)

    def token_logits(self, output: Tensor, state: Float[Tensor, "batch length d"]) -> Float[Tensor, "batch length v"]:
        """Return the logits of the tokens, with the evidence of the states if it is used."""
        return output + state @ self.codes(state).T if self.evidence else output

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the loss in nats per token, Eq. (79)."""
        return self.loss_terms(token, quantile, condition, generator).mean()

    def loss_terms(
        self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng
    ) -> Float[Tensor, "batch length"]:
        """Return the loss of each token at a random time; an eighth of the sequences has that of the last call."""
        quantile = quantile.double().to(token.device)
        last = quantile < DECODED
        level, rate = self.level(torch.where(last, 1.0, (quantile - DECODED) / (1 - DECODED)))
        first = (torch.rand(len(token), generator=generator) < 0.5).to(token.device)
        log_probs = self.log_probs(self.observe(token, self.strength(level), generator), level, condition, first)
        decode = -log_probs.gather(-1, token[..., None])[..., 0] / DECODED
        weight = (self.weight(level) * rate / (1 - DECODED)).to(log_probs)[:, None]
        terms = torch.where(last[:, None], decode, weight * self.squared_error(token, log_probs))
        for value in (level, rate):  # of half the square of a sequence's loss, in place of the loss
            if value.requires_grad:
                value.register_hook(lambda gradient: gradient * terms.detach().mean(-1))
        return terms


class LearnedSchedule(nn.Module):
    """A learned schedule: levels `s(t)`, piecewise linear from 0 to 1, and the logarithm of the last strength."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.zeros(SLOPES))
        self.last = nn.Parameter(torch.tensor(LAST))

    def level(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return `s(t)` and its derivative in float64."""
        share = torch.softmax(self.slopes.double(), dim=0).to(time.device)  # growth of s in each piece
        piece = (time * SLOPES).long().clamp(0, SLOPES - 1)
        inside = time * SLOPES - piece
        return (share.cumsum(0) - share)[piece] + inside * share[piece], SLOPES * share[piece]


class Plaid(LearnedVectors):
    """Plaid: evidence in the logits, a learned schedule, and the bound as the loss."""

    card = Card("Gaussian noise on learned vectors", "bound", "Plaid", 8.0, "error of a Riemann sum")

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        super().__init__(config, vocabulary, classes, signal)
        self.schedule = self.network.schedule = LearnedSchedule()

    def level(self, time: Float[Tensor, " batch"]) -> tuple[Tensor, Tensor]:
        """Return the levels of the learned schedule and their derivatives."""
        return self.schedule.level(time)

    def strength(self, time: Tensor) -> Tensor:
        """Return the strength at levels `s`; its logarithm grows nearly linearly."""
        return self._last(time) * torch.expm1(STEEPNESS * time.double()) / math.expm1(STEEPNESS)

    def weight(self, level: Tensor) -> Tensor:
        """Return half the derivative of the strength."""
        return self._last(level) * STEEPNESS * torch.exp(STEEPNESS * level) / math.expm1(STEEPNESS) / 2

    def _last(self, like: Tensor) -> Tensor:
        return self.schedule.last.double().exp().to(like.device)


class DiffusionLM(LearnedVectors):
    """Diffusion-LM: the square-root schedule, no output prior, and an unweighted squared error."""

    card = Card(
        "Gaussian noise on learned vectors, square-root schedule",
        "bound",
        "Diffusion-LM",
        8.0,
        "error of a Riemann sum",
    )
    evidence = False

    def level(self, time: Float[Tensor, " batch"]) -> tuple[Tensor, Tensor]:
        """Return the times themselves, and 1."""
        return time, torch.ones_like(time)

    def strength(self, time: Tensor) -> Tensor:
        """Return the signal-to-noise ratio of the square-root schedule, for vectors of length `sqrt(D)`."""
        kept = (1 - torch.sqrt(1 - time.double() + OFFSET)).clamp_min(0.0)
        return self.dimension * kept / (1 - kept)

    def weight(self, level: Tensor) -> Tensor:
        """Return 1: the loss is not weighted as the bound is."""
        return torch.ones_like(level)

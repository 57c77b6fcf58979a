"""Gaussian diffusion of learned vectors: Plaid, trained on its bound, and Diffusion-LM as a variant.

The vectors `c_k` are learned unit vectors. The chain is the drift chain of `gaussian_codes` at the times `m / (M - 1)`,

    Plaid           a(t) ~ exp(9 t) - 1, up to e^3      logits of the network + <u, c_l>, the evidence (output prior)
    Diffusion-LM    a(t) = D g / (1 - g) with `g = 1 - sqrt(1 - t + 1e-4)`      logits of the network alone

with the bound of Eq. (74). Plaid's loss is that bound in continuous time, Eq. (79): network and vectors minimise

    1/2 int a'(t) E |c_k - sum_l p_l c_l|^2 dt  +  E[-log p_k at t = 1]

An eighth of the sequences has the second part. Diffusion-LM's loss is the squared error without the weight a', and the
second part; it is not its bound. Self-conditioning is `model.self_condition`. Not implemented: Plaid's learned schedule
(of which only the ends change the bound), its warm-up of the output prior, and its adaptive split of the batch; of
Diffusion-LM, vectors of free length and a decoder without the network.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rdlm.config import Interface, RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.gaussian_codes import GaussianCodes
from rdlm.model.network import build
from rdlm.process.tokens import Codes
from rdlm.random import Draw

STEEPNESS, LAST = 9.0, math.exp(3)
"""Range of the logarithm of the strength, and the last strength, of Plaid."""

DECODED = 1 / 8
"""Share of sequences whose loss is that of the last call."""

OFFSET = 1e-4
"""Offset of the square-root schedule of Diffusion-LM."""


class Plaid(GaussianCodes):
    """Gaussian diffusion of learned vectors: noisy vectors in, distributions of tokens out."""

    card: Card | None = Card("Gaussian noise on learned vectors", "bound", "Plaid", 8.0, "error of a Riemann sum")
    evidence = True
    """Whether the likelihood of a position's own state is added to its logits."""

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config, self.dimension = config, config.plaid.dimension
        self.spread = self.dimension
        interface = Interface(self.dimension, vocabulary, classes=classes, signal=signal)
        network = build(config.model, interface)
        network.codes = Codes(vocabulary, self.dimension)
        self.network: nn.Module = network
        self.learned: Codes = network.codes

    def times(self, steps: int) -> Float[Tensor, " steps"]:
        """Return `m / (M - 1)`."""
        return torch.linspace(0, 1, steps, dtype=torch.float64)

    def strength(self, time: Tensor) -> Tensor:
        """Return a strength whose logarithm grows nearly linearly."""
        return LAST * torch.expm1(STEEPNESS * time.double()) / math.expm1(STEEPNESS)

    def weight(self, time: Tensor) -> Tensor:
        """Return `a'(t) / 2`, the weight of the squared error in the loss."""
        return LAST * STEEPNESS * torch.exp(STEEPNESS * time) / math.expm1(STEEPNESS) / 2

    def codes(self, like: Tensor) -> Float[Tensor, "v d"]:
        """Return the unit vectors, through which gradients flow."""
        return self.learned.learning().vectors(like)

    def token_logits(self, output: Tensor, state: Float[Tensor, "batch length d"]) -> Float[Tensor, "batch length v"]:
        """Return the logits of the tokens, with the evidence of the states if it is used."""
        return output + state @ self.codes(state).T if self.evidence else output

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the loss in nats per token, Eq. (79): an eighth of the sequences has that of the last call."""
        generator, token = draw.generator(), batch.ids
        condition = discrete.training_condition(batch, self.config, generator)
        quantile = draw.quantiles(len(token)).double().to(token.device)
        last = quantile < DECODED
        time = torch.where(last, 1.0, (quantile - DECODED) / (1 - DECODED))
        first = (torch.rand(len(token), generator=generator) < 0.5).to(token.device)
        log_probs = self.log_probs(self.observe(token, self.strength(time), generator), time, condition, first)
        decode = -log_probs.gather(-1, token[..., None])[..., 0] / DECODED
        weight = (self.weight(time) / (1 - DECODED)).to(log_probs)[:, None]
        return torch.where(last[:, None], decode, weight * self.squared_error(token, log_probs)).mean()


class DiffusionLM(Plaid):
    """Diffusion-LM: the square-root schedule, no output prior, and an unweighted squared error."""

    card: Card | None = Card(
        "Gaussian noise on learned vectors, square-root schedule",
        "bound",
        "Diffusion-LM",
        8.0,
        "error of a Riemann sum",
    )
    evidence = False

    def strength(self, time: Tensor) -> Tensor:
        """Return the signal-to-noise ratio of the square-root schedule, for vectors of length `sqrt(D)`."""
        kept = (1 - torch.sqrt(1 - time.double() + OFFSET)).clamp_min(0.0)
        return self.dimension * kept / (1 - kept)

    def weight(self, time: Tensor) -> Tensor:
        """Return 1: the loss is not weighted as the bound is."""
        return torch.ones_like(time)

"""Bit diffusion (Analog Bits): Gaussian diffusion of the bits of a token's number, as real numbers -1 and 1.

The vector of token k has `n = ceil(log2 V)` bits, or V coordinates of which one is 1 (onehot). With the cosine schedule

    z = sqrt(g) c_k + sqrt(1 - g) noise,    g(t) = sin^2(pi t / 2),    so the strength is  a = tan^2(pi t / 2)

The sampler is DDPM's, the drift chain of `gaussian_codes`, from strength 0; M calls are at the times m / M, and the
last one draws the token. Its bound, Eq. (74), is that of VDM with fixed codes; the literature prints none for bits.
Logits of bits give `p(k) ~ prod over bits j of p_j(bit j of k)`, normalised over the V tokens: numbers without a token
have probability 0, so no mass is lost if V is not a power of two. Self-conditioning is `model.self_condition`.

With asymmetric time intervals (`bit_diffusion.ahead`) a step of the sampler goes further than to the time of the next
call, whose states have less noise than its time input states. Eq. (74) then does not apply: the value is an estimate.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface, RunConfig
from rdlm.methods.base import Card
from rdlm.methods.gaussian_codes import GaussianCodes
from rdlm.model.network import build
from rdlm.random import Rng


class BitDiffusion(GaussianCodes):
    """Gaussian diffusion of bits: noisy bits in, distributions of bits or tokens out."""

    card = Card("Gaussian noise on bits", "bound", "Analog Bits", 8.0, "error of a Riemann sum, about 4/M")

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.options = config.bit_diffusion
        self.claims_bound = self.options.ahead == 0
        self.table = bits(vocabulary) if self.options.codes == "bits" else 2 * torch.eye(vocabulary) - 1  # [V, n]
        super().__init__(config, vocabulary, classes, signal)

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from noisy vectors to logits of bits or tokens."""
        width = self.table.shape[1]
        outputs = width if self.options.head == "bit" else self.vocabulary
        return build(self.config.model, Interface(width, outputs, classes=classes, signal=signal))

    def times(self, steps: int) -> Float[Tensor, " steps"]:
        """Return `m / M`."""
        return torch.arange(steps, dtype=torch.float64) / steps

    def strength(self, time: Tensor) -> Tensor:
        """Return `a = tan^2(pi t / 2)`."""
        return torch.tan(math.pi / 2 * time.double()).square()

    def codes(self, like: Tensor) -> Float[Tensor, "v n"]:
        """Return the bits of all tokens as -1 and 1."""
        return self.table.to(like)

    def token_logits(self, output: Tensor, state: Float[Tensor, "batch length n"]) -> Float[Tensor, "batch length v"]:
        """Return the logits of the tokens: with the head bit, the sums of the logits of the bits that are 1."""
        return output @ (self.codes(output).T + 1) / 2 if self.options.head == "bit" else output

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return the states after a step, `ahead` steps further than the time of the next call, or the tokens."""
        if step == steps - 1 or self.options.ahead == 0:
            return super().advance(log_probs, state, step, steps, generator)
        time = self.times(steps).to(state.device)
        reached = (time[step + 1] + self.options.ahead / steps).clamp_max(time[-1])
        start, given, goal = self.strength(torch.stack((time[step], time[step + 1], reached)))
        state = self.observed(state, log_probs, goal - start, generator)
        # The same `sqrt(g) c + sqrt(1 - g) z` as a sum of observations with the strength of the next call.
        scale: Tensor = (given * (1 + given) / (goal * (1 + goal))).sqrt()
        return state * scale.to(state)

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the squared error of the predicted bits per coordinate, or the cross-entropy, at uniform times."""
        time = quantile.double().to(token.device)
        first = (torch.rand(len(token), generator=generator) < 0.5).to(token.device)
        log_probs = self.log_probs(self.observe(token, self.strength(time), generator), time, condition, first)
        if self.options.loss == "cross_entropy":
            return functional.nll_loss(log_probs.flatten(0, 1), token.flatten())
        return self.squared_error(token, log_probs).mean() / self.table.shape[1]


def bits(vocabulary: int) -> Float[Tensor, "v n"]:
    """Return the bits of the numbers 0 .. V - 1 as -1 and 1, the highest one first."""
    count = max(1, math.ceil(math.log2(vocabulary)))
    place = torch.arange(count - 1, -1, -1)
    return ((torch.arange(vocabulary)[:, None] >> place) & 1).float() * 2 - 1

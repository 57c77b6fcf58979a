"""Bayesian flow networks (BFN) for tokens: the network's input is the posterior of noisy observations of one-hot
vectors.

The accuracy `beta(t) = b t^2` grows to b at t = 1. The state is the sum `y ~ N(beta (V e_k - 1), beta V I)` of the
observations, and the network's input `2 theta - 1` with `theta = softmax(y)`. This is the Gaussian channel of
`gaussian_codes` with one-hot vectors and strength `a = V beta`: `y` differs from `u` by a constant, to which the
softmax is invariant. With n observations, `a_i` of equal times, the calls are n + 1, the last one for the
reconstruction.

    n steps       sum over i of  E[ log N_k(y_i) - log sum_l p_l N_l(y_i) ]  +  E[-log p_k at t = 1],        Eq. (74)
    n -> inf      V b int_0^1 t E |e_k - p(theta_t, t)|^2 dt                 +  E[-log p_k at t = 1],        Eq. (75)

The first is the bound of the sampler: a token drawn from `p` at each step is observed with noise (mixture kernel), and
the last token is drawn, not the most likely one. Training takes the second without its reconstruction, or n steps.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.gaussian_codes import GaussianCodes
from rdlm.model.network import build
from rdlm.random import Rng


class BFN(GaussianCodes):
    """Bayesian flow network: posteriors of noisy observations in, distributions of tokens out."""

    card = Card("Gaussian observations of one-hot vectors", "bound", "BFN", 0.0)
    kernel: Literal["drift", "mixture"] = "mixture"

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from posteriors of tokens to logits."""
        return build(self.config.model, Interface(self.vocabulary, self.vocabulary, classes=classes, signal=signal))

    @property
    def accuracy(self) -> float:
        """`V b`."""
        return self.vocabulary * self.config.bfn.accuracy

    def times(self, steps: int) -> Float[Tensor, " steps"]:
        """Return `i / n` for i = 0 .. n, with n = M - 1 observations."""
        return torch.linspace(0, 1, steps, dtype=torch.float64)

    def strength(self, time: Tensor) -> Tensor:
        """Return `a = V b t^2`."""
        return self.accuracy * time.square()

    def codes(self, like: Tensor) -> Float[Tensor, "v v"]:
        """Return one-hot vectors."""
        return torch.eye(self.vocabulary).to(like)

    def vector(self, token: Int[Tensor, "batch length"], like: Tensor) -> Float[Tensor, "batch length v"]:
        """Return one-hot vectors, without a matrix of all of them."""
        return functional.one_hot(token, self.vocabulary).to(like)

    def mean(self, log_probs: Float[Tensor, "batch length v"]) -> Float[Tensor, "batch length v"]:
        """Return the probabilities."""
        return log_probs.exp()

    def log_density(self, y: Float[Tensor, "batch length v"], gain: Tensor) -> Float[Tensor, "batch length v"]:
        """Return the observation: all vectors have one length."""
        return y

    def features(
        self, state: Float[Tensor, "batch length v"], time: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch length v"]:
        """Return the posterior of the tokens under a uniform prior, scaled to [-1, 1]."""
        return 2 * torch.softmax(state, dim=-1) - 1

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the loss in continuous time, or a random one of n steps, in nats per token."""
        steps, time = self.config.bfn.steps, quantile.to(token.device)
        if steps:
            step = (time * (steps + 1)).long().clamp_max(steps)
            state = self.noisy(token, step, steps + 1, generator)
            log_probs = self.log_probs(state, self.time(step, steps + 1), condition)
            return (steps + 1) * self.terms(log_probs, token, state, step, steps + 1, generator).mean()
        return self._integrand(token, time.double(), condition, generator).mean()

    @torch.no_grad()
    def limit(self, batch: Batch, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of the bound for n to infinity, reconstruction included."""
        token, condition = batch.ids, discrete.condition_of(batch)
        time = discrete.stratified_times(len(token), generator).to(token.device)
        last = torch.ones_like(time)
        reconstructed = self.log_probs(self.observe(token, self.strength(last), generator), last, condition)
        decode = -reconstructed.double().gather(-1, token[..., None])[..., 0]
        return (self._integrand(token, time, condition, generator) + decode).sum(-1)

    def _integrand(
        self, token: Tensor, time: Float[Tensor, " batch"], condition: Tensor | None, generator: Rng
    ) -> Float[Tensor, "batch length"]:
        """Return `V b t |e_k - p|^2`, Eq. (75): half the rate of the strength times the squared error."""
        log_probs = self.log_probs(self.observe(token, self.strength(time), generator), time, condition)
        return (self.accuracy * time)[:, None] * self.squared_error(token, log_probs.double())

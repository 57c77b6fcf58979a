"""Continuous-time Markov chains with tau-leaping (tauLDR).

Forward, token x jumps to y at the rate `b(t) R[x, y]`, for noise times t from 0 (tokens are decoded) to 1; after the
clock `B(t)`, with `b = dB/dt`, its distribution is the row of `q_t = exp(B R)`. With the network's `p` and
`m_t(y) = sum over k of p(k) q_t[k, y]`, the rates backwards are, Eq. (78),

    true     b R[y, x] q_t[k, y] / q_t[k, x]          model     b R[y, x] m_t(y) / m_t(x)

    -log p(k) <= int b E sum over y != x of  r_y (s_y - 1 - log s_y) dt  +  E[-log p(k | x) at t = 0]  +  KL(q_1 || end)

with `r_y` the true rate over b, `s_y` the model's over the true one. `p` is the distribution of the token given the
other positions: the original divides its posterior by `q_t[k, x]` instead, which is the same but ill-conditioned. The
bound is that of the *continuous-time* chain. The sampler leaps: in a step h of the clock every jump to y happens
Poisson(h rate) times, with constant rates, so with few calls it samples from another distribution, and the value is an
*estimate*.

The clock `B(t) = B_0^(1 - t) B_1^t` begins where the original decodes and ends where the slowest mode of R has decayed.
The original's `3 (100^t - 1)`, made for 256 levels, is as steep, but has 84% of its times where nothing is left of 27
letters with uniform rates.

    rates gauss      between tokens with near numbers, reversible with a wide Gaussian end; jumps add up, clamped
    rates uniform    to any token; a position that would jump twice does not jump
    corrector        after each leap, leaps with forward plus backward rates, which leave the distribution invariant
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.config import TauLDRConfig
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.random import Rng, draw_token

FIRST, DECAY = 0.1414, 8.0
"""The clock at which tokens are decoded, and the exponent by which the slowest mode has decayed at its end."""

REACH, WIDTH = 6 / 256, 2.0
"""Typical jump and standard deviation of the end of the rates gauss, in units of the vocabulary."""

AUXILIARY = 0.001
"""Weight of the cross-entropy of the decoded tokens in the loss, per unit of the clock's share, as in the paper."""


class Spectrum(NamedTuple):
    """The generator R of the jumps, its stationary distribution, and the factors of its exponential."""

    rate: Float[Tensor, "v v"]
    end: Float[Tensor, " v"]
    values: Float[Tensor, " v"]
    vectors: Float[Tensor, "v v"]

    def transition(self, clock: Float[Tensor, "..."]) -> Float[Tensor, "... v v"]:
        """Return `exp(B R)`: the rows of `q_t`; rounding below 0 is removed."""
        root = self.end.sqrt()
        powers = (self.values * clock[..., None]).exp()
        matrix = (self.vectors * powers[..., None, :]) @ self.vectors.T * root / root[:, None]
        matrix = matrix.clamp_min(0.0)
        return matrix / matrix.sum(-1, keepdim=True)

    @property
    def growth(self) -> float:
        """Return `log(B_1 / B_0)`."""
        return math.log(DECAY / -float(self.values.sort().values[-2]) / FIRST)

    def clock(self, time: Tensor) -> Tensor:
        """Return `B(t)`, the integral of the rates of the forward process."""
        return FIRST * torch.exp(self.growth * time)

    def speed(self, time: Tensor) -> Tensor:
        """Return `b(t)`, the derivative of the clock."""
        return self.growth * self.clock(time)


class TauLDR(Baseline):
    """A continuous-time Markov chain: a network over states and times, rates of jumps, and tau-leaping."""

    card = Card("jumps in continuous time, sampled by tau-leaping", "estimate", "tauLDR")
    claims_bound = False

    @property
    def options(self) -> TauLDRConfig:
        """The configuration of the method."""
        return self.config.tau_ldr

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the evaluations: one for each leap and its correctors, and one to decode."""
        return self._leaps(super().sampling_nfe(length, steps)) * (1 + self.options.corrector) + 1

    def _leaps(self, nfe: int) -> int:
        return max(0, (nfe - 1) // (1 + self.options.corrector))

    @cached_property
    def spectrum(self) -> Spectrum:
        """The rates of the forward process."""
        return spectrum_of(self.options.rates, self.vocabulary)

    def log_probs(
        self, state: Int[Tensor, "batch length"], time: Float[Tensor, " batch"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of each token given the other positions, at noise times, in float64."""
        return torch.log_softmax(discrete.logits(self.network, state, 1 - time.float(), condition).double(), dim=-1)

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the integrand of the bound at a random time and a little cross-entropy, in nats per token."""
        rate, decode = self._terms(token, quantile.double().to(token.device), condition, generator)
        return (rate + AUXILIARY * decode).mean()

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of the bound in continuous time; `nfe` is ignored."""
        time = discrete.stratified_times(len(token), generator).to(token.device)
        rate, _ = self._terms(token, time, condition, generator)
        _, decode = self._terms(token, torch.zeros_like(time), condition, generator)
        return (rate + decode + self.prior().to(token.device)[token]).sum(-1)

    def prior(self) -> Float[Tensor, " v"]:
        """Return `KL(q_1 || end)` for every token."""
        last = self.spectrum.transition(self.spectrum.clock(torch.tensor(1.0, dtype=torch.float64)))
        return (torch.xlogy(last, last) - last * self.spectrum.end.log()).sum(-1)

    def _terms(
        self, token: Tensor, time: Float[Tensor, " batch"], condition: Tensor | None, generator: Rng
    ) -> tuple[Float[Tensor, "batch length"], Float[Tensor, "batch length"]]:
        """Return the integrand with respect to uniform times, and the cross-entropy, at states of a noise time."""
        law = self.spectrum.transition(self.spectrum.clock(time).cpu()).to(token.device)  # [B, V, V]
        true = law.gather(1, token[..., None].expand(-1, -1, self.vocabulary))  # [B, L, V]: q_t[k, .]
        state = draw_token(true.log(), generator)
        log_probs = self.log_probs(state, time, condition)
        rate = self.spectrum.speed(time)[:, None] * self.divergence_rate(true, log_probs.exp() @ law, state)
        return rate, -self._posterior(log_probs, law, state).gather(-1, token[..., None])[..., 0]

    def _posterior(
        self, log_probs: Tensor, law: Float[Tensor, "batch v v"], state: Tensor
    ) -> Float[Tensor, "batch length v"]:
        """Return `log p(k | x)`: the prediction combined with the evidence of the position's own state."""
        column = law.mT.gather(1, state[..., None].expand(-1, -1, self.vocabulary))
        return torch.log_softmax(log_probs + column.clamp_min(1e-300).log(), dim=-1)

    def divergence_rate(self, true: Tensor, model: Tensor, state: Tensor) -> Float[Tensor, "batch length"]:
        """Return `sum over y of R[y, x] r_y (s_y - 1 - log s_y)`, for true and predicted distributions of the state."""
        tiny = torch.finfo(true.dtype).tiny
        ratios = [law.clamp_min(tiny).log() for law in (true, model)]
        true_ratio, ratio = (log_law - log_law.gather(-1, state[..., None]) for log_law in ratios)
        excess = ratio - true_ratio
        small = excess.abs() < 1  # where the difference below would lose digits, and the product could not overflow
        near = true_ratio.exp() * (torch.expm1(torch.where(small, excess, 0.0)) - excess)
        far = ratio.exp() - true_ratio.exp() * (1 + excess)
        return (self._backward(state) * torch.where(small, near, far)).sum(-1)

    def _backward(self, state: Tensor) -> Float[Tensor, "batch length v"]:
        """Return `R[y, x]` for every y but x."""
        rate = self.spectrum.rate.to(state.device)
        return rate.T[state].scatter(-1, state[..., None], 0.0)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return token ids: leaps from the end of the forward process to t = 0, with correctors, and a draw there."""
        times = torch.linspace(1, 0, self._leaps(nfe) + 1, dtype=torch.float64)
        state = draw_token(self.spectrum.end.log().expand(count, length, -1), generator)
        for now, later in pairwise(times):
            width = self.spectrum.clock(now) - self.spectrum.clock(later)
            state = self._leap(state, width * self._reverse(state, now, condition), generator)
            for _ in range(self.options.corrector):
                forward = self.spectrum.rate[state].scatter(-1, state[..., None], 0.0)
                rates = forward + self._reverse(state, later, condition)
                state = self._leap(state, self.options.corrector_step * width * rates, generator)
        law = self.spectrum.transition(self.spectrum.clock(times[-1])).expand(count, -1, -1)
        log_probs = self.log_probs(state, times[-1].expand(count), condition)
        return draw_token(self._posterior(log_probs, law, state), generator)

    def _reverse(self, state: Tensor, time: Tensor, condition: Tensor | None) -> Float[Tensor, "count length v"]:
        """Return the rates of the reverse process per unit of the clock, Eq. (78)."""
        law = self.spectrum.transition(self.spectrum.clock(time))
        model = self.log_probs(state, time.expand(len(state)), condition).exp() @ law
        return self._backward(state) * model / model.gather(-1, state[..., None])

    def _leap(self, state: Tensor, means: Float[Tensor, "count length v"], generator: Rng) -> Tensor:
        """Return the states after Poisson numbers of jumps: their sum, clamped, or the only one."""
        jumps = torch.poisson(means.clamp_max(1e6), generator=generator)
        if self.options.rates == "gauss":
            distance = torch.arange(self.vocabulary).to(jumps) - state[..., None]
            return (state + (jumps * distance).sum(-1)).clamp(0, self.vocabulary - 1).long()
        return torch.where(jumps.sum(-1) == 1, jumps.argmax(-1), state)


def spectrum_of(rates: str, vocabulary: int) -> Spectrum:
    """Return rates that are reversible with respect to their end, with the spectrum of their symmetric form."""
    place = torch.arange(vocabulary, dtype=torch.float64)
    if rates == "uniform":
        end = torch.full((vocabulary,), 1 / vocabulary, dtype=torch.float64)
        rate = end.expand(vocabulary, vocabulary).clone()
    else:
        off = (place - (vocabulary - 1) / 2).abs()
        end = torch.softmax(-(off / (WIDTH * vocabulary)).square() / 2, dim=0)
        distance = (place[:, None] - place).abs()
        towards = torch.exp(-((distance - 1) / max(1.0, REACH * vocabulary)).square())
        inwards = off[None, :] <= off[:, None]  # jumps to the centre have this rate, and reversibility gives those back
        rate = torch.where(inwards, towards, towards * end[None, :] / end[:, None])
    rate.fill_diagonal_(0.0)
    rate -= torch.diag(rate.sum(-1))
    root = end.sqrt()
    values, vectors = torch.linalg.eigh(rate * root[:, None] / root)
    return Spectrum(rate, end, values.clamp_max(0.0), vectors)

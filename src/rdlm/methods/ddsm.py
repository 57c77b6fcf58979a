"""Dirichlet diffusion score model (DDSM): Jacobi diffusion of the simplex, reversed by the score of a predicted token.

The Wright-Fisher diffusion with equal mutation, whose coordinates are Jacobi diffusions, moves every start to `Dir(1)`:

    dx = (1 - V x) / 2 dt + sqrt(D) dW,      D = diag(x) - x x^T

Started in `Dir(1 + N e_k)`, it stays a mixture: `x_t ~ sum_m q_m(t) Dir(1 + m e_k)`, where `q(t)` is the distribution
of a death process from N with rates `m (m - 1 + V) / 2`. So draws are exact, and so is the evidence of a position's
point, Eq. (81),

    log g_t(x_l),      g_t(y) = sum_m q_m(t) (V)_m / m! y^m

The network predicts the token by cross-entropy, and with it the score `p_l g_t'(x_l) / g_t(x_l)` in each coordinate.
By Girsanov's theorem, with the error `d_l = (1_{l = k} - p_l) g_t'(x_l) / g_t(x_l)` of the score,

    -log p(k)  <=  KL(q_T || Dir(1))  +  1/2 int_0^T E[ d^T D d ] dt  +  E[-log p(k | x_0)]

for the reversed diffusion. The sampler takes Euler steps of it, so for the sampler this is an *estimate*. The original
regresses the score and runs its sticks at unequal speeds, which depends on the numbering of the tokens.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.methods.dirichlet_flow import dirichlet_points, on_simplex, simplex_network
from rdlm.random import Rng, check_numbers, draw_token

LINEAGES = 64
"""N: for the start `Dir(1 + N e_k)` the token is practically certain."""

LATEST = 20.0
"""V T: at the last time T the token's share of information is about exp(-10)."""


TIMES = 256
"""Largest number of distinct times in an estimate: each costs a matrix exponential."""


class DDSM(Baseline):
    """Jacobi diffusion of the simplex: a network over points and times, and the score of its posterior."""

    card = Card("Jacobi diffusion of the simplex, Euler steps", "estimate", "DDSM")
    claims_bound = False

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from points to logits."""
        return simplex_network("ddsm", self.config, self.vocabulary, classes, signal)

    def clock(self, share: Tensor) -> Tensor:
        """Return the time t of a share of [0, 1]; early times are dense, because most information about the token is
        lost there."""
        return LATEST / self.vocabulary * share.square()

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the cross-entropy of the token per token."""
        share = quantile.double()
        weight = lineages(self.clock(share), self.vocabulary).to(token.device)
        log_probs, _ = self.log_probs(self.points(token, weight, generator), weight, share, condition)
        return functional.nll_loss(log_probs.flatten(0, 1), token.flatten())

    def points(
        self, token: Int[Tensor, "batch length"], weight: Float[Tensor, "batch n"], generator: Rng
    ) -> Float[Tensor, "batch length v"]:
        """Return points `x ~ sum_m q_m Dir(1 + m e_k)`, in float64."""
        each = weight[:, None].expand(*token.shape, -1)
        count = draw_token(each.clamp_min(1e-300).log(), generator)
        return dirichlet_points(token, 1 + count.double(), self.vocabulary, generator)

    def log_probs(
        self,
        point: Float[Tensor, "batch length v"],
        weight: Float[Tensor, "batch n"],
        share: Float[Tensor, " batch"],
        condition: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch length v"], Float[Tensor, "batch length v"]]:
        """Return the log-probabilities of the tokens, and the slope of every token's evidence in its coordinate."""
        time = (1 - share).to(point.device)
        logits = discrete.logits(self.network, point.float(), time.float(), condition).to(point)
        evidence, slope = evidence_of(point, weight)
        return torch.log_softmax(logits + evidence, dim=-1), slope

    def prior(self) -> float:
        """Return an upper bound on `KL(q_T || Dir(1))`: the mean divergence of the mixture's components."""
        weight = lineages(self.clock(torch.ones(1, dtype=torch.float64)), self.vocabulary)[0]
        m, size = torch.arange(LINEAGES + 1, dtype=torch.float64), self.vocabulary
        each = torch.lgamma(size + m) - math.lgamma(size) - torch.lgamma(1 + m)
        each = each + m * (torch.digamma(1 + m) - torch.digamma(size + m))
        return float((weight * each).sum())

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of the bound in continuous time; `nfe` is ignored."""
        share = discrete.stratified_times(min(len(token), TIMES), generator)
        place = torch.arange(len(token)) % len(share)
        weight, share = lineages(self.clock(share), self.vocabulary)[place].to(token.device), share[place]
        point = self.points(token, weight, generator)
        log_probs, slope = self.log_probs(point, weight, share, condition)
        error = (functional.one_hot(token, self.vocabulary) - log_probs.exp()) * slope
        rate = (point * error.square()).sum(-1) - (point * error).sum(-1).square()  # d^T D d
        speed = (2 * LATEST / self.vocabulary * share).to(rate)[:, None]  # dt / dshare
        decode = self._decode(token, condition, generator)
        return (speed * rate / 2 + decode + self.prior()).sum(-1)

    def _decode(
        self, token: Int[Tensor, "batch length"], condition: Tensor | None, generator: Rng
    ) -> Float[Tensor, "batch length"]:
        """Return `-log p(k | x_0)` at a point of the start."""
        first = torch.zeros(len(token), dtype=torch.float64)
        weight = lineages(first[:1], self.vocabulary).to(token.device).expand(len(token), -1)
        log_probs, _ = self.log_probs(self.points(token, weight, generator), weight, first, condition)
        return -log_probs.gather(-1, token[..., None])[..., 0]

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return tokens drawn after M - 1 Euler steps of the reversed diffusion; with one call, at its start."""
        none = torch.zeros(count, length, dtype=torch.long)
        point = dirichlet_points(none, torch.ones(count, length, dtype=torch.float64), self.vocabulary, generator)
        shares = torch.linspace(1, 0, nfe, dtype=torch.float64)
        for now, after in pairwise(shares):
            weight = lineages(self.clock(now)[None], self.vocabulary).expand(count, -1)
            log_probs, slope = self.log_probs(point, weight, now.expand(count), condition)
            step = float(self.clock(now) - self.clock(after))
            point = reverse_step(point, log_probs.exp() * slope, step, generator)
        check_numbers(point)
        last = shares[-1].expand(count)
        weight = lineages(self.clock(last[:1]), self.vocabulary).expand(count, -1)
        return draw_token(self.log_probs(point, weight, last, condition)[0], generator)


def lineages(time: Float[Tensor, " batch"], vocabulary: int) -> Float[Tensor, "batch n"]:
    """Return `q(t)`, the distribution of the death process from N at each time, in float64 on the CPU."""
    m = torch.arange(LINEAGES + 1, dtype=torch.float64)
    rate = m * (m - 1 + vocabulary) / 2
    generator = torch.diag(rate[1:], -1) - torch.diag(rate)
    found: Tensor = torch.linalg.matrix_exp(time.double()[:, None, None] * generator)
    return found[:, -1].clamp_min(0)


def evidence_of(
    point: Float[Tensor, "batch length v"], weight: Float[Tensor, "batch n"]
) -> tuple[Float[Tensor, "batch length v"], Float[Tensor, "batch length v"]]:
    """Return `log g_t(x_l)` and its derivative for every token, Eq. (81), by Horner's rule."""
    size, m = point.shape[-1], torch.arange(LINEAGES + 1, dtype=torch.float64, device=point.device)
    binomial = (torch.lgamma(size + m) - math.lgamma(size) - torch.lgamma(1 + m)).exp()  # (V)_m / m!
    value, slope = torch.zeros_like(point), torch.zeros_like(point)
    for coefficient in (weight.to(point) * binomial).flip(1).unbind(1):
        slope = slope * point + value
        value = value * point + coefficient[:, None, None]
    value = value.clamp_min(1e-300)
    return value.log(), slope / value


def reverse_step(
    point: Float[Tensor, "batch length v"], score: Float[Tensor, "batch length v"], step: float, generator: Rng
) -> Float[Tensor, "batch length v"]:
    """Return the points after an Euler step of the reversed diffusion, on the simplex."""
    pull = point * (score - (point * score).sum(-1, keepdim=True))
    drift = (1 - point.shape[-1] * point) / 2 + pull
    root = point.sqrt()
    noise = torch.randn(point.shape, generator=generator, dtype=point.dtype).to(point.device)
    noise = root * (noise - root * (root * noise).sum(-1, keepdim=True))
    return on_simplex(point + step * drift + math.sqrt(step) * noise)

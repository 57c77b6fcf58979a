"""Masked diffusion with a schedule for each token (DiffusionBERT's spindle; MD4's state-dependent schedule).

Token k is unmasked at time t with probability `alpha_k(t) = t + S sin(pi t) w_k`, with `w_k` the logarithm of its count
in the training data, scaled to at most 1 and centred: frequent tokens are decoded before rare ones, as in DiffusionBERT
(S = 0.3). There `w_k` is centred by sentence, so that the schedule depends on the unknown tokens; here by the
vocabulary, which makes it a valid model. A mask is evidence for rare tokens, so the network has a time input. In a step

    r_k = (alpha_k(t') - alpha_k(t)) / (1 - alpha_k(t))         the true step unmasks token k with probability r_k
    p_l r_l                                                     the model's step unmasks to token l

and the term of a masked position is the divergence of the two, Eq. (77),

    r_k (-log p_k)  +  (1 - r_k) log( (1 - r_k) / (1 - sum over l of p_l r_l) )

With S = 0 it is `mdlm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.methods import discrete
from rdlm.methods.base import Card, DiscreteDiffusion
from rdlm.methods.stepwise import Stepwise
from rdlm.random import Rng, draw_token


class DiffusionBert(Stepwise, DiscreteDiffusion):
    """Masked diffusion that reveals frequent tokens first."""

    card = Card("masked tokens, frequent ones first", "bound", "DiffusionBERT", 0.0)

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return the network, with the weights `w_k` as a buffer; 0: all tokens alike."""
        self.core = super().new_network(classes, signal)
        self.core.register_buffer("frequency", torch.zeros(self.vocabulary))
        return self.core

    def fit(self, rows: Callable[[], Tensor]) -> None:
        """Set the schedule from the counts of tokens in the training data."""
        counts = torch.bincount(rows().long().flatten(), minlength=self.vocabulary).double()
        weight = torch.log1p(counts) / torch.log1p(counts.max())
        self.core.get_buffer("frequency").copy_(weight - weight.mean())

    def alpha(self, time: Tensor) -> Float[Tensor, "*times v"]:
        """Return `alpha_k(t)` for every token, in float64."""
        weight = self.core.get_buffer("frequency").to(time.device).double()
        time = time.double()[..., None]
        return time + self.config.discrete.spindle * torch.sin(math.pi * time) * weight

    def alpha_rate(self, time: Tensor) -> Float[Tensor, "*times v"]:
        """Return the derivative of `alpha_k(t)`."""
        weight = self.core.get_buffer("frequency").to(time.device).double()
        return 1 + self.config.discrete.spindle * math.pi * torch.cos(math.pi * time.double()[..., None]) * weight

    def log_probs(self, state: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return `log p(token | unmasked, still masked)` in float64; it is meaningful at masked positions only."""
        return torch.log_softmax(discrete.logits(self.network, state, time.float(), condition), dim=-1).double()

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return `lambda_k (-log p_k) + sum_l p_l lambda_l - lambda_k` at masked positions, lambda the rate of `r`."""
        time = time.to(token.device)
        state = self._masked(token, time, generator)
        rate = (self.alpha_rate(time) / (1 - self.alpha(time)).clamp_min(1e-12))[:, None]  # [B, 1, V]
        log_probs = self.log_probs(state, time, condition)
        own = rate.expand_as(log_probs).gather(-1, token[..., None])[..., 0]
        losses = -own * log_probs.gather(-1, token[..., None])[..., 0] + (log_probs.exp() * rate).sum(-1) - own
        return torch.where(state == self.mask, losses, 0.0).sum(-1)

    def _masked(self, token: Tensor, time: Float[Tensor, " batch"], generator: Rng) -> Int[Tensor, "batch length"]:
        """Return tokens, each masked with probability `1 - alpha_k(t)`."""
        alpha = self.alpha(time).gather(-1, token)  # [B, V] -> [B, L]
        return torch.where(discrete.uniform_like(token, generator) < alpha, token, self.mask)

    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return masks."""
        return torch.full((count, length), self.mask)

    def noisy(self, token: Tensor, step: Tensor, steps: int, generator: Rng) -> Tensor:
        """Return partly masked tokens."""
        return self._masked(token, step.double() / steps, generator)

    def reveal_probability(self, step: Tensor, steps: int) -> Float[Tensor, "*steps v"]:
        """Return `r_k` of a step for every token; 1 in the last one."""
        now, later = self.alpha(step.double() / steps), self.alpha((step.double() + 1) / steps)
        last = (step == steps - 1)[..., None]
        return torch.where(last, 1.0, (later - now) / (1 - now)).clamp(0, 1)

    def terms(
        self, log_probs: Tensor, token: Tensor, state: Tensor, step: Tensor, steps: int, generator: Rng
    ) -> Tensor:
        """Return the divergence of a step at masked positions, Eq. (77)."""
        reveal = self.reveal_probability(step, steps)[:, None]  # [B, 1, V]
        own = reveal.expand_as(log_probs).gather(-1, token[..., None])[..., 0]
        stay = (log_probs.exp() * (1 - reveal)).sum(-1)  # 1 - sum_l p_l r_l, without its loss of digits
        waiting = torch.xlogy(1 - own, 1 - own) - torch.xlogy(1 - own, stay)
        losses = waiting - own * log_probs.gather(-1, token[..., None])[..., 0]
        return torch.where(state == self.mask, losses, 0.0)

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return states after unmasking to l with probability `p_l r_l`."""
        reveal = self.reveal_probability(torch.tensor(step), steps).to(state.device)  # [V]
        probs = log_probs.exp()
        law = torch.cat((probs * reveal, (probs * (1 - reveal)).sum(-1, keepdim=True)), dim=-1)  # the mask is state V
        return torch.where(state == self.mask, draw_token(law.log(), generator), state)

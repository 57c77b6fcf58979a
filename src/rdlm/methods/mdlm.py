"""Masked diffusion (absorbing D3PM in continuous time, MDLM, MD4): tokens are unmasked once and then stay fixed.

Position i of `x` is masked at time t with probability `1 - alpha_t`. The network's input is the unmasked tokens,
without the time; its output is a distribution over tokens (the mask has probability zero). Unmasked tokens are kept.

    M steps     sum over m of  E sum over masked i  (alpha_{m+1} - alpha_m) / (1 - alpha_m) (-log p(x_i | unmasked))
    M -> inf    int  alpha'_t / (1 - alpha_t)  E sum over masked i  (-log p(x_i | unmasked)) dt

The first bound is exact for the sampler of M steps, which draws all positions of a step independently. The second is
the mean of the autoregressive `-log p` over all orders, for every schedule. Position i is unmasked when alpha exceeds
its threshold, uniform on [0, 1). The thresholds are independent, as in the literature, or strided: the positions of one
step are far apart (`discrete.order strided`, the order of RDLM's token schedules). The bound holds for either.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.config import RunConfig
from rdlm.methods import discrete
from rdlm.methods.base import Card, DiscreteDiffusion
from rdlm.process.order import TokenSteps
from rdlm.random import Rng, draw_token

RATE = 0.15
"""Share of masked tokens in the training of BERT-Mouth."""


class MDLM(DiscreteDiffusion):
    """Masked diffusion: a network over partly masked tokens, and the schedule and order of unmasking."""

    card = Card("masked tokens, random or strided order", "bound", "MDLM", 0.0)

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        super().__init__(config, vocabulary, classes, signal)
        self.order = config.discrete.order

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return `alpha'_t / (1 - alpha_t)` times the cross-entropy of the masked positions."""
        alpha = discrete.alpha(self.schedule, time).to(token.device)
        weight = discrete.alpha_rate(self.schedule, time).to(token.device) / (1 - alpha)
        masked = discrete.uniform_like(token, generator) >= alpha[:, None]
        return weight * self.masked_cross_entropy(token, masked, condition)

    def masked_cross_entropy(
        self, token: Int[Tensor, "batch length"], masked: Bool[Tensor, "batch length"], condition: Tensor | None
    ) -> Float[Tensor, " batch"]:
        """Return the sum of `-log p(x_i | unmasked)` over the masked positions."""
        log_probs = self.log_probs(torch.where(masked, self.mask, token), condition)
        log_prob = log_probs.gather(-1, token[..., None])[..., 0]  # [B, L, V] -> [B, L]
        return torch.where(masked, -log_prob.double(), 0.0).sum(-1)

    def log_probs(
        self, state: Int[Tensor, "batch length"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return `log p(token | unmasked)` at every position; it is meaningful at masked positions only."""
        return torch.log_softmax(discrete.logits(self.network, state, 0.0, condition), dim=-1)

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        grid = self.levels(nfe, token.shape[1])
        step = discrete.stratified_steps(len(token), nfe, generator)
        weight = unmask_probability(grid)[step].to(token.device)
        masked = self.thresholds(token, nfe, generator) >= grid[step].to(token.device)[:, None]
        return nfe * weight * self.masked_cross_entropy(token, masked, condition)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return token ids, unmasked in `nfe` steps; the network is only evaluated for sequences that changed."""
        token = torch.full((count, length), self.mask)
        log_probs = torch.zeros(count, length, self.vocabulary)
        changed = torch.ones(count, dtype=torch.bool)
        threshold = self.thresholds(token, nfe, generator)
        for alpha in self.levels(nfe, length)[1:]:
            if changed.any():
                rows = discrete.condition_rows(condition, changed)
                log_probs[changed] = self.log_probs(token[changed], rows).to(log_probs)
            unmasked = (token == self.mask) & (threshold < alpha)  # [B, L]
            token[unmasked] = draw_token(log_probs[unmasked], generator)
            changed = unmasked.any(-1)
        return token

    def levels(self, nfe: int, length: int) -> Float[Tensor, " levels"]:
        """Return `alpha_0 = 0 < ... < alpha_M = 1`, the expected share of unmasked positions before every step."""
        return discrete.alpha_grid(self.schedule, nfe)

    def thresholds(self, token: Tensor, nfe: int, generator: Rng) -> Float[Tensor, "batch length"]:
        """Return the value of alpha above which each position is unmasked."""
        if self.order == "random":
            return discrete.uniform_like(token, generator)
        batch, length = token.shape
        offsets = TokenSteps(nfe, 1, "strided").offsets(batch, length, generator)
        return ((offsets + 0.5).double() / nfe).to(token.device)


def unmask_probability(grid: Float[Tensor, " levels"]) -> Float[Tensor, " steps"]:
    """Return `(alpha_{m+1} - alpha_m) / (1 - alpha_m)` of every step; 1 in the last step."""
    return (grid[1:] - grid[:-1]) / (1 - grid[:-1])


class BertMouth(MDLM):
    """BERT as a generator (BERT-Mouth): a masked language model with the bound and the sampler of masked diffusion.

    Training masks a fixed share of the tokens; bound and sampler use every mask rate, also those on which the network
    was not trained. The pseudo-likelihood of the original, the sum of `log p(x_i | all others)`, is not a likelihood,
    and that of its Gibbs sampler is unknown; neither is implemented.
    """

    card = Card("masked tokens, trained at one mask rate", "bound", "BERT-Mouth", 0.0)
    order_name = "random"

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the cross-entropy of masked positions in nats per token, scaled to the length; not the bound."""
        masked = discrete.uniform_like(token, generator) < RATE
        return (self.masked_cross_entropy(token, masked, condition) / RATE).mean() / token.shape[1]

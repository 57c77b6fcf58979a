"""Block diffusion (BD3-LM): blocks of tokens from left to right, each by masked diffusion given the blocks before it.

    -log p(x)  <=  sum over blocks c of  bound of masked diffusion for block c given blocks < c,      Eq. (76)

With one block it is `mdlm`, with blocks of one token an exact autoregressive likelihood. Training and bound evaluate
all blocks in one pass over a doubled sequence: the clean tokens, then the partly masked ones; a masked block attends to
itself and to the clean blocks before it. The sampler spends the calls evenly on the blocks, at least one on each, and
evaluates the tokens so far; keys of finished blocks are recomputed.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.config import RunConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Card, DiscreteDiffusion
from rdlm.methods.mdlm import unmask_probability
from rdlm.random import Rng, draw_token


class BlockDiffusion(DiscreteDiffusion):
    """Masked diffusion of one block after the other."""

    card = Card("masked tokens, block by block", "bound", "BD3-LM", 0.0)
    order_name = "left-to-right"

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        if not isinstance(config.model, TransformerConfig):
            raise InputError("block_diffusion needs a transformer: attention is masked by blocks")
        super().__init__(config, vocabulary, classes, signal)
        self.block = config.discrete.block

    def blocks(self, length: int) -> int:
        """Return the number of blocks of a sequence; the last one may be shorter."""
        return -(-length // self.block)

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the calls: the same number for each block, at least one."""
        return self.blocks(length) * max(1, super().sampling_nfe(length, steps) // self.blocks(length))

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the integrand of masked diffusion, with a time for each block that is stratified over the batch."""
        count = self.blocks(token.shape[1])
        shift = torch.rand(count, generator=generator, dtype=torch.float64)
        times = (time.double()[:, None] + shift) % 1.0  # [B, C]
        alpha = self._spread(discrete.alpha(self.schedule, times), token)
        weight = self._spread(discrete.alpha_rate(self.schedule, times), token) / (1 - alpha)
        masked = discrete.uniform_like(token, generator) >= alpha
        return (weight * self._cross_entropy(token, masked, condition)).sum(-1)

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound, from one step of every block."""
        count = self.blocks(token.shape[1])
        steps = self.sampling_nfe(token.shape[1], nfe) // count
        grid = discrete.alpha_grid(self.schedule, steps)
        first = discrete.stratified_steps(len(token), steps, generator)
        shift = torch.randint(steps, (count,), generator=generator)
        step = (first[:, None] + shift) % steps  # [B, C]
        masked = discrete.uniform_like(token, generator) >= self._spread(grid[step], token)
        weight = self._spread(unmask_probability(grid)[step], token)
        losses = self._cross_entropy(token, masked, condition)
        return steps * (weight * losses).sum(-1)

    def _spread(self, values: Float[Tensor, "batch blocks"], token: Tensor) -> Float[Tensor, "batch length"]:
        """Return the value of its block at every position."""
        return values.repeat_interleave(self.block, dim=1)[:, : token.shape[1]].to(token.device)

    def _cross_entropy(
        self, token: Int[Tensor, "batch length"], masked: Bool[Tensor, "batch length"], condition: Tensor | None
    ) -> Float[Tensor, "batch length"]:
        """Return `-log p(x_i | clean blocks before, unmasked tokens of the block)` at masked positions, else 0."""
        doubled = torch.cat((token, torch.where(masked, self.mask, token)), dim=1)  # [B, 2L]
        log_probs = self._log_probs(doubled, condition, True)  # [B, L, V]
        log_prob = log_probs.gather(-1, token[..., None])[..., 0]
        return torch.where(masked, -log_prob.double(), 0.0)

    def _log_probs(self, ids: Tensor, condition: Tensor | None, doubled: bool) -> Float[Tensor, "batch length v"]:
        device = next((p.device for p in self.network.parameters()), ids.device)
        moved = None if condition is None else condition.to(device)
        logits: Tensor = self.network(ids.to(device), 0.0, moved, block=self.block, doubled=doubled)
        return torch.log_softmax(logits.to(ids.device), dim=-1)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return token ids, one block after the other."""
        steps = self.sampling_nfe(length, nfe) // self.blocks(length)
        token = torch.full((count, length), self.mask)
        for begin in range(0, length, self.block):
            now = token[:, : begin + self.block]  # a view: the blocks so far and this one
            known = discrete.condition_at(condition, slice(now.shape[1]))
            threshold = discrete.uniform_like(now[:, begin:], generator)
            for alpha in discrete.alpha_grid(self.schedule, steps)[1:]:
                unmasked = (now[:, begin:] == self.mask) & (threshold < alpha)  # [B, block]
                if unmasked.any():
                    log_probs = self._log_probs(now, known, False)[:, begin:]
                    now[:, begin:][unmasked] = draw_token(log_probs[unmasked], generator)
        return token

"""Autoregression, the baseline with an exact likelihood: the same network with a causal mask.

    log p(x) = sum over i of log p(x_i | x_1 .. x_{i-1})

Sampling draws one token per network evaluation, so NFE equals the length of the sequence. A transformer keeps a KV
cache; causal convolutions over an image (as in PixelCNN) are evaluated on the whole image for every token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rdlm.config import ConvolutionConfig, RunConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.model.transformer import Cache
from rdlm.random import Rng, draw_token


class Autoregressive(Baseline):
    """Autoregression: a causal network that predicts each token from the tokens before it."""

    card = Card("tokens from left to right", "exact", "classical", 0.0)
    order_name = "left-to-right"

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        if isinstance(config.model, ConvolutionConfig):
            raise InputError("autoregressive needs a causal network: use model.kind transformer or convolution2d")
        model = replace(config.model, causal=True)
        super().__init__(replace(config, model=model), vocabulary, classes, signal)
        self.layers = config.model.layers

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the negative log-likelihood in nats per token."""
        return -self._log_likelihoods(token, condition).mean()

    def log_likelihood(
        self, ids: Int[Tensor, "batch length"], condition: Tensor | None = None
    ) -> Float[Tensor, " batch"]:
        """Return the exact `log p` of each sequence in nats, which also gives generative perplexity."""
        with torch.no_grad():
            return self._log_likelihoods(ids, condition).double().sum(-1)

    def conditionals(
        self, ids: Int[Tensor, "batch length"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return `log p(. | x_1 .. x_{i-1})` of every position."""
        # Shift right by one: the input of position i is token i - 1, and the first input is the start id.
        inputs = functional.pad(ids[:, :-1], (1, 0), value=self.mask)
        return torch.log_softmax(discrete.logits(self.network, inputs, 0.0, condition), dim=-1)

    def _log_likelihoods(self, ids: Tensor, condition: Tensor | None) -> Float[Tensor, "batch length"]:
        return self.conditionals(ids, condition).gather(-1, ids[..., None])[..., 0]

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return the exact `-log p` of each sequence in nats; `nfe` is ignored."""
        return -self.log_likelihood(token, condition)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return token ids, drawn from left to right with one network evaluation per token; `nfe` is ignored."""
        if not isinstance(self.config.model, TransformerConfig):
            return self._sample_whole(count, length, condition, generator)
        device = next(self.network.parameters()).device
        cache, last = Cache(self.layers), torch.full((count, 1), self.mask)
        drawn = []  # [B, 1] each
        for position in range(length):
            here = discrete.condition_at(condition, slice(position, position + 1))
            logits = self.network(last.to(device), 0.0, None if here is None else here.to(device), None, cache)
            last = draw_token(torch.log_softmax(logits, dim=-1).cpu(), generator)
            drawn.append(last)
        return torch.cat(drawn, dim=1)

    def _sample_whole(
        self, count: int, length: int, condition: Tensor | None, generator: Rng
    ) -> Int[Tensor, "count length"]:
        """Return token ids from a network without a cache: every evaluation is over the whole sequence."""
        drawn = torch.full((count, length), self.mask)
        for position in range(length):
            log_probs = self.conditionals(drawn, condition)[:, position : position + 1]
            drawn[:, position : position + 1] = draw_token(log_probs, generator)
        return drawn

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return one network evaluation per token; `steps` is ignored."""
        return length

"""Autoregression, the baseline with an exact likelihood: the same network with a causal mask.

    log p(x) = sum over i of log p(x_i | x_1 .. x_{i-1})

Sampling draws one token per network evaluation, so NFE equals the length of the sequence. A transformer keeps a KV
cache; causal convolutions over an image (as in PixelCNN) are evaluated on the whole image for every token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import ConvolutionConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.model.transformer import Cache
from rdlm.random import Draw, Rng, draw_token


class Autoregressive(Baseline):
    """Autoregression: a causal network that predicts each token from the tokens before it."""

    card: Card | None = Card("tokens from left to right", "exact", "classical", 0.0)
    claims_bound = True
    order_name: str | None = "left-to-right"

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        if isinstance(config.model, ConvolutionConfig):
            raise InputError("autoregressive needs a causal network: use model.kind transformer or convolution2d")
        self.config, self.start_id, self.layers = config, vocabulary, config.model.layers
        model = replace(config.model, causal=True)
        self.network: nn.Module = discrete.token_network(model, vocabulary, classes, signal)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the negative log-likelihood in nats per token."""
        condition = discrete.training_condition(batch, self.config, draw.generator())
        return -self._log_likelihoods(batch.ids, condition).mean()

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
        inputs = functional.pad(ids[:, :-1], (1, 0), value=self.start_id)
        return torch.log_softmax(discrete.logits(self.network, inputs, 0.0, condition), dim=-1)

    def _log_likelihoods(self, ids: Tensor, condition: Tensor | None) -> Float[Tensor, "batch length"]:
        return self.conditionals(ids, condition).gather(-1, ids[..., None])[..., 0]

    def bound(self, batch: Batch, nfe: int, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return the exact `-log p` of each sequence in nats; `nfe` is ignored."""
        return -self.log_likelihood(batch.ids, discrete.condition_of(batch))

    @torch.no_grad()
    def generate(
        self, count: int, length: int, nfe: int, generator: Rng = None, condition: Tensor | None = None
    ) -> Int[Tensor, "count length"]:
        """Return token ids, drawn from left to right with one network evaluation per token; `nfe` is ignored."""
        if not isinstance(self.config.model, TransformerConfig):
            return self._generate_whole(count, length, generator, condition)
        device = next(self.network.parameters()).device
        cache, last = Cache(self.layers), torch.full((count, 1), self.start_id)
        drawn = []  # [B, 1] each
        for position in range(length):
            # a signal [B, L, S] has one entry per position; labels [B] apply to all of them
            here = condition if condition is None or condition.ndim < 3 else condition[:, position : position + 1]
            logits = self.network(last.to(device), 0.0, None if here is None else here.to(device), None, cache)
            last = draw_token(torch.log_softmax(logits, dim=-1).cpu(), generator)
            drawn.append(last)
        return torch.cat(drawn, dim=1)

    def _generate_whole(
        self, count: int, length: int, generator: Rng, condition: Tensor | None
    ) -> Int[Tensor, "count length"]:
        """Return token ids from a network without a cache: every evaluation is over the whole sequence."""
        drawn = torch.full((count, length), self.start_id)
        for position in range(length):
            log_probs = self.conditionals(drawn, condition)[:, position : position + 1]
            drawn[:, position : position + 1] = draw_token(log_probs, generator)
        return drawn

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return one network evaluation per token; `steps` is ignored."""
        return length

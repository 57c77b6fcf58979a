"""The autoregressive rival: the same transformer, causal, whose likelihood is exact and whose sampler keeps a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Baseline
from rdlm.model.transformer import Cache
from rdlm.random import Draw, draw_token


class Autoregressive(Baseline):
    """The method: a causal network that predicts each token from those before it."""

    claims_bound = True

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        if not isinstance(config.model, TransformerConfig):
            raise InputError("the autoregressive method needs a transformer: a convolution sees both sides")
        self.config, self.beginning = config, vocabulary
        self.layers = config.model.layers
        model = replace(config.model, causal=True)
        self.network: nn.Module = discrete.token_network(model, vocabulary, classes, signal)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the negative log-likelihood in nats per token."""
        condition = discrete.training_condition(batch, self.config, draw.generator())
        return -self._log_likelihoods(batch.ids, condition).mean()

    def log_likelihood(
        self, ids: Int[Tensor, "batch length"], condition: Tensor | None = None
    ) -> Float[Tensor, " batch"]:
        """Return `log p` of each sequence in nats, exactly: also the score of generative perplexity."""
        with torch.no_grad():
            return self._log_likelihoods(ids, condition).double().sum(-1)

    def _log_likelihoods(self, ids: Tensor, condition: Tensor | None) -> Float[Tensor, "batch length"]:
        # Position i sees the tokens before it: the row is moved one place to the right, behind the beginning.
        before = functional.pad(ids[:, :-1], (1, 0), value=self.beginning)
        law = torch.log_softmax(discrete.ask(self.network, before, 0.0, condition), dim=-1)
        return law.gather(-1, ids[..., None])[..., 0]

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return `-log p` of each sequence in nats, exactly; sampling takes a call per token, whatever `nfe` says."""
        return -self.log_likelihood(batch.ids, discrete.condition_of(batch))

    @torch.no_grad()
    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids drawn one after the other, a call per token, whatever `nfe` says."""
        place = next(self.network.parameters()).device
        cache, last = Cache(self.layers), torch.full((count, 1), self.beginning)
        drawn = []
        for position in range(length):
            told = condition if condition is None or condition.ndim < 3 else condition[:, position : position + 1]
            logits = self.network(last.to(place), 0.0, None if told is None else told.to(place), None, cache)
            last = draw_token(torch.log_softmax(logits, dim=-1).cpu(), generator)
            drawn.append(last)
        return torch.cat(drawn, dim=1)

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return one evaluation per token, whatever the steps."""
        return length

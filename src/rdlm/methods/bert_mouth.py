"""BERT as a generator (BERT-Mouth): masked language modelling at one mask rate, scored by masked diffusion.

Training masks a fixed share of the tokens and predicts them. The bound and the sampler are those of `mdlm`, which use
every mask rate, also those on which the network was not trained. The pseudo-likelihood of the original, the sum of `log
p(x_i | all others)`, is not a likelihood, and that of its Gibbs sampler is unknown; neither is implemented.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.mdlm import MDLM
from rdlm.random import Rng

RATE = 0.15
"""Share of masked tokens in training."""


class BertMouth(MDLM):
    """A masked language model with the sampler of masked diffusion."""

    card = Card("masked tokens, trained at one mask rate", "bound", "BERT-Mouth", 0.0)
    order_name = "random"

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the cross-entropy of masked positions, scaled to the length; not the integrand of the bound."""
        masked = discrete.uniform_like(token, generator) < RATE
        return self.masked_cross_entropy(token, masked, condition) / RATE

    @torch.no_grad()
    def limit(self, batch: Batch, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return the estimate of masked diffusion for M to infinity."""
        time = discrete.stratified_times(len(batch.ids), generator)
        return MDLM.integrand(self, batch.ids, time, discrete.condition_of(batch), generator)

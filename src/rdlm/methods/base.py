"""The interface of a method: what the trainer, the evaluator and the command line ask of it."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.data.batch import Batch
from rdlm.random import Draw


class Method(Protocol):
    """A way to model sequences of tokens with one network."""

    claims_bound: bool
    """Whether the mean of `bound` is an upper bound on `-log p` of what `generate` samples from."""

    network: nn.Module
    """The network; the trainer may replace it by a wrapper with the same call (DDP, compiled)."""

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, averaged over its tokens."""

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of an upper bound on `-log p` with `nfe` calls."""

    def generate(
        self, count: int, length: int, nfe: int, generator: torch.Generator | None = None
    ) -> Int[Tensor, "count length"]:
        """Return sampled token ids."""

    def state(self) -> dict[str, Tensor]:
        """Return what was learned outside the network (for example a time proposal), for a checkpoint."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""

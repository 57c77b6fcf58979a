"""Masked diffusion (absorbing D3PM in continuous time, MDLM, MD4): tokens are revealed once and then stay.

Position i of `x` is hidden at time t with probability `1 - alpha_t`. The network sees the visible tokens alone, no
time: its output is a law over tokens (the mask has probability zero), and a visible token is carried over.

    M calls     sum over m of  E sum over hidden i  (alpha_{m+1} - alpha_m) / (1 - alpha_m) (-log p(x_i | visible))
    M -> inf    int  alpha'_t / (1 - alpha_t)  E sum over hidden i  (-log p(x_i | visible)) dt

The first is exact for the sampler of M calls, which draws all positions of a step independently. The second is the
mean over all orders of the autoregressive `-log p`, whatever the schedule. Position i is revealed when alpha passes its
key, uniform on [0, 1): independent of the others' as in the literature, or such that the positions of one call lie far
apart (`discrete.order strided`, as `rdlm` starts its windows); the bound holds for either.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Baseline
from rdlm.process.order import TokenSteps
from rdlm.random import Draw, draw_token


class MDLM(Baseline):
    """The method: a network over visible tokens, and the schedule by which they are revealed."""

    claims_bound = True

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config, self.mask = config, vocabulary
        self.schedule, self.order = config.discrete.schedule, config.discrete.order
        self.network: nn.Module = discrete.token_network(config.model, vocabulary, classes, signal)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the continuous-time bound in nats per token, at evenly spread times."""
        return discrete.mean_rate(self._rates, batch, self.config, draw)

    def limit(self, batch: Batch, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of the bound for M to infinity."""
        return discrete.rates_of(self._rates, batch, generator)

    def _rates(
        self, token: Tensor, time: Tensor, condition: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, " batch"]:
        """Return the integrand of the continuous-time bound at one time for each sequence."""
        alpha = discrete.kept(self.schedule, time).to(token.device)
        weight = discrete.kept_rate(self.schedule, time).to(token.device) / (1 - alpha)
        hidden = discrete.chance(token, generator) >= alpha[:, None]
        return weight * self._hidden_cross_entropy(token, hidden, condition)

    def _hidden_cross_entropy(
        self, token: Tensor, hidden: Bool[Tensor, "batch length"], condition: Tensor | None
    ) -> Float[Tensor, " batch"]:
        """Return the sum of `-log p` over the hidden positions."""
        visible = torch.where(hidden, self.mask, token)
        own = self.log_probs(visible, condition).gather(-1, token[..., None])[..., 0]
        return torch.where(hidden, -own.double(), 0.0).sum(-1)

    def log_probs(
        self, visible: Int[Tensor, "batch length"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return `log p(token | visible)`; it means nothing where a token is visible already."""
        return torch.log_softmax(discrete.ask(self.network, visible, 0.0, condition), dim=-1)

    @torch.no_grad()
    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        token, grid = batch.ids, discrete.kept_grid(self.schedule, nfe)
        step = discrete.spread_steps(len(token), nfe, generator)
        reveal = reveal_probability(grid)[step].to(token.device)
        hidden = self._keys(token, nfe, generator) >= grid[step].to(token.device)[:, None]
        return nfe * reveal * self._hidden_cross_entropy(token, hidden, discrete.condition_of(batch))

    def _keys(self, token: Tensor, nfe: int, generator: torch.Generator | None) -> Float[Tensor, "batch length"]:
        """Return the value of alpha at which each position is revealed."""
        if self.order == "random":
            return discrete.chance(token, generator)
        batch, length = token.shape
        offsets = TokenSteps(nfe, 1, "strided").offsets(batch, length, generator)
        return ((offsets + 0.5).double() / nfe).to(token.device)

    @torch.no_grad()
    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids revealed in `nfe` steps; a sequence in which nothing changed is not asked again."""
        token = torch.full((count, length), self.mask)
        law = torch.zeros(count, length, self.mask)
        changed = torch.ones(count, dtype=torch.bool)
        key = self._keys(token, nfe, generator)
        for alpha in discrete.kept_grid(self.schedule, nfe)[1:]:
            if changed.any():
                law[changed] = self.log_probs(token[changed], discrete.rows_of(condition, changed)).to(law)
            chosen = (token == self.mask) & (key < alpha)
            token[chosen] = draw_token(law[chosen], generator)
            changed = chosen.any(-1)
        return token


def reveal_probability(grid: Float[Tensor, " levels"]) -> Float[Tensor, " steps"]:
    """Return `(alpha_{m+1} - alpha_m) / (1 - alpha_m)` of every step; 1 in the last, which leaves nothing hidden."""
    return (grid[1:] - grid[:-1]) / (1 - grid[:-1])

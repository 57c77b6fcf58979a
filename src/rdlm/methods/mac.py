"""Any-order autoregression with a canonical order (MAC): one order of positions, in which the likelihood is exact.

The canonical order visits every `stride`-th position, then starts again one further: consecutive positions of the order
are far apart. Training conditions on a random set of known positions and, of the unknown ones, on a prefix in the
canonical order, drawn in proportion to its length plus one; so conditionals that no canonical order needs are not
trained. With calls that decode the positions
`c_j .. c_{j+1}` of the order at once, Eq. (72),

    log p(x)  =  sum over calls j, sum over positions i of call j, of  log p(x_i | positions of earlier calls)

is the likelihood of the sampler that runs, not a bound: the order is fixed. With one call per position it is the chain
rule. In other orders the same network has other likelihoods, usually lower ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.mdlm import MDLM
from rdlm.random import Rng


class MAC(MDLM):
    """Masked prediction in one canonical order."""

    card = Card("masked tokens, canonical order", "exact", "MAC", 0.0)
    order_name = "canonical"

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the calls, at most one per position."""
        return min(super().sampling_nfe(length, steps), length)

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return D times the mean cross-entropy of the positions after a canonical prefix of a random set."""
        length = token.shape[1]
        share = (1 - time.double()).sqrt()  # larger sets have longer prefixes
        queried = discrete.uniform_like(token, generator) < share.to(token.device)[:, None]
        rank = canonical_ranks(length, self.config.discrete.stride).to(token.device).expand(token.shape)
        order = torch.where(queried, rank, -1)  # known positions come first
        prefix = torch.rand(len(token), 1, generator=generator, dtype=torch.float64).to(token.device)
        place = order.argsort(-1).argsort(-1)
        count = queried.sum(-1, keepdim=True).double()
        prefix = (((1 + 4 * prefix * count * (count + 1)).sqrt() - 1) / 2).floor()  # p < count, in proportion to p + 1
        first = length - count + prefix  # at least one position is unknown, unless none is queried
        masked = place >= first.clamp_max(length - 1)
        return self.masked_cross_entropy(token, masked, condition) * length / masked.sum(-1)

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of the exact `-log p`, from one call."""
        grid = self.levels(nfe, token.shape[1]).to(token.device)
        step = discrete.stratified_steps(len(token), len(grid) - 1, generator).to(token.device)
        threshold = self.thresholds(token, nfe, generator)
        unknown = threshold >= grid[step, None]
        log_probs = self.log_probs(torch.where(unknown, self.mask, token), condition)
        decided = unknown & (threshold < grid[step + 1, None])
        log_prob = log_probs.gather(-1, token[..., None])[..., 0].double()
        return (len(grid) - 1) * torch.where(decided, -log_prob, 0.0).sum(-1)

    def levels(self, nfe: int, length: int) -> Float[Tensor, " levels"]:
        """Return the share of known positions before every call, and 1: calls of equal size."""
        calls = self.sampling_nfe(length, nfe)
        return (torch.arange(calls + 1, dtype=torch.float64) * length / calls).round() / length

    def thresholds(self, token: Tensor, nfe: int, generator: Rng) -> Float[Tensor, "batch length"]:
        """Return the middle of the interval of levels in which each position is decoded, from its canonical rank."""
        length = token.shape[1]
        rank = canonical_ranks(length, self.config.discrete.stride).to(token.device)
        return ((rank + 0.5).double() / length).expand(token.shape)


def canonical_ranks(length: int, stride: int) -> Int[Tensor, " length"]:
    """Return the rank of each position in the order 0, s, 2s, ..., 1, s + 1, 2s + 1, ..."""
    place = torch.arange(length)
    return ((place % stride) * length + place).argsort().argsort()

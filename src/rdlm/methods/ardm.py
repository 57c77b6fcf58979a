"""Any-order autoregressive diffusion (ARDM): masked diffusion with exact counts, and calls planned by their losses.

Before a call exactly c of the D positions are known, a uniformly random set. Its loss is the mean cross-entropy of the
others, `l_c = E mean over unknown i of (-log p(x_i | known))`. If the calls begin at `0 = c_0 < c_1 < ... < c_M = D`,
Eq. (71),

    -log p(x)  <=  sum over calls j of  (c_{j+1} - c_j) l_{c_j}

and with M = D the right side is the mean of `-log p` over all orders. `l_c` decreases with c, so early calls should
decode few tokens and late calls many. The best `c_1 .. c_{M-1}` for a curve of losses, which training measures on
held-out sequences, are found by dynamic programming. In the notation of masked diffusion the level is `alpha = c / D`,
and position i has the threshold `rank(i) / D` for a random permutation: one permutation in place of D independent
numbers.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.mdlm import MDLM
from rdlm.random import Draw, Rng

BINS = 32
"""Shares of known positions at which losses are kept."""

EVERY, MEMORY = 100, 0.8
"""Steps between measurements of the losses, and the weight of earlier measurements."""


class ARDM(MDLM):
    """Masked diffusion in which every call decodes a planned number of positions, in a random order."""

    card = Card("masked tokens, exact counts, planned calls", "bound", "ARDM", 0.0)
    order_name = "random"

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return the network, with the losses by share of known positions as a buffer; 0: not measured."""
        self.core = super().new_network(classes, signal)
        self.core.register_buffer("curve", torch.zeros(BINS))
        return self.core

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the calls, at most one per position."""
        return min(super().sampling_nfe(length, steps), length)

    def levels(self, nfe: int, length: int) -> Float[Tensor, " levels"]:
        """Return the share of known positions before every call, and 1: the best plan for the measured losses."""
        curve = tuple(self.core.get_buffer("curve").tolist())
        counts = planned_counts(curve, self.sampling_nfe(length, nfe), length)
        return torch.tensor(counts, dtype=torch.float64) / length

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return `D / (D - c)` times the cross-entropy of the unknown positions, with c the time in whole positions."""
        length = token.shape[1]
        return self._call(token, (time.double() * length).floor() / length, condition, generator)

    def _call(
        self, token: Tensor, level: Float[Tensor, " batch"], condition: Tensor | None, generator: Rng
    ) -> Float[Tensor, " batch"]:
        """Return D times the mean cross-entropy of the unknown positions of a call."""
        level = level.to(token.device)
        masked = self.thresholds(token, 0, generator) >= level[:, None]
        return self.masked_cross_entropy(token, masked, condition) / (1 - level)

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one call.

        The call is that of a random position of the order, so large calls are drawn more often.
        """
        length = token.shape[1]
        grid = self.levels(nfe, length)
        place = (discrete.stratified_steps(len(token), length, generator) + 0.5) / length
        level = grid[torch.searchsorted(grid, place.double()) - 1]
        return self._call(token, level, condition, generator)

    @torch.no_grad()
    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Measure the losses of calls on held-out sequences, every hundredth step."""
        if draw.step % EVERY:
            return
        generator, token = draw.generator(), held_out.ids
        time = discrete.stratified_times(len(token), generator)
        losses = self.integrand(token, time, discrete.condition_of(held_out), generator) / token.shape[1]
        place, measured = (time * BINS).long().clamp_max(BINS - 1), losses.cpu()
        count = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, torch.ones_like(measured))
        mean = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, measured) / count.clamp_min(1)
        curve = self.core.get_buffer("curve")
        old = curve.double().cpu()
        mean = torch.where(count == 0, old, torch.where(old == 0, mean, MEMORY * old + (1 - MEMORY) * mean))
        curve.copy_(mean)

    def thresholds(self, token: Tensor, nfe: int, generator: Rng) -> Float[Tensor, "batch length"]:
        """Return the middle of the interval of levels in which each position is decoded, from its rank in the order."""
        rank = discrete.uniform_like(token, generator).argsort(-1).argsort(-1)
        return (rank + 0.5).double() / token.shape[1]


@lru_cache(maxsize=64)
def planned_counts(curve: tuple[float, ...], nfe: int, length: int) -> tuple[int, ...]:
    """Return `c_0 = 0 < c_1 < ... < c_M = D` with the least sum of `(c_{j+1} - c_j) l_{c_j}`, by dynamic programming.

    Losses between measured shares are interpolated and made non-increasing; equal counts if none were measured.
    """
    if not all(loss > 0 for loss in curve):
        return tuple(round(length * call / nfe) for call in range(nfe + 1))
    loss = falling_losses(torch.tensor(curve, dtype=torch.float64), length)
    place = torch.arange(length + 1, dtype=torch.float64)
    price = (place[None, :] - place[:length, None]) * loss[:, None]  # [a, b]: positions a .. b - 1 in one call
    price = price.masked_fill(place[None, :] <= place[:length, None], torch.inf)
    least, choice = price[0], []  # least[b]: the cost of the first b positions in the calls so far
    for _ in range(nfe - 1):
        least, before = (least[:length, None] + price).min(0)
        choice.append(before)
    counts = [length]
    for before in reversed(choice):
        counts.append(int(before[counts[-1]]))
    return (0, *reversed(counts))


def falling_losses(curve: Float[Tensor, " bins"], length: int) -> Float[Tensor, " length"]:
    """Return the loss with each number of known positions, interpolated, and at most that with fewer."""
    curve = torch.cummin(curve, 0).values
    place = ((torch.arange(length, dtype=torch.float64) / length) * len(curve) - 0.5).clamp(0, len(curve) - 1)
    low = place.long().clamp_max(len(curve) - 2)
    return torch.lerp(curve[low], curve[low + 1], place - low)

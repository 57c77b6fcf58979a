"""Token schedules: the part of the sampling time in which each position follows its bridge, Eq. (35).

Width 1 is the synchronous process; a width of one step is masked diffusion (random order) or autoregression (left to
right). The starts are drawn independently of the data, so the likelihood bound holds for every draw of them and hence
on average. The `strided` order is random too, but positions that start in the same step are as far apart as possible:
tokens decoded in one step are sampled independently, and distant tokens depend least on each other (as in the MAC and
Halton schedulers).

Named orders (`named_schedule`): synchronous, random, strided and left-to-right.

A sequence can also be divided into blocks that are sampled one after the other, each in the same number of steps, as in
block diffusion (BD3-LM): blocks of one position are autoregression, a single block is the family above. Noise levels
that differ between positions are those of Diffusion Forcing and Rolling Diffusion.

| variable | symbol |
|---|---|
| `width` | `w`, the share of the sampling time that one position takes |
| `starts`, `offsets` | `tau_i` and `o_i`, the start of position `i` in time and in steps |
| `nfe` | `M`, network evaluations |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rdlm.config import OrderName
from rdlm.errors import InputError, unknown
from rdlm.random import Rng

Order = Literal["random", "strided", "left_to_right"]
"""Order in which the positions of a block start."""

STARTS: dict[OrderName, Order] = {
    "synchronous": "strided",  # all start at once
    "random": "random",
    "strided": "strided",
    "left-to-right": "left_to_right",
}

ONE_STEP = 1e-6
"""A width at which each position takes one step, for any number of steps."""


@dataclass(frozen=True)
class TokenSchedule:
    """The order of the positions, and the share `width` of the sampling time in which each is active, Eq. (35)."""

    width: float = 1.0
    order: Order = "random"
    block: int = 0
    """Positions of a block, within whose steps `width` then applies; 0: the whole sequence is one block."""

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise InputError(f"the width of a window must lie in (0, 1], got {self.width}")
        if self.block < 0:
            raise InputError(f"a block has at least one position (0: no blocks), got {self.block}")
        _check_order(self.order)

    @property
    def name(self) -> OrderName:
        """The name of the order; with blocks it is left to right, whatever the order within blocks."""
        if self.width == 1:
            return "synchronous"
        if self.block or self.order == "left_to_right":
            return "left-to-right"
        return self.order

    def starts(self, batch: int, length: int, generator: Rng = None) -> Tensor:
        """Return the times [batch, length] at which positions start, Eq. (35); all 0 for width 1.

        In continuous time no two positions start together, so the strided order is the random one.
        """
        span = 1 - self.width
        if self.order == "left_to_right":
            return span * torch.linspace(0, 1, length).expand(batch, length)
        return span * torch.rand(batch, length, generator=generator)

    def discretize(self, nfe: int, length: int = 0) -> TokenSteps:
        """Return the schedule in whole steps: `nfe` network evaluations, round(width * nfe) of them for each position.

        The blocks of a sequence of `length` share the evaluations evenly; a remainder is not used. With fewer
        evaluations than blocks, but at least half as many, blocks are four times as large; with fewer, there are no
        blocks. Both choices gave the best samples for that number of evaluations.
        """
        if nfe < 1:
            raise InputError(f"at least one network evaluation is needed, got {nfe}")
        block, blocks = self.block, -(-length // self.block) if self.block else 1
        if nfe < blocks <= 2 * nfe:
            block, blocks = 4 * block, -(-length // (4 * block))
        if blocks <= 1 or nfe < blocks:
            return TokenSteps(nfe, max(1, round(self.width * nfe)), self.order)
        turns = nfe // blocks
        steps = max(1, round(self.width * turns))
        if steps == 1 and self.order != "random":
            turns = min(turns, block)  # one step per token; more would be idle
        return TokenSteps(turns * blocks, steps, self.order, block, turns)


def named_schedule(
    name: OrderName, nfe: int, length: int, block: int | None = None, window: float | None = None
) -> tuple[TokenSchedule, int]:
    """Return the token schedule of a named order for a sequence of `length`, and its calls, at most `nfe`.

    Every order but the synchronous one decodes each position in one step, so it takes at most one call per position.
    Left to right means blocks, unless `block` is 0; inside a block, positions that are decoded together are far apart.
    A `window` replaces the width of the order, and left to right then is the order of the starts.
    """
    if window is not None or name == "synchronous":
        schedule = TokenSchedule(1.0 if window is None else window, STARTS[name], block or 0)
        return schedule, schedule.discretize(nfe, length).nfe
    if name == "left-to-right" and block is None:
        block = left_to_right_block(nfe, length)
    most = -(-length // block) * block if block else length
    starts = STARTS[name]
    if (starts == "random" and nfe >= most) or (starts == "left_to_right" and block):
        starts = "strided"  # of as many steps as positions, a random permutation
    schedule = TokenSchedule(ONE_STEP, starts, block or 0)
    return schedule, schedule.discretize(min(nfe, most), length).nfe


def left_to_right_block(nfe: int, length: int) -> int:
    """Return the block size with which `nfe` calls generate a sequence of `length` from left to right.

    If each call has to decode k positions, blocks of k * k positions leave k positions between those of one call; if
    the sequence is too short for two such blocks, each call decodes a block.
    """
    together = -(-length // nfe)
    return together**2 if together**2 < length else together


@dataclass(frozen=True)
class TokenSteps:
    """A token schedule in whole steps: of `nfe` global steps each position takes `steps` consecutive ones.

    Because offsets are whole steps, all positions share one local grid and one table of the exact law.
    """

    nfe: int
    steps: int
    order: Order = "random"
    block: int = 0
    """Positions of a block; 0: the whole sequence is one block."""
    turns: int = 0
    """Steps of one block, if there are blocks; equal to `nfe` if all blocks run at once."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= self.period:
            raise InputError(f"the steps of a position must lie in [1, {self.period}], got {self.steps}")
        _check_order(self.order)

    @property
    def period(self) -> int:
        """The number of global steps that positions of one block share."""
        return self.turns if self.block else self.nfe

    def side_by_side(self) -> TokenSteps:
        """Return the schedule with all blocks at once, valid if each is conditioned on the clean ones before it."""
        return replace(self, nfe=self.turns) if self.block else self

    def offsets(self, batch: int, length: int, generator: Rng = None) -> Tensor:
        """Return the global step [batch, length] at which each position starts, Eq. (35)."""
        if not self.block:
            return self._inside(batch, length, generator)
        blocks = -(-length // self.block)
        inside = self._inside(batch * blocks, self.block, generator).reshape(batch, -1)[:, :length]
        begin = torch.arange(length) // self.block * self.turns
        return inside if self.nfe == self.turns else begin + inside

    def _inside(self, batch: int, length: int, generator: Rng) -> Tensor:
        """Return the offsets of the positions of one block, relative to its first step."""
        latest = self.period - self.steps
        if self.order == "random":
            return torch.randint(latest + 1, (batch, length), generator=generator)
        if self.order == "left_to_right":
            return torch.linspace(0, latest, length).round().long().expand(batch, length)
        shuffled = torch.rand(batch, latest + 1, generator=generator).argsort(1)
        # Positions i, i + latest + 1, i + 2 (latest + 1), ... start in the same step, and no nearer ones.
        return shuffled[:, torch.arange(length) % (latest + 1)]

    def local_step(self, step: Tensor | int, offsets: Tensor) -> Tensor:
        """Return each position's local step in [0, steps]; `steps` means finished."""
        return (step - offsets).clamp(0, self.steps)

    def share(self, step: Tensor, offsets: Tensor) -> Tensor:
        """Return the weight of each position's term at a global step: 1 while it runs, 0 once it is finished.

        Random and strided starts are exchangeable among the positions that have not started, whose states are equal.
        Each of them is weighted by its probability to start now, in place of 1 for some and 0 for the others: the mean
        is the same and the variance is lower.
        """
        running = ((step > offsets) & (step - offsets < self.steps)).to(torch.float32)
        if self.order == "left_to_right":
            return running + (step == offsets).to(torch.float32)
        begin = offsets - offsets % self.period  # first step of each position's block
        left = (begin + self.period - self.steps + 1.0 - step).clamp_min(1.0)
        return running + ((begin <= step) & (step <= offsets)) / left


def _check_order(order: str) -> None:
    if order not in get_args(Order):
        raise unknown("order of starts", order, get_args(Order))

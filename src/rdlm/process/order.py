"""Asynchronous clocks: every position lives in a window of its own inside the common time.

Width 1 is the synchronous process; a width of one step is masked diffusion (random starts) or
autoregression (ordered starts). The starts are drawn independently of the data, so that the
likelihood bound holds for every draw of them and hence on average. Starts that are `spread` come in a
random order too, but those of one step lie as far apart as they can: what is decided at once, each position
without knowing of the others, then depends on each other least.

A sequence may also be cut into chunks that run one after the other, each in so many turns: chunks of one position are
autoregression, one chunk is the family above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from rdlm.config import OrderName
from rdlm.errors import InputError, unknown

Order = OrderName


@dataclass(frozen=True)
class TokenSchedule:
    """The part `width` of the common time in which one position runs through its whole bridge, Eq. (35)."""

    width: float = 1.0
    order: Order = "random"
    block: int = 0
    """Positions of a chunk, inside of whose turns the windows then lie; 0: the whole sequence is one."""

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise InputError(f"the width of a window must lie in (0, 1], got {self.width}")
        if self.block < 0:
            raise InputError(f"a chunk has at least one position (0: no chunks), got {self.block}")
        _check_order(self.order)

    def starts(self, batch: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Return the times [batch, length] at which positions start, Eq. (35); all 0 for width 1.

        In continuous time no two positions start at once: a spread order is a random one.
        """
        span = 1 - self.width
        if self.order == "left_to_right":
            return span * torch.linspace(0, 1, length).expand(batch, length)
        return span * torch.rand(batch, length, generator=generator)

    def local_time(self, time: Tensor, starts: Tensor) -> Tensor:
        """Return each position's own time in [0, 1] at the common `time` [batch, 1], Eq. (35)."""
        return ((time - starts) / self.width).clamp(0, 1)

    def discretize(self, nfe: int, length: int = 0) -> TokenSteps:
        """Return the same family in whole steps: `nfe` network calls, round(width * calls) for each position.

        Chunks of a sequence of `length` share the calls evenly, and what is left over is not used. Where there are
        fewer calls than chunks, but half as many, chunks are four times as large, in two turns or more; with fewer than
        that there are none, and all of the sequence runs together: of what so few calls can do, that measures best.
        """
        if nfe < 1:
            raise InputError(f"at least one network call is needed, got {nfe}")
        block, blocks = self.block, -(-length // self.block) if self.block else 1
        if nfe < blocks <= 2 * nfe:
            block, blocks = 4 * block, -(-length // (4 * block))
        if blocks <= 1 or nfe < blocks:
            return TokenSteps(nfe, max(1, round(self.width * nfe)), self.order)
        turns = nfe // blocks
        steps = max(1, round(self.width * turns))
        if steps == 1 and self.order != "random":
            turns = min(turns, block)  # each token has one to itself, and more would be idle
        return TokenSteps(turns * blocks, steps, self.order, block, turns)


@dataclass(frozen=True)
class TokenSteps:
    """A window in whole steps: of `nfe` common steps each position takes `steps` consecutive ones.

    Starting on whole steps lets all positions share one local grid, hence one table of the exact law.
    """

    nfe: int
    steps: int
    order: Order = "random"
    block: int = 0
    """Positions of a chunk; 0: the whole sequence is one."""
    turns: int = 0
    """The steps of one chunk, where there are chunks; `nfe` of them where chunks run side by side."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= self.period:
            raise InputError(f"the steps of a lane must lie in [1, {self.period}], the calls, got {self.steps}")
        _check_order(self.order)

    @property
    def period(self) -> int:
        """Return the steps in which a lane lies: a chunk's, or all."""
        return self.turns if self.block else self.nfe

    def side_by_side(self) -> TokenSteps:
        """Return the lanes with all chunks running at once, as they can where every chunk knows the ones before it."""
        return replace(self, nfe=self.turns) if self.block else self

    def offsets(self, batch: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Return the common step [batch, length] before which each position rests at its start, Eq. (35)."""
        if not self.block:
            return self._inside(batch, length, generator)
        blocks = -(-length // self.block)
        inside = self._inside(batch * blocks, self.block, generator).reshape(batch, -1)[:, :length]
        begin = torch.arange(length) // self.block * self.turns
        return inside if self.nfe == self.turns else begin + inside

    def _inside(self, batch: int, length: int, generator: torch.Generator | None) -> Tensor:
        """Return the offsets of positions of one chunk, from its first step on."""
        latest = self.period - self.steps
        if self.order == "random":
            return torch.randint(latest + 1, (batch, length), generator=generator)
        if self.order == "left_to_right":
            return torch.linspace(0, latest, length).round().long().expand(batch, length)
        shuffled = torch.rand(batch, latest + 1, generator=generator).argsort(1)
        # Position i starts with i + latest + 1, i + 2 (latest + 1), ... : nothing nearer to it starts in the same step.
        return shuffled[:, torch.arange(length) % (latest + 1)]

    def local_step(self, step: Tensor | int, offsets: Tensor) -> Tensor:
        """Return each position's own step in [0, steps]; `steps` means that it is finished."""
        return (step - offsets).clamp(0, self.steps)

    def share(self, step: Tensor, offsets: Tensor) -> Tensor:
        """Return the part of each position's term that counts at a common step: 1 while it runs, 0 once finished.

        Random and spread starts are exchangeable among the positions that still rest, whose states are alike. So each
        of them counts with its chance to start now, instead of some with 1 and the others with 0: the mean is the same.
        """
        running = ((step > offsets) & (step - offsets < self.steps)).to(torch.float32)
        if self.order == "left_to_right":
            return running + (step == offsets).to(torch.float32)
        begin = offsets - offsets % self.period  # the first step of each position's chunk, and how many are left to it
        left = (begin + self.period - self.steps + 1.0 - step).clamp_min(1.0)
        return running + ((begin <= step) & (step <= offsets)) / left


def _check_order(order: str) -> None:
    if order not in get_args(Order):
        raise unknown("order of starts", order, get_args(Order))

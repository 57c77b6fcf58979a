"""The times of a walk: where every position is on its own grid, and who rests, moves and decodes in a step.

They are kept on the CPU, wherever the states are. A walk asks about them at every step, and an answer from a fast
device would be waited for: until it has done all that it was told before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rdlm.process.kernel import Chain
from rdlm.random import Noise


def handed(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor of the CPU on a device, without waiting until that has time for it."""
    return tensor.to(device, non_blocking=True)


def beside(value: Shaped[Tensor, "batch columns"], state: Float[Tensor, "batch positions *spheres d"]) -> Tensor:
    """Return what positions have, a number of the CPU each, beside states: on their device and for each sphere."""
    there = handed(value, state.device)
    return there.view(*there.shape, *[1] * (state.ndim - 3)).expand(state.shape[:-1])


def places(mask: Bool[Tensor, "batch columns"], like: Shaped[Tensor, "batch positions ..."]) -> tuple[Tensor, ...]:
    """Return the indices on the device of `like` of those that a mask of the CPU has."""
    return tuple(handed(index, like.device) for index in mask.expand(like.shape[:2]).nonzero(as_tuple=True))


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of some samples; where all positions run together a single column stands for them."""

    local: Int[Tensor, "batch columns"]
    """Each position's own step; the number of steps where it is finished."""
    moving: Bool[Tensor, "batch columns"]
    decoding: Bool[Tensor, "batch columns"]
    """Those that move and take their last step."""
    settled: Bool[Tensor, "batch positions"] | None
    """Positions whose token is known or finished; none if there is no such position."""


@dataclass(frozen=True, eq=False)
class Pace:
    """The times of a chain's positions."""

    chain: Chain
    tireless: bool = False
    """Take every step, also those in which nothing moves."""

    def begin(self, clean: Bool[Tensor, "batch positions"], random: Noise) -> Int[Tensor, "batch columns"]:
        """Return when each position starts, Eq. (35): the open ones share the lanes, clean ones ended before.

        Chunks have their places in the sequence, whatever of them is open.
        """
        group, token_steps = self.chain.group, self.chain.token_steps
        if self.chain.asynchronous is None and not bool(clean.any()):
            return torch.zeros(len(clean), 1, dtype=torch.long)
        offsets = torch.full(clean.shape, -token_steps.steps)
        for rows, generator in random.rows():
            open_tokens = ~clean[rows][:, ::group]
            taking = torch.ones_like(open_tokens) if token_steps.block else open_tokens
            count = int(taking.sum(1).max()) if len(taking) else 0
            drawn = token_steps.offsets(
                len(open_tokens), count, generator
            )  # one row per sample, its open tokens in order
            rank = (taking.cumsum(1) - 1).clamp_min(0)
            chosen = torch.where(
                open_tokens, drawn.gather(1, rank) if count else -token_steps.steps, -token_steps.steps
            )
            offsets[rows] = chosen.repeat_interleave(group, dim=1)
        return offsets

    def busy(self, step: Int[Tensor, "batch 1"], offsets: Int[Tensor, "batch columns"]) -> Int[Tensor, "batch 1"]:
        """Return the first step from `step` on in which some position of a sample moves; the number of calls if none.

        The steps before it change nothing, so that the model need not be asked. Each sample decides by itself, so that
        its random numbers are the same in any company.
        """
        if self.tireless or self.chain.asynchronous is None:
            return step
        nfe, lane = self.chain.nfe, self.chain.grid.steps
        return torch.where(step < offsets + lane, torch.maximum(step, offsets), nfe).amin(1, keepdim=True)

    def local(
        self, step: Int[Tensor, "batch 1"], offsets: Int[Tensor, "batch columns"]
    ) -> Int[Tensor, "batch columns"]:
        """Return each position's own step."""
        return self.chain.token_steps.local_step(step, offsets)

    def moment(
        self, step: Int[Tensor, "batch 1"], offsets: Int[Tensor, "batch columns"], known: Int[Tensor, "batch positions"]
    ) -> Moment:
        """Return what happens in a step."""
        local, last = self.local(step, offsets), self.chain.grid.steps - 1
        moving = (step >= offsets) & (local <= last)
        settled = (known >= 0) | (local > last)
        return Moment(local, moving, moving & (local == last), settled if bool(settled.any()) else None)

    def reach(self, step: Int[Tensor, "batch 1"], tokens: int) -> tuple[int, int]:
        """Return how many tokens are behind all samples' chunks at a step, and with how many the last of these ends."""
        token_steps = self.chain.token_steps
        if not token_steps.block:
            return 0, tokens
        block = step.clamp_max(token_steps.nfe - 1) // token_steps.turns
        return int(block.min()) * token_steps.block, min(tokens, (int(block.max()) + 1) * token_steps.block)

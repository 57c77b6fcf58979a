"""Recall: what a model that writes chunk after chunk need not be asked again.

A finished chunk sees only what came before it and is finished, too. So its keys and values in the network will never
change: they are kept, and the network is asked about the chunk that runs alone, and once more about each that has just
been finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from rdlm.model.denoiser import BlockMask
from rdlm.model.transformer import Cache

if TYPE_CHECKING:
    from rdlm.methods.rdlm import Rdlm


class Recall(NamedTuple):
    """A question about some tokens of a sequence, behind others that are finished in all samples."""

    cache: Cache
    block: int
    """Tokens of a chunk."""
    front: int
    """Tokens that are finished: what the question tells of them is kept."""
    end: int
    """Tokens up to which is asked; nothing that matters now lies beyond."""

    def rows(self, rows: slice) -> Recall:
        """Return the question about some of the samples, to be told of by `remember`."""
        return self._replace(cache=self.cache.rows(rows))

    def remember(self, parts: Sequence[Recall]) -> None:
        """Keep what questions about all samples, some at a time, have found."""
        self.cache.take([part.cache for part in parts])

    def law(
        self,
        method: Rdlm,
        state: Float[Tensor, "batch positions *spheres d"],
        remaining: Float[Tensor, "batch positions"],
        condition: Tensor | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return log-probabilities, alike for all tokens where nothing was asked, and remember what is finished."""
        symbols, places = method.symbols_per_token, method.process.layout.positions
        asked = slice(self.cache.length // places * symbols, self.end * symbols)
        block_mask = BlockMask(self.block, cache=self.cache)
        found = method.denoiser(method.network, state[:, asked], remaining[:, asked], condition, block_mask=block_mask)
        self.cache.keep(self.front * places)
        law = found.new_full((*remaining.shape, found.shape[-1]), -math.log(found.shape[-1]))
        law[:, asked] = found
        return law


def answered(law: Float[Tensor, "... v"]) -> Bool[Tensor, ...]:
    """Return where a law says anything: to whom nothing was asked all tokens are exactly alike."""
    return law.amax(-1) > law.amin(-1)


class Question(NamedTuple):
    """What a model is asked at a step of a walk."""

    state: Float[Tensor, "batch positions *spheres d"]
    remaining: Float[Tensor, "batch positions"]
    """What each position has before it."""
    recall: Recall | None = None


Asked = Callable[[Tensor, Tensor, Recall], Tensor]
"""A model that remembers: log-probabilities of states, noise, and what of them is asked."""

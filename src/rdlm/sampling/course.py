"""What is on its way: samples between two steps, what is seen of them in a step, and where they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.model.transformer import Cache
from rdlm.random import Noise


class Outcome(NamedTuple):
    """Where a walk ended."""

    token: Int[Tensor, "batch positions"]
    invalid: int
    """Codes that were chosen anew because their digits spelled no token."""
    nfe: Int[Tensor, " batch"]
    """How often the network was asked for each sample."""


class Look(NamedTuple):
    """What a callback is shown after each step: of the samples that took part in it, what they moved by."""

    row: Int[Tensor, " rows"]
    """Their places in the batch."""
    step: Int[Tensor, " rows"]
    """The common step that each of them took."""
    state: Float[Tensor, "rows positions *spheres d"]
    """Their states before it."""
    log_probs: Float[Tensor, "rows positions v"]
    done: int
    """Common steps that all samples have behind them now."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Samples on their way, each at a step of its own; what a walker does to a row depends on that row alone."""

    step: Int[Tensor, "batch 1"]
    """On the CPU, as are all of these but states and tokens."""
    nfe: Int[Tensor, "batch 1"]
    """How often the network has been asked for each sample."""
    known: Int[Tensor, "batch positions"]
    offsets: Int[Tensor, "batch columns"]
    """When each position starts; one column where all run together."""
    state: Float[Tensor, "batch positions *spheres d"]
    token: Int[Tensor, "batch positions"]
    random: Noise
    memory: Cache | None = None
    """What the model keeps of finished tokens, if it keeps anything; it grows as the model is asked."""
    invalid: int = 0

    @property
    def _rows(self) -> dict[str, Tensor]:
        return {
            "step": self.step,
            "nfe": self.nfe,
            "known": self.known,
            "offsets": self.offsets,
            "state": self.state,
            "token": self.token,
        }

    @staticmethod
    def join(walks: Sequence[Walk]) -> Walk:
        """Return the rows of several walks as one."""
        if len(walks) == 1:
            return walks[0]
        columns = max(one.offsets.shape[1] for one in walks)  # one is enough where nothing is clean
        parts = [one._rows | {"offsets": one.offsets.expand(-1, columns)} for one in walks]
        rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        generators = [generator for one in walks for generator in one.random.generators]
        kept = [one.memory for one in walks if one.memory is not None]
        memory = Cache(len(kept[0].keys)).take(kept) if kept else None
        remaining, invalid = Noise(generators, len(rows["step"])), sum(one.invalid for one in walks)
        return Walk(**rows, random=remaining, memory=memory, invalid=invalid)

    def split(self) -> list[Walk]:
        """Return each row as a walk of its own; each must have its own generator, and codes are no longer counted."""
        rows = {name: tensor.split(1) for name, tensor in self._rows.items()}
        return [
            Walk(
                **{name: parts[i] for name, parts in rows.items()},
                random=self.random.subset([i]),
                memory=self.memory and self.memory.rows(slice(i, i + 1)),
            )
            for i in range(len(self.step))
        ]

    def subset(self, chosen: Sequence[int]) -> Walk:
        """Return some of the rows, each of which has its own generator."""
        index = torch.tensor(list(chosen))
        there = index.to(self.state.device, non_blocking=True)
        rows = {name: tensor[index if tensor.device == index.device else there] for name, tensor in self._rows.items()}
        memory = self.memory and self.memory.rows(there)
        return Walk(**rows, random=self.random.subset(chosen), memory=memory, invalid=self.invalid)

"""Random draws that depend on (seed, step, shard) alone: not on processes, resumes or what ran before.

A step's batch is cut into `shards`, one per process and accumulated part, and each has a generator of
its own. One process that accumulates two shards draws what two processes with one shard each draw.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


def generator_of(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by a hash of the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def on_device(generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Return a generator for draws on `device`: the given one where it fits, else a new one seeded by it."""
    if generator is None or generator.device.type == device.type:
        return generator
    seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class Draw:
    """The randomness of one shard of one step."""

    seed: int
    step: int
    shard: int = 0
    shards: int = 1

    def generator(self) -> torch.Generator:
        """Return this shard's generator, fresh."""
        return generator_of("shard", self.seed, self.step, self.shard, self.shards)

    def quantiles(self, count: int) -> Tensor:
        """Return `count` points of [0, 1) in random order which, over all shards, are one evenly spaced comb."""
        shift = torch.rand((), generator=generator_of("comb", self.seed, self.step))
        order = torch.randperm(count, generator=generator_of("order", self.seed, self.step, self.shard, self.shards))
        return ((order * self.shards + self.shard) / (count * self.shards) + shift) % 1.0

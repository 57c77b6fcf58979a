"""The denoiser: states and noise levels in, log-probabilities of tokens out; where network and sphere meet."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import DenoiserConfig, Interface
from rdlm.errors import InputError
from rdlm.model import layers as features
from rdlm.model.transformer import Cache
from rdlm.process.bridge import Bridge
from rdlm.process.layout import Layout
from rdlm.process.schedule import Schedule


class Scores(NamedTuple):
    """What is known of each token, up to a constant: `log p` is the log-softmax of the sum, Eq. (27)."""

    logits: Float[Tensor, "batch positions v"]
    evidence: Float[Tensor, "batch positions v"] | None

    def log_probs(self) -> Float[Tensor, "batch positions v"]:
        """Return `log p(token | states)`."""
        return torch.log_softmax(self.logits if self.evidence is None else self.logits + self.evidence, dim=-1)


class BlockMask(NamedTuple):
    """What positions see of each other: their own chunk and the ones before it, Eq. (49)."""

    block: int | Int[Tensor, " batch"]
    """Tokens of a chunk, for all sequences or for each."""
    finished: Float[Tensor, ...] | None = None
    """States in which all tokens are finished: where given, the chunks before one's own are seen as they are there."""
    cache: Cache | None = None
    """What the network keeps of finished positions: where given, it is asked only about those that follow."""

    def part(self, rows: slice) -> BlockMask:
        """Return the sight of some of the sequences, without a cache."""
        block = self.block if isinstance(self.block, int) else self.block[rows]
        return BlockMask(block, None if self.finished is None else self.finished[rows])


class Denoiser:
    """`log p(token | states)` from a network, with or without exact evidence, Eq. (27).

    States come as [batch, positions, d], or [batch, positions, m, d] where a token's digits share a position and
    the head is over tokens. With a head over digits every digit is a position of its own to the process, and the
    digits that share a position of the network are gathered here.
    """

    def __init__(self, config: DenoiserConfig, layout: Layout, bridge: Bridge, schedule: Schedule) -> None:
        self.config, self.layout, self.bridge, self.schedule = config, layout, bridge, schedule
        if config.evidence or config.features == "evidence":
            bridge.check_evidence()
        if config.features == "top" and not 1 <= config.top <= bridge.dimension:
            raise InputError(f"denoiser.top must lie in [1, {bridge.dimension}], the coordinates, got {config.top}")

    @property
    def spheres(self) -> int:
        """Return how many spheres share a position of the network."""
        return 1 if self.layout.placement == "serial" else self.layout.digits

    @property
    def whole(self) -> bool:
        """Return whether the head is over whole tokens while several spheres share a position."""
        return self.config.head == "token" and self.spheres > 1

    @property
    def sphere_width(self) -> int:
        """Return the number of features of one sphere."""
        base = self.layout.base
        return {"evidence": base, "tokens": base, "coordinates": base + 1, "top": 2 * (base + 1) + self.config.top}[
            self.config.features
        ]

    def interface(self, classes: int = 0, signal: int = 0) -> Interface:
        """Return the widths that a network must have to serve."""
        outputs = self.layout.vocabulary if self.whole else self.layout.base * self.spheres
        features = self.sphere_width * self.spheres
        known = features if self.config.features == "evidence" else self.spheres  # squared length where all is known
        return Interface(features, outputs, self.layout.positions, classes, signal, known**0.5)

    def __call__(
        self,
        network: nn.Module,
        state: Float[Tensor, ...],
        remaining: Float[Tensor, "batch positions"],
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        block_mask: BlockMask | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return log-probabilities; `remaining` may have one position where all share it."""
        return self.scores(network, state, remaining, condition, previous, block_mask).log_probs()

    def scores(
        self,
        network: nn.Module,
        state: Float[Tensor, ...],
        remaining: Float[Tensor, "batch positions"],
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        block_mask: BlockMask | None = None,
    ) -> Scores:
        """Return what the network and the states say of each token, apart, Eq. (27)."""
        grouped, level = self._grouped(state, remaining)
        inputs, evidence = self._inputs(grouped, level)
        time = self.schedule.time(level.clamp(0, self.schedule.total))
        if block_mask is None:
            logits = network(inputs, time[:, 0] if time.shape[1] == 1 else time, condition, previous)
        else:
            logits = self._seen(network, inputs, time, condition, previous, block_mask)
        if self.whole:
            return Scores(logits, None if evidence is None else self.layout.evidence(evidence))
        # [batch, L, m b] -> [batch, L m, b]
        logits = logits.unflatten(-1, (self.spheres, self.layout.base)).flatten(1, 2)
        return Scores(logits, None if evidence is None else evidence.flatten(1, 2))

    def _seen(
        self,
        network: nn.Module,
        inputs: Tensor,
        time: Tensor,
        condition: Tensor | None,
        previous: Tensor | None,
        block_mask: BlockMask,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the logits of a network whose positions see their own chunk and the ones before it, Eq. (49)."""
        block = block_mask.block * self.layout.positions
        time = time.expand(inputs.shape[:2])
        if block_mask.finished is None:
            logits: Tensor = network(inputs, time, condition, previous, block=block, cache=block_mask.cache)
            return logits
        over = torch.zeros_like(time)
        finished, _ = self._inputs(self._grouped(block_mask.finished, over)[0], over)
        inputs, time = torch.cat((finished, inputs), dim=1), torch.cat((self.schedule.time(over), time), dim=1)
        doubled: Tensor = network(inputs, time, condition, previous, block=block, doubled=True)
        return doubled

    def _grouped(self, state: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
        """Return states as [batch, L, m, d] and noise as [batch, L or 1]: one row per position of the network."""
        if state.ndim == 4:
            return state, remaining
        grouped = state.unflatten(1, (-1, self.spheres))
        return grouped, remaining if remaining.shape[1] == 1 else remaining[:, :: self.spheres]

    def _inputs(self, state: Tensor, level: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the network's input [batch, L, features] and the evidence [batch, L, m, b] where it is wanted."""
        kind = self.config.features
        evidence = None
        if self.config.evidence or kind == "evidence":
            evidence = self.bridge.log_likelihood(state, level[..., None])
        if kind == "evidence":
            assert evidence is not None
            inputs = features.from_evidence(evidence)
        elif kind == "tokens":
            inputs = features.without_mask(state)
        else:
            inputs = features.with_top(state, self.config.top) if kind == "top" else state
        return inputs.flatten(2), evidence if self.config.evidence else None

    def previous(self, log_probs: Float[Tensor, "batch positions v"]) -> Float[Tensor, "batch length f"]:
        """Return a prediction as features of the next one (self-conditioning): centred, of order one, padded."""
        law = log_probs.exp()
        law = self.layout.marginals(law) if self.whole else law.unflatten(1, (-1, self.spheres))
        centred = (law - 1 / self.layout.base) * self.layout.base**0.5
        return functional.pad(centred, (0, self.sphere_width - self.layout.base)).flatten(2)

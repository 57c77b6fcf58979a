"""The denoiser: log-probabilities of tokens from states on spheres and their remaining noise, Eq. (27).

It computes the network's input features from the states, evaluates the network, and adds the exact evidence of each
position's own state. The fused cross-entropy of its prediction, `-log p(token)` without keeping probabilities, works in
tiles that fit the cache of a CPU; its `backward` recomputes the softmax and overwrites the logits with their gradient,
so that peak memory is one tensor of logits instead of three.

Shapes: B batch, L network positions, m spheres per position, d coordinates, b base.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import DenoiserConfig, Interface
from rdlm.errors import InputError
from rdlm.geometry import special
from rdlm.model.layers import from_evidence, level_features, with_top
from rdlm.model.transformer import Cache
from rdlm.process.channel import Channel
from rdlm.process.layout import Layout
from rdlm.process.schedule import Schedule
from rdlm.process.tokens import MANY_TOKENS, Codes

OF_EVIDENCE = ("evidence", "mean", "level")
"""Features that are functions of the evidence alone."""


class Prediction(NamedTuple):
    """Network logits and exact evidence of each token; `log p` is the log-softmax of their sum, Eq. (27)."""

    logits: Float[Tensor, "batch positions v"]
    evidence: Float[Tensor, "batch positions v"] | None

    def log_probs(self) -> Float[Tensor, "batch positions v"]:
        """Return `log p(token | states)`."""
        return torch.log_softmax(self.logits if self.evidence is None else self.logits + self.evidence, dim=-1)


class BlockMask(NamedTuple):
    """Attention within blocks and to the blocks before them, Eq. (49)."""

    block: int | Int[Tensor, " batch"]
    """Tokens per block, for all sequences or for each."""
    finished: Float[Tensor, ...] | None = None
    """Clean states of all tokens; if given, each block attends to the clean blocks before it (doubled sequence)."""
    cache: Cache | None = None
    """KV cache of finished positions; if given, the states are those of the positions after it."""

    def part(self, rows: slice) -> BlockMask:
        """Return the mask of some of the sequences, without the cache."""
        block = self.block if isinstance(self.block, int) else self.block[rows]
        return BlockMask(block, None if self.finished is None else self.finished[rows])


class Denoiser:
    """`log p(token | states)` from a network, with or without exact evidence, Eq. (27).

    States are [batch, positions, d], or [batch, positions, m, d] where a token's digits share a position and the head
    is over tokens. With a head over digits, each digit is a position of the process, and the digits that share a
    position of the network are grouped here.
    """

    def __init__(
        self, config: DenoiserConfig, layout: Layout, bridge: Channel, schedule: Schedule, belief: str = "none"
    ) -> None:
        self.config, self.layout, self.bridge, self.schedule = config, layout, bridge, schedule
        if config.evidence or config.features in OF_EVIDENCE:
            bridge.check_evidence()
        if belief != "none" and (config.features != "evidence" or not config.evidence):
            raise InputError(f"model.belief {belief} needs denoiser.features evidence and denoiser.evidence true")
        if config.features == "top" and not 1 <= config.top <= bridge.dimension:
            raise InputError(f"denoiser.top must lie in [1, {bridge.dimension}], the coordinates, got {config.top}")

    @property
    def sphere_width(self) -> int:
        """The number of features of one sphere."""
        tokens, dimension = self.bridge.tokens.coordinates, self.bridge.dimension
        widths = {
            "evidence": self.layout.base,
            "mean": tokens,
            "statistic": tokens,
            "tokens": tokens,
            "coordinates": dimension,
            "level": 2,
        }
        return {**widths, "top": 2 * dimension + self.config.top}[self.config.features]

    def interface(self, classes: int = 0, signal: int = 0) -> Interface:
        """Return the input and output widths of the network."""
        outputs = self.layout.vocabulary if self.layout.joint else self.layout.base * self.layout.spheres
        features = self.sphere_width * self.layout.spheres
        scaled = self.config.features in (*OF_EVIDENCE, "statistic")
        squared_norm = features if scaled else self.layout.spheres  # of a clean token
        return Interface(
            features,
            outputs,
            digits=self.layout.positions,
            classes=classes,
            signal=signal,
            scale=squared_norm**0.5,
            timed=self.config.timed,
        )

    def __call__(
        self,
        network: nn.Module,
        state: Float[Tensor, ...],
        remaining: Float[Tensor, "batch positions"],
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        block_mask: BlockMask | None = None,
        given: Float[Tensor, "batch positions v"] | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return log-probabilities; `remaining` may be [batch, 1] where all positions share it."""
        return self.predict(network, state, remaining, condition, previous, block_mask, given).log_probs()

    def predict(
        self,
        network: nn.Module,
        state: Float[Tensor, ...],
        remaining: Float[Tensor, "batch positions"],
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        block_mask: BlockMask | None = None,
        given: Float[Tensor, "batch positions v"] | None = None,
    ) -> Prediction:
        """Return the network's logits and the exact evidence of the states, Eq. (27), plus the `given` evidence.

        Evidence from another source, such as a reading of the text, is added to that of the states, Eq. (57).
        """
        grouped, level = self._grouped(state, remaining)
        late = self._adds_late(state)
        inputs, evidence = self._inputs(grouped, level, late, given)  # [B, L, F], [B, L, m, b]
        time = self.schedule.time(level.clamp(0, self.schedule.total))
        if block_mask is None:
            logits = network(inputs, time[:, 0] if time.shape[1] == 1 else time, condition, previous)
        else:
            logits = self._blockwise(network, inputs, time, condition, previous, block_mask)
        if late and logits.dtype == torch.float32 and logits.is_contiguous():
            self.bridge.add_log_likelihood_(logits.detach(), state, remaining)  # constant: no gradient
            return Prediction(logits, None)
        if late:
            evidence = self.bridge.log_likelihood(grouped, level[..., None])
        if self.layout.joint:
            return Prediction(logits, None if evidence is None else self.layout.evidence(evidence))
        # [B, L, m b] -> [B, L m, b]
        logits = logits.unflatten(-1, (self.layout.spheres, self.layout.base)).flatten(1, 2)
        return Prediction(logits, None if evidence is None else evidence.flatten(1, 2))

    def evidence(
        self, state: Float[Tensor, ...], remaining: Float[Tensor, "batch positions"]
    ) -> Float[Tensor, "batch positions v"] | None:
        """Return the exact log-likelihood of the state under each token, Eq. (25); None where it is not used."""
        if not self.config.evidence:
            return None
        if not self.layout.joint:
            return self.bridge.log_likelihood(state, remaining)
        return self.layout.evidence(self.bridge.log_likelihood(state, remaining[..., None]))

    def _blockwise(
        self,
        network: nn.Module,
        inputs: Tensor,
        time: Tensor,
        condition: Tensor | None,
        previous: Tensor | None,
        block_mask: BlockMask,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the network's logits with attention masked by blocks, Eq. (49)."""
        block = block_mask.block * self.layout.positions
        time = time.expand(inputs.shape[:2])
        if block_mask.finished is None:
            logits: Tensor = network(inputs, time, condition, previous, block=block, cache=block_mask.cache)
            return logits
        no_noise = torch.zeros_like(time)
        clean, _ = self._inputs(self._grouped(block_mask.finished, no_noise)[0], no_noise)
        inputs = torch.cat((clean, inputs), dim=1)  # [B, 2L, F]
        time = torch.cat((self.schedule.time(no_noise), time), dim=1)
        doubled: Tensor = network(inputs, time, condition, previous, block=block, doubled=True)
        return doubled

    def _grouped(self, state: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
        """Return states as [B, L, m, d] and remaining noise as [B, L or 1], by positions of the network."""
        if state.ndim == 4:
            return state, remaining
        grouped = state.unflatten(1, (-1, self.layout.spheres))
        return grouped, remaining if remaining.shape[1] == 1 else remaining[:, :: self.layout.spheres]

    def _adds_late(self, state: Tensor) -> bool:
        """Return whether evidence is added to the logits in place: that of many tokens, if nothing else needs it."""
        if not self.config.evidence or self.config.features in OF_EVIDENCE or state.requires_grad:
            return False
        return isinstance(self.bridge.tokens, Codes) and self.bridge.vocabulary >= MANY_TOKENS

    def check_given(self) -> None:
        """Raise InputError if the network does not support evidence from other sources than its states."""
        if self.layout.digits > 1 or self.config.features not in ("evidence", "level") or not self.config.evidence:
            needed = "denoiser.features evidence or level and one sphere per token"
            raise InputError(f"given evidence needs a model with {needed}")
        if self.config.timed:
            raise InputError(
                "given evidence needs a network without a time input, which states how much is known: "
                "models of version 0.1.0 have one, those trained with the defaults of this version "
                "(denoiser.time false) do not"
            )

    def _inputs(
        self, state: Tensor, level: Tensor, late: bool = False, given: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the network's input [B, L, features] and the evidence [B, L, m, b], or None where it is not used."""
        kind = self.config.features
        evidence = None
        if (self.config.evidence and not late) or kind in OF_EVIDENCE:
            evidence = self.bridge.log_likelihood(state, level[..., None])
        if given is not None:
            self.check_given()
            assert evidence is not None
            evidence = evidence + given[..., None, :]
        if kind == "evidence":
            assert evidence is not None
            inputs = from_evidence(evidence)
        elif kind == "mean":
            assert evidence is not None
            inputs = self._mean(evidence.softmax(-1))
        elif kind == "level":
            assert evidence is not None
            inputs = level_features(evidence)
        elif kind == "statistic":
            inputs = self._statistic(state, level[..., None])
        elif kind == "tokens":
            inputs = state[..., : self.bridge.tokens.coordinates]
        else:
            inputs = with_top(state, self.config.top) if kind == "top" else state
        return inputs.flatten(2), evidence if self.config.evidence else None

    def _mean(self, probability: Float[Tensor, "... b"]) -> Float[Tensor, "... c"]:
        """Return `sqrt(c) sum_k p_k c_k`, of order one."""
        tokens = self.bridge.tokens
        mean = probability.new_zeros(*probability.shape[:-1], tokens.coordinates)
        return tokens.add_mean_(mean, probability) * math.sqrt(tokens.coordinates)

    def _statistic(self, state: Float[Tensor, "... d"], level: Float[Tensor, ...]) -> Float[Tensor, "... c"]:
        """Return `sqrt(c) u / sqrt(c^2 + |u|^2)` for `u = x / B`, on which the evidence depends, Eq. (56).

        It tends to `u / sqrt(c)` for weak evidence, and to `sqrt(c)` times the vector of a known token.
        """
        width = self.bridge.tokens.coordinates
        u = state[..., :width] / level.clamp_min(special.SMALLEST_NOISE)[..., None]
        return u * (math.sqrt(width) * torch.rsqrt(width**2 + u.square().sum(-1, keepdim=True)))

    def previous(self, log_probs: Float[Tensor, "batch positions v"]) -> Float[Tensor, "batch length f"]:
        """Return a prediction as input features for self-conditioning: centred, of order one, padded."""
        probs = log_probs.exp()
        probs = self.layout.marginals(probs) if self.layout.joint else probs.unflatten(1, (-1, self.layout.spheres))
        if self.config.features in ("mean", "statistic"):
            return self._mean(probs).flatten(2)
        centred = (probs - 1 / self.layout.base) * self.layout.base**0.5
        return functional.pad(centred, (0, self.sphere_width - self.layout.base)).flatten(2)


# -- fused cross-entropy ---------------------------------------------------------------------------

TILE = 2**17
"""Logits per tile on a CPU, so that intermediate results stay in its cache."""


def fused_cross_entropy(
    logits: Float[Tensor, "... v"], token: Int[Tensor, ...], evidence: Float[Tensor, "... v"] | None = None
) -> Float[Tensor, ...]:
    """Return `-log softmax(logits + evidence)` at each token, Eq. (27) and (36).

    `backward` overwrites logits that are not a leaf: the caller must not use them afterwards. The evidence gets no
    gradient.
    """
    loss: Tensor = _FusedCrossEntropy.apply(logits, token, evidence)  # type: ignore[no-untyped-call]
    return loss


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, token: Tensor, evidence: Tensor | None) -> Tensor:
        ctx.save_for_backward(logits, token, evidence)
        ctx.is_leaf = logits.is_leaf  # a tensor of the caller, not to be overwritten
        flat, index = logits.reshape(-1, logits.shape[-1]), token.reshape(-1, 1)  # [N, V], [N, 1]
        loss = flat.new_empty(len(flat), 1)
        for rows, scores in _tiles(flat, evidence):
            torch.neg(torch.log_softmax(scores, -1).gather(1, index[rows]), out=loss[rows])
        return loss.view(token.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, token, evidence = ctx.saved_tensors
        index, weight = token.reshape(-1, 1), gradients[0].reshape(-1, 1)
        flat = logits.reshape(-1, logits.shape[-1])
        gradient = torch.empty_like(flat) if ctx.is_leaf else flat
        for rows, scores in _tiles(flat, evidence):
            torch.mul(torch.softmax(scores, -1), weight[rows], out=gradient[rows])
        gradient.scatter_add_(1, index, -weight)
        return gradient.view(logits.shape), None, None


def _tiles(logits: Tensor, evidence: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their logits plus evidence: tiles that fit the cache of a CPU, else all rows."""
    size = max(1, TILE // logits.shape[1]) if logits.device.type == "cpu" else sys.maxsize
    flat = None if evidence is None else evidence.reshape(logits.shape)
    for begin in range(0, len(logits), min(size, max(1, len(logits)))):
        rows = slice(begin, begin + size)
        yield rows, logits[rows] if flat is None else logits[rows] + flat[rows]

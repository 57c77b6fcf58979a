"""Training objectives: at which times a model is asked, how its answer is weighed, and how it is scored.

What a training step of RDLM asks its network: all positions together, or chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed

from rdlm.config import ObjectiveConfig
from rdlm.likelihood.terms import position_terms
from rdlm.model.denoiser import BlockMask
from rdlm.model.layers import drop
from rdlm.model.loss import fused_cross_entropy
from rdlm.process.order import Order, TokenSchedule
from rdlm.random import on_device

if TYPE_CHECKING:
    from rdlm.methods.rdlm import Rdlm


BINS = 64
"""Bins of the adaptive proposal."""

NARROWEST = 1e-3
"""Width of the windows in which positions are finished one by one."""

MEMORY = 0.99
"""Decay of the adaptive proposal's averages, per step."""


class Proposal:
    """A piecewise constant density of times with its inverse; adaptive ones learn it, Eq. (38) and (46)."""

    def __init__(self, config: ObjectiveConfig) -> None:
        self.floor = config.floor
        self.adaptive = config.proposal == "adaptive"
        low, high = config.interval
        edges = {"uniform": [0.0, 1.0], "interval": [0.0, low, high, 1.0]}.get(config.proposal)
        self.edges = torch.tensor(edges) if edges else torch.linspace(0, 1, BINS + 1)
        inside = torch.tensor([0.0, 1.0, 0.0]) if config.proposal == "interval" else torch.diff(self.edges)
        # Of an interval at an end of [0, 1] one side is empty: its bin gets no share.
        self.mass = (1 - self.floor) * inside + self.floor * torch.diff(self.edges)
        self.square = torch.ones(len(self.mass))
        self._pending = torch.zeros(2, len(self.mass))
        self._step = -1

    def times(self, quantile: Float[Tensor, " batch"]) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Return times with these quantiles and the weights `1 / q(t)` that make their mean an integral, Eq. (38)."""
        upper = self.mass.cumsum(0)
        index = torch.searchsorted(upper, quantile, right=True).clamp_max(len(self.mass) - 1)
        width = torch.diff(self.edges)[index]
        inside = (quantile - (upper - self.mass)[index]) / self.mass[index].clamp_min(1e-12)
        return (self.edges[index] + inside * width).clamp(0, 1), width / self.mass[index].clamp_min(1e-12)

    def observe(self, step: int, time: Float[Tensor, " batch"], loss: Float[Tensor, " batch"]) -> None:
        """Note losses per sequence; the density follows their root mean square when the next step begins, Eq. (46)."""
        if not self.adaptive:
            return
        self.advance(step)
        index = torch.bucketize(time, self.edges[1:-1])
        self._pending[0].index_add_(0, index, loss.detach().float().cpu().square())
        self._pending[1].index_add_(0, index, torch.ones(len(index)))

    def advance(self, step: int) -> None:
        """Take in what earlier steps noted, over all processes; within a step the density stays as it is."""
        if not self.adaptive or step == self._step:
            return
        self._step = step
        pending = self._noted()
        self._pending.zero_()
        seen = pending[1] > 0
        fresh = pending[0] / pending[1].clamp_min(1)
        self.square = torch.where(seen, MEMORY * self.square + (1 - MEMORY) * fresh, self.square)
        share = self.square.sqrt() / self.square.sqrt().sum()
        self.mass = (1 - self.floor) * share + self.floor * torch.diff(self.edges)

    def _noted(self) -> Float[Tensor, "2 bins"]:
        """Return the sums and counts that all processes have noted; every one of them must ask."""
        pending = self._pending.clone()
        if self.adaptive and _in_a_team():
            distributed.all_reduce(pending)
        return pending

    def state(self) -> dict[str, Tensor]:
        """Return what the proposal has learned, the notes of all processes included; every one of them must ask."""
        return {"proposal.square": self.square, "proposal.mass": self.mass, "proposal.pending": self._noted()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self.square, self.mass = state["proposal.square"].clone(), state["proposal.mass"].clone()
        self._pending = state["proposal.pending"].clone()
        if _in_a_team() and distributed.get_rank() > 0:
            self._pending.zero_()  # the first process has them: they will be added up again


def _in_a_team() -> bool:
    return distributed.is_available() and distributed.is_initialized()


@dataclass(frozen=True, eq=False)
class Moment:
    """When a batch is looked at: each position's own time, and the weight of each sequence."""

    time: Float[Tensor, "batch length"]
    """Own time of every position; of length 1 where all positions of a sequence share it."""
    weight: Float[Tensor, " batch"]
    """Importance weight of each sequence."""
    common: Float[Tensor, " batch"]
    """The proposal's time of each sequence."""
    synchronous: Bool[Tensor, " batch"]
    """Which sequences run at it: the proposal learns from these alone. The others run in windows."""


def draw_moment(
    config: ObjectiveConfig,
    proposal: Proposal,
    quantile: Float[Tensor, " batch"],
    length: int,
    generator: torch.Generator | None = None,
) -> Moment:
    """Return times for a batch: synchronous, in windows, and behind finished prefixes, as configured, Eq. (35)."""
    time, weight = proposal.times(quantile)
    if config.asynchronous == 0 and config.prefix == 0:
        return Moment(time[:, None], weight, time, torch.ones(len(time), dtype=torch.bool))
    batch = len(time)
    own = time[:, None].expand(batch, length)
    in_window = torch.rand(batch, generator=generator) < config.asynchronous
    # Windows have a common time of their own, uniform: its quantile is used as it is.
    own = torch.where(in_window[:, None], _windowed(config, quantile, length, generator), own)
    prefixed = torch.rand(batch, generator=generator) < config.prefix
    finished = torch.randint(length, (batch, 1), generator=generator) * prefixed[:, None]
    own = torch.where(torch.arange(length) < finished, torch.ones(()), own)
    return Moment(own, torch.where(in_window, torch.ones(()), weight), time, ~in_window)


def _windowed(config: ObjectiveConfig, common: Tensor, length: int, generator: torch.Generator | None) -> Tensor:
    """Return each position's time in windows of random width, random or left to right, Eq. (35)."""
    batch = len(common)
    width = torch.rand(batch, 1, generator=generator).clamp_min(NARROWEST)
    # Narrow windows, where neighbours are known and a position is not, teach the context soonest.
    narrow = torch.rand(batch, 1, generator=generator) < config.narrow
    width = torch.where(narrow, torch.tensor(NARROWEST), width)
    starts = {order: TokenSchedule(0.5, order).starts(batch, length, generator) / 0.5 for order in _orders(config)}
    if config.order == "both":
        ordered = torch.rand(batch, 1, generator=generator) < 0.5
        rank = torch.where(ordered, starts["left_to_right"], starts["random"])
    else:
        rank = starts[config.order]
    return ((common[:, None] - rank * (1 - width)) / width).clamp(0, 1)


def _orders(config: ObjectiveConfig) -> tuple[Order, ...]:
    return ("random", "left_to_right") if config.order == "both" else (config.order,)


GOLDEN = 0.6180339887
"""Step between the common times of neighbouring chunks, which then fill [0, 1) evenly."""


@dataclass(frozen=True, eq=False)
class BlockMoment:
    """When the chunks of a batch are looked at, each as if those before it were finished."""

    time: Float[Tensor, "batch length"]
    """Own time of every position."""
    block: Int[Tensor, " batch"]
    """Tokens of a chunk of each sequence."""
    weight: Float[Tensor, "batch length"]
    """What each position's loss counts: every chunk's unfinished ones together as much as it has tokens, Eq. (49)."""


def draw_blockwise(
    config: ObjectiveConfig, quantile: Float[Tensor, " batch"], length: int, generator: torch.Generator | None = None
) -> BlockMoment:
    """Return times for a batch of which all chunks are asked at once, Eq. (49); in each something is unfinished."""
    batch = len(quantile)
    sizes = torch.tensor(config.block_sizes).clamp_max(length)
    block = sizes[torch.randint(len(sizes), (batch,), generator=generator)]
    place = torch.arange(length) // block[:, None]
    size = torch.minimum(block[:, None], length - place * block[:, None])
    common = (quantile[:, None] + GOLDEN * place) % 1
    # A random order of each chunk's positions: the chunks stay in their places, and sort inside.
    order = (place + torch.rand(batch, length, generator=generator)).argsort(1).argsort(1) - place * block[:, None]
    finished = (order < (common * size).floor()).float()
    width = torch.rand(batch, 1, generator=generator).clamp_min(NARROWEST)
    width = torch.where(size == 1, torch.ones(()), width)
    own = ((common - order / (size - 1).clamp_min(1) * (1 - width)) / width).clamp(0, 1)
    narrow = torch.rand(batch, 1, generator=generator) < config.narrow
    time = torch.where(narrow, finished, own)
    unfinished = (time < 1).float()
    count = torch.zeros(batch, length).scatter_add_(1, place, unfinished).gather(1, place)
    return BlockMoment(time, block, unfinished * size / count.clamp_min(1))


def cross_entropy(
    logits: Float[Tensor, "batch length v"],
    token: Int[Tensor, "batch length"],
    time: Tensor,
    evidence: Float[Tensor, "batch length v"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return each sequence's mean cross-entropy over its unfinished positions, Eq. (36) and (47).

    Averaging over the unfinished ones makes each count of finished positions weigh alike, as the weight `1/t` of
    masked diffusion does; a sequence without any counts 0. The logits are consumed by `backward`.
    """
    return mean_unfinished(fused_cross_entropy(logits, token, evidence), time)


def mean_unfinished(loss: Float[Tensor, "batch length"], time: Tensor) -> Float[Tensor, " batch"]:
    """Return the mean over positions whose time is not over, Eq. (47)."""
    unfinished = (time < 1).to(loss).expand_as(loss)
    return (loss * unfinished).sum(-1) / unfinished.sum(-1).clamp_min(1)


def sequence_loss(
    method: Rdlm,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    quantile: Float[Tensor, " batch"],
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, " batch"]:
    """Return each sequence's loss where every position sees all others, Eq. (36) or (37), weighed."""
    objective, states = method.config.objective, on_device(generator, token.device)
    moment = draw_moment(objective, method.proposal, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    if objective.loss == "drift_error":
        values = _drift_error(method, token, moment, condition, states)
    else:
        state, remaining = method.noisy(token, moment.time, states)
        scores = method.predict(state, remaining, condition, generator)
        time = method.layout.per_symbol(moment.time).to(token.device)
        values = cross_entropy(scores.logits, token, time, scores.evidence)
    if method.proposal.adaptive:  # it waits for the losses, which others need not
        alone = moment.synchronous
        method.proposal.observe(step, moment.common[alone], values[alone.to(values.device)])
    return values * moment.weight.to(values)


def block_loss(
    method: Rdlm,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    quantile: Float[Tensor, " batch"],
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, " batch"]:
    """Return each sequence's loss where every chunk sees itself and the finished ones before it, Eq. (49)."""
    moment = draw_blockwise(method.config.objective, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    state, remaining = method.noisy(token, moment.time, on_device(generator, token.device))
    block_mask = BlockMask(moment.block.to(token.device), method.finished(token))
    scores = method.predict(state, remaining, condition, generator, block_mask)
    weight = method.layout.per_symbol(moment.weight).to(token.device)
    return (fused_cross_entropy(scores.logits, token, scores.evidence) * weight).mean(-1)


def _length(method: Rdlm, token: Int[Tensor, "batch positions"]) -> int:
    return token.shape[1] // method.layout.symbols_per_token


def _dropped(method: Rdlm, condition: Tensor | None, generator: torch.Generator) -> Tensor | None:
    return None if condition is None else drop(condition, method.config.objective.condition_dropout, generator)


def _drift_error(
    method: Rdlm, token: Tensor, moment: Moment, condition: Tensor | None, generator: torch.Generator | None
) -> Float[Tensor, " batch"]:
    """Return the drift error of the chain on the training grid, at the step of the moment's time, Eq. (37)."""
    grid = method.training_grid
    # A finished position stands at its vertex, level `steps`; its term is not counted.
    level = (method.layout.per_symbol(moment.time) * grid.steps).long().to(token.device)
    chain = method.on_grid(method.process.mixture.paths[0], grid, "drift")
    digit = method.layout.split(token)
    remaining = grid.remaining.float().to(token.device)[level]
    state = method.draw(digit, chain.per_sphere(remaining.expand(token.shape), digit), generator)
    log_probs = method.predict(state, remaining, condition, generator).log_probs()
    local = level.clamp_max(grid.steps - 1).expand(token.shape)
    terms = position_terms(chain, state, token, local, log_probs, generator)
    return mean_unfinished(terms * grid.steps, method.layout.per_symbol(moment.time).to(terms))

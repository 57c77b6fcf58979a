"""Training objectives of RDLM: times of the positions, their importance weights, and the losses.

| loss | formula | network input |
|---|---|---|
| `sequence_loss` | cross-entropy, Eq. (36) and (47), or drift error, Eq. (37) | noisy tokens, with full attention |
| `block_loss` | cross-entropy of blocks given clean ones before, Eq. (49) | clean and noisy tokens, with a block mask |
| `codes_loss` | the bound, Eq. (28) and (30), for the codes alone, Eq. (52) | noisy tokens of a few sequences |

Times are drawn as synchronous ones from a proposal, Eq. (38), (46) and (50), as mixed ones, Eq. (51), as those of
random token schedules, Eq. (35), or per block. Loss functions take the randomness of a step as `quantile`, stratified
over all shards, and a `generator`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed
from torch.nn import functional

from rdlm.config import ObjectiveConfig
from rdlm.data.batch import Batch
from rdlm.likelihood.continuous import LAST
from rdlm.likelihood.estimators import PROBABILITIES
from rdlm.likelihood.terms import drift_error, position_terms
from rdlm.model.denoiser import BlockMask, Denoiser, fused_cross_entropy
from rdlm.model.layers import drop_condition
from rdlm.process.order import Order, TokenSchedule
from rdlm.process.path import Path
from rdlm.process.schedule import Schedule
from rdlm.process.tokens import MANY_TOKENS, Codes
from rdlm.random import Rng, on_device

if TYPE_CHECKING:
    from rdlm.methods.rdlm import Rdlm

BINS = 64
"""Bins of the adaptive and of the information proposal."""

WEAKEST = 1e-3
"""Strength `a = 1/B - 1/S` below which no level is drawn: these levels contribute about a nats per position."""

DUE_EARLY = (25, 50, 100)
DUE_EVERY = 250
"""Steps before which the information is measured: some early ones, while it changes fast, and then periodically."""

PER_BIN = 3
"""Evaluations of single sequences per bin in one measurement of the information; one for many tokens."""

ROWS = 32
"""Sequences evaluated at once in that measurement, unless they have too many probabilities."""

DECAY = 0.99
"""Decay per step of the adaptive proposal's moving averages."""

ERRORS, GAPS = (0.02, 0.5), 0.6
"""Lowest and highest rate of errors of readings, and the highest rate of gaps."""

NARROWEST = 1e-3
"""Width of the narrowest token schedule, in which positions are denoised one by one."""

CODES_EVERY = 8
"""Steps between two gradients of the codes of many tokens, where a softmax over all of them is most of the cost."""

CODES_SHARE = 1 / 8
"""Share of the sequences on which the gradient of the codes is computed, at two thirds of their part of a step."""

GOLDEN = 0.6180339887
"""Offset (golden ratio minus 1) between the common times of consecutive blocks, which fill [0, 1) evenly."""


# -- losses ---------------------------------------------------------------------------------------


def sequence_loss(
    method: Rdlm,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    quantile: Float[Tensor, " batch"],
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, " batch"]:
    """Return each sequence's importance-weighted loss with full attention, Eq. (36) or (37)."""
    objective, device_generator = method.config.objective, on_device(generator, token.device)
    times = draw_times(objective, method.proposal, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    if objective.loss == "drift_error":
        values = _drift_error(method, token, times, condition, device_generator)
    else:
        state, remaining = method.noisy(token, times.time, device_generator)
        given = None
        if objective.readings:
            read = times.read.to(token.device)[:, None, None]
            given = read * draw_readings(token, method.layout.vocabulary, generator)
        prediction = method.predict(state, remaining, condition, generator, given=given)
        time = method.layout.per_symbol(times.time).to(token.device)
        values = cross_entropy(prediction.logits, token, time, prediction.evidence)
    if method.proposal.adaptive:  # `observe` synchronises with the device
        rows = times.synchronous.nonzero()[:, 0]  # on the CPU, because their number is needed
        method.proposal.observe(step, times.common[rows], values[rows.to(values.device)])
    return values * times.weight.to(values)


def block_loss(
    method: Rdlm,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    quantile: Float[Tensor, " batch"],
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, " batch"]:
    """Return each sequence's loss with every block attending to itself and to the clean blocks before it, Eq. (49)."""
    times = draw_block_times(method.config.objective, quantile, _length(method, token), generator)
    condition = _dropped(method, condition, generator)
    state, remaining = method.noisy(token, times.time, on_device(generator, token.device))
    block_mask = BlockMask(times.block.to(token.device), method.finished(token))
    prediction = method.predict(state, remaining, condition, generator, block_mask)
    weight = method.layout.per_symbol(times.weight).to(token.device)
    return (fused_cross_entropy(prediction.logits, token, prediction.evidence) * weight).mean(-1)


def codes_loss(
    method: Rdlm,
    codes: Codes,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """Return 0 with the gradient of the bound in the codes, Eq. (52), on some of the sequences.

    The network's weights get no gradient here, and the codes none from the cross-entropy, which would disperse them.
    """
    if codes.vocabulary >= MANY_TOKENS and step % CODES_EVERY:
        return 0 * codes.weight.sum()  # a gradient of 0: with several processes every parameter needs one
    rows = slice(0, math.ceil(len(token) * CODES_SHARE))
    given = None if condition is None else condition[rows]
    bound = bound_of_codes(method, codes.learning(), token[rows], given, generator)
    # Through states, evidence and the network's input; the network's weights are not differentiated.
    (gradient,) = torch.autograd.grad(bound, codes.weight)
    product = (codes.weight * gradient).sum()
    return product - product.detach()


def bound_of_codes(
    method: Rdlm,
    codes: Codes,
    token: Int[Tensor, "batch positions"],
    condition: Tensor | None,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """Return the bound of the training grid's chain in nats per token, Eq. (28) and (30), from a step per sequence.

    All positions are synchronous, and states, pulls and evidence are functions of the codes, Eq. (52).
    """
    grid, count = method.training_grid, len(token)
    level = ((torch.arange(count) + torch.rand((), generator=generator)) / count * grid.steps).long()
    level = level.clamp_max(grid.steps - 1)[:, None].to(token.device).expand(token.shape)
    bridge = method.process.bridge.with_points(codes)
    state = method.law_to(bridge, token.device).draw_at_level(token, level, on_device(generator, token.device))
    denoiser = Denoiser(method.config.denoiser, method.layout, bridge, method.process.schedule)
    log_probs = denoiser(method.network, state, grid.remaining.to(state)[level[:, :1]], condition)
    chain = method.on_grid(Path(bridge), grid, "drift")
    return grid.steps * position_terms(chain, state, token, level, log_probs).mean()


def _length(method: Rdlm, token: Int[Tensor, "batch positions"]) -> int:
    return token.shape[1] // method.layout.symbols_per_token


def _dropped(method: Rdlm, condition: Tensor | None, generator: torch.Generator) -> Tensor | None:
    if condition is None:
        return None
    return drop_condition(condition, method.config.objective.condition_dropout, generator)


def cross_entropy(
    logits: Float[Tensor, "batch length v"],
    token: Int[Tensor, "batch length"],
    time: Tensor,
    evidence: Float[Tensor, "batch length v"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return each sequence's mean cross-entropy over its unfinished positions, Eq. (36) and (47).

    The mean over unfinished positions gives every number of them the same weight, as the weight `1/t` of masked
    diffusion does; it is 0 where all are finished. `backward` overwrites the logits.
    """
    return mean_unfinished(fused_cross_entropy(logits, token, evidence), time)


def mean_unfinished(loss: Float[Tensor, "batch length"], time: Tensor) -> Float[Tensor, " batch"]:
    """Return the mean over positions with time < 1, Eq. (47); 0 where there are none."""
    unfinished = (time < 1).to(loss).expand_as(loss)
    return (loss * unfinished).sum(-1) / unfinished.sum(-1).clamp_min(1)


def _drift_error(
    method: Rdlm, token: Tensor, times: TrainingTimes, condition: Tensor | None, generator: Rng
) -> Float[Tensor, " batch"]:
    """Return the drift error of the chain on the training grid, at the grid step of each position's time, Eq. (37)."""
    grid = method.training_grid
    # Finished positions have the level `steps`, the vertex; `mean_unfinished` leaves out their terms.
    level = (method.layout.per_symbol(times.time) * grid.steps).long().to(token.device)
    chain = method.on_grid(method.process.mixture.paths[0], grid, "drift")
    digit = method.layout.split(token)
    remaining = grid.remaining.float().to(token.device)[level]
    state = method.draw(digit, chain.per_sphere(remaining.expand(token.shape), digit), generator)
    log_probs = method.predict(state, remaining, condition, generator).log_probs()
    local = level.clamp_max(grid.steps - 1).expand(token.shape)
    terms = position_terms(chain, state, token, local, log_probs, generator)
    return mean_unfinished(terms * grid.steps, method.layout.per_symbol(times.time).to(terms))


# -- times ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrainingTimes:
    """The times of a batch's positions and the importance weights of its sequences."""

    time: Float[Tensor, "batch length"]
    """Local time of every position; [batch, 1] where all positions of a sequence share it."""
    weight: Float[Tensor, " batch"]
    """Importance weight of each sequence."""
    common: Float[Tensor, " batch"]
    """Time of each sequence drawn from the proposal."""
    synchronous: Bool[Tensor, " batch"]
    """Sequences whose positions have the common time; only these update the proposal."""
    read: Bool[Tensor, " batch"]
    """Sequences with a reading as evidence; their positions have time 0."""


def draw_times(
    config: ObjectiveConfig, proposal: Proposal, quantile: Float[Tensor, " batch"], length: int, generator: Rng = None
) -> TrainingTimes:
    """Return times for a batch: synchronous, mixed, Eq. (51), asynchronous, Eq. (35), or 0; some behind a prefix."""
    common, weight = proposal.times(quantile)
    if config.proposal == "information" and config.loss == "cross_entropy":
        weight = torch.ones_like(weight)  # Eq. (50): the density itself is the weight of each level
    batch = len(common)
    if config.mixed == config.readings == config.asynchronous == config.prefix == 0:
        every = torch.ones(batch, dtype=torch.bool)
        return TrainingTimes(common[:, None], weight, common, every, ~every)
    time = common[:, None].expand(batch, length)
    kind = torch.rand(batch, generator=generator)
    asynchronous = kind < config.asynchronous
    mixed = ~asynchronous & (kind < config.asynchronous + config.mixed)
    if config.mixed:
        time = torch.where(mixed[:, None], proposal.times(_mixed(quantile, length, generator))[0], time)
    # The common time of a token schedule is uniform, so the quantile is the time.
    time = torch.where(asynchronous[:, None], _asynchronous(config, quantile, length, generator), time)
    read = ~(asynchronous | mixed) & (kind < config.asynchronous + config.mixed + config.readings)
    time = torch.where(read[:, None], torch.zeros(()), time)
    prefixed = torch.rand(batch, generator=generator) < config.prefix
    finished = torch.randint(length, (batch, 1), generator=generator) * prefixed[:, None]
    time = torch.where(torch.arange(length) < finished, torch.ones(()), time)
    synchronous = ~(asynchronous | mixed | read)
    return TrainingTimes(time, torch.where(synchronous, weight, torch.ones(())), common, synchronous, read)


def draw_readings(
    token: Int[Tensor, "batch length"], size: int, generator: Rng = None
) -> Float[Tensor, "batch length v"]:
    """Return the evidence of random readings of sequences, as in `rdlm restore`.

    Wrong symbols are equally likely, at a log-uniform rate from `ERRORS`; half of the sequences have gaps, at a uniform
    rate up to `GAPS`.
    """
    batch, low, high = len(token), *map(math.log, ERRORS)
    error = (low + (high - low) * torch.rand(batch, 1, generator=generator)).exp().to(token.device)
    gaps = (GAPS * (2 * torch.rand(batch, 1, generator=generator) - 1)).to(token.device)
    chance = torch.rand(2, *token.shape, generator=generator).to(token.device)
    other = torch.randint(1, size, token.shape, generator=generator).to(token.device)
    read = torch.where(chance[0] < error, (token + other) % size, token)
    strength = ((1 - error) * (size - 1) / error).log() * (chance[1] >= gaps)
    return strength[..., None] * functional.one_hot(read, size)


def _mixed(quantile: Float[Tensor, " batch"], length: int, generator: Rng) -> Float[Tensor, "batch length"]:
    """Return a quantile for every position, within a random distance of its sequence's, Eq. (51).

    The range is folded at 0 and 1, so that every position's quantile is uniform. A distance of 0 is the synchronous
    sequence, and with a distance of 1 the positions are independent.
    """
    distance = torch.rand(len(quantile), 1, generator=generator)
    shift = distance * (2 * torch.rand(len(quantile), length, generator=generator) - 1)
    moved = (quantile[:, None] + shift).abs()
    return torch.where(moved > 1, 2 - moved, moved)


def _asynchronous(
    config: ObjectiveConfig, common: Float[Tensor, " batch"], length: int, generator: Rng
) -> Float[Tensor, "batch length"]:
    """Return local times of token schedules of random width, in random or left-to-right order, Eq. (35)."""
    batch = len(common)
    width = torch.rand(batch, 1, generator=generator).clamp_min(NARROWEST)
    # With the narrowest schedule a position is noise while others are finished, from which context is learned fastest.
    narrow = torch.rand(batch, 1, generator=generator) < config.narrow
    width = torch.where(narrow, torch.tensor(NARROWEST), width)
    starts = {order: TokenSchedule(0.5, order).starts(batch, length, generator) / 0.5 for order in _orders(config)}
    if config.order == "both":
        ordered = torch.rand(batch, 1, generator=generator) < 0.5
        start = torch.where(ordered, starts["left_to_right"], starts["random"])
    else:
        start = starts[config.order]
    return ((common[:, None] - start * (1 - width)) / width).clamp(0, 1)


def _orders(config: ObjectiveConfig) -> tuple[Order, ...]:
    return ("random", "left_to_right") if config.order == "both" else (config.order,)


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """The times and weights of a batch's positions, for training blocks given the clean blocks before them."""

    time: Float[Tensor, "batch length"]
    """Local time of every position."""
    block: Int[Tensor, " batch"]
    """Tokens per block of each sequence."""
    weight: Float[Tensor, "batch length"]
    """Weight of each position's loss; over the unfinished positions of a block it sums to its size, Eq. (49)."""


def draw_block_times(
    config: ObjectiveConfig, quantile: Float[Tensor, " batch"], length: int, generator: Rng = None
) -> BlockTimes:
    """Return times for all blocks of a batch at once, Eq. (49); every block has an unfinished position."""
    batch = len(quantile)
    sizes = torch.tensor(config.block_sizes).clamp_max(length)
    block = sizes[torch.randint(len(sizes), (batch,), generator=generator)]
    index = torch.arange(length) // block[:, None]  # [B, L]: the block of each position
    size = torch.minimum(block[:, None], length - index * block[:, None])  # the last block may be shorter
    common = (quantile[:, None] + GOLDEN * index) % 1
    # The rank of each position in a random order of its block: the integer part of the sort key is the block.
    rank = (index + torch.rand(batch, length, generator=generator)).argsort(1).argsort(1) - index * block[:, None]
    finished = (rank < (common * size).floor()).float()
    width = torch.rand(batch, 1, generator=generator).clamp_min(NARROWEST)
    width = torch.where(size == 1, torch.ones(()), width)
    local = ((common - rank / (size - 1).clamp_min(1) * (1 - width)) / width).clamp(0, 1)
    narrow = torch.rand(batch, 1, generator=generator) < config.narrow
    time = torch.where(narrow, finished, local)
    unfinished = (time < 1).float()
    count = torch.zeros(batch, length).scatter_add_(1, index, unfinished).gather(1, index)
    return BlockTimes(time, block, unfinished * size / count.clamp_min(1))


# -- proposal -------------------------------------------------------------------------------------


@torch.no_grad()
def measured_information(method: Rdlm, batch: Batch, generator: torch.Generator) -> Float[Tensor, " bins"]:
    """Return the loss of the network in nats per position in each bin of log-strength, Eq. (50), on some sequences.

    A collective operation, with the same result on all processes.
    The rate is the integrand of the bound in continuous time, Eq. (28) with `M` to infinity, for every bridge, with
    evidence and without. The decode term, Eq. (30), is that of the last bin's levels.
    """
    proposal, training = method.proposal, method.network.training
    per_bin = 1 if method.layout.vocabulary >= MANY_TOKENS else PER_BIN
    fraction = (torch.arange(per_bin * BINS) + torch.rand(per_bin * BINS, generator=generator)) / per_bin
    index, width = fraction.long().clamp_max(BINS - 1), torch.diff(proposal.edges)
    strength = (proposal.edges[index] + (fraction - index) * width[index]).double().exp()
    rows = torch.randperm(len(batch.ids), generator=generator).repeat(-(-len(index) // len(batch.ids)))[: len(index)]
    device_generator = on_device(generator, batch.ids.device)
    method.network.eval()
    at_once = min(ROWS, max(1, PROBABILITIES // (batch.ids.shape[1] * method.layout.vocabulary)))
    terms = [
        _information_terms(method, batch[chosen.to(batch.ids.device)], levels, device_generator)
        for chosen, levels in zip(rows.split(at_once), strength.split(at_once), strict=True)
    ]
    method.network.train(training)
    rate, decode = torch.cat(terms, 1).double().cpu()
    nats = torch.zeros(BINS, dtype=torch.float64).index_add_(0, index, rate * strength * width[index] / per_bin)
    nats[-1] += decode[index == BINS - 1].mean()
    if _is_distributed():
        distributed.broadcast(nats, 0)  # all processes measure the same; this makes the last bits equal
    return nats


def _information_terms(
    method: Rdlm, batch: Batch, strength: Float[Tensor, " rows"], generator: Rng
) -> Float[Tensor, "2 rows"]:
    """Return half of the squared drift error and the cross-entropy at one strength per sequence, per position."""
    token, total = method.layout.symbols(batch.ids), method.process.schedule.total
    level = (total / (1 + strength * total)).float().to(token.device)[:, None].expand(token.shape)
    chain = method.on_grid(method.process.mixture.paths[0], method.training_grid, "drift")
    digit = chain.split(token)
    state = method.draw(digit, chain.per_sphere(level, digit), generator)
    log_probs = method.denoiser(method.network, state, level[:, :1], method.condition(batch))
    error = chain.gather(drift_error(chain, state, digit, chain.per_sphere(level, digit), log_probs))
    return torch.stack([error.mean(-1) / 2, -log_probs.gather(-1, token[..., None])[..., 0].mean(-1)])


class Proposal:
    """A piecewise constant density `q` of training times, fixed, Eq. (38), or adapted to the loss, Eq. (46); or of
    log-strengths `log a`, `a = 1/B - 1/S`, in proportion to the information measured there, Eq. (50)."""

    def __init__(self, config: ObjectiveConfig, schedule: Schedule, states: int) -> None:
        self.floor, self.schedule = config.floor, schedule
        self.adaptive, self.by_information = (config.proposal == name for name in ("adaptive", "information"))
        low, high = config.interval
        edges = {"uniform": [0.0, 1.0], "interval": [0.0, low, high, 1.0]}.get(config.proposal)
        self.edges = torch.tensor(edges) if edges else torch.linspace(0, 1, BINS + 1)
        inside = torch.tensor([0.0, 1.0, 0.0]) if config.proposal == "interval" else torch.diff(self.edges)
        # An interval that touches 0 or 1 has an outer bin of width 0, whose mass is 0.
        self.mass = (1 - self.floor) * inside + self.floor * torch.diff(self.edges)
        self.square = torch.ones(len(self.mass))
        self._pending = torch.zeros(2, len(self.mass))
        self._step = -1
        if self.by_information:
            strongest = (1 / LAST - 1) / schedule.total
            self.edges = torch.linspace(math.log(WEAKEST), math.log(strongest), BINS + 1)
            # Before the first measurement: the information of weak evidence grows in proportion to its strength, up to
            # about log(states), where the evidence begins to distinguish the states.
            strength = ((self.edges[1:] + self.edges[:-1]) / 2).exp()
            self.set_information(strength * torch.exp(-strength / math.log(states + 1)))

    def times(self, quantile: Float[Tensor, "*batch"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Return the times at these quantiles of `q` and the importance weights, 1 over the density of the time."""
        upper = self.mass.cumsum(0)
        index = torch.searchsorted(upper, quantile, right=True).clamp_max(len(self.mass) - 1)
        width = torch.diff(self.edges)[index]
        inside = (quantile - (upper - self.mass)[index]) / self.mass[index].clamp_min(1e-12)
        place, weight = self.edges[index] + inside * width, width / self.mass[index].clamp_min(1e-12)
        if not self.by_information:
            return place.clamp(0, 1), weight
        strength, total = place.double().exp(), self.schedule.total
        remaining = total / (1 + strength * total)
        time = self.schedule.time(remaining)
        slope = strength * remaining.square() / self.schedule.rate(time)  # dt / d log a, because da = rate / B^2 dt
        return time.to(quantile), (weight * slope).to(quantile)

    def due(self, step: int) -> bool:
        """Return whether the information is to be measured before this step."""
        return self.by_information and (step in DUE_EARLY or (step > 0 and step % DUE_EVERY == 0))

    def set_information(self, nats: Float[Tensor, " bins"]) -> None:
        """Set the density to the information of each bin, smoothed over its neighbours, Eq. (50).

        If a number is not finite, which the loss of the next steps reports, the density stays as it is.
        """
        nats = nats.float()
        padded = torch.cat([nats[:1], nats, nats[-1:]])
        smooth = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        total = smooth.sum()
        if bool(total.isfinite()) and total > 0:
            self.mass = (1 - self.floor) * smooth / total + self.floor / BINS

    def observe(self, step: int, time: Float[Tensor, " batch"], loss: Float[Tensor, " batch"]) -> None:
        """Accumulate the squared loss of each sequence in the bin of its time, for the next `advance`."""
        if not self.adaptive:
            return
        self.advance(step)
        index = torch.bucketize(time, self.edges[1:-1])
        self._pending[0].index_add_(0, index, loss.detach().float().cpu().square())
        self._pending[1].index_add_(0, index, torch.ones(len(index)))

    def advance(self, step: int) -> None:
        """Set the density from the losses of all earlier steps, over all processes, once per step.

        The density is proportional to a moving root mean square of the loss, Eq. (46), and constant within a step.
        """
        if not self.adaptive or step == self._step:
            return
        self._step = step
        pending = self._reduced()
        self._pending.zero_()
        observed = pending[1] > 0
        fresh = pending[0] / pending[1].clamp_min(1)
        self.square = torch.where(observed, DECAY * self.square + (1 - DECAY) * fresh, self.square)
        share = self.square.sqrt() / self.square.sqrt().sum()
        self.mass = (1 - self.floor) * share + self.floor * torch.diff(self.edges)

    def _reduced(self) -> Float[Tensor, "2 bins"]:
        """Return the pending sums and counts over all processes; a collective operation."""
        pending = self._pending.clone()
        if self.adaptive and _is_distributed():
            distributed.all_reduce(pending)
        return pending

    def state(self) -> dict[str, Tensor]:
        """Return the averages, the density and the pending losses of all processes; a collective operation."""
        return {"proposal.square": self.square, "proposal.mass": self.mass, "proposal.pending": self._reduced()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.square, self.mass = state["proposal.square"].clone(), state["proposal.mass"].clone()
        self._pending = state["proposal.pending"].clone()
        if _is_distributed() and distributed.get_rank() > 0:
            self._pending.zero_()  # the sum over processes is kept by rank 0 alone


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()

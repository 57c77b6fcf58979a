"""Posteriors and whole sequences given evidence about every position.

| function | result | evaluations of the network at each position |
|---|---|---|
| `posterior_of` | the posterior of every position | 1 |
| `refined_posterior` | the same, as a mean over passes of the sampler | passes x steps |
| `draw_given` | sequences of the joint posterior | steps |
| `likeliest_given` | the likeliest whole sequence that is found | `WHOLE_CALLS` |
| `sequence_posterior`, `likeliest` | the same for a sequence of any length | the same per window |

The likeliest sequence is found by beam search from left to right, Eq. (59), by a network that was trained behind clean
blocks above an n-gram model, and otherwise by deciding the most certain positions first.

A long sequence is treated in overlapping windows of the model's length: a position's posterior is that of the window in
which it is farthest from the ends, and samples continue behind what they have decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.config import LONGEST, OrderName
from rdlm.data.evidence import Evidence
from rdlm.errors import InputError, check_integer, unknown
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork, Ngram
from rdlm.model.denoiser import BlockMask
from rdlm.model.transformer import Cache, Transformer
from rdlm.process.kernel import to_device
from rdlm.process.order import named_schedule
from rdlm.random import generator_of
from rdlm.sampling.sampler import StepInfo, sample_chain

POSITIONS: Final = 2048
"""Positions per network call."""

CERTAIN: Final = 1e4
"""Log-likelihood ratio of a symbol that is known."""

BEAM: Final = 4
"""Hypotheses of a beam search; each evaluates a position twice, before and after it is known."""

WHOLE_CALLS: Final = 2 * BEAM
"""Evaluations of the network at each position in which the likeliest whole sequence is searched."""


SHARED: Final = 32
"""Positions that neighbouring windows share; half of a window that is shorter than twice as many."""


def posterior_of(
    method: Rdlm,
    given: Float[Tensor, "rows length v"],
    state: Tensor | None = None,
    remaining: Tensor | None = None,
    block_mask: BlockMask | None = None,
) -> Float[Tensor, "rows length v"]:
    """Return `log p(token | evidence, states)`, Eq. (57); without states, at the start of the process."""
    if state is None or remaining is None:
        start = method.process.mixture.paths[0].bridge.start.point(device=given.device)
        state = start.expand(*given.shape[:2], -1)
        remaining = torch.full(given.shape[:2], method.process.schedule.total, device=given.device)
    return method.posterior(block_mask=block_mask, given=given)(state, remaining)


def refined_posterior(
    method: Rdlm, given: Tensor, passes: int, steps: int, order: OrderName, generator: torch.Generator
) -> Float[Tensor, "rows length v"]:
    """Return the mean, over passes of the sampler and over their steps, of the posterior of undecided positions.

    Each of these has the same mean, the posterior given the evidence alone, if the network's posterior is exact.
    """
    total, count = torch.zeros_like(given), given.new_zeros(*given.shape[:2], 1)

    def watch(info: StepInfo) -> None:
        open_now = (info.before.step - info.before.offsets < info.sampler.steps).expand(given.shape[:2])[..., None]
        undecided = to_device(open_now, given.device)
        total.add_(torch.where(undecided, info.log_probs.exp(), 0.0))
        count.add_(undecided)

    for _ in range(passes):
        draw_given(method, given, steps, order, generator, watch)
    return (total / count).cpu()


def draw_given(
    method: Rdlm,
    given: Float[Tensor, "rows length v"],
    steps: int,
    order: OrderName,
    generator: torch.Generator,
    watch: Callable[[StepInfo], object] | None = None,
) -> Int[Tensor, "rows length"]:
    """Return a sequence of every row's joint posterior, by the sampler that starts from the evidence."""
    length = given.shape[1]
    schedule, nfe = named_schedule(order, steps, length, 0)
    chain = method.chain(method.process.mixture.paths[0], nfe, token_schedule=schedule, length=length)
    posterior = partial(posterior_of, method, given)
    return sample_chain(posterior, chain, len(given), length, generator, watch, device=given.device)


# -- the likeliest whole sequence -----------------------------------------------------------------------


@torch.no_grad()
def likeliest_given(method: Rdlm, given: Float[Tensor, "rows length v"]) -> Int[Tensor, "rows length"]:
    """Return the likeliest whole sequence that is found for every row of evidence."""
    chain = _chain_below(method)
    return most_certain_first(method, given, WHOLE_CALLS) if chain is None else beam_search(method, chain, given)


def _chain_below(method: Rdlm) -> Ngram | None:
    """Return the n-gram model below a network that was trained behind clean blocks; None if there is none."""
    network = method.network
    trained = method.takes_blocks and method.config.objective.blockwise > 0
    return (
        network.belief if trained and isinstance(network, BeliefNetwork) and isinstance(network.belief, Ngram) else None
    )


@torch.no_grad()
def beam_search(
    method: Rdlm, chain: Ngram, given: Float[Tensor, "rows length v"], width: int = BEAM
) -> Int[Tensor, "rows length"]:
    """Return the likeliest sequence among those that a beam keeps, for every row, Eq. (59).

    Hypotheses are extended by the network from left to right, and ranked with the probability of the evidence ahead
    under the chain.
    """
    rows, size = len(given), given.shape[2]
    symbol = torch.zeros(rows, 1, 0, dtype=torch.long, device=given.device)  # [B, W, i]
    state, score = (torch.zeros(rows, 1, dtype=kind, device=given.device) for kind in (torch.long, torch.float32))
    cache, first = _cache(method), torch.arange(rows, device=given.device)[:, None]
    for at, ahead in enumerate(chain.lookahead(given)):
        log_probs = _next_symbol(method, symbol.flatten(0, 1), cache).view(*score.shape, size)
        total = (score[..., None] + log_probs + given[:, None, at]).flatten(1)  # [B, W V]
        following = chain.arcs.following[state].flatten(1)
        rank = total + ahead.t().gather(1, following).log()
        best = rank.topk(min(width, rank.shape[1]), 1).indices  # [B, W']
        parent, new = best // size, best % size
        symbol = torch.cat([symbol[first, parent], new[..., None]], 2)
        cache = cache.rows((first * score.shape[1] + parent).flatten())
        state, score = following.gather(1, best), total.gather(1, best)
    return symbol[first[:, 0], score.argmax(1)]


def _cache(method: Rdlm) -> Cache:
    network = method.network.network
    assert isinstance(network, Transformer)
    return network.cache()


def _next_symbol(method: Rdlm, known: Int[Tensor, "rows position"], cache: Cache) -> Float[Tensor, "rows v"]:
    """Return `log p(symbol | symbols before)`; the cache has all of them but the last, which is added to it."""
    size, length = method.layout.vocabulary, known.shape[1]
    last = certain(known[:, length - 1 :], size) if length else known.new_zeros(len(known), 0, size).float()
    unknown = last.new_zeros(len(known), 1, size)
    found = posterior_of(method, torch.cat([last, unknown], 1), block_mask=BlockMask(1, cache=cache))[:, -1]
    cache.keep(length)
    return found


@torch.no_grad()
def most_certain_first(method: Rdlm, given: Float[Tensor, "rows length v"], calls: int) -> Int[Tensor, "rows length"]:
    """Return whole sequences of one window: in every call, as many of the most certain positions are decided."""
    rows, length, size = given.shape
    given, decided = given.clone(), torch.zeros(rows, length, dtype=torch.bool, device=given.device)
    for call in range(1, calls + 1):
        sure, token = posterior_of(method, given).max(-1)
        first = sure.masked_fill(decided, math.inf).topk(math.ceil(length * call / calls), -1).indices
        new = torch.zeros_like(decided).scatter(1, first, True) & ~decided
        given = torch.where(new[..., None], certain(token, size), given)
        decided |= new
    return given.argmax(-1)


def certain(token: Int[Tensor, "rows length"], size: int) -> Float[Tensor, "rows length v"]:
    """Return the evidence of known symbols."""
    return -CERTAIN * (1 - torch.nn.functional.one_hot(token, size).float())


def rows_of_call(length: int) -> int:
    """Return the number of windows per network call."""
    return max(1, POSITIONS // length)


# -- sequences of any length ----------------------------------------------------------------------------


@torch.no_grad()
def sequence_posterior(
    model: LanguageModel,
    evidence: Evidence,
    *,
    passes: int = 0,
    samples: int = 0,
    steps: int = 64,
    order: OrderName = "synchronous",
    seed: int = 0,
    progress: Callable[[int], object] = lambda windows: None,
) -> tuple[Float[Tensor, "positions v"], Int[Tensor, "samples positions"]]:
    """Return the posterior of every position and samples of the joint posterior, as `restore` explains them.

    `progress` is given the number of windows that are done: each is counted once, and once more for samples.
    """
    evidence = check_evidence(model, evidence)
    for name, value, least in (("passes", passes, 0), ("samples", samples, 0), ("steps", steps, 1)):
        check_integer(name, value)
        if not least <= value <= LONGEST:
            raise InputError(f"{name} must be at least {least} and at most {LONGEST:,}, got {value}")
    if order not in get_args(OrderName):
        raise unknown("order", order, get_args(OrderName))
    spans = overlapping_windows(len(evidence), model.length)
    parts = torch.stack([evidence[begin:end] for begin, end in spans])  # [windows, L, V]
    found = []
    for index, batch in enumerate(parts.split(rows_of_call(parts.shape[1]))):
        generator = generator_of("restore", seed, index)
        if passes:
            found.append(refined_posterior(model.rdlm, batch, passes, steps, order, generator))
        else:
            found.append(marginals(model, batch))
        progress(len(batch))
    posterior = _joined(torch.cat(found), spans, len(evidence))
    draw = partial(draw_given, model.rdlm, steps=steps, order=order, generator=generator_of("restore samples", seed))
    return posterior, _in_windows(evidence, spans if samples else [], samples, draw, progress)


def check_evidence(model: LanguageModel, evidence: Evidence) -> Float[Tensor, "positions v"]:
    """Return evidence in float32 on the model's device after checking its shape; the model must take evidence."""
    model.rdlm.denoiser.check_given()
    size = model.tokenizer.size
    if evidence.ndim != 2 or evidence.shape[1] != size or len(evidence) < 1 or evidence.is_complex():
        shape = f"{list(evidence.shape)} of {evidence.dtype}"
        raise InputError(f"evidence must have the shape [positions, {size}] and real numbers, got {shape}")
    shifted = evidence.double() - evidence.double().amax(-1, keepdim=True)
    if bool(shifted.isnan().any()):
        at = int(shifted.isnan().any(-1).nonzero()[0])
        raise InputError(f"position {at}: evidence must be finite for at least one symbol, and never NaN or +inf")
    return shifted.clamp_min(-CERTAIN).float().to(next(model.method.network.parameters()).device)


def marginals(model: LanguageModel, evidence: Float[Tensor, "rows length v"]) -> Float[Tensor, "rows length v"]:
    """Return the posteriors of the positions of windows, in one network call."""
    return posterior_of(model.rdlm, evidence).exp().cpu()


def _in_windows(
    evidence: Evidence,
    spans: list[tuple[int, int]],
    count: int,
    decide: Callable[[Float[Tensor, "rows length v"]], Int[Tensor, "rows length"]],
    progress: Callable[[int], object],
) -> Int[Tensor, "count positions"]:
    """Return whole sequences; each window is decided given the tokens that earlier windows have decided.

    Of the positions that two windows share, the second half is decided in the later window, which has the tokens after
    them.
    """
    token = torch.zeros(count, len(evidence), dtype=torch.long)
    done = 0
    for (begin, end), following in zip(spans, [*(begin for begin, _ in spans[1:]), len(evidence)], strict=False):
        given = evidence[begin:end].expand(count, -1, -1).clone()
        given[:, : done - begin] = certain(token[:, begin:done], evidence.shape[1]).to(given)
        decided = torch.cat([decide(part).cpu() for part in given.split(rows_of_call(end - begin))])
        until = end - max(0, end - following) // 2
        token[:, done:until] = decided[:, done - begin : until - begin]
        done = until
        progress(1)
    return token


def likeliest(model: LanguageModel, evidence: Evidence) -> Int[Tensor, " positions"]:
    """Return the likeliest whole sequence that is found in every window, joined as the posteriors are."""
    spans = overlapping_windows(len(evidence), model.length)
    parts = torch.stack([evidence[begin:end] for begin, end in spans])  # [windows, L, V]
    found = [likeliest_given(model.rdlm, part).cpu() for part in parts.split(rows_of_call(parts.shape[1]))]
    return _joined(torch.cat(found)[..., None], spans, len(evidence))[:, 0]


def overlapping_windows(length: int, window: int) -> list[tuple[int, int]]:
    """Return spans of at most `window` positions that cover a sequence; neighbours share at least `SHARED` of them."""
    if length <= window:
        return [(0, length)]
    step = max(1, window - min(window // 2, SHARED))
    begins = [*range(0, length - window, step), length - window]
    return [(begin, begin + window) for begin in begins]


def _joined(
    parts: Shaped[Tensor, "windows w v"], spans: list[tuple[int, int]], length: int
) -> Shaped[Tensor, "length v"]:
    """Return each position's row of the window in which it is farthest from an end that is not the sequence's."""
    best, found = torch.full((length,), -1.0), parts.new_zeros(length, parts.shape[-1])
    for part, (begin, end) in zip(parts, spans, strict=True):
        place = torch.arange(begin, end)
        left = (place - begin).float() if begin > 0 else torch.full((end - begin,), math.inf)
        right = (end - 1 - place).float() if end < length else torch.full((end - begin,), math.inf)
        margin = torch.minimum(left, right)
        better = margin > best[begin:end]
        best[begin:end] = torch.where(better, margin, best[begin:end])
        found[begin:end] = torch.where(better[:, None], part, found[begin:end])
    return found

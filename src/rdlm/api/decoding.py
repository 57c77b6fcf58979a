"""Posteriors and whole sequences of windows given evidence about every position.

| function | result | evaluations of the network at each position |
|---|---|---|
| `posterior_of` | the posterior of every position | 1 |
| `refined_posterior` | the same, as a mean over passes of the sampler | passes x steps |
| `draw_given` | sequences of the joint posterior | steps |
| `likeliest_given` | the likeliest whole sequence that is found | `WHOLE_CALLS` |

The likeliest sequence is found by beam search from left to right, Eq. (59), by a network that was trained behind clean
blocks above an n-gram model, and otherwise by deciding the most certain positions first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.config import OrderName
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork, Ngram
from rdlm.model.denoiser import BlockMask
from rdlm.model.transformer import Cache, Transformer
from rdlm.process.kernel import to_device
from rdlm.process.order import named_schedule
from rdlm.sampling.sampler import StepInfo, sample_chain

POSITIONS: Final = 2048
"""Positions per network call."""

CERTAIN: Final = 1e4
"""Log-likelihood ratio of a symbol that is known."""

BEAM: Final = 4
"""Hypotheses of a beam search; each evaluates a position twice, before and after it is known."""

WHOLE_CALLS: Final = 2 * BEAM
"""Evaluations of the network at each position in which the likeliest whole sequence is searched."""


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

"""Ways to the likeliest whole text given a reading, at equal evaluations of the network.

    python -m experiments.decoding --sequences 32 --ways "most certain first" beam chain

Columns: characters and words right, the log-posterior of the text found minus that of the truth, under the network from
left to right and under the n-gram model, in nats per window, and seconds of processor time per window.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import rdlm
from experiments.restoration import evidence_of, words_right
from rdlm.api.decoding import (
    beam_search,
    certain,
    draw_given,
    most_certain_first,
    posterior_of,
    refined_posterior,
)
from rdlm.api.score import conditionals, exact_order
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork, Ngram

ROWS = 16

Way = Callable[[Tensor], Tensor]
"""From evidence [B, L, V] to sequences [B, L]."""


def chain_beam(chain: Ngram, given: Tensor, width: int, merged: bool = True) -> Tensor:
    """Return `width` sequences of a beam under the chain [B, width, L], the likeliest first.

    Merged, of the hypotheses in one state only the best is kept, as in Viterbi decoding.
    """
    likelihood, size, first = given.log_softmax(-1), given.shape[-1], torch.arange(len(given))[:, None]
    symbol = torch.zeros(len(given), 1, 0, dtype=torch.long)
    state, score = torch.zeros(len(given), 1, dtype=torch.long), torch.zeros(len(given), 1)
    for at, ahead in enumerate(chain.lookahead(given)):
        log_probs = (chain.arcs.probability[state] + 1e-9).log()
        total = (score[..., None] + log_probs + likelihood[:, None, at]).flatten(1)
        following = chain.arcs.following[state].flatten(1)
        if merged:
            best = torch.full((len(given), chain.states), -math.inf).scatter_reduce_(1, following, total, "amax")
            total = torch.where(best.gather(1, following) <= total, total, -math.inf)
        top = (total + ahead.t().gather(1, following).log()).topk(min(width, total.shape[1]), 1).indices
        symbol = torch.cat([symbol[first, top // size], (top % size)[..., None]], 2)
        state, score = following.gather(1, top), total.gather(1, top)
    return symbol[first, score.argsort(1, descending=True)]


def in_blocks(method: Rdlm, given: Tensor, block: int) -> Tensor:
    """Return sequences decided from left to right, `block` positions per call, with the evidence ahead as it is."""
    given = given.clone()
    for begin in range(0, given.shape[1], block):
        token = posterior_of(method, given).argmax(-1)[:, begin : begin + block]
        given[:, begin : begin + block] = certain(token, given.shape[2])
    return given.argmax(-1)


def beam_of_blocks(method: Rdlm, given: Tensor, block: int, width: int) -> Tensor:
    """Return the same with a beam, whose hypotheses differ in at most one position of a block."""
    (rows, length, size), first = given.shape, torch.arange(len(given))[:, None]
    state, score = given[:, None].clone(), torch.zeros(rows, 1)  # [B, W, L, V]
    for begin in range(0, length, block):
        log_probs = torch.cat([posterior_of(method, part) for part in state.flatten(0, 1).split(ROWS)])
        part = log_probs.view(*state.shape)[:, :, begin : begin + block]
        value, best = part.max(-1)  # [B, W, block]
        second, other = part.scatter(-1, best[..., None], -math.inf).max(-1)
        options = torch.cat([value.sum(-1, keepdim=True), value.sum(-1, keepdim=True) + second - value], -1)
        top = (score[..., None] + options).flatten(1).topk(min(width, options[0].numel()), 1)
        parent, which = top.indices // options.shape[-1], top.indices % options.shape[-1]
        changed = which[..., None] == torch.arange(1, options.shape[-1])
        token = torch.where(changed, other[first, parent], best[first, parent])
        state, score = state[first, parent].clone(), top.values
        state[:, :, begin : begin + block] = certain(token, size)
    return state[first[:, 0], score.argmax(1)].argmax(-1)


def ways(
    method: Rdlm, chain: Ngram, rescored: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the ways by name: each gives sequences [B, L] for evidence [B, L, V]."""
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "one call": lambda given: posterior_of(method, given).argmax(-1),
        "most certain first, 8 calls": partial(most_certain_first, method, calls=8),
        "chain, beam 64": lambda given: chain_beam(chain, given, 64)[:, 0],
    }
    for width in (1, 4, 8, 16):
        found[f"beam {width}"] = partial(beam_search, method, chain, width=width)
    found |= {
        "8 best of the chain, scored by the network": lambda given: rescored(
            chain_beam(chain, given, 64)[:, :8], given
        ),
        "64 best of the chain, scored by the network": lambda given: rescored(
            chain_beam(chain, given, 256, False)[:, :64], given
        ),
        "blocks of 16, 8 calls": partial(in_blocks, method, block=16),
        "beam of 2, blocks of 32, 8 calls": partial(beam_of_blocks, method, block=32, width=2),
        "blocks of 1, 128 calls": partial(in_blocks, method, block=1),
    }
    for order in ("synchronous", "strided"):
        found[f"draw, {order}, 8 calls"] = lambda given, order=order: draw_given(
            method, given, 8, order, torch.Generator().manual_seed(0)
        )
    found["1 pass of 8 calls"] = lambda given: refined_posterior(
        method, given, 1, 8, "synchronous", torch.Generator().manual_seed(0)
    ).argmax(-1)
    return found


@torch.no_grad()
def main() -> None:
    """Measure, and print one line per noise and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--ways", nargs="*", default=[""], help="names begin so; default: all")
    parser.add_argument("--noise", nargs="*", default=["Gaussian 2", "symmetric", "keyboard", "erased 50"])
    parser.add_argument("--corpus", default="text8")
    options = parser.parse_args()
    model = rdlm.load()
    network = model.method.network
    assert isinstance(network, BeliefNetwork) and isinstance(network.belief, Ngram)
    chain, order = network.belief, exact_order(model, options.length)

    def by_network(ids: Tensor, given: Tensor) -> Tensor:
        values = [conditionals(model, part, order) for part in ids.split(256)]
        return joint(torch.cat(values), ids, given)

    def joint(log_probs: Tensor, ids: Tensor, given: Tensor) -> Tensor:
        return (log_probs + given.double().log_softmax(-1)).gather(-1, ids[..., None])[..., 0].sum(-1)

    def rescored(found: Tensor, given: Tensor) -> Tensor:
        value = by_network(found.flatten(0, 1), given.repeat_interleave(found.shape[1], 0)).view(found.shape[:2])
        return found[torch.arange(len(found)), value.argmax(1)]

    for noise, reading in evidence_of(options, options.split, options.sequences).items():
        truth = by_network(reading.ids, reading.evidence)
        of_chain = joint(chain.predicted(reading.ids).double(), reading.ids, reading.evidence)
        for name, way in ways(model.rdlm, chain, rescored).items():
            if not name.startswith(tuple(options.ways)):
                continue
            begin = time.process_time()
            found = torch.cat([way(part) for part in reading.evidence.split(ROWS)])
            seconds = (time.process_time() - begin) / len(found)
            right = found == reading.ids
            excess = float((by_network(found, reading.evidence) - truth).mean())
            own = float((joint(chain.predicted(found).double(), found, reading.evidence) - of_chain).mean())
            words = words_right(reading.ids, right, reading.counted)
            share = float(right[reading.counted].float().mean())
            print(
                f"{noise} | {name} | {share:.1%} | {words:.1%} | {excess:+.1f} | {own:+.1f} | {seconds:.3f}", flush=True
            )


if __name__ == "__main__":
    main()

"""What the likelihood bound costs, against the network's calls, and against walks and simulations in its place."""

from __future__ import annotations

import time

import torch

from benchmarks.draw import STEPS
from benchmarks.measure import Figure, Work, alternate, at_least, at_most
from benchmarks.subject import LETTERS, SMALL_TABLE, TINY, Timed, method, tokens
from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.likelihood import path_bound, step_terms, stratified_bound
from rdlm.methods.rdlm import Rdlm
from rdlm.process.exact import FreshLaw
from rdlm.process.order import TokenSchedule
from rdlm.process.simulated import SimulatedLaw

NETWORK = TransformerConfig(width=128, layers=3, heads=4)
DEFAULT_NFE = 64
ASKED = 4
"""Steps of each sequence that an evaluation is asked for."""
SHORT = 5
"""Steps of a walk whose time tells that of 500."""
LIMIT = at_most(1.3)


def bound(quick: bool) -> list[Figure]:
    """Return the bound of a batch and whole evaluations over the network's calls, and its rivals over itself."""
    rows, length = (16, 64) if quick else (64, 256)
    subject = method(RunConfig(process=SMALL_TABLE, model=TINY if quick else NETWORK), LETTERS)
    subject.network.eval()
    batch = Batch(tokens(LETTERS, rows, length))
    return _inside(subject, batch, 2 if quick else 4) + _outside(subject, batch, 2 if quick else 3)


def _inside(subject: Rdlm, batch: Batch, turns: int) -> list[Figure]:
    """Return a whole evaluation over the network's calls within it."""
    network = subject.network
    subject.network = timed = Timed(network)
    problem, generator = subject.problem(batch, DEFAULT_NFE), torch.Generator().manual_seed(0)
    whole, inside = [], []
    for _ in range(1 + turns):
        begin, timed.seconds = time.process_time(), 0.0
        stratified_bound(problem, ASKED * len(batch.ids), generator)
        whole.append(time.process_time() - begin)
        inside.append(timed.seconds)
    subject.network = network
    # The first one builds what the others find.
    return [Figure.of("evaluation of the bound, d = 28", "the network's calls in it", whole[1:], inside[1:], LIMIT)]


def _outside(subject: Rdlm, batch: Batch, turns: int) -> list[Figure]:
    """Return what else is done with as many calls of the network, and without the exact law."""
    generator, ids, rows = torch.Generator().manual_seed(0), batch.ids, len(batch.ids)
    problem, short = subject.problem(batch, DEFAULT_NFE), subject.problem(batch, SHORT)
    narrow = subject.problem(batch, DEFAULT_NFE, window=TokenSchedule(0.01, "spread"))
    chain, step = problem.chains[0], torch.arange(rows) % DEFAULT_NFE
    remaining = chain.grid.remaining[step][:, None].expand(ids.shape)
    posterior = problem.answer(torch.arange(rows), 16)
    start = chain.path.bridge.start.point().repeat(*ids.shape, 1)
    law, simulated = FreshLaw(chain.path, chain.grid), SimulatedLaw(chain.path.bridge, subject.process.grid(STEPS))
    works: dict[str, Work] = {
        "calls": lambda: posterior(start, remaining.float()),
        "bound": lambda: step_terms(posterior, chain, law, ids, step, generator),
        "whole": lambda: stratified_bound(problem, ASKED * rows, generator),
        "narrow": lambda: stratified_bound(narrow, ASKED * rows, generator),
        "walk": lambda: path_bound(short, 1, generator),
        "exact": lambda: law.draw_at_level(ids, step[:, None], generator),
        "simulated": lambda: simulated.draw(ids, remaining, generator),
    }
    taken = alternate(works, turns)
    asked = [ASKED * seconds for seconds in taken["calls"]]
    walk = [seconds * STEPS / SHORT for seconds in taken["walk"]]
    parts = zip(taken["bound"], taken["exact"], taken["simulated"], strict=True)
    slow = [whole - exact + simulated for whole, exact, simulated in parts]
    against = "as many calls as were asked for"
    return [
        Figure.of("bound of a batch, d = 28", "the network's calls", taken["bound"], taken["calls"], LIMIT),
        Figure.of("evaluation of the bound, d = 28", against, taken["whole"], asked, LIMIT),
        Figure.of("evaluation in windows of one step, d = 28", against, taken["narrow"], asked, LIMIT),
        Figure.of("500-step walk with the network, d = 28", "bound of a batch", walk, taken["bound"], at_least(50.0)),
        Figure.of("bound with simulated states, d = 28", "with exact ones", slow, taken["bound"], at_least(50.0)),
    ]

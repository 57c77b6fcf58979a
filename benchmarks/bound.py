"""The cost of the likelihood bound, against its network calls, against sampled paths, and against simulation."""

from __future__ import annotations

import time
from functools import partial

import torch

from benchmarks.draw import STEPS
from benchmarks.fixtures import LETTERS, SMALL_TABLE, TINY, Timed, method, tokens
from benchmarks.measure import Figure, Work, alternate, at_least, at_most
from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.likelihood.estimators import path_bound, stratified_bound
from rdlm.likelihood.terms import step_terms
from rdlm.methods.rdlm import Rdlm
from rdlm.process.exact import FreshLaw
from rdlm.process.law import SimulatedLaw
from rdlm.process.order import TokenSchedule

NETWORK = TransformerConfig(width=128, layers=3, heads=4)
DEFAULT_NFE = 64
EVALUATIONS = 4
"""Network evaluations per sequence."""
SHORT = 5
"""Steps of a sampled path; its time is extrapolated to 500 steps."""
LIMIT = at_most(1.3)


def bound(quick: bool) -> list[Figure]:
    """Measure the bound over its network calls, and the slower alternatives over the bound."""
    rows, length = (16, 64) if quick else (64, 256)
    subject = method(RunConfig(process=SMALL_TABLE, model=TINY if quick else NETWORK), LETTERS)
    subject.network.eval()
    batch = Batch(tokens(LETTERS, rows, length))
    return _inside(subject, batch, 2 if quick else 4) + _outside(subject, batch, 2 if quick else 3)


def _inside(subject: Rdlm, batch: Batch, turns: int) -> list[Figure]:
    """Measure a whole evaluation over the network calls within it."""
    network = subject.network
    subject.network = timed = Timed(network)
    problem, generator = subject.problem(batch, DEFAULT_NFE), torch.Generator().manual_seed(0)
    whole, inside = [], []
    for _ in range(1 + turns):
        begin, timed.seconds = time.process_time(), 0.0
        stratified_bound(problem, EVALUATIONS * len(batch.ids), generator)
        whole.append(time.process_time() - begin)
        inside.append(timed.seconds)
    subject.network = network
    # The first evaluation builds the tables.
    return [Figure.of("evaluation of the bound, d = 28", "the network calls within it", whole[1:], inside[1:], LIMIT)]


def _outside(subject: Rdlm, batch: Batch, turns: int) -> list[Figure]:
    """Measure the same network calls alone, and the bound from sampled paths and from simulated states."""
    generator, ids, rows = torch.Generator().manual_seed(0), batch.ids, len(batch.ids)
    problem, short = subject.problem(batch, DEFAULT_NFE), subject.problem(batch, SHORT)
    narrow = subject.problem(batch, DEFAULT_NFE, token_schedule=TokenSchedule(0.01, "strided"))
    chain, step = problem.chains[0], torch.arange(rows) % DEFAULT_NFE
    remaining = chain.grid.remaining[step][:, None].expand(ids.shape)
    posterior = partial(problem.log_probs, torch.arange(rows))
    start = chain.path.bridge.start.point().repeat(*ids.shape, 1)
    law, simulated = FreshLaw(chain.path, chain.grid), SimulatedLaw(chain.path.bridge, subject.process.grid(STEPS))
    works: dict[str, Work] = {
        "calls": lambda: posterior(start, remaining.float()),
        "bound": lambda: step_terms(posterior, chain, law, ids, step, generator),
        "whole": lambda: stratified_bound(problem, EVALUATIONS * rows, generator),
        "narrow": lambda: stratified_bound(narrow, EVALUATIONS * rows, generator),
        "path": lambda: path_bound(short, 1, generator),
        "exact": lambda: law.draw_at_level(ids, step[:, None], generator),
        "simulated": lambda: simulated.draw(ids, remaining, generator),
    }
    taken = alternate(works, turns)
    network = [EVALUATIONS * seconds for seconds in taken["calls"]]
    path = [seconds * STEPS / SHORT for seconds in taken["path"]]
    parts = zip(taken["bound"], taken["exact"], taken["simulated"], strict=True)
    slow = [whole - exact + simulated for whole, exact, simulated in parts]
    against = "as many network calls"
    return [
        Figure.of("bound of a batch, d = 28", "its network calls", taken["bound"], taken["calls"], LIMIT),
        Figure.of("evaluation of the bound, d = 28", against, taken["whole"], network, LIMIT),
        Figure.of("evaluation in windows of one step, d = 28", against, taken["narrow"], network, LIMIT),
        Figure.of("500-step path with the network, d = 28", "bound of a batch", path, taken["bound"], at_least(50.0)),
        Figure.of("bound with simulated states, d = 28", "with exact ones", slow, taken["bound"], at_least(50.0)),
    ]

"""The cost of the bound: states of the exact law against a 500-step simulation, and against the network itself.

    python benchmarks/bound.py

Batch 64, length 256, d = 28 and a small network, all in one run on one thread, in seconds of processor time; about a
minute. Network calls are timed before and after each of the others, so that what else the machine does hits both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rdlm.config import ProcessConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.likelihood import FreshLaw, Problem, by_paths, by_steps, step_terms
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.process.law.simulated import SimulatedLaw
from rdlm.process.window import Window
from rdlm.report import table

BATCH, LENGTH, VOCABULARY, SIMULATION, CALLS, STEPS, TURNS = 64, 256, 27, 500, 64, 5, 3


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def beside(network: Callable[[], object], work: Callable[[], object]) -> tuple[float, float]:
    """Return the least time of some work, and its least multiple of the network's time just before and after it."""
    times, ratios, before = [], [], seconds(network)
    for _ in range(TURNS):
        own, after = seconds(work), seconds(network)
        times.append(own)
        ratios.append(2 * own / (before + after))
        before = after
    return min(times), min(ratios)


class Evaluation:
    """A whole evaluation of 256 sequence-steps with its pilot, which counts what goes through the network."""

    def __init__(self, problem: Problem, generator: torch.Generator) -> None:
        self.problem, self.generator, self.passes = problem, generator, 0

    def __call__(self) -> None:
        self.passes = 0
        by_steps(self.problem, 4 * BATCH, self.generator, advance=self._count)

    def _count(self, passes: int) -> None:
        self.passes += passes


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    config = RunConfig(model=TransformerConfig(width=128, layers=3, heads=4), process=ProcessConfig())
    method = Rdlm(config, VOCABULARY)
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    problem = method.problem(Batch(ids), CALLS)
    chain, row = problem.chains[0], torch.arange(BATCH)
    step = torch.arange(BATCH) % CALLS
    noise = chain.grid.noise[step][:, None].expand(ids.shape)
    posterior = problem.answer(row, 16)
    start = method.process.bridge.start.point().repeat(BATCH, LENGTH, 1)
    law, fine = FreshLaw(chain), SimulatedLaw(method.process.bridge, method.process.grid(SIMULATION))
    narrow = Evaluation(method.problem(Batch(ids), CALLS, window=Window(0.01, "spread")), generator)
    whole = Evaluation(problem, generator)
    short = method.problem(Batch(ids), STEPS)

    def network() -> object:
        return posterior(start, noise.float())

    network()
    exact, _ = beside(network, lambda: law.draw(ids, step[:, None], generator))
    bound, bound_ratio = beside(network, lambda: step_terms(posterior, chain, law, ids, step, generator))
    _, whole_ratio = beside(network, whole)
    _, narrow_ratio = beside(network, narrow)
    simulated = seconds(lambda: fine.draw(ids, noise, generator))
    # A walk with the network at every step: a few steps of the 500 tell the time.
    walk = seconds(lambda: by_paths(short, 1, generator)) / STEPS * SIMULATION
    rows: list[dict[str, object]] = [
        {"name": "bound of a batch / network's call", "ratio": bound_ratio, "target": "at most 1.3"},
        {"name": "evaluation with its pilot / the network's calls in it", "ratio": whole_ratio * BATCH / whole.passes,
         "target": "at most 1.3"},
        {"name": "the same / as many calls as were asked for", "ratio": whole_ratio / 4, "target": "at most 1.3"},
        {"name": "the same in windows of one step", "ratio": narrow_ratio / 4, "target": "at most 1.3"},
        {"name": "500-step walk with the network / bound of a batch", "ratio": walk / bound, "target": "at least 50"},
        {"name": "bound with simulated states / with exact ones", "ratio": (bound - exact + simulated) / bound,
         "target": "at least 50"},
        {"name": "500-step simulated states / exact states", "ratio": simulated / exact},
    ]  # fmt: skip
    print(table(rows, ("name", "ratio", "target")))
    print(f"seconds: exact states {exact:.3f}, simulated {simulated:.2f}, bound {bound:.2f}")


if __name__ == "__main__":
    main()

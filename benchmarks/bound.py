"""The cost of the bound: states of the exact law against a 500-step simulation, and against the network itself.

    python benchmarks/bound.py

Batch 64, length 256, d = 28 and a small network, all in one run on one thread, in seconds of processor time; about a
minute. All parts are timed in turn, and the least time of each counts.
"""

from __future__ import annotations

import math
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

    parts: dict[str, Callable[[], object]] = {
        "network": network,
        "exact": lambda: law.draw(ids, step[:, None], generator),
        "simulated": lambda: fine.draw(ids, noise, generator),
        "bound": lambda: step_terms(posterior, chain, law, ids, step, generator),
        "whole": whole,
        "narrow": narrow,
        # With the network at every step: a few steps of the 500 tell the time.
        "walk": lambda: by_paths(short, 1, generator),
    }
    least = dict.fromkeys(parts, math.inf)
    for _ in range(TURNS):
        for name, work in parts.items():
            least[name] = min(least[name], seconds(work))
    network_call, exact, bound = least["network"], least["exact"], least["bound"]
    asked = least["whole"] / (4 * network_call)
    rows: list[dict[str, object]] = [
        {"name": "bound of a batch / network's call", "ratio": bound / network_call, "target": "at most 1.3"},
        {"name": "evaluation with its pilot / as many calls as were asked for", "ratio": asked,
         "target": "at most 1.3"},
        {"name": "the same / the network's calls in it", "ratio": asked * 4 * BATCH / whole.passes},
        {"name": "evaluation in windows of one step / as many calls as were asked for",
         "ratio": least["narrow"] / (4 * network_call), "target": "at most 1.3"},
        {"name": "500-step walk with the network at each step / bound of a batch",
         "ratio": least["walk"] / STEPS * SIMULATION / bound, "target": "at least 50"},
        {"name": "bound with states by 500-step simulation / with exact ones",
         "ratio": (bound - exact + least["simulated"]) / bound, "target": "at least 50"},
        {"name": "500-step simulated states / exact states", "ratio": least["simulated"] / exact},
    ]  # fmt: skip
    print(table(rows, ("name", "ratio", "target")))
    print(f"seconds: {', '.join(f'{name} {value:.3f}' for name, value in least.items())}")


if __name__ == "__main__":
    main()

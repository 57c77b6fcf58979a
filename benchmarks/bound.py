"""The cost of the bound: states of the exact law against a 500-step simulation, and against the network itself.

    python benchmarks/bound.py

Batch 64, length 256, d = 28 and a small network, all in one run on one thread; about a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rdlm.config import ProcessConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.likelihood import FreshLaw, by_paths, by_steps, step_terms
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.process.law.simulated import SimulatedLaw
from rdlm.report import table

BATCH, LENGTH, VOCABULARY, SIMULATION, CALLS, STEPS = 64, 256, 27, 500, 64, 5


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


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
    fine = method.process.grid(SIMULATION)
    posterior = problem.answer(row, 16)
    start = method.process.bridge.start.point().repeat(BATCH, LENGTH, 1)

    network = min(seconds(lambda: posterior(start, noise.float())) for _ in range(3))
    fresh = min(seconds(lambda: FreshLaw(chain).draw(ids, step[:, None], generator)) for _ in range(3))
    simulated = seconds(lambda: SimulatedLaw(method.process.bridge, fine).draw(ids, noise, generator))
    whole = min(
        seconds(lambda: step_terms(posterior, chain, FreshLaw(chain), ids, step, generator)) for _ in range(3)
    )
    evaluation = seconds(lambda: by_steps(problem, 4 * BATCH, generator)) / 4
    # A walk with the network at every step, as the paper's estimator takes it: a few steps of the 500 tell the time.
    short = method.problem(Batch(ids), STEPS)
    walk = seconds(lambda: by_paths(short, 1, generator)) / STEPS * SIMULATION
    rows: list[dict[str, object]] = [
        {"name": "bound of a batch / network's call", "ratio": whole / network, "target": "at most 1.3"},
        {"name": "evaluation with its pilot / network's calls", "ratio": evaluation / network},
        {"name": "500-step walk with the network / bound of a batch", "ratio": walk / whole, "target": "at least 50"},
        {"name": "500-step simulated states / exact states", "ratio": simulated / fresh},
        {"name": "bound with simulated states / with exact ones", "ratio": (whole - fresh + simulated) / whole},
    ]
    print(table(rows, ("name", "ratio", "target")))
    print(f"seconds: network {network:.2f}, exact states {fresh:.3f}, simulated {simulated:.2f}, bound {whole:.2f}")


if __name__ == "__main__":
    main()

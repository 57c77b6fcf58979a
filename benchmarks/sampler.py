"""Times what a sampling step costs beside its network: `python benchmarks/sampler.py [--json]`.

| name | what | target |
|---|---|---|
| d = 28 | width 256, 6 layers, length 256, batch 16, 27 tokens, one sphere each | 5% of the step |
| d = 30522 | the same trunk with a whole word-piece vocabulary unsplit, length 64, batch 1 | 15% of the step |

The ratio is the time of a whole step, less that of the denoiser in it (network, evidence and features), over the time
of the step; both are processor time on one thread, so that a busy machine says what an idle one would. The median over
turns is reported, for all positions together (mixture and drift kernel) and in windows of one step, where there is no
noise and only what moves is drawn. Of the 2 million numbers of noise that a step of all positions at d = 30522 takes,
the generator alone needs about a tenth of the step, and the exponentials from which its tokens are drawn a thirtieth.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.process.window import Window
from rdlm.randomness import generator_of
from rdlm.report import print_json, table
from rdlm.sampler.noise import Noise
from rdlm.sampler.predictor import Predictor
from rdlm.sampler.solver import SOLVERS
from rdlm.sampler.walk import Walker

STEPS = 4
WINDOWED = 8
"""Network calls of a walk in windows of one step."""


@dataclass(frozen=True)
class Case:
    name: str
    vocabulary: int
    length: int
    batch: int
    process: ProcessConfig
    denoiser: DenoiserConfig
    target: float


CASES = (
    Case("d = 28", 27, 256, 16, ProcessConfig(), DenoiserConfig(), 0.05),
    Case(
        "d = 30522", 30521, 64, 1, ProcessConfig(bridge="logarithm"),
        DenoiserConfig(features="tokens", evidence=False), 0.15,
    ),
)  # fmt: skip


class Timed:
    """A model that adds up the time spent in it."""

    def __init__(self, model: Predictor) -> None:
        self.model, self.seconds = model, 0.0

    def __call__(self, state: Tensor, noise: Tensor) -> Tensor:
        begin = time.process_time()
        law = self.model(state, noise)
        self.seconds += time.process_time() - begin
        return law


def measure(case: Case, solver: str, turns: int, window: Window | None = None) -> dict[str, object]:
    method = Rdlm(RunConfig(process=case.process, denoiser=case.denoiser, model=TransformerConfig()), case.vocabulary)
    method.network.eval()
    calls = STEPS if window is None else WINDOWED
    chain = method.chain(method.process.mixture.paths[0], calls, window=window)
    known = torch.full((case.batch, case.length), -1)
    ratios, steps = [], []
    for turn in range(turns + 1):
        model = Timed(Predictor(method, rows=case.batch))
        walker = Walker(model, chain, SOLVERS[solver], method.process.clock)
        noise = Noise([generator_of(turn, sample) for sample in range(case.batch)], case.batch)
        begin = time.process_time()
        walker.run(known, noise)
        seconds = time.process_time() - begin
        if turn > 0:  # the first turn warms up
            ratios.append(1 - model.seconds / seconds)
            steps.append(seconds / calls)
    ratio = statistics.median(ratios)
    way = solver if window is None else f"{solver}, windows"
    return {
        "name": f"{way}, {case.name}", "ratio": ratio, "spread": max(ratios) - min(ratios), "target": case.target,
        "ok": ratio <= case.target, "step_ms": 1e3 * statistics.median(steps),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--turns", type=int, default=3, help="how often each case is timed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ways = (("mixture", None), ("drift", None), ("mixture", Window(1 / WINDOWED, "spread")))
    rows = [measure(case, solver, arguments.turns, window) for case in CASES for solver, window in ways]
    if arguments.json:
        print_json({"rows": rows})
    else:
        print(table(rows, ["name", "ratio", "spread", "target", "ok", "step_ms"]))


if __name__ == "__main__":
    main()

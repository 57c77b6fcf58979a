"""What surrounds the network when samples are drawn and when the likelihood is bounded."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rdlm.bench.draw import one_pass
from rdlm.bench.measure import Figure, Work, alternate, at_most
from rdlm.bench.subject import LETTERS, NETWORK, ONE_SPHERE, PIECES, PLAIN, SMALL_TABLE, TINY, method, tokens
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.likelihood import by_steps
from rdlm.model.config import TransformerConfig
from rdlm.randomness import generator_of
from rdlm.sampler.noise import Noise
from rdlm.sampler.predictor import Predictor
from rdlm.sampler.solver import SOLVERS
from rdlm.sampler.walk import Walker


@dataclass(frozen=True)
class Case:
    """A process whose sampler is timed."""

    name: str
    vocabulary: int
    batch: int
    length: int
    process: ProcessConfig
    denoiser: DenoiserConfig


CASES = (
    Case("d = 28", LETTERS, 16, 256, SMALL_TABLE, DenoiserConfig()),
    Case("d = 30523", PIECES, 1, 64, ONE_SPHERE, PLAIN),
)


def sampler(quick: bool) -> list[Figure]:
    """Return a step of the sampler's own work over one pass, and its share of a whole step."""
    return [figure for case in CASES for figure in _step(case, quick)]


def _step(case: Case, quick: bool) -> list[Figure]:
    subject = method(RunConfig(process=case.process, denoiser=case.denoiser, model=NETWORK), case.vocabulary)
    subject.network.eval()
    chain = subject.chain(subject.process.mixture.paths[0], 64)
    model = Predictor(subject, rows=case.batch)
    walker = Walker(model, chain, SOLVERS["mixture"], subject.process.clock)
    noise = Noise([generator_of(0, sample) for sample in range(case.batch)], case.batch)
    walk = walker.begin(torch.full((case.batch, case.length), -1), noise)
    law = model(*walker.query(walk))
    walk, _ = walker.advance(walk, law)
    shape = (case.batch, case.length, case.vocabulary + 1)
    works: dict[str, Work] = {
        "advance": lambda: walker.advance(walk, law),
        "pass": one_pass(shape, torch.Generator().manual_seed(0)),
        "network": lambda: model(*walker.query(walk)),
    }
    taken = alternate(works, 3 if quick else 7)
    whole = [a + b for a, b in zip(taken["advance"], taken["network"], strict=True)]
    name = f"sampler's step without the network, {case.name}"
    return [
        Figure.of(name, "normal numbers and a multiply-add", taken["advance"], taken["pass"], at_most(3.0)),
        Figure.of(name, "the whole step", taken["advance"], whole, at_most(0.05)),
    ]


class Timed(nn.Module):
    """A network that adds up the processor seconds spent in it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.seconds = network, 0.0

    def forward(self, *inputs: Tensor | float | None) -> Tensor:
        """Return the network's answer."""
        begin = time.process_time()
        answer: Tensor = self.network(*inputs)
        self.seconds += time.process_time() - begin
        return answer


def bound(quick: bool) -> list[Figure]:
    """Return a whole evaluation of the bound over the network's calls within it."""
    network = TINY if quick else TransformerConfig(width=128, layers=3, heads=4)
    subject = method(RunConfig(process=SMALL_TABLE, model=network), LETTERS)
    timed = Timed(subject.network.eval())
    subject.network = timed
    rows, length = (16, 64) if quick else (64, 256)
    problem = subject.problem(Batch(tokens(LETTERS, rows, length)), 64)
    generator = torch.Generator().manual_seed(0)
    whole, inside = [], []
    for turn in range(3 if quick else 5):
        begin, timed.seconds = time.process_time(), 0.0
        by_steps(problem, 4 * rows, generator)
        if turn > 0:  # the first one builds what the others find
            whole.append(time.process_time() - begin)
            inside.append(timed.seconds)
    return [Figure.of("evaluation of the bound, d = 28", "the network's calls in it", whole, inside, at_most(1.3))]

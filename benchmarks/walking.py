"""What surrounds the network when samples are drawn."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from rdlm.sampling.walk import Walker

from benchmarks.draw import one_pass
from benchmarks.measure import Figure, Work, alternate, at_most
from benchmarks.subject import LETTERS, NETWORK, ONE_SPHERE, PIECES, PLAIN, SMALL_TABLE, TINY, Timed, method
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig
from rdlm.methods.rdlm import Rdlm
from rdlm.model.transformer import Transformer
from rdlm.process.order import TokenSchedule
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.denoisers import Predictor
from rdlm.sampling.solvers import SOLVERS


@dataclass(frozen=True)
class Case:
    """A process whose sampler is timed."""

    name: str
    vocabulary: int
    batch: int
    length: int
    process: ProcessConfig
    denoiser: DenoiserConfig
    share: float
    """Of a whole step that all but the network may take."""

    def remaining(self) -> RandomStreams:
        """Return fresh randomness for every sample."""
        return RandomStreams([generator_of(0, sample) for sample in range(self.batch)], self.batch)

    def known(self) -> torch.Tensor:
        """Return that nothing is known."""
        return torch.full((self.batch, self.length), -1)


CASES = (
    Case("d = 28", LETTERS, 16, 256, SMALL_TABLE, DenoiserConfig(), 0.05),
    Case("d = 30523", PIECES, 1, 64, ONE_SPHERE, PLAIN, 0.15),
)
DEFAULT_NFE = 4
WAYS: dict[str, tuple[str, TokenSchedule | None]] = {
    "mixture": ("mixture", None),
    "drift": ("drift", None),
    "windows of one step": ("mixture", TokenSchedule(1 / DEFAULT_NFE, "spread")),
}


def sampler(quick: bool) -> list[Figure]:
    """Return a step of the sampler's own work over one pass, and its share of the steps of whole walks."""
    figures = []
    for case in CASES:
        network = TINY if quick else NETWORK
        subject = method(RunConfig(process=case.process, denoiser=case.denoiser, model=network), case.vocabulary)
        subject.network.eval()
        figures += [_step(case, subject, 3 if quick else 7)]
        figures += [_share(case, subject, way, 1 if quick else 3) for way in WAYS]
    return figures


def recall(quick: bool) -> list[Figure]:
    """Return what a sample from left to right costs if all tokens are asked about at every step, over what it costs."""
    length, network = (32, TINY) if quick else (128, NETWORK)
    subject = method(RunConfig(process=replace(SMALL_TABLE, window=1 / length, block=1), model=network), LETTERS)
    subject.network.eval()
    assert isinstance(subject.network, Transformer)
    chain = subject.chain(subject.process.mixture.paths[0], length, length=length)
    model = Predictor(subject, block_mask=subject.block_mask(chain))
    asking = Walker(model, chain, SOLVERS["mixture"], subject.process.clock)
    known = torch.full((1, length), -1)
    works: dict[str, Work] = {
        name: partial(_run, replace(asking, remember=remember), known)
        for name, remember in (("all", None), ("recalled", subject.network.cache))
    }
    taken = alternate(works, 3)
    name = f"sample of {length} letters, all asked about at every step"
    return [Figure.of(name, "recalling finished ones", taken["all"], taken["recalled"])]


def _run(walker: Walker, known: torch.Tensor) -> None:
    walker.run(known, RandomStreams([generator_of(0)], 1))


def _step(case: Case, subject: Rdlm, turns: int) -> Figure:
    chain = subject.chain(subject.process.mixture.paths[0], 64)
    model = Predictor(subject, rows=case.batch)
    walker = Walker(model, chain, SOLVERS["mixture"], subject.process.clock)
    walk = walker.begin(case.known(), case.remaining())
    law = model(*walker.query(walk))
    walk, _ = walker.advance(walk, law)
    shape = (case.batch, case.length, case.vocabulary + 1)
    works: dict[str, Work] = {
        "advance": lambda: walker.advance(walk, law),
        "pass": one_pass(shape, torch.Generator().manual_seed(0)),
    }
    taken = alternate(works, turns)
    name = f"sampler's step without the network, {case.name}"
    return Figure.of(name, "normal numbers and a multiply-add", taken["advance"], taken["pass"], at_most(3.0))


def _share(case: Case, subject: Rdlm, way: str, turns: int) -> Figure:
    """Return what of a walk's time is not the denoiser's: network, evidence and features."""
    solver, window = WAYS[way]
    chain = subject.chain(subject.process.mixture.paths[0], DEFAULT_NFE, window=window)
    model = Timed(Predictor(subject, rows=case.batch))
    walker = Walker(model, chain, SOLVERS[solver], subject.process.clock)
    whole, rest = [], []
    for _ in range(1 + turns):
        begin, model.seconds = time.process_time(), 0.0
        walker.run(case.known(), case.remaining())
        whole.append(time.process_time() - begin)
        rest.append(whole[-1] - model.seconds)
    name = f"sampler's step without the network, {case.name}, {way}"
    return Figure.of(name, "the whole step", rest[1:], whole[1:], at_most(case.share))  # the first one warms up

"""The cost of sampling besides the network, and what the KV cache saves."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.draw import one_pass
from benchmarks.fixtures import LETTERS, NETWORK, ONE_SPHERE, PIECES, PLAIN, SMALL_TABLE, TINY, Timed, method
from benchmarks.measure import Figure, Work, alternate, at_most
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig
from rdlm.methods.rdlm import Rdlm
from rdlm.model.transformer import Transformer
from rdlm.process.order import TokenSchedule
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.denoisers import Batcher, GuidedDenoiser, Query, drive
from rdlm.sampling.sampler import Sampler, State
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
    """Largest share of a step that may be spent outside of the network."""

    def noise(self) -> RandomStreams:
        """Return new noise for every sample."""
        return RandomStreams([generator_of(0, sample) for sample in range(self.batch)], self.batch)

    def known(self) -> torch.Tensor:
        """Return token ids of which none is given (-1)."""
        return torch.full((self.batch, self.length), -1)


CASES = (
    Case("d = 28", LETTERS, 16, 256, SMALL_TABLE, DenoiserConfig(), 0.05),
    Case("d = 30523", PIECES, 1, 64, ONE_SPHERE, PLAIN, 0.15),
)
DEFAULT_NFE = 4
WAYS: dict[str, tuple[str, TokenSchedule | None]] = {
    "mixture": ("mixture", None),
    "drift": ("drift", None),
    "windows of one step": ("mixture", TokenSchedule(1 / DEFAULT_NFE, "strided")),
}


def sampler(quick: bool) -> list[Figure]:
    """Measure a sampler step without the network: over one pass of normal numbers, and as a share of the whole step."""
    figures = []
    for case in CASES:
        network = TINY if quick else NETWORK
        subject = method(RunConfig(process=case.process, denoiser=case.denoiser, model=network), case.vocabulary)
        subject.network.eval()
        figures += [_step(case, subject, 3 if quick else 7)]
        figures += [_share(case, subject, way, 1 if quick else 3) for way in WAYS]
    return figures


def kv_cache(quick: bool) -> list[Figure]:
    """Measure left-to-right sampling without the KV cache over the same with it."""
    length, network = (32, TINY) if quick else (128, NETWORK)
    subject = method(RunConfig(process=replace(SMALL_TABLE, window=1 / length, block=1), model=network), LETTERS)
    subject.network.eval()
    assert isinstance(subject.network, Transformer)
    chain = subject.chain(subject.process.mixture.paths[0], length, length=length)
    denoise = GuidedDenoiser(subject.denoiser, block_mask=subject.block_mask(chain))
    sampler = Sampler(denoise, chain, SOLVERS["mixture"], subject.process.schedule)
    batcher, known = Batcher(subject.denoiser, subject.network, rows=1), torch.full((1, length), -1)
    works: dict[str, Work] = {
        name: partial(_run, replace(sampler, make_cache=make_cache), batcher, known)
        for name, make_cache in (("all", None), ("cached", subject.network.cache))
    }
    taken = alternate(works, 3)
    name = f"sample of {length} letters without the KV cache"
    return [Figure.of(name, "with it", taken["all"], taken["cached"])]


def _run(sampler: Sampler, batcher: Batcher, known: torch.Tensor) -> None:
    drive(sampler.sample(known, RandomStreams([generator_of(0)], 1)), batcher)


def _step(case: Case, subject: Rdlm, turns: int) -> Figure:
    """Measure a sampler's second step, from log-probabilities to the next query, over one pass of normal numbers."""
    chain = subject.chain(subject.process.mixture.paths[0], 64)
    sampler = Sampler(GuidedDenoiser(subject.denoiser), chain, SOLVERS["mixture"], subject.process.schedule)
    batcher = Batcher(subject.denoiser, subject.network, rows=case.batch)

    def answered(state: State) -> tuple[Generator[Query, Tensor, tuple[State, Tensor]], Tensor]:
        stepping = sampler.step(state)
        return stepping, batcher.evaluate(next(stepping))

    def advance(stepping: Generator[Query, Tensor, tuple[State, Tensor]], log_probs: Tensor) -> State:
        try:
            stepping.send(log_probs)
        except StopIteration as stop:
            after: State = stop.value[0]
            return after
        raise AssertionError("a step of the mixture solver has one query")

    state = advance(*answered(sampler.start(case.known(), case.noise())))
    log_probs = answered(state)[1]

    def step() -> None:
        stepping = sampler.step(state)
        next(stepping)
        advance(stepping, log_probs)

    shape = (case.batch, case.length, case.vocabulary + 1)
    works: dict[str, Work] = {"advance": step, "pass": one_pass(shape, torch.Generator().manual_seed(0))}
    taken = alternate(works, turns)
    name = f"sampler's step without the network, {case.name}"
    return Figure.of(name, "normal numbers and a multiply-add", taken["advance"], taken["pass"], at_most(3.0))


def _share(case: Case, subject: Rdlm, way: str, turns: int) -> Figure:
    """Measure the share of sampling time outside of the denoiser (network, evidence and features)."""
    solver, schedule = WAYS[way]
    chain = subject.chain(subject.process.mixture.paths[0], DEFAULT_NFE, token_schedule=schedule)
    sampler = Sampler(GuidedDenoiser(subject.denoiser), chain, SOLVERS[solver], subject.process.schedule)
    batcher = Batcher(subject.denoiser, subject.network, rows=case.batch)
    batcher.denoiser = timed = Timed(subject.denoiser)  # type: ignore[assignment]
    whole, rest = [], []
    for _ in range(1 + turns):
        begin, timed.seconds = time.process_time(), 0.0
        drive(sampler.sample(case.known(), case.noise()), batcher)
        whole.append(time.process_time() - begin)
        rest.append(whole[-1] - timed.seconds)
    name = f"sampler's step without the network, {case.name}, {way}"
    return Figure.of(name, "the whole step", rest[1:], whole[1:], at_most(case.share))  # the first run warms up

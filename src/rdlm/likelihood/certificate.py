"""The certificate of `rdlm certify`: no valid bound is below the entropy of a source with a known distribution.

Each case evaluates one chain on one source with the source's exact posterior (Bayes' rule on the evidence, without
training) and compares the bound with the entropy. The paper's spliced estimator, Eq. (33), is included for comparison
and is below the entropy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import get_args

import torch
from torch import Tensor

from rdlm.data import sources
from rdlm.data.sources import Source
from rdlm.display.figure import canvas
from rdlm.likelihood.estimate import Estimate
from rdlm.likelihood.estimators import path_terms
from rdlm.likelihood.terms import Posterior
from rdlm.model.belief import Belief, HiddenMarkov, Ngram
from rdlm.process.bridge import BridgeKind
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import Order, TokenSchedule
from rdlm.process.path import (
    Mixture,
    Path,
    constant_mixture,
    joint_posterior,
    log_evidence,
    masked_path,
    switching_path,
    uniform_path,
)
from rdlm.process.schedule import Geometric, uniform_in_time
from rdlm.process.tokens import Codes

CERTAINTY = 4.0
"""Standard errors below the entropy at which a bound is refuted: one false alarm in 30,000."""

ERASURE_STEPS = 8
"""Steps of the cases in which every position takes a single step."""

BELIEF_LENGTH = 5
"""Positions of the source of the inference layer's cases."""

PAPER_SWITCH = 0.35
"""The paper's switch time for text8."""


@dataclass(frozen=True)
class Case:
    """One chain on one source."""

    source: Source
    label: str
    mixture: Mixture
    steps: int
    kernel: Kernel = "mixture"
    window: TokenSchedule = field(default_factory=TokenSchedule)
    spliced: bool = False
    belief: Belief | None = None
    """The chain of an inference layer, whose posterior is used; None: Bayes' rule on the table of the source."""

    def posterior(self, path: Path) -> Posterior:
        """Return the exact posterior of the source."""
        if self.belief is None:
            return partial(joint_posterior, path, self.source.log_joint)
        return partial(_believed, path, self.belief)

    @property
    def token_schedule(self) -> str:
        """The name of the token schedule."""
        if self.window.block:
            return f"in blocks of {self.window.block}"
        return "synchronous" if self.window.width == 1 else f"{self.window.order} {self.window.width:g}"


@dataclass(frozen=True, eq=False)
class Verdict:
    """A case with its measured bound, the mean term of every step, and the grid's remaining noise."""

    case: Case
    bound: Estimate
    curve: Tensor
    remaining: Tensor

    @property
    def holds(self) -> bool:
        """Whether the bound is consistent with being at or above the entropy."""
        return self.bound.value + CERTAINTY * self.bound.stderr >= self.case.source.entropy

    def row(self) -> dict[str, object]:
        """Return the verdict as a record of `rdlm certify --json`, in nats."""
        case, bound = self.case, self.bound
        entropy = case.source.entropy
        return {
            "source": case.source.name,
            "states": case.source.states,
            "path": case.label,
            "bridge": case.mixture.paths[0].bridge.kind,
            "kernel": case.kernel,
            "clock": case.token_schedule,
            "steps": case.steps,
            "entropy": entropy,
            "bound": bound.value,
            "stderr": bound.stderr,
            "low": bound.low,
            "high": bound.high,
            "slack": bound.value - entropy,
            "slack_percent": 100 * (bound.value / entropy - 1),
            "claims_bound": bound.claims_bound,
            "ok": self.holds or not bound.claims_bound,
        }


def measure(case: Case, paths: int, generator: torch.Generator) -> Verdict:
    """Return the verdict of a case from `paths` simulated paths; a mixture averages over its paths, Eq. (31)."""
    bound, curve = Estimate(0.0, 0.0), torch.zeros(())
    for path, weight in zip(case.mixture.paths, case.mixture.weights, strict=True):
        part, terms, chain = _measure_path(case, path, paths, generator)
        bound, curve = bound + part * weight, curve + terms * weight
    return Verdict(case, bound, curve, chain.grid.remaining)


def _measure_path(case: Case, path: Path, paths: int, generator: torch.Generator) -> tuple[Estimate, Tensor, Chain]:
    token_steps = case.window.discretize(case.steps, case.source.length)
    chain = Chain(path, uniform_in_time(Geometric(), token_steps.steps), case.kernel, token_steps)
    token = case.source.draw(paths, generator)
    terms = path_terms(case.posterior(path), chain, token, generator, torch.float64).sum(-1)  # [nfe, paths]
    if case.spliced:
        switch = path.switch_step(chain.grid)
        terms = terms[[m for m in range(chain.nfe - 1) if m != switch]]  # Eq. (33): neither switch nor decode term
    # The mean of -log p(token) is the entropy, which is known, so only the excess over it is estimated.
    excess = terms.sum(0) + case.source.log_joint[tuple(token.T)]
    stderr = excess.std().item() / paths**0.5
    value = case.source.entropy + excess.mean().item()
    return Estimate(value, stderr, claims_bound=not case.spliced), terms.mean(1), chain


def cases(steps: int) -> Iterator[Case]:
    """Yield the certificate's cases: every path, bridge, kernel and token schedule, and the paper's estimator."""
    total = Geometric().total
    for states in (3, 27):
        for source in (sources.uniform(states), sources.skewed(states)):
            yield Case(source, "masked", Mixture((masked_path(states, total),)), steps)
            yield Case(source, "uniform", Mixture((uniform_path(states, total),)), steps)
            yield Case(source, "constant mixture", constant_mixture(states, total, 0.5), steps)
            yield Case(source, "switching mixture", _switching(states, 0.85), steps)
        yield Case(source, "masked", Mixture((masked_path(states, total),)), 8)
        yield Case(source, "masked", Mixture((masked_path(states, total),)), steps, "drift")
        yield Case(source, "masked", Mixture((masked_path(states, total, "logarithm"),)), steps)
        yield Case(source, "switching at the paper's time", _switching(states, PAPER_SWITCH), steps)
    yield from _markov_cases(steps)
    for states in (3, 27):
        mixture = _switching(states, PAPER_SWITCH, "logarithm")
        yield Case(sources.uniform(states), "spliced (paper)", mixture, steps, "drift", spliced=True)
    yield from _channel_cases(steps)
    yield from _belief_cases(steps)


def slack_cases(steps: int) -> Iterator[Case]:
    """Yield the default chain at 1/16, 1/4 and all of `steps`, on chains of order 1 and 2 of growing length."""
    for length in (1, 2, 4, 6):
        for source in (sources.markov(length), sources.markov_two(length, 2)):
            mixture = Mixture((masked_path(source.states, Geometric().total),))
            for number in (steps // 16, steps // 4, steps):
                yield Case(source, "masked", mixture, max(2, number))


def _channel_cases(steps: int) -> Iterator[Case]:
    """Yield the cases of codes in fewer and in more dimensions than tokens, of Gaussian observations and of erasure."""
    total, kernels = Geometric().total, get_args(Kernel)
    for states, dimension in ((3, 8), (27, 8), (27, 40)):
        codes = Codes(states, dimension, torch.Generator().manual_seed(dimension))
        for kind in ("brownian", "logarithm", "gaussian"):
            for kernel in kernels:
                mixture = Mixture((masked_path(states, total, kind, codes),))
                yield Case(sources.skewed(states), f"{dimension} dimensions", mixture, steps, kernel)
    markov = sources.markov()
    observed = Mixture((masked_path(markov.states, total, "gaussian"),))
    for kernel in kernels:
        yield Case(markov, "Gaussian", observed, steps, kernel)
        yield Case(markov, "Gaussian", observed, steps, kernel, TokenSchedule(0.5, "random"))
    for order in get_args(Order):
        masked = Mixture((masked_path(markov.states, total),))
        yield Case(markov, "erasure", masked, ERASURE_STEPS, window=TokenSchedule(1 / ERASURE_STEPS, order))


def _belief_cases(steps: int) -> Iterator[Case]:
    """Yield the cases of the inference layer, whose chain is the source: their slack is due to the grid alone."""
    source, total = sources.markov(BELIEF_LENGTH), Geometric().total
    mixture = Mixture((masked_path(source.states, total),))
    for label, chain in (("n-gram layer", markov_ngram()), ("hidden Markov layer", markov_hidden())):
        yield Case(source, label, mixture, steps, belief=chain)
        yield Case(source, label, mixture, steps, "drift", belief=chain)
        window = TokenSchedule(1 / BELIEF_LENGTH, "strided")
        yield Case(source, f"{label}, erasure", mixture, BELIEF_LENGTH, window=window, belief=chain)


def markov_ngram() -> Ngram:
    """Return the source `markov` as an n-gram model."""
    first, move = sources.markov_law()
    chain = Ngram(len(first), order=2, states=len(first) + 1)
    chain.weight.copy_(torch.cat([first[None], move]))
    return chain


def markov_hidden() -> HiddenMarkov:
    """Return the source `markov` as a hidden Markov model: a state before the first symbol, then one per symbol."""
    first, move = sources.markov_law()
    chain = HiddenMarkov(len(first), len(first) + 1)
    never = -1e4
    with torch.no_grad():
        chain.start.fill_(never)[0] = 0
        chain.transition.fill_(never)[:, 1:] = torch.cat([first[None], move]).log().float()
        chain.emission.fill_(never)[1:].fill_diagonal_(0)
    return chain


@torch.no_grad()
def _believed(path: Path, belief: Belief, state: Tensor, remaining: Tensor) -> Tensor:
    """Return `log p(token | all states)` by an inference layer, Eq. (54) without a network."""
    evidence = log_evidence(path, state, remaining)
    return torch.log_softmax(belief(evidence.float()).to(evidence) + evidence, dim=-1)


def _markov_cases(steps: int) -> Iterator[Case]:
    source, total = sources.markov(), Geometric().total
    kinds: tuple[BridgeKind, ...] = ("brownian", "logarithm")
    kernels: tuple[Kernel, ...] = ("mixture", "drift")
    halves = (TokenSchedule(0.5, "random"), TokenSchedule(0.5, "strided"), TokenSchedule(0.5, "left_to_right"))
    windows = (TokenSchedule(), *halves, TokenSchedule(block=1))
    for kind in kinds:
        for kernel in kernels:
            for window in windows:
                path = Mixture((masked_path(source.states, total, kind),))
                yield Case(source, "masked", path, steps, kernel, window)


def _switching(states: int, time: float, kind: BridgeKind = "brownian") -> Mixture:
    schedule = Geometric()
    return Mixture((switching_path(states, schedule.total, float(schedule.remaining(time)), kind),))


def draw_information(verdicts: list[Verdict], path: FilePath) -> None:
    """Plot the cumulative terms of the bound over time against the entropy of uniform sources."""
    with canvas(path, columns=2) as axes:
        for axis, states in zip(axes, (3, 27), strict=True):
            shown = [v for v in verdicts if v.case.source.name == f"uniform-{states}"]
            for verdict in shown:
                gained = torch.cat([torch.zeros(1), verdict.curve.cumsum(0)])
                style = "-" if verdict.bound.claims_bound else ":"
                axis.plot(torch.linspace(0, 1, len(gained)), gained, style, label=verdict.case.label)
            axis.axhline(shown[0].case.source.entropy, color="black", linewidth=0.8, linestyle="--", label="entropy")
            axis.set(xlabel="time (geometric schedule)", ylabel="cumulative bound in nats")
            axis.set_title(f"uniform source, {states} states")
            axis.legend()

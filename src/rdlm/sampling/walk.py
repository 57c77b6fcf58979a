"""The walk: from the start to tokens along a chain, with any solver, any clock, and rules that hold exactly.

Known tokens stand finished at their vertex: in windows always, and where all positions run together if a clean context
is asked for. Else they have a certain law, so that they follow their own bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.geometry import special
from rdlm.likelihood import Posterior
from rdlm.model.transformer import Cache
from rdlm.process.kernel import Chain
from rdlm.process.path import PathLaw
from rdlm.process.schedule import Linear, Schedule
from rdlm.random import Noise
from rdlm.random import draw_token as draw_token
from rdlm.sampling.automaton import Automaton, Choice
from rdlm.sampling.constraints import Rules, likeliest, spelled
from rdlm.sampling.course import Look, Outcome, Walk
from rdlm.sampling.pace import Moment, Pace, beside, handed
from rdlm.sampling.place import begun, placed, vertices
from rdlm.sampling.recall import Asked, Question, Recall
from rdlm.sampling.solvers import SOLVERS, Predict, Solver, Step

Callback = Callable[[Look], object]
"""Called after each step."""


def walk(
    posterior: Posterior,
    chain: Chain,
    batch: int,
    length: int,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
    pairs: int = 16384,
) -> Int[Tensor, "batch length"]:
    """Return tokens sampled by the chain whose likelihood is bounded, Eq. (19), with at most `chain.calls` calls."""
    law = chain.law(pairs, generator) if chain.switch >= 0 else None
    known = torch.full((batch, length), -1)
    constant = Linear(chain.grid.total, chain.grid.total)
    walker = Walker(posterior, chain, SOLVERS[chain.kernel], constant, law=law, callback=callback)
    return walker.run(known, Noise([generator], batch)).token


@dataclass(frozen=True, eq=False)
class Walker:
    """A model on a chain with a solver and rules, ready to run."""

    posterior: Posterior | Asked
    chain: Chain
    solver: Solver
    schedule: Schedule
    rules: Rules = field(default_factory=Rules)
    law: PathLaw | None = None
    """The law from which a switching path draws its second start."""
    clean: bool = False
    """Known tokens stand finished from the beginning."""
    codes: Automaton | None = None
    """Where a position is a digit: accepts the digits of existing tokens, the only ones that are decoded then."""
    callback: Callback | None = None
    device: torch.device | str = "cpu"
    """Where states and tokens are; the times of positions and what is known of them stay on the CPU."""
    remember: Callable[[], Cache] | None = None
    """Makes room for what the model keeps of finished chunks; then it is asked with a `Recall`."""
    tireless: bool = False
    """Ask the model at every step, also where nothing moves: for one that remembers what it answered."""

    def run(self, known: Int[Tensor, "batch positions"], random: Noise) -> Outcome:
        """Return tokens; those of `known`, on the CPU, that are not -1 come back as they are."""
        walk, walker = self.begin(known, random), self
        token, nfe, row = walk.token.clone(), walk.nfe[:, 0].clone(), torch.arange(len(known))
        while bool((going := walk.step[:, 0] < self.chain.nfe).any()):
            if random.separate and not bool(going.all()):
                kept: list[int] = going.nonzero().flatten().tolist()
                walk, row = walk.subset(kept), row[kept]
                walker = replace(self, rules=self.rules.subset(row))
            seen = walk
            walk, law = walker.advance(walk, self._ask(self.query(walk)))
            token[handed(row, token.device)], nfe[row] = walk.token, walk.nfe[:, 0]
            if self.callback is not None:
                self.callback(Look(row, seen.step[:, 0], seen.state, law, int(walk.step.min())))
        return Outcome(token, walk.invalid, nfe)

    def begin(self, known: Int[Tensor, "batch positions"], random: Noise) -> Walk:
        """Return a walk before its first step."""
        clean = (known >= 0) & (self.clean or self.chain.nfe > self.chain.grid.steps)
        offsets = self._pace.begin(clean, random)
        none = torch.zeros(len(known), 1, dtype=torch.long)
        token = handed(known.clamp_min(0), self.device)
        state, memory = begun(self.chain, token, clean), self.remember and self.remember()
        return Walk(self._pace.busy(none, offsets), none, known, offsets, state, token, random, memory)

    def stops(self, walk: Walk) -> list[int]:
        """Return the common steps that a walk of one sample will take from here on."""
        found, step = [], walk.step
        while (at := int(step)) < self.chain.nfe:
            found.append(at)
            step = self._pace.busy(step + 1, walk.offsets)
        return found

    def query(self, walk: Walk) -> Question:
        """Return what the model is asked at this step: the states, and the noise that each position has before it."""
        local = self._pace.local(walk.step, walk.offsets)
        return Question(walk.state, self._remaining(local, walk.state), self.recall(walk))

    def recall(self, walk: Walk) -> Recall | None:
        """Return what of the sequence the question is about, where the model remembers the rest."""
        if walk.memory is None:
            return None
        tokens = walk.known.shape[1] // self.chain.group
        return Recall(walk.memory, self.chain.token_steps.block, *self._pace.reach(walk.step, tokens))

    def _ask(self, question: Question) -> Float[Tensor, "batch positions v"]:
        told: Tensor = self.posterior(*(question if question.recall else question[:2]))
        return told

    def advance(
        self, walk: Walk, log_probs: Float[Tensor, "batch positions v"]
    ) -> tuple[Walk, Float[Tensor, "batch positions v"]]:
        """Return the walk one step on, given the model's answer to `query`, and the law by which it moved.

        Where all positions run together, the rows of a walk must decode at once: a step that decodes draws less.
        """
        rules, random = self.rules, walk.random
        now = self._pace.moment(walk.step, walk.offsets, walk.known)
        law = rules.law(log_probs, now.settled, walk.token)
        marginals = rules.marginals(law)
        # A switch needs tokens, too.
        wanted = now.moving if self.solver.by_token or self.law is not None else now.decoding
        drawn, invalid = rules.draw(law, marginals, random, wanted), 0
        if not self._greedy:
            drawn, invalid = self._spelled(drawn, law, now, rules.cut, random)
        predict = _Counted(self._predict(walk, now))
        after = self._moved(walk.state, now, marginals, drawn, random, predict)
        if self._greedy:
            drawn, invalid = self._decided(after, law, marginals, drawn, now, random)
        state = placed(self.chain, walk.state, after, drawn, now, self.law, random)
        token = self._settled(walk, now, drawn)
        asked = torch.where(walk.step < self.chain.nfe, 1 + predict.nfe, 0)
        step, invalid = self._pace.busy(walk.step + 1, walk.offsets), walk.invalid + invalid
        return replace(walk, step=step, nfe=walk.nfe + asked, state=state, token=token, invalid=invalid), marginals

    def finished(self, walk: Walk) -> Bool[Tensor, "batch positions"]:
        """Return which positions have the token that they will end with, on the CPU."""
        return (self._pace.local(walk.step, walk.offsets) == self.chain.grid.steps) | (walk.known >= 0)

    @cached_property
    def _pace(self) -> Pace:
        return Pace(self.chain, self.tireless)

    def _remaining(
        self, local: Int[Tensor, "batch columns"], state: Float[Tensor, "batch positions ..."]
    ) -> Float[Tensor, "batch positions"]:
        """Return the noise that positions have before them at their own steps."""
        level = self.chain.grid.remaining[local].to(state.dtype)
        return handed(level, state.device).expand(state.shape[:2])

    @staticmethod
    def _settled(walk: Walk, now: Moment, drawn: Int[Tensor, "batch positions"]) -> Int[Tensor, "batch positions"]:
        """Return the tokens after a step: the drawn ones where something moves to what is not known."""
        fresh = now.moving & (walk.known < 0)
        return drawn if bool(fresh.all()) else torch.where(handed(fresh, drawn.device), drawn, walk.token)

    def _predict(self, walk: Walk, now: Moment) -> Predict:
        def predict(state: Tensor, local: Tensor) -> Tensor:
            law = self._ask(Question(state, self._remaining(local, state), self.recall(walk)))
            return self.rules.law(law, now.settled, walk.token)

        return predict

    @property
    def _greedy(self) -> bool:
        return self.rules.greedy or self.solver.greedy

    def _moved(
        self,
        state: Tensor,
        now: Moment,
        marginals: Float[Tensor, "batch positions v"],
        drawn: Int[Tensor, "batch positions"],
        random: Noise,
        predict: Predict,
    ) -> Tensor:
        """Return the states after the solver's step; for positions that rest or decode they mean nothing."""
        chain, last = self.chain, self.chain.grid.steps - 1
        # Where all positions run together and decode, or never do anything else, no move is wanted. In longer lanes
        # it could be some row's.
        together = last == 0 or (chain.nfe == chain.grid.steps and bool((now.local >= last).all()))
        if together and not self.solver.by_state:
            return state
        again = self._again(state, now, drawn, predict)
        step = Step(chain, self.schedule, state, now.local.clamp_max(last), marginals, drawn, random, again)
        return self.solver.step(step)

    def _decided(
        self, after: Tensor, law: Tensor, marginals: Tensor, drawn: Tensor, now: Moment, random: Noise
    ) -> tuple[Int[Tensor, "batch positions"], int]:
        """Return the tokens with the likeliest ones where positions decode: by the law, or as the moved states say."""
        decided = self.rules.decide(law, marginals)
        if self.solver.by_state and self.rules.language is None and self.chain.codec is None:
            impossible = law == -torch.inf
            decided = after[..., :-1].masked_fill(impossible, -torch.inf).argmax(-1)
            law = 2 * after[..., :-1].clamp_min(special.SMALLEST_NOISE).log().masked_fill(impossible, -torch.inf)
        chosen = torch.where(handed(now.decoding, drawn.device), decided, drawn)
        return self._spelled(chosen, law, now, likeliest, random)

    def _spelled(
        self, digit: Tensor, law: Tensor, now: Moment, choice: Choice, random: Noise
    ) -> tuple[Int[Tensor, "batch positions"], int]:
        if self.codes is None:
            return digit, 0
        point = random.uniform(digit.shape)  # always, so that what follows does not depend on it
        return spelled(self.codes, digit, now.decoding.expand(digit.shape), law, point, choice, self.chain.group)

    def _again(self, state: Tensor, now: Moment, drawn: Tensor, predict: Predict) -> Predict:
        """Return the model for a solver's second look, at states that it has moved and at their levels.

        Those that rest are seen where they are, and those that decode now at the vertex that they are drawn to.
        """
        steps = self.chain.grid.steps
        if self.chain.nfe == steps and bool(now.moving.all()):
            return lambda at, level: self.rules.marginals(predict(at, level))
        vertex = vertices(state, self.chain.split(drawn))

        def again(at: Tensor, level: Tensor) -> Tensor:
            seen = torch.where(beside(level == steps, at)[..., None], vertex, at)
            seen = torch.where(beside(now.moving, at)[..., None], seen, state)
            return self.rules.marginals(predict(seen, torch.where(now.moving, level, now.local)))

        return again


class _Counted:
    """The model for a solver's second look, which counts how often it is taken."""

    def __init__(self, predict: Predict) -> None:
        self.predict, self.nfe = predict, 0

    def __call__(self, state: Tensor, local: Tensor) -> Tensor:
        self.nfe += 1
        return self.predict(state, local)

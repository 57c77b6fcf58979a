"""The walk: from the start to tokens along a chain, with any solver, any clock, and rules that hold exactly.

Known tokens have a certain law, so that they follow their own bridge and the network sees states that it was
trained on. In windows, and where a clean context is asked for, they stand finished at their vertex instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.likelihood import Posterior
from rdlm.process.chain import Chain, ChainLaw
from rdlm.process.clock import Linear, Schedule
from rdlm.sampler.automaton import Automaton, Restriction
from rdlm.sampler.noise import Noise
from rdlm.sampler.noise import draw_token as draw_token
from rdlm.sampler.rule import Rules
from rdlm.sampler.solver import SOLVERS, Solver, Step

Callback = Callable[[int, Tensor, Tensor], object]
"""Called with the step, the states and the model's log-probabilities before each move."""


def walk(
    posterior: Posterior,
    chain: Chain,
    batch: int,
    length: int,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
    pairs: int = 16384,
) -> Int[Tensor, "batch length"]:
    """Return tokens sampled by the chain whose likelihood is bounded, Eq. (19), with `chain.calls` network calls."""
    law = chain.law(pairs, generator) if chain.switch >= 0 else None
    known = torch.full((batch, length), -1)
    constant = Linear(chain.grid.total, chain.grid.total)
    walker = Walker(posterior, chain, SOLVERS[chain.kernel], constant, law=law, callback=callback)
    return walker.run(known, Noise([generator], batch)).token


class Outcome(NamedTuple):
    """Where a walk ended."""

    token: Int[Tensor, "batch positions"]
    invalid: int
    """Codes that were drawn anew because their digits spelled no token."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Samples on their way, each at a step of its own; what a walker does to a row depends on that row alone."""

    step: Int[Tensor, "batch 1"]
    known: Int[Tensor, "batch positions"]
    offsets: Int[Tensor, "batch positions"]
    state: Float[Tensor, "batch positions *spheres d"]
    token: Int[Tensor, "batch positions"]
    random: Noise
    invalid: int = 0

    @staticmethod
    def join(walks: Sequence[Walk]) -> Walk:
        """Return the rows of several walks as one."""
        if len(walks) == 1:
            return walks[0]
        names = ("step", "known", "offsets", "state", "token")
        rows = {name: torch.cat([getattr(one, name) for one in walks]) for name in names}
        generators = [generator for one in walks for generator in one.random.generators]
        return Walk(**rows, random=Noise(generators, len(rows["step"])), invalid=sum(one.invalid for one in walks))

    def split(self) -> list[Walk]:
        """Return each row as a walk of its own; each must have its own generator, and codes are no longer counted."""
        rows = range(len(self.step))
        tensors = (self.step, self.known, self.offsets, self.state, self.token)
        step, known, offsets, state, token = (tensor.split(1) for tensor in tensors)
        return [Walk(step[i], known[i], offsets[i], state[i], token[i], self.random.subset([i])) for i in rows]


@dataclass(frozen=True, eq=False)
class Walker:
    """A model on a chain with a solver and rules, ready to run."""

    posterior: Posterior
    chain: Chain
    solver: Solver
    clock: Schedule
    rules: Rules = field(default_factory=Rules)
    law: ChainLaw | None = None
    """The law from which a switching path draws its second start."""
    clean: bool = False
    """Known tokens stand finished from the beginning."""
    codes: Automaton | None = None
    """Where a position is a digit: accepts the digits of existing tokens, the only ones that are decoded then."""
    callback: Callback | None = None

    def run(self, known: Int[Tensor, "batch positions"], random: Noise) -> Outcome:
        """Return tokens; those of `known` that are not -1 come back as they are."""
        walk = self.begin(known, random)
        for step in range(self.chain.calls):
            seen = walk.state
            walk, marginals = self.advance(walk, self.posterior(*self.query(walk)))
            if self.callback is not None:
                self.callback(step, seen, marginals)
        return Outcome(walk.token, walk.invalid)

    def begin(self, known: Int[Tensor, "batch positions"], random: Noise) -> Walk:
        """Return a walk before its first step."""
        clean = (known >= 0) & (self.clean or self.chain.calls > self.chain.grid.steps)
        offsets = self._offsets(clean, random)
        step = torch.zeros(len(known), 1, dtype=torch.long, device=known.device)
        return Walk(step, known, offsets, self._begin(known, clean), known.clamp_min(0), random)

    def query(self, walk: Walk) -> tuple[Tensor, Float[Tensor, "batch positions"]]:
        """Return what the model is asked at this step: the states, and the noise that each position has before it."""
        local = self.chain.clocks.local_step(walk.step, walk.offsets)
        return walk.state, self.chain.grid.noise.to(walk.state)[local]

    def advance(
        self, walk: Walk, log_probability: Float[Tensor, "batch positions v"]
    ) -> tuple[Walk, Float[Tensor, "batch positions v"]]:
        """Return the walk one step on, given the model's answer to `query`, and the law by which it moved.

        Where all positions run together, the rows of a walk must decode at once: a step that decodes draws less.
        """
        steps, known = self.chain.grid.steps, walk.known
        local = self.chain.clocks.local_step(walk.step, walk.offsets)
        settled = torch.where(local == steps, walk.token, known)
        moving = (walk.step >= walk.offsets) & (local < steps)
        some = settled if bool((settled >= 0).any()) else None
        law = self.rules.law(log_probability, some)
        marginals = self.rules.marginals(law)
        drawn, invalid = self.rules.draw(law, marginals, walk.random), 0
        if self.codes is not None:
            decoding = moving & (local == steps - 1)
            drawn, invalid = self._spelled(self.codes, drawn, marginals, decoding, walk.random)
        predict = self._predict(some)
        state, drawn = self._step(walk.state, local, moving, law, marginals, drawn, walk.random, predict)
        token = torch.where(moving & (known < 0), drawn, walk.token)
        after = replace(walk, step=walk.step + 1, state=state, token=token, invalid=walk.invalid + invalid)
        return after, marginals

    def finished(self, walk: Walk) -> Bool[Tensor, "batch positions"]:
        """Return which positions have the token that they will end with."""
        return (self.chain.clocks.local_step(walk.step, walk.offsets) == self.chain.grid.steps) | (walk.known >= 0)

    def _predict(self, settled: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
        levels = self.chain.grid.noise

        def predict(state: Tensor, local: Tensor) -> Tensor:
            return self.rules.law(self.posterior(state, levels.to(state)[local]), settled)

        return predict

    def _step(
        self,
        state: Tensor,
        local: Int[Tensor, "batch positions"],
        moving: Bool[Tensor, "batch positions"],
        law: Float[Tensor, "batch positions v"],
        marginals: Float[Tensor, "batch positions v"],
        drawn: Int[Tensor, "batch positions"],
        random: Noise,
        predict: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, Int[Tensor, "batch positions"]]:
        """Return the states after a step of the positions that move, and the token that each has in mind."""
        chain, rules = self.chain, self.rules
        again = self._again(state, local, moving, drawn, predict)
        local = local.clamp_max(chain.grid.steps - 1)
        last = local == chain.grid.steps - 1
        # Where all positions run together and decode, no move is wanted. In lanes it could still be some row's.
        if chain.calls == chain.grid.steps and bool(last.all()) and not self.solver.by_state:
            after = state
        else:
            after = self.solver.step(Step(chain, self.clock, state, local, marginals, drawn, random, again))
        if rules.greedy or self.solver.greedy:
            decided = rules.decide(law, marginals)
            if self.solver.by_state and rules.language is None and chain.codec is None:
                decided = after[..., :-1].masked_fill(law == -torch.inf, -torch.inf).argmax(-1)
            drawn = torch.where(last, decided, drawn)
        digit = chain.split(drawn)
        if self.law is not None:
            after = self._renoised(self.law, after, digit, chain.spread(local, digit), random)
        if bool(last.any()):
            vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)
            after = vertex if bool(last.all()) else torch.where(chain.spread(last, digit)[..., None], vertex, after)
        if not bool(moving.all()):
            after = torch.where(chain.spread(moving, digit)[..., None], after, state)
        return after, drawn

    def _again(
        self, state: Tensor, local: Tensor, moving: Tensor, drawn: Tensor, predict: Callable[[Tensor, Tensor], Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the model for a solver's second look, at states that it has moved and at their levels.

        Those that rest are seen where they are, and those that decode now at the vertex that they are drawn to.
        """
        steps = self.chain.grid.steps
        if self.chain.calls == steps and bool(moving.all()):
            return lambda at, level: self.rules.marginals(predict(at, level))
        digit = self.chain.split(drawn)
        vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)

        def again(at: Tensor, level: Tensor) -> Tensor:
            seen = torch.where(self.chain.spread(level == steps, digit)[..., None], vertex, at)
            seen = torch.where(self.chain.spread(moving, digit)[..., None], seen, state)
            return self.rules.marginals(predict(seen, torch.where(moving, level, local)))

        return again

    def _spelled(
        self, codes: Automaton, drawn: Tensor, marginals: Tensor, decoding: Tensor, random: Noise
    ) -> tuple[Int[Tensor, "batch positions"], int]:
        """Return digits of which those that decode spell tokens: codes that do not are drawn anew, and counted."""
        point = random.uniform(drawn.shape)  # always, so that what follows does not depend on it
        digits = drawn.unflatten(1, (-1, self.chain.group)).flatten(0, 1).cpu()  # [batch * tokens, m]
        wrong = ~codes.accepting[codes.run(digits)] & decoding[:, :: self.chain.group].flatten().cpu()
        if not bool(wrong.any()):
            return drawn, 0
        law = marginals.unflatten(1, (-1, self.chain.group)).flatten(0, 1).cpu()[wrong]
        entry = torch.full((len(law),), codes.start)
        points = point.unflatten(1, (-1, self.chain.group)).flatten(0, 1)[wrong]
        digits[wrong] = Restriction(codes, entry, codes.accepting).draw(law, points, lambda one: one)
        return digits.reshape(drawn.shape).to(drawn.device), int(wrong.sum())

    def _renoised(self, law: ChainLaw, after: Tensor, digit: Tensor, level: Tensor, random: Noise) -> Tensor:
        """Return the states with those that switch put at the second bridge's law given their token, Eq. (32)."""
        switching = level == self.chain.switch
        for rows, generator in random.rows():
            # By sample: what one draws must not depend on whether its neighbours switch now.
            if bool(switching[rows].any()):
                fresh = law.draw(digit[rows], level[rows] + 1, generator)
                after[rows] = torch.where(switching[rows][..., None], fresh, after[rows])
        return after

    def _begin(self, known: Tensor, clean: Tensor) -> Tensor:
        digit = self.chain.split(known.clamp_min(0))
        state = self.chain.path.bridge.start.point(device=known.device).repeat(*digit.shape, 1)
        if not bool(clean.any()):
            return state
        vertex = torch.zeros_like(state).scatter_(-1, digit[..., None], 1.0)
        return torch.where(self.chain.spread(clean, digit)[..., None], vertex, state)

    def _offsets(self, clean: Bool[Tensor, "batch positions"], random: Noise) -> Int[Tensor, "batch positions"]:
        """Return when each position starts, Eq. (35): the open ones share the lanes, clean ones ended before."""
        group, clocks = self.chain.group, self.chain.clocks
        offsets = torch.full(clean.shape, -clocks.steps)
        for rows, generator in random.rows():
            open_tokens = ~clean[rows].cpu()[:, ::group]
            count = int(open_tokens.sum(1).max()) if len(open_tokens) else 0
            drawn = clocks.offsets(len(open_tokens), count, generator)  # one row per sample, its open tokens in order
            rank = (open_tokens.cumsum(1) - 1).clamp_min(0)
            chosen = torch.where(open_tokens, drawn.gather(1, rank) if count else -clocks.steps, -clocks.steps)
            offsets[rows] = chosen.repeat_interleave(group, dim=1)
        return offsets.to(clean.device)

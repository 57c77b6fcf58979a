"""The walk: from the start to tokens along a chain, with any solver, any clock, and rules that hold exactly.

Known tokens have a certain law, so that they follow their own bridge and the network sees states that it was
trained on. In windows, and where a clean context is asked for, they stand finished at their vertex instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
        chain, steps = self.chain, self.chain.grid.steps
        clean = (known >= 0) & (self.clean or chain.calls > steps)
        offsets = self._offsets(clean, random)
        state, token, invalid = self._begin(known, clean), known.clamp_min(0), 0
        for step in range(chain.calls):
            local = chain.clocks.local_step(step, offsets)
            settled = torch.where(local == steps, token, known)
            moving = (step >= offsets) & (local < steps)
            predict = self._predict(settled)
            law = predict(state, local)
            marginals = self.rules.marginals(law)
            if self.callback is not None:
                self.callback(step, state, marginals)
            drawn = self.rules.draw(law, marginals, random)
            if self.codes is not None:
                drawn, count = self._spelled(self.codes, drawn, marginals, moving & (local == steps - 1), random)
                invalid += count
            state, drawn = self._step(state, local, moving, law, marginals, drawn, random, predict)
            token = torch.where(moving & (known < 0), drawn, token)
        return Outcome(token, invalid)

    def _predict(self, settled: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        levels = self.chain.grid.noise
        some = settled if bool((settled >= 0).any()) else None

        def predict(state: Tensor, local: Tensor) -> Tensor:
            return self.rules.law(self.posterior(state, levels.to(state)[local]), some)

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

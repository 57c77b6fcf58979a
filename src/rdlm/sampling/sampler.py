"""The sampler: from the start of a chain to tokens, with any solver, token schedule and constraint.

`Sampler.sample` is a generator. It yields network queries and receives log-probabilities, so that the command line can
run one sampler, and the service many with batched queries.

Prompt tokens are clamped to their vertices from step 0 if the token schedule is asynchronous or `clean` is set;
otherwise their log-probabilities are one-hot and they follow their own bridge, as in training.

Steps, offsets and known tokens are kept on the CPU. They are read at every step, and a read from another device would
synchronise.

| variable | meaning |
|---|---|
| `step` | common step of a row, 0 .. nfe |
| `local` | a position's own step on the local grid; the number of its steps once it is finished |
| `offsets` | the common step at which each position becomes active, Eq. (35) |
| `columns` | positions, or one column where all positions share a value |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.geometry import special
from rdlm.likelihood.terms import Posterior
from rdlm.model.transformer import Cache
from rdlm.process.kernel import Chain, indices, per_sphere, to_device
from rdlm.process.path import PathLaw
from rdlm.process.schedule import Linear, Schedule
from rdlm.random import RandomStreams, Rng, on_device
from rdlm.sampling.automaton import Automaton, Choice
from rdlm.sampling.constraints import Constraints, most_likely, valid_digits
from rdlm.sampling.denoisers import CachedPrefix, Denoising, Query
from rdlm.sampling.solvers import SOLVERS, Solver, Step

Denoise = Callable[[Tensor, Tensor, CachedPrefix | None], Denoising]
"""Log-probabilities for states, remaining noise and the cached prefix, if any: a generator of queries."""


@dataclass(frozen=True, eq=False)
class State:
    """Samples between two steps. Every row has its own step, and its update depends on that row alone."""

    step: Int[Tensor, "batch 1"]
    nfe: Int[Tensor, "batch 1"]
    """Network evaluations so far."""
    known: Int[Tensor, "batch positions"]
    """Given symbols, -1 elsewhere."""
    offsets: Int[Tensor, "batch columns"]
    state: Float[Tensor, "batch positions *spheres d"]
    token: Int[Tensor, "batch positions"]
    random: RandomStreams
    cache: Cache | None = None
    """Keys and values of finished blocks, if the network caches them."""
    invalid: int = 0
    """Codes that were drawn again because their digits are the code of no token."""

    def rows(self, chosen: Sequence[int]) -> State:
        """Return some of the rows, each of which has its own generator."""
        index = torch.tensor(list(chosen))
        there = to_device(index, self.state.device)
        step, nfe, known, offsets = (one[index] for one in (self.step, self.nfe, self.known, self.offsets))
        cache = self.cache and self.cache.rows(there)
        state, token, random = self.state[there], self.token[there], self.random.subset(chosen)
        return State(step, nfe, known, offsets, state, token, random, cache, self.invalid)


class Activity(NamedTuple):
    """The positions that are active, and those that decode, in a step."""

    local: Int[Tensor, "batch columns"]
    active: Bool[Tensor, "batch columns"]
    decoding: Bool[Tensor, "batch columns"]
    """Active positions that take their last step."""
    fixed: Bool[Tensor, "batch positions"] | None
    """Positions whose token is known or finished; None if there is none."""


class StepInfo(NamedTuple):
    """The argument of the callback after each step."""

    sampler: Sampler
    rows: Int[Tensor, " rows"]
    """Indices in the batch of the rows that took the step."""
    before: State
    log_probs: Float[Tensor, "rows positions v"]
    """The log-probabilities by which the states moved."""
    after: State


class Output(NamedTuple):
    """The result of a sampler."""

    token: Int[Tensor, "batch positions"]
    invalid: int
    nfe: Int[Tensor, " batch"]


Sampling = Generator[Query, Tensor, Output]
"""A running sampler: yields queries, receives log-probabilities, returns its output."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """A chain with a solver, a denoiser and constraints."""

    denoise: Denoise
    chain: Chain
    solver: Solver
    schedule: Schedule
    constraints: Constraints = field(default_factory=Constraints)
    law: PathLaw | None = None
    """Law from which a switching path draws its second start."""
    clean: bool = False
    """Clamp known tokens to their vertices from step 0."""
    codes: Automaton | None = None
    """If symbols are digits: accepts the codes of tokens, to which decoding is restricted."""
    callback: Callable[[StepInfo], object] | None = None
    device: torch.device | str = "cpu"
    """Device of states and tokens."""
    make_cache: Callable[[], Cache] | None = None
    """Returns an empty KV cache for finished blocks; None: the network is evaluated on whole sequences."""
    every_step: bool = False
    """Evaluate the network also in steps in which no position is active: for self-conditioning."""

    @cached_property
    def steps(self) -> int:
        """The steps of each position, on its local grid."""
        return self.chain.grid.steps

    @cached_property
    def nfe(self) -> int:
        """The common steps, those in which a position waits or is finished included."""
        return self.chain.nfe

    @cached_property
    def greedy(self) -> bool:
        """Whether the last step decodes the most likely token."""
        return self.constraints.greedy or self.solver.greedy

    def sample(self, known: Int[Tensor, "batch positions"], random: RandomStreams) -> Sampling:
        """Sample all rows; symbols of `known` that are not -1 are returned unchanged."""
        state, sampler, rows = self.start(known, random), self, torch.arange(len(known))
        token, nfe = state.token.clone(), state.nfe[:, 0].clone()
        while bool((going := state.step[:, 0] < self.nfe).any()):
            if random.separate and not bool(going.all()):
                kept: list[int] = going.nonzero().flatten().tolist()
                state, rows = state.rows(kept), rows[kept]
                sampler = replace(self, constraints=self.constraints.rows(rows))
            before = state
            state, log_probs = yield from sampler.step(before)
            token[to_device(rows, token.device)], nfe[rows] = state.token, state.nfe[:, 0]
            if self.callback is not None:
                self.callback(StepInfo(self, rows, before, log_probs, state))
        return Output(token, state.invalid, nfe)

    def start(self, known: Int[Tensor, "batch positions"], random: RandomStreams) -> State:
        """Return the state before the first step: the chain's start, or vertices where known tokens are clamped."""
        clamped = (known >= 0) & (self.clean or self.nfe > self.steps)
        offsets = self._offsets(clamped, random)
        none = torch.zeros(len(known), 1, dtype=torch.long)
        token = to_device(known.clamp_min(0), self.device)
        digit = self.chain.split(token)
        state = self.chain.path.bridge.start.point(device=token.device).repeat(*digit.shape, 1)
        if bool(clamped.any()):
            state = torch.where(per_sphere(clamped, state)[..., None], self._points(digit, state), state)
        cache = self.make_cache and self.make_cache()
        return State(self._next_active(none, offsets), none, known, offsets, state, token, random, cache)

    def step(self, now: State) -> Generator[Query, Tensor, tuple[State, Float[Tensor, "batch positions v"]]]:
        """Return the state after one step, Eq. (19), and the log-probabilities by which it moved.

        Where all positions are synchronous, all rows must decode in the same step: it draws fewer random numbers.
        """
        constraints, random = self.constraints, now.random
        activity = self._activity(now)
        prefix = None if now.cache is None else self._prefix(now, now.cache)
        log_probs = yield from self.denoise(now.state, self._remaining(activity.local, now.state), prefix)
        log_probs = constraints.apply(log_probs, activity.fixed, now.token)
        marginals = constraints.marginals(log_probs)
        # A switch needs tokens, too.
        wanted = activity.active if self.solver.by_token or self.law is not None else activity.decoding
        drawn, invalid = constraints.draw(log_probs, marginals, random, wanted), 0
        if self.codes is not None and not self.greedy:
            drawn, invalid = self._valid(self.codes, drawn, log_probs, activity, constraints.truncate, random)
        after, second = yield from self._solve(now, activity, marginals, drawn)
        if self.greedy:
            drawn, invalid = self._most_likely(after, log_probs, marginals, drawn, activity, random)
        state = self._place(now.state, after, drawn, activity, random)
        fresh = activity.active & (now.known < 0)
        token = drawn if bool(fresh.all()) else torch.where(to_device(fresh, drawn.device), drawn, now.token)
        nfe = now.nfe + torch.where(now.step < self.nfe, 1 + second, 0)
        step = self._next_active(now.step + 1, now.offsets)
        return replace(now, step=step, nfe=nfe, state=state, token=token, invalid=now.invalid + invalid), marginals

    # -- times ---------------------------------------------------------------------------------------

    def steps_of(self, now: State) -> list[int]:
        """Return the common steps that a state of one row will take from here on."""
        found, step = [], now.step
        while (at := int(step)) < self.nfe:
            found.append(at)
            step = self._next_active(step + 1, now.offsets)
        return found

    def finished(self, now: State) -> Bool[Tensor, "batch positions"]:
        """Return which positions have their final token."""
        return (now.step - now.offsets >= self.steps) | (now.known >= 0)

    def _offsets(self, clamped: Bool[Tensor, "batch positions"], random: RandomStreams) -> Int[Tensor, "batch columns"]:
        """Return the step at which each position becomes active, Eq. (35); clamped ones are finished before step 0.

        The division into blocks does not depend on the known positions.
        """
        group, token_steps = self.chain.group, self.chain.token_steps
        if self.chain.asynchronous is None and not bool(clamped.any()):
            return torch.zeros(len(clamped), 1, dtype=torch.long)
        offsets = torch.full(clamped.shape, -token_steps.steps)
        for rows, generator in random.rows():
            open_tokens = ~clamped[rows][:, ::group]
            scheduled = torch.ones_like(open_tokens) if token_steps.block else open_tokens
            count = int(scheduled.sum(1).max()) if len(scheduled) else 0
            drawn = token_steps.offsets(len(open_tokens), count, generator)  # a row per sample, open tokens in order
            rank = (scheduled.cumsum(1) - 1).clamp_min(0)
            own = drawn.gather(1, rank) if count else -token_steps.steps
            offsets[rows] = torch.where(open_tokens, own, -token_steps.steps).repeat_interleave(group, dim=1)
        return offsets

    def _next_active(self, step: Int[Tensor, "batch 1"], offsets: Int[Tensor, "batch columns"]) -> Tensor:
        """Return the first step from `step` on in which a position of the row is active; `nfe` if there is none.

        Steps before it change nothing and need no network evaluation. This is determined per row, so that its random
        numbers do not depend on the other rows.
        """
        if self.every_step or self.chain.asynchronous is None:
            return step
        unfinished = step < offsets + self.steps
        return torch.where(unfinished, torch.maximum(step, offsets), self.nfe).amin(1, keepdim=True)

    def _activity(self, now: State) -> Activity:
        local, last = (now.step - now.offsets).clamp(0, self.steps), self.steps - 1
        active = (now.step >= now.offsets) & (local <= last)
        fixed = (now.known >= 0) | (local > last)
        return Activity(local, active, active & (local == last), fixed if bool(fixed.any()) else None)

    def _prefix(self, now: State, cache: Cache) -> CachedPrefix:
        """Return the part of the sequence that has to be evaluated if finished blocks are cached."""
        tokens, steps = now.known.shape[1] // self.chain.group, self.chain.token_steps
        block = now.step.clamp_max(steps.nfe - 1) // steps.turns
        finished, end = int(block.min()) * steps.block, min(tokens, (int(block.max()) + 1) * steps.block)
        return CachedPrefix(cache, steps.block, finished, end)

    def _remaining(self, local: Int[Tensor, "batch columns"], state: Tensor) -> Float[Tensor, "batch positions"]:
        """Return the remaining noise of each position."""
        level = self.chain.grid.remaining[local].to(state.dtype)
        return to_device(level, state.device).expand(state.shape[:2])

    # -- one step ------------------------------------------------------------------------------------

    def _solve(
        self, now: State, activity: Activity, marginals: Tensor, drawn: Tensor
    ) -> Generator[Query, Tensor, tuple[Tensor, int]]:
        """Return states after the solver's step and the number of further evaluations it took.

        States of positions that are inactive or decode are not used.
        """
        chain, last = self.chain, self.steps - 1
        # No state has to move if all positions decode together, or if decoding is their only step.
        decode_only = last == 0 or (self.nfe == self.steps and bool((activity.local >= last).all()))
        if decode_only and not self.solver.by_state:
            return now.state, 0
        local = activity.local.clamp_max(last)
        moved = self.solver.step(Step(chain, self.schedule, now.state, local, marginals, drawn, now.random))
        if isinstance(moved, Tensor):
            return moved, 0
        return (yield from self._second_evaluation(moved, now, activity, drawn)), 1

    def _second_evaluation(
        self, solving: Generator[tuple[Tensor, Tensor], Tensor, Tensor], now: State, activity: Activity, drawn: Tensor
    ) -> Denoising:
        """Return the result of a solver that evaluates the network at states it has moved.

        Inactive positions are evaluated at their states, and decoding ones at the vertex of their drawn token.
        """
        at, level = next(solving)
        steps = self.steps
        if not (self.nfe == steps and bool(activity.active.all())):
            vertex = self._points(self.chain.split(drawn), now.state)
            at = torch.where(per_sphere(level == steps, at)[..., None], vertex, at)
            at = torch.where(per_sphere(activity.active, at)[..., None], at, now.state)
            level = torch.where(activity.active, level, activity.local)
        prefix = None if now.cache is None else self._prefix(now, now.cache)
        log_probs = yield from self.denoise(at, self._remaining(level, at), prefix)
        log_probs = self.constraints.apply(log_probs, activity.fixed, now.token)
        try:
            solving.send(self.constraints.marginals(log_probs))
        except StopIteration as stop:
            result: Tensor = stop.value
            return result
        raise AssertionError("a solver evaluates the network at most twice in a step")

    def _place(
        self, state: Tensor, after: Tensor, drawn: Tensor, activity: Activity, random: RandomStreams
    ) -> Float[Tensor, "batch positions *spheres d"]:
        """Return the states after a step: renoised at a switch, vertices where decoded, unchanged where inactive."""
        digit = self.chain.split(drawn)
        if self.law is not None:
            after = self._switch(self.law, after, digit, activity.local, random)
        if bool(activity.decoding.all()):
            return self._points(digit, state)
        if not bool(activity.active.all()):
            unmoved = after is state  # every active position decodes
            active = per_sphere(activity.active, state)[..., None]
            after = state.clone() if unmoved else torch.where(active, after, state)
        if bool(activity.decoding.any()):
            at = indices(activity.decoding, state)
            after[at] = self._points(digit[at], state[at])
        return after

    def _points(self, digit: Int[Tensor, "..."], like: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return the points of tokens or digits."""
        return self.chain.path.bridge.tokens.at(digit, like)

    def _switch(self, law: PathLaw, after: Tensor, digit: Tensor, local: Tensor, random: RandomStreams) -> Tensor:
        """Return states with those that switch drawn from the second bridge's law given their token, Eq. (32)."""
        switching, then = local == self.chain.switch, (local + 1).clamp_max(self.steps)
        level, where = per_sphere(then, after), per_sphere(switching, after)[..., None]
        for rows, generator in random.rows():
            # Row by row: the draws of a row must not depend on other rows.
            if bool(switching[rows].any()):
                fresh = law.draw_at_level(digit[rows], level[rows], on_device(generator, digit.device))
                after[rows] = torch.where(where[rows], fresh, after[rows])
        return after

    # -- decoding ------------------------------------------------------------------------------------

    def _most_likely(
        self,
        after: Tensor,
        log_probs: Tensor,
        marginals: Tensor,
        drawn: Tensor,
        activity: Activity,
        random: RandomStreams,
    ) -> tuple[Int[Tensor, "batch positions"], int]:
        """Return tokens, the most likely ones where positions decode: by the model, or by the moved states."""
        best = self.constraints.decide(log_probs, marginals)
        if self.solver.by_state and self.constraints.language is None and after.ndim == 3:
            impossible = log_probs == -torch.inf
            cosine = self.chain.path.bridge.tokens.cosines(after)
            best = cosine.masked_fill(impossible, -torch.inf).argmax(-1)
            log_probs = 2 * cosine.clamp_min(special.SMALLEST_NOISE).log().masked_fill(impossible, -torch.inf)
        chosen = torch.where(to_device(activity.decoding, drawn.device), best, drawn)
        if self.codes is None:
            return chosen, 0
        return self._valid(self.codes, chosen, log_probs, activity, most_likely, random)

    def _valid(
        self,
        codes: Automaton,
        digit: Tensor,
        log_probs: Tensor,
        activity: Activity,
        choice: Choice,
        random: RandomStreams,
    ) -> tuple[Int[Tensor, "batch positions"], int]:
        """Return symbols that are codes of tokens where they decode, and the number of codes drawn again."""
        point = random.uniform(digit.shape)  # always, so that later draws do not depend on it
        decoding = activity.decoding.expand(digit.shape)
        return valid_digits(codes, digit, decoding, log_probs, point, choice, self.chain.group)


def sample_chain(
    posterior: Posterior,
    chain: Chain,
    batch: int,
    length: int,
    generator: Rng = None,
    callback: Callable[[StepInfo], object] | None = None,
    pairs: int = 16384,
    device: torch.device | str = "cpu",
) -> Int[Tensor, "batch length"]:
    """Return symbols sampled by the chain whose likelihood is bounded, Eq. (19), with at most `chain.nfe` evaluations.

    The posterior is called directly, and one generator serves all rows.
    """

    def denoise(state: Tensor, remaining: Tensor, prefix: CachedPrefix | None) -> Denoising:
        yield from ()
        return posterior(state, remaining)

    law = chain.law(pairs, generator).to(device) if chain.switch >= 0 else None
    constant = Linear(chain.grid.total, chain.grid.total)
    sampler = Sampler(denoise, chain, SOLVERS[chain.kernel], constant, law=law, callback=callback, device=device)
    sampling = sampler.sample(torch.full((batch, length), -1), RandomStreams([generator], batch))
    try:
        next(sampling)
    except StopIteration as stop:
        return stop.value.token  # type: ignore[no-any-return]
    raise AssertionError("a posterior is called directly: there is nothing to wait for")

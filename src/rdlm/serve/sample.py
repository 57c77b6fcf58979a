"""Samples on their way through the engine, alone between two steps and in groups during each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rdlm.method.rdlm import Rdlm
from rdlm.sampler.course import Outcome, Walk
from rdlm.sampler.forward import Query, conditions
from rdlm.sampler.plan import Plan
from rdlm.sampler.predictor import asked, guided, tempered
from rdlm.sampler.recall import Question, Recall
from rdlm.sampler.walk import Walker
from rdlm.serve.ticket import Finished, Progress, Ticket

Watch = Callable[[int, Tensor, Tensor, Tensor], object]
"""Told the step, the states, the law and which positions were finished, of one sample, before each move."""


class Sample:
    """One sample of a request: its journey, and the walk of the window that it is in."""

    def __init__(self, plan: Plan, seed: int, ticket: Ticket, index: int = 0, watch: Watch | None = None) -> None:
        self.plan, self.seed, self.ticket, self.index, self.watch = plan, seed, ticket, index, watch
        ((_, self.journey),) = plan.journeys([seed])
        self.previous: Tensor | None = None
        self.dropped = False
        self.calls = 0
        """How often the network has been asked for this sample."""
        self._behind = 0
        self._told = 0
        self._enter()

    def _enter(self) -> None:
        """Begin the walk of the next window."""
        stretch = self.journey.window
        assert stretch is not None
        self.stretch, self.previous = stretch, None
        walker = self.journey.walker(stretch, _unasked)
        self.walk = walker.begin(self.journey.known(stretch), self.journey.noise)

    @property
    def step(self) -> int:
        """Return how many common steps the sample has behind it, those included in which nothing of it moves."""
        return self._behind + int(self.walk.step)

    @property
    def stops(self) -> list[int]:
        """Return the common steps that the sample will take in its window."""
        return self.journey.walker(self.stretch, _unasked).stops(self.walk)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what samples must have in common to take a step together."""
        request, chain = self.plan.request, self.journey.chain
        # Where all positions run together the last step draws less than the others.
        decoding = chain.lanes is None and int(self.walk.step) == chain.calls - 1
        # An arc tangent, which heun's transport takes, rounds the last numbers of an array in another way.
        alone = id(self) if request.solver == "heun" else None
        return (
            self.walk.known.shape[1], self.journey.path, request.steps, request.solver, request.grid, request.window,
            request.order, request.chunk, request.guidance, request.temperature, request.top_p, request.greedy,
            decoding, alone, self._remembered,
        )  # fmt: skip

    @property
    def _remembered(self) -> tuple[int, ...]:
        """Return what is asked of a model that remembers; nothing where it does not."""
        if self.walk.memory is None:
            return ()
        recall = self.journey.walker(self.stretch, _unasked).recall(self.walk)
        assert recall is not None
        return recall.cache.length, recall.front, recall.end

    def moved(self, walk: Walk, finished: Tensor) -> bool:
        """Take over the walk after a step; return whether the sample is whole."""
        self.calls += int(walk.calls - self.walk.calls)
        self.walk = walk
        done = int(walk.step) == self.journey.chain.calls
        if done:
            self.journey.settle(self.stretch, Outcome(walk.token, walk.invalid, walk.calls[:, 0]))
            done = self.journey.window is None
            if not done:
                self._behind += self.journey.chain.calls
                self._enter()
            finished = torch.zeros_like(finished)
        if self.ticket.wants_progress and not done:
            self.ticket.post(Progress(self.index, self.step, self._settled(finished)))
        if done:
            self.ticket.post(Finished(self.index, tuple(self.journey.token[0].tolist()), self.calls))
        return done

    def _settled(self, finished: Tensor) -> tuple[int, ...]:
        """Return the tokens that have become final and have only final ones before them, since the last time."""
        method, begin = self.plan.model.rdlm, self.stretch.begin
        if not bool(finished.any()):
            end, ids = self.stretch.fresh, self.journey.token[0]
        else:
            whole = finished[0].view(-1, method.symbols_per_token).all(-1)
            end = begin + int(whole.long().cumprod(0).sum())
            ids = torch.cat([self.journey.token[0, :begin], method.spell(self.walk.token.cpu())[0]])
        fresh = ids[self._told : end].tolist()
        self._told = max(self._told, end)
        return tuple(fresh)


class Group:
    """Samples that take one step together."""

    def __init__(self, samples: Sequence[Sample], ask: Callable[[Query], Tensor]) -> None:
        self.samples, self._ask = samples, ask
        self.walk = Walk.join([sample.walk for sample in samples])
        known = [sample.previous for sample in samples if sample.previous is not None]
        # Samples in their first step have no last answer: to the network that is one of zeros.
        self.previous = None if not known else torch.cat(
            [torch.zeros_like(known[0]) if sample.previous is None else sample.previous for sample in samples]
        )  # fmt: skip
        self._condition = conditions([(sample.plan.condition, 1) for sample in samples])
        first = samples[0]
        self._request = first.plan.request
        self.walker: Walker = first.journey.walker(first.stretch, self._second_look)
        self._seen = self.walker.query(self.walk)
        self.query = self._question(self._seen)

    @property
    def _method(self) -> Rdlm:
        return self.samples[0].plan.model.rdlm

    def move(self, answer: Tensor) -> list[Sample]:
        """Take the step by the network's answer, tell those who watch, and return the samples that are whole now."""
        before = self.walk
        watched = [sample.watch is not None for sample in self.samples]
        finished = self.walker.finished(before) if any(watched) else None
        self.walk, law = self.walker.advance(before, self._heard(answer, self._seen))
        for row, sample in enumerate(self.samples):
            if sample.watch is not None and finished is not None:
                sample.watch(sample.step, before.state[row], law[row], finished[row])
        after = self.walker.finished(self.walk)
        rows = zip(self.samples, self.walk.split(), after.split(1), strict=True)
        memory = [None] * len(self.samples) if self.previous is None else self.previous.split(1)
        for sample, last in zip(self.samples, memory, strict=True):
            sample.previous = last
        return [sample for sample, walk, done in rows if sample.moved(walk, done)]

    def _second_look(self, state: Tensor, noise: Tensor, recall: Recall | None = None) -> Tensor:
        """Return the model's answer where a solver asks twice in a step."""
        question = Question(state, noise, recall)
        return self._heard(self._ask(self._question(question)), question)

    def _question(self, question: Question) -> Query:
        """Return what the network is asked."""
        state, noise, recall = question
        sight = self.samples[0].journey.sight
        query = Query(state, noise, self.previous, self._condition, sight, recall)
        return asked(query, self._request.guidance)

    def _heard(self, answer: Tensor, question: Question) -> Tensor:
        """Return the network's answer as the predictor gives it: guided, remembered and tempered."""
        state, noise, _ = question
        law = guided(answer, Query(state, noise), self._request.guidance)
        if self._method.config.model.self_condition:
            self.previous = self._method.denoiser.previous(law)
        return tempered(self._method, law, state, noise, self._request.temperature)


def _unasked(state: Tensor, noise: Tensor, recall: Recall | None = None) -> Tensor:
    raise AssertionError("a walk begins without asking the model")

"""Samples on their way through the engine, alone between two steps and in groups during each of them.

The engine: one thread that owns a model's network and moves all samples on, one step of each at a time.

Every turn it admits what waits, gathers all walks under way (of any request, step, length and setting) and the
questions of other threads (scores), asks the network for all of them at once, and takes one step of each walk. So a
request waits for no other one to end, and one whose client has gone costs at most the step that is being taken.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.plan import Plan
from rdlm.methods.rdlm import Rdlm
from rdlm.sampling.batching import Forward, Query, conditions
from rdlm.sampling.course import Outcome, Walk
from rdlm.sampling.denoisers import asked, guided, tempered
from rdlm.sampling.recall import Question, Recall
from rdlm.sampling.walk import Walker
from rdlm.serve import http_errors as error
from rdlm.serve.http_errors import HttpError
from rdlm.serve.job import Finished, Job, Progress
from rdlm.serve.middleware import Metrics

Watch = Callable[[int, Tensor, Tensor, Tensor], object]
"""Told the step, the states, the law and which positions were finished, of one sample, before each move."""


class Sample:
    """One sample of a request: its journey, and the walk of the window that it is in."""

    def __init__(self, plan: Plan, seed: int, job: Job, index: int = 0, watch: Watch | None = None) -> None:
        self.plan, self.seed, self.job, self.index, self.watch = plan, seed, job, index, watch
        ((_, self.journey),) = plan.journeys([seed])
        self.previous: Tensor | None = None
        self.dropped = False
        self.nfe = 0
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
        decoding = chain.asynchronous is None and int(self.walk.step) == chain.nfe - 1
        # An arc tangent, which heun's transport takes, rounds the last numbers of an array in another way.
        alone = id(self) if request.solver == "heun" else None
        return (
            self.walk.known.shape[1],
            self.journey.path,
            request.steps,
            request.solver,
            request.grid,
            request.window,
            request.order,
            request.block,
            request.guidance,
            request.temperature,
            request.top_p,
            request.greedy,
            decoding,
            alone,
            self._remembered,
        )

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
        self.nfe += int(walk.nfe - self.walk.nfe)
        self.walk = walk
        done = int(walk.step) == self.journey.chain.nfe
        if done:
            self.journey.settle(self.stretch, Outcome(walk.token, walk.invalid, walk.nfe[:, 0]))
            done = self.journey.window is None
            if not done:
                self._behind += self.journey.chain.nfe
                self._enter()
            finished = torch.zeros_like(finished)
        if self.job.wants_progress and not done:
            self.job.post(Progress(self.index, self.step, self._settled(finished)))
        if done:
            self.job.post(Finished(self.index, tuple(self.journey.token[0].tolist()), self.nfe))
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
        self.previous = (
            None
            if not known
            else torch.cat(
                [torch.zeros_like(known[0]) if sample.previous is None else sample.previous for sample in samples]
            )
        )
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
        block_mask = self.samples[0].journey.block_mask
        query = Query(state, noise, self.previous, self._condition, block_mask, recall)
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


log = logging.getLogger(__name__)


@dataclass(eq=False)
class PendingQuery:
    """What another thread asks of the network."""

    query: Query
    answer: Future[Tensor] = field(default_factory=Future)


class Engine:
    """A model at work for many requests at once."""

    def __init__(
        self, model: LanguageModel, metrics: Metrics, batch: int = 16, queue: int = 64, threads: int = 1
    ) -> None:
        self.model, self.metrics, self.batch, self.queue = model, metrics, batch, queue
        self.forward = Forward(model.rdlm, threads)
        self._waiting: deque[Sample] = deque()
        self._questions: list[PendingQuery] = []
        self._live: list[Sample] = []
        self._changed = threading.Condition()
        self._closed = False
        self._pace = 0.0
        """Seconds between two samples that become whole, averaged over the last ones; 0 before the first."""
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"rdlm-engine-{model.name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the thread is at work and takes requests."""
        return self._thread.is_alive() and not self._closed

    @property
    def depth(self) -> int:
        """Return how many samples wait."""
        return len(self._waiting)

    @property
    def live(self) -> int:
        """Return how many samples are under way."""
        return len(self._live)

    def check_room(self, count: int) -> None:
        """Refuse a request for whose samples there is no place in the queue, before any work is done for it."""
        if not self.alive:
            raise error.closing()
        if count > self.queue:
            raise HttpError(400, f"a request may ask for at most {self.queue} samples, not {count}", "n")
        if len(self._waiting) + count > self.queue:
            raise error.queue_full(self.patience)

    @property
    def patience(self) -> int:
        """Return after how many seconds a refused client should come back."""
        return min(60, max(1, math.ceil(self._pace * (len(self._waiting) + 1))))

    def submit(self, samples: Sequence[Sample]) -> None:
        """Queue the samples of a request, all or none of them."""
        with self._changed:
            self.check_room(len(samples))
            self._waiting.extend(samples)
            self._changed.notify()

    def ask(self, query: Query, job: Job) -> Tensor:
        """Return the network's answer to a question of another thread, asked together with the next step."""
        job.check()
        job.begun = True
        question = PendingQuery(query)
        with self._changed:
            if not self.alive:
                raise error.closing()
            self._questions.append(question)
            self._changed.notify()
        return question.answer.result()

    def drain(self, seconds: float) -> None:
        """Begin no more samples, turn away those that wait, and give those under way so many seconds."""
        with self._changed:
            self._closed = True
            for sample in self._waiting:
                sample.job.fail(error.closing())
            self._waiting.clear()
            limit = time.monotonic() + seconds
            for sample in self._live:
                sample.job.deadline = min(sample.job.deadline, limit)
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread; what is still under way fails."""
        self.drain(0)
        self._thread.join(timeout=10)
        self.forward.close()

    def _work(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                while not (self._waiting or self._live or self._questions or self._closed):
                    self._changed.wait()
                self._admit()
                questions, self._questions = self._questions, []
                if self._closed and not self._live and not questions:
                    return
            try:
                self._turn(questions)
            except Exception as reason:  # a defect must end the requests that met it, and not the service
                log.exception("a step failed")
                self._abandon(self._live, reason)
                for question in questions:
                    if not question.answer.done():
                        question.answer.set_exception(reason)

    def _admit(self) -> None:
        """Drop what nobody wants any more, and fill the free places from the queue, first come, first served."""
        self._live = [sample for sample in self._live if self._wanted(sample)]
        self._waiting = deque(sample for sample in self._waiting if self._wanted(sample))
        while self._waiting and len(self._live) < self.batch:
            sample = self._waiting.popleft()
            sample.job.begun = True
            self._live.append(sample)

    def _wanted(self, sample: Sample) -> bool:
        job = sample.job
        if not job.over and (refusal := job.late()) is not None:
            job.fail(error.closing() if self._closed else refusal)
        elif job.over or sample.dropped:
            self.metrics.cancelled()
        return not (job.over or sample.dropped)

    def _turn(self, questions: Sequence[PendingQuery]) -> None:
        """Ask the network once for everybody, and take one step of each walk."""
        alike: dict[tuple[object, ...], list[Sample]] = {}
        for sample in self._live:
            alike.setdefault(sample.key, []).append(sample)
        groups = [Group(samples, self._alone) for samples in alike.values()]
        queries = [group.query for group in groups] + [question.query for question in questions]
        if not queries:
            return
        self.metrics.stepped(len(self._live), sum(len(query.state) for query in queries))
        answers = self.forward(queries)
        for question, answer in zip(questions, answers[len(groups) :], strict=True):
            question.answer.set_result(answer)
        whole: list[Sample] = []
        for group, answer in zip(groups, answers, strict=False):
            whole += self._move(group, answer)
        self._live = [sample for sample in self._live if sample not in whole]

    def _move(self, group: Group, answer: Tensor) -> list[Sample]:
        try:
            whole = group.move(answer)
        except Exception as reason:  # only those who took this step have met the defect
            log.exception("a step failed")
            self._abandon(group.samples, reason)
            return []
        for _ in whole:
            now = time.monotonic()
            gap, self._last = now - self._last, now
            self._pace = gap if self._pace == 0 else 0.9 * self._pace + 0.1 * gap
        return whole

    def _alone(self, query: Query) -> Tensor:
        return self.forward([query])[0]

    @staticmethod
    def _abandon(samples: Sequence[Sample], reason: Exception) -> None:
        for sample in samples:
            sample.job.fail(reason)

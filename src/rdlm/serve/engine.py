"""The engine: one thread that owns a model's network and moves all samples on, one step of each at a time.

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
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdlm.language_model import LanguageModel
from rdlm.sampler.forward import Forward, Query
from rdlm.serve import error
from rdlm.serve.error import Refusal
from rdlm.serve.metrics import Metrics
from rdlm.serve.sample import Group, Sample
from rdlm.serve.ticket import Ticket

log = logging.getLogger(__name__)

@dataclass(eq=False)
class Question:
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
        self._questions: list[Question] = []
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
            raise Refusal(400, f"a request may ask for at most {self.queue} samples, not {count}", "n")
        if len(self._waiting) + count > self.queue:
            raise error.busy(self.patience)

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

    def ask(self, query: Query, ticket: Ticket) -> Tensor:
        """Return the network's answer to a question of another thread, asked together with the next step."""
        ticket.check()
        ticket.begun = True
        question = Question(query)
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
                sample.ticket.fail(error.closing())
            self._waiting.clear()
            limit = time.monotonic() + seconds
            for sample in self._live:
                sample.ticket.deadline = min(sample.ticket.deadline, limit)
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
            sample.ticket.begun = True
            self._live.append(sample)

    def _wanted(self, sample: Sample) -> bool:
        ticket = sample.ticket
        if not ticket.over and (refusal := ticket.late()) is not None:
            ticket.fail(error.closing() if self._closed else refusal)
        elif ticket.over or sample.dropped:
            self.metrics.cancelled()
        return not (ticket.over or sample.dropped)

    def _turn(self, questions: Sequence[Question]) -> None:
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
            sample.ticket.fail(reason)

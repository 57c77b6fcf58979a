"""The engine: one thread that owns a model's network and advances all samplers, one evaluation at a time.

A `Job` is what a request and the threads that work for it share: deadline, cancellation and events. In every turn the
engine admits waiting samples, gathers the queries of running samplers and of other threads (scores), evaluates them in
as few forward passes as possible, and sends every sampler its log-probabilities. A turn takes the same number of rows
of each request: as many as the request with the fewest has, and at most `TURN_ROWS`. So a small request takes as many
turns as alone, and a long one adds as many rows to them as the small one has itself. A request whose client has
disconnected costs at most the current evaluation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from starlette.requests import Request
from torch import Tensor

from rdlm.api.generate import PreparedSampling, WindowStep
from rdlm.api.language_model import LanguageModel
from rdlm.sampling.denoisers import Batcher, Query
from rdlm.serve import http_errors
from rdlm.serve.http_errors import Disconnected, HttpError, late
from rdlm.serve.middleware import Metrics


@dataclass(frozen=True)
class Progress:
    """A sample has taken a step; `final` are the tokens that became final with it and have only final ones before."""

    index: int
    step: int
    final: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A sample is finished."""

    index: int
    tokens: tuple[int, ...]
    nfe: int
    """Its network evaluations."""


@dataclass(frozen=True)
class Failed:
    """The request has failed."""

    reason: Exception


Result = TypeVar("Result")

TURN_ROWS = 4
"""Rows of one request in a turn for each thread: a new request waits no longer than they take. (A row takes 15% less
time in a forward pass of eight rows.)"""


def contained(error: BaseException) -> Exception:
    """Return the error as an Exception: a panic of a library in Rust is none, and would pass every handler."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


class Job:
    """A running request: its deadline, whether it is over, and the events for its client.

    Threads check the deadline between two steps. The request itself waits no longer than that, whatever they do.
    """

    def __init__(self, seconds: float, wants_progress: bool = False) -> None:
        self.seconds, self.wants_progress = seconds, wants_progress
        self.deadline = time.monotonic() + seconds
        self.begun = False
        self.over = False
        self.closing = False
        """Whether the service is shutting down, which shortens the deadline."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[object] = asyncio.Queue()
        self._limit: asyncio.Timeout | None = None
        """The deadline of what the request waits for."""

    def close_within(self, seconds: float) -> None:
        """Shorten the deadline, from any thread or signal handler, since the service is shutting down."""
        self.closing = True
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._shorten)

    def _shorten(self) -> None:
        if self._limit is not None:
            self._limit.reschedule(self._loop.time() + max(0.0, self.deadline - time.monotonic()))

    def post(self, event: object) -> None:
        """Send an event to the request, from any thread; without effect after the end of the service."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def fail(self, reason: BaseException) -> None:
        """End the request with an error, from any thread; only the first one counts."""
        if not self.over:
            self.over = True
            self.post(Failed(contained(reason)))

    def late(self) -> HttpError | None:
        """Return the error of a request past its deadline."""
        return self._late_error if time.monotonic() > self.deadline else None

    @property
    def _late_error(self) -> HttpError:
        return http_errors.closing() if self.closing else late(self.seconds, self.begun)

    def check(self) -> None:
        """Raise an error if the request is cancelled or late; called by worker threads between steps."""
        if self.over:
            raise Disconnected
        if (error := self.late()) is not None:
            raise error

    async def within_deadline(self, work: Awaitable[Result]) -> Result:
        """Await some work; the error of a late request at the deadline, even if the work goes on."""
        limit = asyncio.timeout(max(0.0, self.deadline - time.monotonic()))
        try:
            async with limit:
                self._limit = limit
                try:
                    return await work
                finally:
                    self._limit = None
        except TimeoutError:
            if not limit.expired():
                raise
            self.over = True
            raise self._late_error from None

    async def run(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function on a thread, within the deadline."""

        def call() -> Result:
            try:
                return function()
            except BaseException as error:
                raise contained(error) from error.__cause__

        return await self.within_deadline(asyncio.to_thread(call))

    async def events(self) -> AsyncIterator[object]:
        """Yield what is posted, until the request has failed or is late: that is raised."""
        while True:
            event = await self.within_deadline(self._events.get())
            if isinstance(event, Failed):
                raise event.reason
            yield event


async def until_left(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


log = logging.getLogger(__name__)

Watch = Callable[[int, WindowStep], object]
"""Called after each step with its number and its `WindowStep`."""


class RunningSample:
    """One sample of a job: a running sampler and the query that it waits for."""

    def __init__(
        self, prepared: PreparedSampling, seed: int, job: Job, index: int = 0, watch: Watch | None = None
    ) -> None:
        self.prepared, self.seed, self.job, self.index, self.watch = prepared, seed, job, index, watch
        self.dropped = False
        """Whether the rest of this sample is no longer needed."""
        self.nfe = 0
        """Network evaluations so far."""
        self._steps_before, self._nfe_before, self._sent = 0, 0, 0
        self._sampling = prepared.sample([seed], self._stepped)
        self.query = next(self._sampling)

    def advance(self, log_probs: Tensor) -> bool:
        """Send the sampler its log-probabilities; return whether the sample is finished."""
        try:
            self.query = self._sampling.send(log_probs)
        except StopIteration as stop:
            self.job.post(Finished(self.index, tuple(stop.value.token[0].tolist()), self.nfe))
            return True
        return False

    def _stepped(self, rows: Sequence[int], step: WindowStep) -> None:
        """Report a step to the observers and, if requested, the tokens that have become final."""
        info, nfe = step.info, step.info.sampler.chain.nfe
        if self.watch is not None:
            self.watch(self._steps_before + int(info.before.step), step)
        self.nfe = self._nfe_before + int(info.after.nfe)
        at = self._steps_before + int(info.after.step)
        if int(info.after.step) == nfe:
            self._steps_before, self._nfe_before = self._steps_before + nfe, self.nfe
        if self.job.wants_progress and not (int(info.after.step) == nfe and step.window == self.prepared.windows[-1]):
            self.job.post(Progress(self.index, at, self._newly_final(step)))

    def _newly_final(self, step: WindowStep) -> tuple[int, ...]:
        """Return the tokens that have become final since the last time and have only final ones before them."""
        layout, begin, after = self.prepared.model.rdlm.layout, step.window.begin, step.info.after
        final = step.info.sampler.finished(after)[0].view(-1, layout.symbols_per_token).all(-1)
        end = begin + int(final.long().cumprod(0).sum())
        ids = torch.cat([step.tokens[0, :begin], layout.ids(after.token.cpu())[0]])
        fresh = ids[self._sent : end].tolist()
        self._sent = max(self._sent, end)
        return tuple(fresh)


@dataclass(eq=False)
class PendingQuery:
    """A query of another thread, of which some rows may be evaluated already, and the destination of its result."""

    query: Query
    job: Job
    answer: Future[Tensor] = field(default_factory=Future)
    found: list[Tensor] = field(default_factory=list)
    """Log-probabilities of the first rows."""

    @property
    def rows_left(self) -> int:
        """The number of rows that are not evaluated yet."""
        return len(self.query.state) - sum(map(len, self.found))

    def is_wanted(self) -> bool:
        """Return whether rows are to be evaluated; the thread of an ended request is notified."""
        reason = Disconnected() if self.job.over else self.job.late()
        if reason is not None and not self.answer.done():
            self.answer.set_exception(reason)
        return not self.answer.done()

    def next_rows(self, count: int) -> Query:
        """Return the next `count` rows as a query."""
        begin = len(self.query.state) - self.rows_left
        return self.query if count == len(self.query.state) else self.query.rows(slice(begin, begin + count))

    def take(self, log_probs: Tensor) -> None:
        """Store the result of the next rows; after the last ones all are sent to the thread."""
        self.found.append(log_probs)
        if self.rows_left == 0:
            self.answer.set_result(torch.cat(self.found) if len(self.found) > 1 else log_probs)


class Engine:
    """A model that serves many requests at once."""

    def __init__(
        self, model: LanguageModel, metrics: Metrics, batch: int = 16, queue: int = 64, threads: int = 1
    ) -> None:
        self.model, self.metrics, self.batch, self.queue = model, metrics, batch, queue
        method = model.rdlm
        self.batcher = Batcher(method.denoiser, method.network, model.config.model.self_condition, threads)
        self._most_rows = TURN_ROWS * max(1, threads)
        self._waiting: deque[RunningSample] = deque()
        self._pending: list[PendingQuery] = []
        self._live: list[RunningSample] = []
        self._changed = threading.Condition()
        self._closed = False
        self._seconds_per_sample = 0.0
        """Moving average of the seconds between two finished samples; 0 before the first."""
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"rdlm-engine-{model.name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._closed

    @property
    def depth(self) -> int:
        """The number of waiting samples."""
        return len(self._waiting)

    @property
    def live(self) -> int:
        """The number of running samples."""
        return len(self._live)

    @property
    def retry_after(self) -> int:
        """Seconds after which a refused client should try again."""
        return min(60, max(1, math.ceil(self._seconds_per_sample * (len(self._waiting) + 1))))

    def check_room(self, count: int) -> None:
        """Reject a request whose samples do not fit into the queue, before any work is done for it."""
        if not self.alive:
            raise http_errors.closing()
        if count > self.queue:
            raise HttpError(400, f"a request may ask for at most {self.queue} samples, not {count}", "n")
        if len(self._waiting) + count > self.queue:
            raise http_errors.queue_full(self.retry_after)

    def submit(self, samples: Sequence[RunningSample]) -> None:
        """Queue the samples of a request, all or none of them."""
        with self._changed:
            self.check_room(len(samples))
            self._waiting.extend(samples)
            self._changed.notify()

    def evaluate(self, query: Query, job: Job) -> Tensor:
        """Return the log-probabilities of another thread's query, evaluated in the next turn."""
        job.check()
        job.begun = True
        pending = PendingQuery(query, job)
        with self._changed:
            if not self.alive:
                raise http_errors.closing()
            self._pending.append(pending)
            self._changed.notify()
        try:
            return pending.answer.result(max(0.0, job.deadline - time.monotonic()))
        except TimeoutError:
            job.check()
            raise

    def drain(self, seconds: float) -> None:
        """Start no more samples, reject the waiting ones, and limit the running ones to this time."""
        with self._changed:
            self._closed = True
            for sample in self._waiting:
                sample.job.fail(http_errors.closing())
            self._waiting.clear()
            limit = time.monotonic() + seconds
            for sample in self._live:
                sample.job.closing = True
                sample.job.deadline = min(sample.job.deadline, limit)
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread; running samples fail."""
        self.drain(0)
        self._thread.join(timeout=10)
        self.batcher.close()

    def _work(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                while not (self._waiting or self._live or self._pending or self._closed):
                    self._changed.wait()
                self._admit()
                self._pending = [one for one in self._pending if one.is_wanted()]
                pending = list(self._pending)
                if self._closed and not self._live and not pending:
                    return
            try:
                self._turn(pending)
            except BaseException as reason:  # an error ends the requests of this turn, not the service
                log.exception("a turn failed")
                self._abandon(self._live, reason)
                for one in pending:
                    if not one.answer.done():
                        one.answer.set_exception(contained(reason))

    def _admit(self) -> None:
        """Drop unwanted samples, and fill free places from the queue, first come, first served."""
        self._live = [sample for sample in self._live if self._wanted(sample)]
        self._waiting = deque(sample for sample in self._waiting if self._wanted(sample))
        while self._waiting and len(self._live) < self.batch:
            sample = self._waiting.popleft()
            sample.job.begun = True
            self._live.append(sample)

    def _wanted(self, sample: RunningSample) -> bool:
        job = sample.job
        if not job.over and (late := job.late()) is not None:
            job.fail(late)
        elif job.over or sample.dropped:
            self.metrics.cancelled()
        return not (job.over or sample.dropped)

    def _turn(self, pending: Sequence[PendingQuery]) -> None:
        """Evaluate a share of the queries of every request together, and advance the samplers with results."""
        live, rows = self._shares(pending)
        queries = [sample.query for sample in live]
        queries += [one.next_rows(min(rows, one.rows_left)) for one in pending]
        if not queries:
            return
        self.metrics.stepped(len(live), sum(len(query.state) for query in queries))
        answers = self.batcher(queries)
        for one, answer in zip(pending, answers[len(live) :], strict=True):
            one.take(answer)
        finished = {sample for sample, answer in zip(live, answers, strict=False) if self._advance(sample, answer)}
        answered = set(live)
        # Those that have waited longest come first in the next turn.
        self._live = [one for one in self._live if one not in answered] + [one for one in live if one not in finished]

    def _shares(self, pending: Sequence[PendingQuery]) -> tuple[list[RunningSample], int]:
        """Return the samples of this turn, and the rows that each query of another thread may have in it."""
        waiting: dict[Job, list[RunningSample]] = {}
        for sample in self._live:
            waiting.setdefault(sample.job, []).append(sample)
        needs = [len(samples) for samples in waiting.values()] + [one.rows_left for one in pending]
        rows = min([self._most_rows, *needs])
        chosen = {sample for samples in waiting.values() for sample in samples[:rows]}
        return [sample for sample in self._live if sample in chosen], rows

    def _advance(self, sample: RunningSample, log_probs: Tensor) -> bool:
        """Advance one sampler; return whether it has ended."""
        try:
            finished = sample.advance(log_probs)
        except BaseException as reason:  # an error ends only this sample
            log.exception("a step failed")
            self._abandon([sample], reason)
            return True
        if finished:
            now = time.monotonic()
            gap, self._last = now - self._last, now
            average = self._seconds_per_sample
            self._seconds_per_sample = gap if average == 0 else 0.9 * average + 0.1 * gap
        return finished

    @staticmethod
    def _abandon(samples: Sequence[RunningSample], reason: BaseException) -> None:
        for sample in samples:
            sample.job.fail(reason)

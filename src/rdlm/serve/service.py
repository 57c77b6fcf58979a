"""The service: served models, their limits, and the threads that score texts and sample from rivals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from starlette.requests import Request

from rdlm.api.language_model import LanguageModel
from rdlm.errors import InputError, unknown
from rdlm.methods.bound import check_weights
from rdlm.methods.rdlm import Rdlm
from rdlm.serve import refusal as error
from rdlm.serve.engine import Engine
from rdlm.serve.job import Job, until_left
from rdlm.serve.memory import Keeper
from rdlm.serve.metrics import Metrics
from rdlm.serve.refusal import Left, Refusal
from rdlm.serve.served_model import ServedModel

log = logging.getLogger(__name__)
Result = TypeVar("Result")

WORKERS = 4
"""Threads for what is not a walk."""


@dataclass(frozen=True)
class Limits:
    """How much the service takes on."""

    steps: int | None = None
    """Steps of a walk for which none are asked; the model's own number if not given."""
    queue: int = 64
    """Samples that may wait."""
    batch: int = 16
    """Samples that are under way together."""
    deadline: float = 60.0
    """Seconds after which a request is given up."""
    threads: int = 1
    """Threads over which the network's calls are spread."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("queue", 1), ("batch", 1), ("threads", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.deadline > 0:
            raise InputError(f"deadline must be a positive number of seconds, got {self.deadline:g}")


class Service:
    """All that requests have in common."""

    def __init__(self, models: Sequence[LanguageModel], limits: Limits) -> None:
        self.limits, self.metrics, self.closed = limits, Metrics(), False
        self.hosts: dict[str, ServedModel] = {}
        for model in models:
            check_weights(model.method.network)
            name = self._free_name(model.name)
            self.hosts[name] = ServedModel(name, model, limits.steps or model.nfe, self._engine(model))
        self._pool = ThreadPoolExecutor(WORKERS, "rdlm-worker", partial(torch.set_num_threads, 1))
        self._jobs = 0
        self._keeper = Keeper(lambda: self.resting, lambda: self.metrics.requests)

    def _engine(self, model: LanguageModel) -> Engine | None:
        limits = self.limits
        own = isinstance(model.method, Rdlm)
        return Engine(model, self.metrics, limits.batch, limits.queue, limits.threads) if own else None

    def _free_name(self, wanted: str) -> str:
        names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(self.hosts) + 2)))
        return next(name for name in names if name not in self.hosts)

    def host(self, name: str | None) -> ServedModel:
        """Return a model by its name, or the first one."""
        if name is None:
            return next(iter(self.hosts.values()))
        if name not in self.hosts:
            raise Refusal(404, str(unknown("model", name, self.hosts)), "model", "model_not_found")
        return self.hosts[name]

    @property
    def ready(self) -> bool:
        """Return whether requests are taken."""
        return not self.closed and all(host.engine is None or host.engine.alive for host in self.hosts.values())

    @property
    def resting(self) -> bool:
        """Return whether nothing is computed and nothing waits."""
        engines = [host.engine for host in self.hosts.values() if host.engine is not None]
        return self._jobs == 0 and not any(engine.live or engine.depth for engine in engines)

    def check_worker(self) -> None:
        """Refuse a job for which there is no place in the workers' queue."""
        if self.closed:
            raise error.closing()
        if self._jobs >= WORKERS + self.limits.queue:
            raise error.busy(5)

    def work(self, job: Job, function: Callable[[], object]) -> None:
        """Have a worker do a job and post what it returns; what it raises ends the request."""
        self.check_worker()
        self._jobs += 1

        def run() -> None:
            try:
                job.check()
                job.begun = True
                job.post(function())
            except Left:
                self.metrics.cancelled()
            except Exception as reason:
                if not isinstance(reason, InputError | Refusal):
                    log.exception("a job failed")
                job.fail(reason)

        self._pool.submit(run).add_done_callback(self._job_done)

    def _job_done(self, _: object) -> None:
        self._jobs -= 1

    def drain(self, seconds: float) -> None:
        """Take no more requests, and give those under way so many seconds."""
        self.closed = True
        for host in self.hosts.values():
            if host.engine is not None:
                host.engine.drain(seconds)

    def close(self) -> None:
        """Stop all threads."""
        self.drain(0)
        for host in self.hosts.values():
            if host.engine is not None:
                host.engine.close()
        self._keeper.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


async def while_present(request: Request, job: Job, answer: Awaitable[Result]) -> Result:
    """Return the answer; a client that leaves before it is there ends the request."""
    wanted, left = asyncio.ensure_future(answer), asyncio.ensure_future(until_left(request))
    try:
        await asyncio.wait({wanted, left}, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            raise Left
        return wanted.result()
    except BaseException:
        job.over = True
        raise
    finally:
        wanted.cancel()
        left.cancel()

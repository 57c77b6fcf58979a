"""The service: served models, their limits, and worker threads for everything that is not batched by an engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import get_ident
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
from starlette.requests import Request

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder
from rdlm.api.restore import cannot_restore
from rdlm.data.evidence import normalised_reading
from rdlm.data.tokenizer import Characters, normalisation_rule, normalised
from rdlm.errors import InputError, unknown
from rdlm.methods.bound import check_weights
from rdlm.serve.engine import Engine, Job, until_left
from rdlm.serve.http_errors import Disconnected, HttpError, closing, queue_full
from rdlm.serve.middleware import Metrics
from rdlm.serve.schema import RestoreBody, TextBody
from rdlm.storage.memory import IdleRelease

log = logging.getLogger(__name__)
Result = TypeVar("Result")

WORKERS = 4
"""Worker threads: scores, and samples of baselines."""
GAPS = "_□¤"
"""Candidate marks of an open token; the first that is not in the model's alphabet is used."""
LARGEST_CARD = 512
"""Largest vocabulary that a model card lists."""


@dataclass(frozen=True)
class Limits:
    """Limits of the service."""

    steps: int | None = None
    """Sampler steps if a request gives none; the model's own default if None."""
    queue: int = 64
    """Samples that may wait."""
    batch: int = 16
    """Samples in progress at the same time."""
    deadline: float = 60.0
    """Seconds after which a request fails."""
    threads: int = 1
    """Threads that run the network."""

    def __post_init__(self) -> None:
        for name in ("steps", "queue", "batch", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.deadline > 0:
            raise InputError(f"deadline must be a positive number of seconds, got {self.deadline:g}")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under its name in the API, with its engine."""

    name: str
    model: LanguageModel
    steps: int
    engine: Engine | None
    """None for baselines: their samplers call the network directly."""
    _jobs: dict[int, Job] = field(default_factory=dict, init=False)
    """Jobs of baselines in progress, by thread."""

    def __post_init__(self) -> None:
        if self.engine is None:
            self.model.method.network.register_forward_pre_hook(self._check)

    @property
    def rdlm_engine(self) -> Engine:
        """The engine; an error for baselines, which have none."""
        if self.engine is None:
            raise InputError(f"{self.name} is a model of the method {self.model.config.method!r}; this needs 'rdlm'")
        return self.engine

    @cached_property
    def gap(self) -> str:
        """The mark of an open token in an infill."""
        tokenizer = self.model.tokenizer
        taken = tokenizer.alphabet if isinstance(tokenizer, Characters) else ""
        return next((mark for mark in GAPS if mark not in taken), GAPS[0])

    @cached_property
    def cannot_restore(self) -> str | None:
        """The reason why the model does not support restoration; None if it does."""
        return cannot_restore(self.model)

    @cached_property
    def card(self) -> dict[str, object]:
        """The entry in OpenAI's list of models; fields of this package are under `rdlm`."""
        model, size = self.model, self.model.tokenizer.size
        own: dict[str, object] = {
            "method": model.config.method,
            "kind": model.kind,
            "length": model.length,
            "vocabulary": [model.tokenizer.decode([i]) for i in range(size)] if size <= LARGEST_CARD else None,
            "steps": self.steps,
            "gap": self.gap,
            "protocol": model.about["protocol"],
            "parameters": model.parameters,
            **self._sampler_defaults,
            "image": model.about["image"],
            "classes": model.about["classes"],
            "normalisation": normalisation_rule(model.tokenizer) or None,
            "restore": {"available": self.cannot_restore is None, "reason": self.cannot_restore},
        }
        created = 0 if model.folder is None else int((model.folder / "tokenizer.json").stat().st_mtime)
        return {"id": self.name, "object": "model", "created": created, "owned_by": "rdlm", "rdlm": own}

    def normalise(self, body: TextBody) -> str | None:
        """Convert the texts of a body to the model's alphabet if requested; return the changes."""
        if not body.normalise:
            return None
        if not normalisation_rule(self.model.tokenizer):
            raise HttpError(400, "normalise: this model has no rule: its tokenizer has no small alphabet", "normalise")
        if isinstance(body, RestoreBody):
            body.text, changes = (
                (None, "") if body.text is None else normalised_reading(self.model.tokenizer, body.text, body.literal)
            )
            return changes
        seen: list[str] = []

        def changed(value: Any, keep: str) -> Any:
            if isinstance(value, str):
                seen.append(value)
                return normalised(self.model.tokenizer, value, keep)[0]
            return [changed(one, keep) for one in value] if isinstance(value, list) else value

        keep = self.gap if getattr(body, "infill", None) is not None else ""
        for name in ("input", "prompt", "suffix", "infill"):
            if getattr(body, name, None):
                setattr(body, name, changed(getattr(body, name), keep))
        return normalised(self.model.tokenizer, "".join(seen), keep)[1]

    @property
    def _sampler_defaults(self) -> dict[str, object]:
        if (schedule := self.model.method.token_schedule) is None:
            return dict.fromkeys(("solver", "grid", "window", "order", "block", "chunk"))
        order = {"order": self.model.config.process.order, "block": schedule.block}
        # "chunk" is the former name of "block".
        return {"solver": "mixture", "grid": "time", "window": schedule.width, **order, "chunk": schedule.block}

    @contextmanager
    def interruptible(self, job: Job) -> Iterator[None]:
        """Check before each forward pass of a baseline on this thread that the job is not cancelled."""
        self._jobs[get_ident()] = job
        try:
            yield
        finally:
            del self._jobs[get_ident()]

    def _check(self, *_: object) -> None:
        if (job := self._jobs.get(get_ident())) is not None:
            job.check()


class Service:
    """State that all requests share: models, limits, metrics and worker threads."""

    def __init__(self, models: Sequence[LanguageModel], limits: Limits) -> None:
        self.limits, self.metrics, self.closed = limits, Metrics(), False
        self.models: dict[str, ServedModel] = {}
        for model in models:
            check_weights(model.method.network)
            name = self._free_name(model.name)
            engine = None
            if model.method.token_schedule is not None:
                engine = Engine(model, self.metrics, limits.batch, limits.queue, limits.threads)
            self.models[name] = ServedModel(name, model, limits.steps or model.nfe, engine)
        self._pool = ThreadPoolExecutor(WORKERS, "rdlm-worker", partial(torch.set_num_threads, 1))
        self._jobs = 0
        self._running: WeakSet[Job] = WeakSet()
        self._idle_release = IdleRelease(lambda: self.idle, lambda: self.metrics.requests)

    def _free_name(self, wanted: str) -> str:
        names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(self.models) + 2)))
        return next(name for name in names if name not in self.models)

    def model(self, name: str | None) -> ServedModel:
        """Return the model with this name, or the first one for None."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise HttpError(404, str(unknown("model", name, self.models)), "model", "model_not_found")
        return self.models[name]

    @property
    def engines(self) -> dict[str, Engine]:
        """Engines by the name of their model."""
        return {name: served.engine for name, served in self.models.items() if served.engine is not None}

    @property
    def ready(self) -> bool:
        """Whether the service accepts requests."""
        return not self.closed and all(engine.alive for engine in self.engines.values())

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return self._jobs == 0 and not any(engine.live or engine.depth for engine in self.engines.values())

    def new_job(self, wants_progress: bool = False) -> Job:
        """Return the job of a request that has just arrived; its deadline is shortened by `drain`."""
        job = Job(self.limits.deadline, wants_progress)
        self._running.add(job)
        return job

    def check_worker(self) -> None:
        """Raise an error if the queue of the workers is full or the service is shutting down."""
        if self.closed:
            raise closing()
        if self._jobs >= WORKERS + self.limits.queue:
            raise queue_full(5)

    def work(self, job: Job, function: Callable[[], object]) -> None:
        """Run a function on a worker and post its result to the job; an exception fails the job."""
        self.check_worker()
        self._jobs += 1

        def run() -> None:
            try:
                job.check()
                job.begun = True
                job.post(function())
            except Disconnected:
                self.metrics.cancelled()
            except BaseException as reason:  # a request whose worker has failed must not wait
                if not isinstance(reason, InputError | HttpError):
                    log.exception("a job failed")
                job.fail(reason)

        self._pool.submit(run).add_done_callback(self._job_done)

    async def result(self, job: Job, function: Callable[[], Result], request: Request) -> Result:
        """Return the result of a function on a worker; the job ends if the client disconnects first."""
        self.work(job, function)
        return cast("Result", await while_connected(request, job, anext(job.events())))

    def _job_done(self, _: object) -> None:
        self._jobs -= 1

    def drain(self, seconds: float) -> None:
        """Accept no further requests, and limit those in progress to this time in seconds."""
        self.closed = True
        for job in list(self._running):
            job.close_within(seconds)
        for engine in self.engines.values():
            engine.drain(seconds)

    def close(self) -> None:
        """Stop all threads."""
        self.drain(0)
        for engine in self.engines.values():
            engine.close()
        self._idle_release.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def order_fields(order: ChosenOrder | None) -> dict[str, object]:
    """Return the fields of an answer that describe the order of generation; None is that of a baseline."""
    if order is None:
        return {"order": None, "block": None, "notices": []}
    return {"order": order.name, "block": order.block, "notices": list(order.notices)}


async def while_connected(request: Request, job: Job, answer: Awaitable[Result]) -> Result:
    """Await the answer; end the job with `Disconnected` if the client disconnects first."""
    awaited, left = asyncio.ensure_future(answer), asyncio.ensure_future(until_left(request))
    try:
        await asyncio.wait({awaited, left}, return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            raise Disconnected
        return awaited.result()
    except BaseException:
        job.over = True
        raise
    finally:
        awaited.cancel()
        left.cancel()

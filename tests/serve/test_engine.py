"""The engine, turn by turn: a gate in front of its batcher lets one evaluation pass at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from running import save
from torch import Tensor

import rdlm
from rdlm.api.generate import WindowStep, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.config import SamplingOptions
from rdlm.errors import DamagedFileError
from rdlm.sampling.denoisers import Query
from rdlm.serve.app import create
from rdlm.serve.engine import Engine, Finished, Job, Progress, RunningSample
from rdlm.serve.http_errors import Disconnected, HttpError, http_error_of
from rdlm.serve.middleware import Metrics
from rdlm.serve.service import Limits, Service


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return rdlm.load(save(tmp_path_factory.mktemp("runs") / "one"))


class Gated:
    """An engine whose turns wait for `let`; `rows` are those of each turn."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rows: list[int] = []
        self.trouble: BaseException | None = None
        self._gate, self._passed, real = threading.Semaphore(0), threading.Semaphore(0), self.engine.batcher.__call__

        def evaluate(queries: Sequence[Query]) -> list[Tensor]:
            self._gate.acquire()
            self.rows.append(sum(len(query.state) for query in queries))
            if self.trouble is not None:
                raise self.trouble
            return real(queries)

        self.engine.batcher = evaluate  # type: ignore[assignment]

    def let(self, turns: int) -> None:
        for _ in range(turns):
            self._gate.release()

    async def turn(self) -> None:
        """Let one turn pass, and wait until its evaluation has begun."""
        before = len(self.rows)
        self.let(1)
        while len(self.rows) == before:
            await asyncio.sleep(0.002)


@pytest.fixture
def gated(model: LanguageModel) -> Iterator[Callable[..., Gated]]:
    made: list[Gated] = []

    def make(**limits: int) -> Gated:
        made.append(Gated(Engine(model, Metrics(), **limits)))
        return made[-1]

    yield make
    for one in made:
        one.let(10_000)
        one.engine.drain(0)
        one.engine._thread.join(10)


def sample(model: LanguageModel, job: Job, index: int = 0, **options: Any) -> RunningSample:
    prepared = prepare(model, SamplingOptions(**{"steps": 6, **options}))
    return RunningSample(prepared, prepared.options.seed, job, index)


async def ended(job: Job) -> tuple[int, ...]:
    async for event in job.events():
        if isinstance(event, Finished):
            return event.tokens
    raise AssertionError


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_new_request_joins_at_the_next_step(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, first, second = gated(), Job(60), Job(60)
        gate.engine.submit([sample(model, first, seed=1)])
        await gate.turn()
        await gate.turn()
        gate.engine.submit([sample(model, second, seed=2, steps=3)])
        gate.let(20)
        tokens = await ended(first), await ended(second)
        # The third turn may have been gathered before the second request came.
        assert gate.rows in ([1, 1, 2, 2, 2, 1], [1, 1, 1, 2, 2, 2])
        for found, (seed, steps) in zip(tokens, ((1, 6), (2, 3)), strict=True):
            assert found == model.generate(seed=seed, steps=steps).samples[0].tokens

    run(scene)


def test_the_first_event_comes_with_the_first_step(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, job = gated(), Job(60, wants_progress=True)
        gate.engine.submit([sample(model, job)])
        gate.let(1)
        event = await anext(job.events())
        assert isinstance(event, Progress) and event.step == 1 and gate.rows == [1]

    run(scene)


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        ("/v1/completions", {"prompt": "a", "stream": True}, b"data: "),
        ("/v1/completions", {"prompt": "a", "stream": True, "n": 3, "stop": "z"}, b"data: "),
        ("/v1/trajectory", {"prompt": "a"}, b"event: frame"),
    ],
    ids=["completion", "three completions", "trajectory"],
)
def test_the_first_event_of_a_stream_comes_within_two_steps(
    model: LanguageModel, path: str, body: dict[str, object], wanted: bytes
) -> None:
    """Through the whole service: after two turns the event has been sent."""

    async def scene() -> None:
        service, sent = Service([model], Limits(steps=40)), bytearray()
        gate = Gated(service.model(None).rdlm_engine)
        messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.extend(message.get("body", b""))

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
        }
        answering = asyncio.create_task(create(service)(scope, receive, send))
        gate.let(2)
        while wanted not in sent:
            await asyncio.sleep(0.002)
        assert len(gate.rows) <= 2 and not answering.done()
        gate.let(1000)
        await answering
        service.drain(0)

    run(scene)


def test_a_disconnected_client_costs_at_most_one_step(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, staying, leaving = gated(), Job(60), Job(60)
        gate.engine.submit([sample(model, staying, seed=1), sample(model, leaving, seed=2)])
        await gate.turn()
        leaving.over = True
        gate.let(20)
        await ended(staying)
        assert gate.rows in ([2, 2, 1, 1, 1, 1], [2, 1, 1, 1, 1, 1])

    run(scene)


def test_waiting_samples_start_in_order(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate = gated(batch=2, queue=4)
        jobs = [Job(60) for _ in range(4)]
        gate.engine.submit([sample(model, job, seed=seed) for seed, job in enumerate(jobs)])
        with pytest.raises(HttpError) as caught:
            gate.engine.submit([sample(model, Job(60))] * 4)
        assert caught.value.status == 429
        gate.let(40)
        for job in jobs:
            await ended(job)
        assert gate.rows == [2] * 12

    run(scene)


class Panic(BaseException):
    """What a library in Rust raises when it panics: not an Exception."""


@pytest.mark.parametrize(("trouble", "found"), [(ZeroDivisionError, ZeroDivisionError), (Panic, RuntimeError)])
def test_a_failed_evaluation_ends_its_requests_and_not_the_service(
    model: LanguageModel,
    gated: Callable[..., Gated],
    caplog: pytest.LogCaptureFixture,
    trouble: type[BaseException],
    found: type[Exception],
) -> None:
    async def scene() -> None:
        gate, job, other = gated(), Job(60), Job(60)
        gate.trouble = trouble("a secret of the house")
        gate.let(30)
        gate.engine.submit([sample(model, job)])
        with pytest.raises(found):
            await anext(job.events())
        with pytest.raises(found):
            await other.run(lambda: gate.engine.evaluate(sample(model, other).query, other))
        gate.trouble = None
        again = Job(60)
        gate.engine.submit([sample(model, again)])
        assert len(await ended(again)) == 16 and gate.engine.alive

    run(scene)
    assert "a turn failed" in caplog.text


def test_a_failed_step_ends_its_own_request_alone(
    model: LanguageModel, gated: Callable[..., Gated], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        gate, failing, other = gated(), Job(60), Job(60)

        def watch(step: int, happened: WindowStep) -> None:
            if step == 2:
                raise ZeroDivisionError("a secret of the house")

        prepared = prepare(model, SamplingOptions(steps=6, seed=1))
        gate.engine.submit([RunningSample(prepared, 1, failing, watch=watch), sample(model, other, seed=2)])
        gate.let(30)
        with pytest.raises(ZeroDivisionError):
            await anext(failing.events())
        assert await ended(other) == model.generate(seed=2, steps=6).samples[0].tokens
        assert gate.rows == [2, 2, 2, 1, 1, 1] and gate.engine.alive

    run(scene)
    assert "a step failed" in caplog.text


def test_samples_of_all_kinds_share_the_engine(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    """Solvers with one and two evaluations per step, lengths, schedules and windows: each sample as if alone."""
    wanted: list[dict[str, Any]] = [
        {"solver": "heun"},
        {"solver": "corrector", "length": 7},
        {"solver": "euler", "window": 0.5, "steps": 9},
        {"length": 40, "steps": 3},
        {"prompt": "ab", "temperature": 0.7, "block": 4},
    ]

    async def scene() -> None:
        gate, jobs = gated(), [Job(60) for _ in wanted]
        gate.let(200)
        for job, options in zip(jobs, wanted, strict=True):
            gate.engine.submit([sample(model, job, seed=3, **options)])
        for job, options in zip(jobs, wanted, strict=True):
            assert await ended(job) == model.generate(**{"seed": 3, "steps": 6} | options).samples[0].tokens

    run(scene)


def test_queries_of_other_threads_share_a_turn(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, job, other = gated(), Job(60), Job(60)
        gate.engine.submit([sample(model, job)])
        await gate.turn()
        state = model.rdlm.process.bridge.start.point().repeat(3, 16, 1)
        query = Query(state, torch.full((3, 16), 0.01))
        waiting = asyncio.create_task(asyncio.to_thread(gate.engine.evaluate, query, other))
        await asyncio.sleep(0.05)
        gate.let(20)
        answer = await waiting
        await ended(job)
        assert gate.rows.count(2) == 3 and answer.shape == (3, 16, 27)  # a row of each request
        other.over = True
        with pytest.raises(Disconnected):
            gate.engine.evaluate(query, other)

    run(scene)


def test_a_large_query_is_evaluated_in_parts_with_the_same_bits(
    model: LanguageModel, gated: Callable[..., Gated]
) -> None:
    async def scene() -> None:
        gate, job = gated(), Job(60)
        state = model.rdlm.process.bridge.start.point().repeat(20, 16, 1)
        query = Query(state, torch.linspace(0.001, 0.02, 20)[:, None].expand(20, 16))
        gate.let(5)
        answer = await job.run(lambda: gate.engine.evaluate(query, job))
        assert gate.rows == [4] * 5
        rows = [part.evaluate(model.rdlm.denoiser, model.rdlm.network) for part in query.split()]
        assert torch.equal(answer, torch.cat(rows))

    run(scene)


@pytest.mark.parametrize("kind", ["query", "samples"])
def test_a_small_request_takes_as_many_turns_as_alone(
    kind: str, model: LanguageModel, gated: Callable[..., Gated]
) -> None:
    """Beside a query of 100 rows, or 12 samples of one request: no turn has more than one row of the large one."""

    async def scene() -> None:
        gate, large, small = gated(), Job(60), Job(60)
        state = model.rdlm.process.bridge.start.point().repeat(100, 16, 1)
        if kind == "query":
            query = Query(state, torch.full((100, 16), 0.01))
            waiting = asyncio.create_task(large.run(lambda: gate.engine.evaluate(query, large)))
        else:
            gate.engine.submit([sample(model, large, seed=seed, index=seed) for seed in range(12)])
            waiting = asyncio.create_task(ended(large))
        await gate.turn()
        gate.engine.submit([sample(model, small, seed=1)])
        while gate.rows.count(2) != 6:
            await gate.turn()
        assert await ended(small) == model.generate(seed=1, steps=6).samples[0].tokens
        assert len(gate.rows) <= 8
        gate.let(200)
        await waiting

    run(scene)


def test_a_query_of_a_request_that_is_over_ends_at_once(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, job = gated(), Job(60)
        query = Query(model.rdlm.process.bridge.start.point().repeat(100, 16, 1), torch.full((100, 16), 0.01))
        waiting = asyncio.create_task(asyncio.to_thread(gate.engine.evaluate, query, job))
        await gate.turn()
        job.over = True
        gate.let(100)
        with pytest.raises(Disconnected):
            await waiting
        assert len(gate.rows) <= 2

    run(scene)


ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a", "stream": True}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0, "logprobs": 1, "echo": True, "order": "left-to-right"}),
    ("/v1/score", {"input": "abc"}),
    ("/v1/restore", {"text": "ab?"}),
    ("/v1/trajectory", {"prompt": "a"}),
]


async def status_of(service: Service, path: str, body: dict[str, Any]) -> tuple[int, str, float]:
    """Return the status of a request, the code of its error, and the seconds until its answer."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(3600)
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST"}
    scope |= {"path": path, "query_string": b"", "root_path": "", "http_version": "1.1"}
    scope["headers"] = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    begin = time.monotonic()
    await create(service)(scope, receive, send)
    answered = json.loads(b"".join(message.get("body", b"") for message in sent))
    return sent[0]["status"], answered["error"]["code"], time.monotonic() - begin


def failing(model: LanguageModel, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let the first use of the tokenizer within a request do something bad."""

    def encode(tokenizer: object, text: str) -> object:
        return act()

    monkeypatch.setattr(type(model.tokenizer), "encode", encode)
    monkeypatch.setattr("rdlm.serve.texts.read_text_through", lambda *_: act())


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_panic_is_answered(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    def panic() -> object:
        raise Panic("a secret of the house")

    service = Service([model], Limits(steps=4, deadline=20))
    failing(model, monkeypatch, panic)
    try:
        status, code, seconds = asyncio.run(asyncio.wait_for(status_of(service, path, body), 30))
        assert (status, code) == (500, "internal_error") and seconds < 15
        assert service.ready
    finally:
        service.close()


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_no_request_outlives_its_deadline(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """A tokenizer that does not return, and neither do the threads that wait for it."""
    released = threading.Event()
    service = Service([model], Limits(steps=4, deadline=0.5))
    failing(model, monkeypatch, lambda: released.wait(60))

    async def ask() -> tuple[int, str, float]:
        try:
            return await status_of(service, path, body)
        finally:
            released.set()

    try:
        status, code, seconds = asyncio.run(asyncio.wait_for(ask(), 30))
        assert (status, code) in ((503, "overloaded"), (504, "deadline_exceeded")) and seconds < 10
    finally:
        service.close()


def test_a_query_waits_no_longer_than_its_request(model: LanguageModel, gated: Callable[..., Gated]) -> None:
    async def scene() -> None:
        gate, job = gated(), Job(0.2)
        query = sample(model, job).query
        with pytest.raises(HttpError) as error:
            await asyncio.to_thread(gate.engine.evaluate, query, job)
        assert error.value.status == 504

    run(scene)


def test_a_model_whose_numbers_are_not_finite_gets_an_error(tmp_path: Path) -> None:
    broken = rdlm.load(save(tmp_path / "broken"))
    with torch.no_grad():
        for parameter in broken.method.network.parameters():
            parameter.fill_(3e38)

    async def scenario() -> None:
        engine = Engine(broken, Metrics())
        job = Job(30)
        engine.submit([sample(broken, job)])
        with pytest.raises(DamagedFileError) as error:
            await anext(job.events())
        engine.close()
        found = http_error_of(error.value)
        assert (found.status, found.code) == (500, "damaged_model")

    asyncio.run(asyncio.wait_for(scenario(), 30))

"""The endpoints."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from rdlm.config import PAPER_TOTAL_NOISE
from rdlm.errors import InputError
from rdlm.serve import curves as process
from rdlm.serve import page, trajectory
from rdlm.serve import refusal as error
from rdlm.serve import score as scores
from rdlm.serve.middleware import AccessMiddleware
from rdlm.serve.openai import Completion
from rdlm.serve.refusal import Left, Refusal, answer
from rdlm.serve.schema import Body, CompletionBody, ScoreBody, TrajectoryBody, read
from rdlm.serve.service import Service

LARGEST_BODY = 1 << 20
PATIENCE = 30.0
"""Seconds in which a body must have arrived."""

Form = TypeVar("Form", bound=Body)


async def body_of(request: Request, form: type[Form]) -> Form:
    """Return a request's body, read within its limits and checked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the body must be JSON: send the header Content-Type: application/json")
    too_large = Refusal(413, f"the body may have at most {LARGEST_BODY} bytes")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > LARGEST_BODY:
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                raw += part
                if len(raw) > LARGEST_BODY:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {PATIENCE:g} s") from None
    except ClientDisconnect:
        raise Left from None
    return await asyncio.to_thread(read, bytes(raw), form)


def _described(form: type[Body], stream: bool = False) -> dict[str, Any]:
    """Return what the list of endpoints says of a body and of the answers."""
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    kinds = ["application/json"] + (["text/event-stream"] if stream else [])
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer.", "content": {kind: {} for kind in kinds}}},
    }


def create(service: Service, token: str | None = None) -> ASGIApp:
    """Return the service as an ASGI application."""
    app = FastAPI(title="rdlm", version="v1", docs_url=None, redoc_url=None, redirect_slashes=False)
    _handle_errors(app)
    _add_models(app, service)
    _add_state(app, service)
    _add_pages(app)
    return AccessMiddleware(app, service.metrics, token)


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", response_class=Response)
    async def models() -> Response:
        """List the served models."""
        return answer({"object": "list", "data": [host.card for host in service.hosts.values()]})

    @app.get("/v1/models/{name:path}", response_class=Response)
    async def model(name: str) -> Response:
        """Describe one served model."""
        return answer(service.host(name).card)

    @app.post("/v1/completions", response_class=Response, openapi_extra=_described(CompletionBody, stream=True))
    async def completions(request: Request) -> Response:
        """Complete a prompt, fill in before a suffix, or fill the gaps of a text; OpenAI's legacy completions."""
        body = await body_of(request, CompletionBody)
        return await Completion(service, service.host(body.model), body).respond(request)

    @app.post("/v1/score", response_class=Response, openapi_extra=_described(ScoreBody))
    async def score(request: Request) -> Response:
        """Bound the likelihood of texts, with 95% intervals, character by character."""
        body = await body_of(request, ScoreBody)
        return await scores.score(service, service.host(body.model), body, request)

    @app.post("/v1/trajectory", response_class=Response, openapi_extra=_described(TrajectoryBody, stream=True))
    async def watch(request: Request) -> Response:
        """Watch a sample take shape: events start, frame (many), done or error."""
        body = await body_of(request, TrajectoryBody)
        return await trajectory.follow(service, service.host(body.model), body, request)

    @app.get("/v1/process", response_class=Response)
    async def curves(
        start: Annotated[str, Query(max_length=32)] = "masked",
        noise: Annotated[float, Query(gt=0, le=10, allow_inf_nan=False)] = PAPER_TOTAL_NOISE,
        schedule: Annotated[str, Query(max_length=32)] = "geometric",
        dimension: Annotated[int, Query(ge=3, le=1 << 17)] = 28,
    ) -> Response:
        """Compute the curves of a process: alpha, rho, the angle to the token, and the information, over time."""
        return answer(await asyncio.to_thread(partial(process.curves, start, noise, schedule, dimension)))


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        """Say that the process lives."""
        return answer({"status": "ok"})

    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Say whether requests are taken."""
        if not service.ready:
            raise error.closing()
        return answer({"status": "ready"})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Count requests, rows, steps and times, in Prometheus's text format."""
        engines = {name: host.engine for name, host in service.hosts.items() if host.engine is not None}
        gauges = {
            "rdlm_waiting_samples": {name: engine.depth for name, engine in engines.items()},
            "rdlm_live_samples": {name: engine.live for name, engine in engines.items()},
            "rdlm_network_calls": {name: engine.batcher.nfe for name, engine in engines.items()},
        }
        return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    pages = page.Pages()

    @app.get("/", response_class=Response, include_in_schema=False)
    async def index() -> Response:
        return pages.file("index.html")

    @app.get("/static/{name:path}", response_class=Response, include_in_schema=False)
    async def static(name: str) -> Response:
        return pages.file(name)

    @app.get("/docs", response_class=Response, include_in_schema=False)
    async def docs() -> Response:
        return page.reference(app.openapi())


def _handle_errors(app: FastAPI) -> None:
    async def refuse(request: Request, reason: Exception) -> Response:
        return error.of(reason).response()

    for kind in (Refusal, InputError, Left, Exception):
        app.add_exception_handler(kind, refuse)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, reason: HTTPException) -> Response:
        words = {404: "there is no such address", 405: "this address does not take that method"}
        message = f"{words.get(reason.status_code, str(reason.detail))}; /docs lists the endpoints"
        return Refusal(reason.status_code, message, headers=dict(reason.headers or {})).response()

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, reason: RequestValidationError) -> Response:
        first = reason.errors()[0]
        name = str(first["loc"][-1])
        return Refusal(400, f"{name}: {first['msg']}", name).response()

"""The ASGI application: endpoints of the API, files of the page, and error handlers."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Final, TypeVar

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from rdlm.config import PAPER_TOTAL_NOISE
from rdlm.errors import InputError
from rdlm.serve import texts, trajectory
from rdlm.serve.http_errors import Disconnected, HttpError, answer, closing, http_error_of, queue_full
from rdlm.serve.middleware import AccessMiddleware
from rdlm.serve.openai import Completion
from rdlm.serve.schema import Body, CompletionBody, RestoreBody, ScoreBody, TrajectoryBody, read
from rdlm.serve.service import Service

LARGEST_BODY: Final = 1 << 20
"""Bytes."""
BODY_TIMEOUT = 30.0
"""Seconds in which the body of a request must arrive."""
CONTENT_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "webmanifest": "application/manifest+json",
}
"""Content types by file extension; other files of the page are not served."""

Form = TypeVar("Form", bound=Body)


async def body_of(request: Request, form: type[Form]) -> Form:
    """Read and validate the body of a request, within the limits on size and time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "the body must be JSON: send the header Content-Type: application/json")
    too_large = HttpError(413, f"the body may have at most {LARGEST_BODY} bytes")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > LARGEST_BODY:
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for part in request.stream():
                raw += part
                if len(raw) > LARGEST_BODY:
                    raise too_large
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {BODY_TIMEOUT:g} s") from None
    except ClientDisconnect:
        raise Disconnected from None
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            return await asyncio.to_thread(read, bytes(raw), form)
    except TimeoutError:  # all threads are occupied
        raise queue_full(5) from None


def _described(form: type[Body], stream: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request body and its responses."""
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    kinds = ["application/json"] + (["text/event-stream"] if stream else [])
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "Success.", "content": {kind: {} for kind in kinds}}},
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
    async def list_models() -> Response:
        """List the served models."""
        return answer({"object": "list", "data": [served.card for served in service.models.values()]})

    @app.get("/v1/models/{name:path}", response_class=Response)
    async def describe_model(name: str) -> Response:
        """Describe one served model."""
        return answer(service.model(name).card)

    @app.post("/v1/completions", response_class=Response, openapi_extra=_described(CompletionBody, stream=True))
    async def complete(request: Request) -> Response:
        """Complete a prompt, insert text before a suffix, or fill the gaps of a text (OpenAI's legacy completions)."""
        body = await body_of(request, CompletionBody)
        return await Completion(service, service.model(body.model), body).respond(request)

    @app.post("/v1/score", response_class=Response, openapi_extra=_described(ScoreBody))
    async def score_texts(request: Request) -> Response:
        """Bound the likelihood of texts, with 95% intervals, in total and per position."""
        body = await body_of(request, ScoreBody)
        return await texts.score(service, service.model(body.model), body, request)

    @app.post("/v1/restore", response_class=Response, openapi_extra=_described(RestoreBody))
    async def restore_text(request: Request) -> Response:
        """Return the posterior of every position of an uncertain text, and texts drawn from the joint posterior."""
        body = await body_of(request, RestoreBody)
        return await texts.restoration(service, service.model(body.model), body, request)

    @app.post("/v1/trajectory", response_class=Response, openapi_extra=_described(TrajectoryBody, stream=True))
    async def stream_trajectory(request: Request) -> Response:
        """Stream the trajectory of a sample: the events start, frame (many), and done or error."""
        body = await body_of(request, TrajectoryBody)
        return await trajectory.follow(service, service.model(body.model), body, request)

    queue = trajectory.CurveQueue()

    @app.get("/v1/process", response_class=Response)
    async def describe_process(
        start: Annotated[str, Query(max_length=32)] = "masked",
        noise: Annotated[float, Query(gt=0, le=10, allow_inf_nan=False)] = PAPER_TOTAL_NOISE,
        schedule: Annotated[str, Query(max_length=32)] = "geometric",
        dimension: Annotated[int, Query(ge=3, le=1 << 17)] = 28,
    ) -> Response:
        """Return curves of a bridge over time: alpha, rho, the angle to the token, and the information."""
        return answer(await queue.compute(start, noise, schedule, dimension))


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        """Report that the process is running."""
        return answer({"status": "ok"})

    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Report whether the service accepts requests."""
        if not service.ready:
            raise closing()
        return answer({"status": "ready"})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counts of requests, steps and rows, and latencies, in Prometheus's text format."""
        engines = service.engines
        gauges = {
            "rdlm_waiting_samples": {name: engine.depth for name, engine in engines.items()},
            "rdlm_live_samples": {name: engine.live for name, engine in engines.items()},
            "rdlm_network_calls": {name: engine.batcher.nfe for name, engine in engines.items()},
        }
        return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    files = dict(_page_files(resources.files("rdlm.serve") / "static", ""))

    def page_file(name: str) -> Response:
        if name not in files:
            raise HttpError(404, "no such file")
        content_type = CONTENT_TYPES[name.rpartition(".")[2]]
        return Response(files[name], headers={"Content-Type": content_type, "Cache-Control": "no-cache"})

    @app.get("/", response_class=Response, include_in_schema=False)
    async def index() -> Response:
        return page_file("index.html")

    @app.get("/static/{name:path}", response_class=Response, include_in_schema=False)
    async def static(name: str) -> Response:
        return page_file(name)

    @app.get("/docs", response_class=Response, include_in_schema=False)
    async def docs() -> Response:
        return _api_reference(app.openapi())


def _page_files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    """Return the paths and contents of all files in a folder that have a known content type."""
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _page_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in CONTENT_TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _api_reference(schema: Mapping[str, Any]) -> Response:
    """Return the endpoints and their fields as a static HTML page without scripts."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>rdlm: HTTP API</title></head><body>",
        "<main><h1>HTTP API</h1><p>OpenAPI schema: <a href='/openapi.json'>/openapi.json</a></p>",
    ]
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(about.get('description', ''))}</p>")
            parts.append(_field_list(about))
    return Response("\n".join([*parts, "</main></body></html>"]), media_type="text/html")


def _field_list(about: Mapping[str, Any]) -> str:
    """Return the body fields and query parameters of an endpoint as an HTML list."""
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found = {name: one.get("description", "") for name, one in body.get("properties", {}).items()}
    found |= {one["name"]: one.get("description", "") for one in about.get("parameters", ())}
    rows = [f"<dt><code>{html.escape(name)}</code></dt><dd>{html.escape(words)}</dd>" for name, words in found.items()]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""


def _handle_errors(app: FastAPI) -> None:
    async def refuse(request: Request, reason: Exception) -> Response:
        return http_error_of(reason).response()

    for kind in (HttpError, InputError, Disconnected, Exception):
        app.add_exception_handler(kind, refuse)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, reason: HTTPException) -> Response:
        words = {404: "no such path", 405: "this path does not support that method"}
        message = f"{words.get(reason.status_code, str(reason.detail))}; /docs lists the endpoints"
        return HttpError(reason.status_code, message, headers=dict(reason.headers or {})).response()

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, reason: RequestValidationError) -> Response:
        first = reason.errors()[0]
        name = str(first["loc"][-1])
        return HttpError(400, f"{name}: {first['msg']}", name).response()

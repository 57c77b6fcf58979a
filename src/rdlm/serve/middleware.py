"""Middleware around the application: access control, security headers, and metrics in Prometheus's text format.

On a loopback address without a token, every process of the machine has access, but no web page of another origin: a
foreign Host (DNS rebinding) or Origin is rejected, and bodies must be JSON, which a foreign page cannot send without a
preflight request.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rdlm.serve.http_errors import GONE, HttpError, closing, http_error_of

log = logging.getLogger(__name__)

PROTECTED: Final = ("/v1/", "/metrics")
"""Prefixes of the paths that need the token; the page, the API description and the health checks do not."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
LATENCIES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper limits in seconds of the latency histogram."""
BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Cumulative counts of values up to each limit, as Prometheus defines them."""

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits, self.counts, self.total, self.number = limits, [0] * len(limits), 0.0, 0

    def add(self, value: float) -> None:
        """Count a value."""
        self.number += 1
        self.total += value
        for index, limit in enumerate(self.limits):
            self.counts[index] += value <= limit

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the lines of the histogram."""
        inner = f"{labels}," if labels else ""
        for limit, count in zip(self.limits, self.counts, strict=True):
            yield f'{name}_bucket{{{inner}le="{limit:g}"}} {count}'
        yield f'{name}_bucket{{{inner}le="+Inf"}} {self.number}'
        outer = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{outer} {self.total:.6f}"
        yield f"{name}_count{outer} {self.number}"


class Metrics:
    """Counters of the service; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._latency: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCIES))
        self._batch = Histogram(BATCH_SIZES)
        self._steps = self._rows = self._cancelled = 0

    @property
    def requests(self) -> int:
        """Total number of requests answered."""
        with self._lock:
            return self._requests.total()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        with self._lock:
            self._requests[method, route, status] += 1
            self._latency[route].add(seconds)

    def stepped(self, samples: int, rows: int) -> None:
        """Count one forward pass of an engine: `samples` sampler steps, `rows` rows through the network."""
        with self._lock:
            self._steps += samples
            self._rows += rows
            self._batch.add(rows)

    def cancelled(self) -> None:
        """Count a sample that was dropped because its request had ended."""
        with self._lock:
            self._cancelled += 1

    def text(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """Return all metrics as text; `gauges` are current values by name and model."""
        with self._lock:
            return "\n".join([*self._counter_lines(), *_gauge_lines(gauges), ""])

    def _counter_lines(self) -> Iterator[str]:
        yield from _head("rdlm_requests_total", "counter", "Requests by method, route and status.")
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'rdlm_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield from _head("rdlm_request_seconds", "histogram", "Time from the arrival of a request to its last byte.")
        for route, histogram in sorted(self._latency.items()):
            yield from histogram.lines("rdlm_request_seconds", f'route="{route}"')
        yield from _head("rdlm_batch_rows", "histogram", "Rows per forward pass of the network.")
        yield from self._batch.lines("rdlm_batch_rows")
        for name, value, words in (
            ("rdlm_steps_total", self._steps, "Sampler steps, summed over samples."),
            ("rdlm_rows_total", self._rows, "Rows through the network."),
            ("rdlm_cancelled_total", self._cancelled, "Samples dropped because their request had ended."),
        ):
            yield from _head(name, "counter", words)
            yield f"{name} {value}"


def _gauge_lines(gauges: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for name, by_model in gauges.items():
        yield from _head(name, "gauge", name.removeprefix("rdlm_").replace("_", " ") + " by model.")
        for model, number in by_model.items():
            yield f'{name}{{model="{_escaped(model)}"}} {number}'


def _head(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def is_loopback(host: str) -> bool:
    """Return whether an address, or `localhost`, is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
"""A Host header: a name or an address, and a port; nothing that a URL has beside them."""


def _host_name(header: str) -> str:
    """Return the name or address in a Host header, or an empty string if the header is malformed."""
    found = HOST.fullmatch(header)
    return found[1] if found else ""


class AccessMiddleware:
    """ASGI middleware that checks access, adds security headers, turns exceptions into responses, counts requests."""

    def __init__(self, inner: ASGIApp, metrics: Metrics, token: str | None) -> None:
        self.inner, self.metrics, self._token = inner, metrics, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the service supports HTTP only, not {scope['type']}")
        begin, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check_access(scope)
            await self.inner(scope, receive, send_with_headers)
        except (KeyboardInterrupt, SystemExit):
            raise
        except asyncio.CancelledError:  # the server cancels what is left at the end of a shutdown
            if status == 0:
                await closing().response()(scope, receive, send_with_headers)
        except BaseException as reason:  # a panic of a library is not an Exception
            if not isinstance(reason, HttpError):
                log.exception("a request failed")
            if status == 0:
                await http_error_of(reason).response()(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
            self.metrics.answered(method, route, status or GONE, time.perf_counter() - begin)

    def _check_access(self, scope: Scope) -> None:
        """Reject a request from another origin or without the token."""
        headers = Headers(scope=scope)
        if self._token is None and not is_loopback(_host_name(headers.get("host", ""))):
            raise HttpError(403, "without a token, the Host header must be a loopback name such as 127.0.0.1")
        own = {f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")}  # https: behind a proxy
        is_protected = scope["path"].startswith(PROTECTED)
        # Browsers send no Origin with images and scripts of a foreign page, but state whose page it is.
        foreign = is_protected and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if foreign or not own.issuperset(headers.getlist("origin")):
            raise HttpError(403, "requests from other web pages are not allowed")
        if self._token is not None and is_protected:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # The bytes of both: a token from the environment need not be text, and one of a header is latin-1 here.
            if not hmac.compare_digest(given.encode("latin-1"), os.fsencode(self._token)) or scheme.lower() != "bearer":
                raise HttpError(
                    401,
                    "a token is needed: send the header Authorization: Bearer TOKEN",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )

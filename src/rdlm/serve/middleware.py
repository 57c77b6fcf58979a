"""The guard before the application: who may ask, what every answer says, and what is counted.

On a loopback address without a token anybody on the machine may ask, but no web page from elsewhere: a foreign Host
(a rebound name) or Origin is turned away, and bodies must be JSON, which a foreign page cannot send unasked.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rdlm.serve import refusal as error
from rdlm.serve.metrics import Metrics
from rdlm.serve.refusal import GONE, Refusal

log = logging.getLogger(__name__)

PROTECTED: Final = ("/v1/", "/metrics")
"""How addresses begin that a token protects; the page, the description and the signs of life are anybody's."""
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


def is_loopback(host: str) -> bool:
    """Return whether an address, or `localhost`, can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host(address: str) -> str:
    """Return the name of a host in an address; of what is no address, nothing."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


class AccessMiddleware:
    """An ASGI application around another one."""

    def __init__(self, inner: ASGIApp, metrics: Metrics, token: str | None) -> None:
        self.inner, self.metrics, self._token = inner, metrics, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong is an answer, too."""
        if scope["type"] != "http":
            raise RuntimeError(f"the service speaks HTTP, not {scope['type']}")
        begin, status = time.perf_counter(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._admit(scope)
            await self.inner(scope, receive, guarded)
        except Exception as reason:
            if not isinstance(reason, Refusal):
                log.exception("a request failed")
            if status == 0:
                await error.of(reason).response()(scope, receive, guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
            self.metrics.answered(method, route, status or GONE, time.perf_counter() - begin)

    def _admit(self, scope: Scope) -> None:
        """Refuse a request that comes from the wrong place or without the token."""
        headers = Headers(scope=scope)
        if self._token is None and not is_loopback(_host(f"//{headers.get('host', '')}")):
            raise Refusal(403, "this address is served under a loopback name only, such as 127.0.0.1")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Refusal(403, "requests from other web pages are not answered")
        if self._token is not None and scope["path"].startswith(PROTECTED):
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise Refusal(
                    401,
                    "a token is needed: send the header Authorization: Bearer TOKEN",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )

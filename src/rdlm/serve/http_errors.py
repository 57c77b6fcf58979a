"""HTTP errors in the format of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import Response

from rdlm.errors import DamagedFileError, InputError

GONE = 499
"""Status in the metrics of requests whose client disconnected."""
LONGEST_MESSAGE = 500
"""Characters of a message; it may quote a part of the request, but not a megabyte of it."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error type by status; `invalid_request_error` for all others."""


@dataclass(eq=False)
class HttpError(Exception):
    """An error response: status, message and, if there is one, the request field at fault."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return the error as OpenAI's clients expect it."""
        text = self.message if len(self.message) <= LONGEST_MESSAGE else self.message[:LONGEST_MESSAGE] + " ..."
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": text, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the error as an HTTP response."""
        return answer(self.body(), self.status, self.headers)


class Disconnected(Exception):
    """The client has disconnected."""


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response in ASCII, which can hold any string (lone surrogates too); NaN is an error."""
    body = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Response(body, status, dict(headers or {}), "application/json")


def http_error_of(error: BaseException) -> HttpError:
    """Return the HTTP error for an exception; the details of an internal error are logged, not sent."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InputError):
        return HttpError(400, str(error))
    if isinstance(error, DamagedFileError):
        return HttpError(500, "the model is damaged; see the log of the service", code="damaged_model")
    if isinstance(error, Disconnected):
        return HttpError(GONE, "the client has disconnected")
    return HttpError(500, "internal error; see the log of the service", code="internal_error")


def queue_full(seconds: int) -> HttpError:
    """Return status 429: the queue is full."""
    message = f"too many requests are waiting; try again in {seconds} s"
    return HttpError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})


def late(seconds: float, begun: bool) -> HttpError:
    """Return the error of a request past its deadline: 504 if it was running, 503 if it was still in the queue."""
    if begun:
        message = f"not finished within {seconds:g} s; request fewer steps, fewer samples or a shorter text"
        return HttpError(504, message, code="deadline_exceeded")
    message = f"the service is overloaded: the request was in the queue for {seconds:g} s; try again later"
    return HttpError(503, message, code="overloaded", headers={"Retry-After": "5"})


def closing() -> HttpError:
    """Return status 503: the service is shutting down."""
    return HttpError(503, "the service is shutting down; try again later", code="closing", headers={"Retry-After": "5"})


def too_many_connections() -> HttpError:
    """Return status 503: too many open connections."""
    headers = {"Retry-After": "5", "Connection": "close"}
    return HttpError(503, "too many connections are open; try again later", code="overloaded", headers=headers)

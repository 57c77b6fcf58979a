"""What the service refuses and how it says so: every error has OpenAI's shape and plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import Response

from rdlm.errors import InputError

GONE = 499
"""Status under which requests are counted whose client has gone."""

LONGEST_MESSAGE = 500
"""Characters of a message: what the client sent may be quoted in it, but not a megabyte of it."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Kind of error by status; `invalid_request_error` for the others."""


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is an error: its status, what was wrong and, where there is one, the field at fault."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return the error as OpenAI's clients read it."""
        text = self.message if len(self.message) <= LONGEST_MESSAGE else self.message[:LONGEST_MESSAGE] + " ..."
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": text, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the error as an HTTP answer."""
        return answer(self.body(), self.status, self.headers)


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON in ASCII, which holds any text, lone surrogates included, and never NaN, which is no JSON."""
    body = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Response(body, status, dict(headers or {}), "application/json")


def of(error: Exception) -> Refusal:
    """Return the refusal that an exception stands for; a defect tells the client nothing but that it is one."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return Refusal(400, str(error))
    if isinstance(error, Left):
        return Refusal(GONE, "the client has gone")
    return Refusal(500, "the service failed to answer; its log says why", code="internal_error")


def busy(seconds: int) -> Refusal:
    """Return the refusal of a request for which there is no place in the queue."""
    message = f"too many requests are waiting; try again in {seconds} s"
    return Refusal(429, message, code="queue_full", headers={"Retry-After": str(seconds)})


def late(seconds: float, begun: bool) -> Refusal:
    """Return the refusal of a request that was not finished in time: 503 while it waited, 504 while it ran."""
    if begun:
        message = f"not finished within {seconds:g} s; ask for fewer steps, fewer samples or a shorter text"
        return Refusal(504, message, code="deadline_exceeded")
    message = f"the service is overloaded: the request waited for {seconds:g} s without being begun; try again later"
    return Refusal(503, message, code="overloaded", headers={"Retry-After": "5"})


def closing() -> Refusal:
    """Return the refusal of a service that is shutting down."""
    return Refusal(503, "the service is shutting down; try again later", code="closing", headers={"Retry-After": "5"})


def crowded() -> Refusal:
    """Return the refusal of a request that comes over one connection too many."""
    headers = {"Retry-After": "5", "Connection": "close"}
    return Refusal(503, "too many connections are open; try again later", code="overloaded", headers=headers)


class Left(Exception):
    """The client has gone: nobody is there to be answered."""

"""Raw bytes on a socket, the responses to them, and the checks that every response must pass."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import h11

PATIENCE = 60.0
"""Seconds in which there must be an answer or an end, on a machine that does other things too."""

LEAK = re.compile(
    rb"Traceback|File \"|site-packages|/src/rdlm|root:x:|python/\d|uvicorn|starlette|fastapi|pydantic|torch\.|h11", re.I
)
"""What tells of the machine behind the service; no attack here writes any of it."""


@dataclass(frozen=True)
class Answer:
    """A raw response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """The error in the body; empty if it does not have OpenAI's format."""
        try:
            found = json.loads(self.body)["error"]
            return found if found.keys() == {"message", "type", "param", "code"} and found["message"] else {}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}


@dataclass
class Tally:
    """Counts of requests, responses and defects."""

    tried: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.tried + other.tried, self.answered + other.answered, self.defects + other.defects)

    def judge(self, label: str, answer: Answer, secrets: Iterable[str] = (), bodiless: bool = False) -> None:
        """Count a response, and record its violations."""
        self.answered[str(answer.status)] += 1
        for fault in faults(answer, secrets, bodiless):
            self.defects.append(f"{label}: {fault}: {answer.status} {answer.headers} {answer.body[:500]!r}")


def faults(answer: Answer, secrets: Iterable[str], bodiless: bool) -> Iterator[str]:
    """Yield the violations of a response: an error without a reason, or a leak of internal information."""
    overload = answer.status in (429, 503) and answer.headers.get("retry-after", "").isdecimal()
    if answer.status == 429 and not overload:
        yield "no Retry-After"
    if answer.status >= 500 and not overload and answer.error.get("code") != "deadline_exceeded":
        yield "a failure that is no stated overload"
    if b"internal_error" in answer.body:
        yield "a defect"
    if answer.status >= 400 and not bodiless and not answer.error:
        yield "an error without its shape"
    text = answer.body + repr(answer.headers).encode()
    if LEAK.search(text) or any(secret.encode() in text for secret in secrets):
        yield "a leak"
    if "server" in answer.headers or "access-control-allow-origin" in answer.headers:
        yield "a header that should not be there"


@dataclass(frozen=True)
class Target:
    """The address of the service and its token."""

    host: str
    port: int
    token: str

    @contextmanager
    def line(self) -> Iterator[socket.socket]:
        """Yield a connection."""
        with socket.create_connection((self.host, self.port), timeout=PATIENCE) as opened:
            yield opened

    def head(self, method: str, path: str, *headers: str, version: str = "HTTP/1.1") -> bytes:
        """Return the header of a request with the token."""
        lines = (f"{method} {path} {version}", f"Host: {self.host}:{self.port}", f"Authorization: Bearer {self.token}")
        return "\r\n".join((*lines, *headers, "", "")).encode("latin-1", "replace")

    def post(self, path: str, body: bytes, *headers: str) -> bytes:
        """Return a whole request."""
        length = f"Content-Length: {len(body)}"
        return self.head("POST", path, "Content-Type: application/json", length, *headers) + body

    def ask(self, raw: bytes, most: int = 1, method: str = "GET") -> list[Answer]:
        """Send bytes and return the responses, up to a number or until the connection is closed."""
        with self.line() as line:
            # What is refused before it is whole cannot be sent; the answer is there all the same.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                line.sendall(raw)
            return list(answers(line, most, method))


def answers(line: socket.socket, most: int, method: str) -> Iterator[Answer]:
    """Yield the responses on a connection; a timeout is an error."""
    rest = b""
    for _ in range(most):
        reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        reader.send(h11.Request(method="HEAD" if method == "HEAD" else "GET", target="/", headers=[("Host", "x")]))
        reader.send(h11.EndOfMessage())
        if rest:
            reader.receive_data(rest)
        answer = _one(line, reader)
        if answer is None:
            return
        yield answer
        rest = reader.trailing_data[0]


def _one(line: socket.socket, reader: h11.Connection) -> Answer | None:
    status, headers, body = 0, dict[str, str](), b""
    try:
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                reader.receive_data(line.recv(1 << 16))
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, {k.decode().lower(): v.decode() for k, v in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, body)
            elif isinstance(event, h11.ConnectionClosed):
                return None
    except (ConnectionResetError, h11.RemoteProtocolError):
        # The line ended: before an answer that is a refusal, too; in the middle of one there is nothing whole to judge.
        return None

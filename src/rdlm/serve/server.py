"""The HTTP server: a listening socket, connections with timeouts, and graceful shutdown on a signal.

uvicorn's connections have no timeout for slow clients: a few hundred silent ones would block all others.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rdlm.errors import InputError
from rdlm.serve.http_errors import HttpError, too_many_connections
from rdlm.serve.middleware import is_loopback

TIMEOUT = 20.0
"""Seconds in which the head of a request must arrive, and in which a client must read what is sent."""
LARGEST_HEAD = 1 << 15
"""Bytes of the largest head of a request."""
MOST_HEADERS = 128
AMBIGUOUS_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends with a line feed alone, or that continues the header before."""
FRAMING = re.compile(rb"(?im)^(content-length|transfer-encoding)[ \t]*:.*?(,|\r)")
MOST_PIECES, SMALLEST_PIECE = 1024, 64
"""Pieces of a body beyond which they must have so many bytes on average."""
MOST_CONNECTIONS = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""At most half of the file descriptors of the process."""
GRACE = 4.0
"""Seconds that requests in progress have after the first signal."""
LONGEST_EXIT = 9.0
"""Seconds after the first signal at which the process ends, even if a thread has not ended."""
SHORTEST_TOKEN = 16
"""Characters of a token on an address that other machines can reach."""


async def reject(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with status 503: an ASGI application for connections above the limit."""
    await too_many_connections().response()(scope, receive, send)


class StrictParser(h11.Connection):
    """h11's parser without its tolerance for heads that other parsers read differently, and for bodies in tiny pieces.

    A proxy in front of the service may see another length of a body, and then takes the end of one request for the
    beginning of another (request smuggling, RFC 9112, sections 2.2, 5.2 and 6.1). Pieces of one byte cost the event
    loop a minute per megabyte.
    """

    _pieces = _bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event of the connection."""
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            _check_head(before[: len(before) - len(self.trailing_data[0])], event)
        if isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > MOST_PIECES and self._bytes < SMALLEST_PIECE * self._pieces:
                raise h11.RemoteProtocolError("a body in tiny pieces")
        return event


def _check_head(head: bytes, request: h11.Request) -> None:
    """Raise an error for a head that is too large or ambiguous."""
    if len(head) > LARGEST_HEAD or len(request.headers) > MOST_HEADERS:
        raise h11.RemoteProtocolError("the head is too large")
    if AMBIGUOUS_LINE.search(head.lstrip(b"\r\n")):
        raise h11.RemoteProtocolError("a line of the head ends without a carriage return, or continues the one before")
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("HTTP has the versions 1.0 and 1.1 here")
    framing = [(name.lower(), end) for name, end in FRAMING.findall(head)]
    if len(framing) > 1 or any(end == b"," for _, end in framing):
        raise h11.RemoteProtocolError("several lengths of one body")
    if request.http_version == b"1.0" and (b"transfer-encoding", b"\r") in framing:
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")


class Connection(H11Protocol):
    """uvicorn's connection with timeouts for requests and responses, and errors in OpenAI's format."""

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictParser(h11.SERVER, self.config.h11_max_incomplete_event_size or LARGEST_HEAD)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request; reject requests if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self.app = reject
        self._head_timer = self.loop.call_later(TIMEOUT, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Receive data; the timeout runs until the head of a request is complete."""
        super().data_received(data)
        received = self.cycle is not None and not self.cycle.response_complete
        if received and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif not received and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(TIMEOUT, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout: the client has read."""
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts."""
        super().connection_lost(exc)
        for timer in (self._head_timer, self._read_timer):
            if timer is not None:
                timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP; if another response has begun, close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        response = HttpError(400, "malformed HTTP request").response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        begin = h11.Response(status_code=response.status_code, headers=headers, reason=b"Bad Request")
        for event in (begin, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def token_for(host: str) -> str | None:
    """Return the access token from RDLM_TOKEN; it is required unless the address is a loopback address."""
    token = os.environ.get("RDLM_TOKEN") or None
    if is_loopback(host):
        return token
    if token is None:
        raise InputError(f"--host {host} can be reached from other machines: set RDLM_TOKEN to a secret first")
    if len(token) < SHORTEST_TOKEN:
        raise InputError(f"RDLM_TOKEN is too short for --host {host}: at least {SHORTEST_TOKEN} characters")
    return token


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port must lie in [0, 65535], got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host} is not an address of this machine") from None
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(1024)  # before models are loaded: a port in use is reported at once, and early clients wait
    except OSError as reason:
        opened.close()
        raise InputError(f"cannot listen on {host} port {port}: {reason.strerror}; choose another --port") from None
    return opened


class Server(uvicorn.Server):
    """uvicorn's server; calls `on_exit(seconds)` when a signal requests shutdown."""

    def __init__(self, app: ASGIApp, on_exit: Callable[[float], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=int(GRACE) + 2,
                timeout_keep_alive=15,
                h11_max_incomplete_event_size=LARGEST_HEAD,
                http=Connection,
            )
        )
        self.on_exit = on_exit
        self.interrupted = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGINT and SIGTERM, and restore the previous handlers at the end."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down: requests in progress have `GRACE` seconds; a second signal ends them at once."""
        if self.should_exit:
            self.force_exit = True
        else:
            # Python waits for all threads at its end, but one may hang in a library.
            signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, LONGEST_EXIT)
        self.should_exit = True
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.on_exit(GRACE)

    def _end(self, sig: int, frame: FrameType | None) -> None:
        os.write(2, f"rdlm: a thread did not end within {LONGEST_EXIT:g} s; ending without it\n".encode())
        os._exit(128 + signal.SIGINT if self.interrupted else 0)

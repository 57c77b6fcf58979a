"""Connections that wait for nobody for ever: not for a request that does not come, nor for a reader who does not read.

uvicorn's own ones wait as long as the client likes, so that a few hundred silent clients would keep all others out.

The server: a socket, signals that end it gracefully, and the service behind it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rdlm.errors import InputError
from rdlm.serve import refusal as error
from rdlm.serve.middleware import is_loopback
from rdlm.serve.refusal import Refusal

PATIENCE = 20.0
"""Seconds in which the head of a request must have arrived, and in which a reader must have taken what is sent."""
MOST = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""Connections that are served; half of the files that this process may open stay free."""


async def crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for which there is no connection left."""
    await error.crowded().response()(scope, receive, send)


class Connection(H11Protocol):
    """uvicorn's connection, with a clock and with this service's words."""

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; one connection too many is told so when it asks."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            self.app = crowded
        self._head = self.loop.call_later(PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read on; the clock runs from the first byte of a head to its last."""
        super().data_received(data)
        asked = self.cycle is not None and not self.cycle.response_complete
        if asked and self._head is not None:
            self._head.cancel()
            self._head = None
        elif not asked and self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(PATIENCE, self.transport.abort)

    def pause_writing(self) -> None:
        """Wait for a reader, but not for long."""
        super().pause_writing()
        self._reader = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the reader has read."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        super().connection_lost(exc)
        for clock in (self._head, self._reader):
            if clock is not None:
                clock.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; in the middle of another answer, end the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        response = Refusal(400, "this is no HTTP request that can be read").response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        begin = h11.Response(status_code=response.status_code, headers=headers, reason=b"Bad Request")
        for event in (begin, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


GRACE = 4.0
"""Seconds that requests under way have after the first signal."""
SHORTEST_TOKEN = 16
"""Characters of a token on an address that others can reach."""


def token_for(host: str) -> str | None:
    """Return the token that requests must bring, from RDLM_TOKEN; an address that others can reach needs one."""
    token = os.environ.get("RDLM_TOKEN") or None
    if is_loopback(host):
        return token
    if token is None:
        raise InputError(f"--host {host} can be reached from other machines: set RDLM_TOKEN to a secret first")
    if len(token) < SHORTEST_TOKEN:
        raise InputError(f"RDLM_TOKEN is too short for --host {host}: at least {SHORTEST_TOKEN} characters")
    return token


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes any free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port must lie in [0, 65535], got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host} is no address of this machine") from None
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(1024)  # who comes while the models are loaded waits; and only now is a port known to be free
    except OSError as reason:
        opened.close()
        raise InputError(f"cannot listen on {host} port {port}: {reason.strerror}; choose another --port") from None
    return opened


class Server(uvicorn.Server):
    """uvicorn's server, which tells the service when it is asked to end."""

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
                h11_max_incomplete_event_size=1 << 15,
                http=Connection,
            )
        )
        self.on_exit = on_exit
        self.interrupted = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals that end a service, and put back who handled them before."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End: requests under way have some seconds; a second signal ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.on_exit(GRACE)

"""Connections that wait for nobody for ever: not for a request that does not come, nor for a reader who does not read.

uvicorn's own ones wait as long as the client likes, so that a few hundred silent clients would keep all others out.
"""

from __future__ import annotations

import asyncio
import resource

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rdlm.serve import error
from rdlm.serve.error import Refusal

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

"""Jobs: what a request and the threads that work for it share: deadline, cancellation and events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request

from rdlm.serve.http_errors import Disconnected, HttpError, late


@dataclass(frozen=True)
class Progress:
    """A sample has taken a step; `final` are the tokens that became final with it and have only final ones before."""

    index: int
    step: int
    final: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A sample is finished."""

    index: int
    tokens: tuple[int, ...]
    nfe: int
    """Its network evaluations."""


@dataclass(frozen=True)
class Failed:
    """The request has failed."""

    reason: Exception


class Job:
    """A running request: its deadline, whether it is over, and the events for its client."""

    def __init__(self, seconds: float, wants_progress: bool = False) -> None:
        self.seconds, self.wants_progress = seconds, wants_progress
        self.deadline = time.monotonic() + seconds
        self.begun = False
        self.over = False
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[object] = asyncio.Queue()

    def post(self, event: object) -> None:
        """Send an event to the request, from any thread; after the end of the service nobody hears it."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def fail(self, reason: Exception) -> None:
        """End the request with an error, from any thread; only the first one counts."""
        if not self.over:
            self.over = True
            self.post(Failed(reason))

    def late(self) -> HttpError | None:
        """Return the error of a request past its deadline."""
        return late(self.seconds, self.begun) if time.monotonic() > self.deadline else None

    def check(self) -> None:
        """Raise an error where the work is no longer wanted; called between steps by those who do it."""
        if self.over:
            raise Disconnected
        if (error := self.late()) is not None:
            raise error

    async def events(self) -> AsyncIterator[object]:
        """Yield what is posted, until the request has failed: that is raised."""
        while True:
            event = await self._events.get()
            if isinstance(event, Failed):
                raise event.reason
            yield event


async def until_left(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

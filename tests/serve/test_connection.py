"""Connections with a clock: who does not ask, and who does not read, is not waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from rdlm.serve import server as connection
from rdlm.serve.server import Connection

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer late, at once, or with more than any buffer holds."""
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(800 if scope["path"] == "/large" else 0):
        await send({"type": "http.response.body", "body": b"a" * (1 << 16), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def run(scene: Callable[[Callable[[], Awaitable[Line]], ServerState], Awaitable[None]]) -> None:
    """Play a scene with clients of a server on loopback; nothing may be left to the event loop to complain about."""

    async def play() -> None:
        complaints: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        config, state = uvicorn.Config(app, http=Connection, ws="none", log_config=None, lifespan="off"), ServerState()
        server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
        lines: list[Line] = []

        async def connect() -> Line:
            lines.append(await asyncio.open_connection(*server.sockets[0].getsockname()))
            return lines[-1]

        async with server:
            await scene(connect, state)
            for _, writer in lines:
                writer.close()
            await asyncio.sleep(0.05)
        assert complaints == []

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.3)


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_come_is_not_waited_for(begin: bytes) -> None:
    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(begin)
        with pytest.raises((ConnectionResetError, EOFError)):
            await reader.readexactly(1)
        assert not state.connections

    run(scene)


def test_a_head_that_drips_is_not_waited_for() -> None:
    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\n")
        for _ in range(20):
            await asyncio.sleep(0.05)
            writer.write(b"X: 1\r\n")
        assert not state.connections

    run(scene)


def test_who_asks_in_time_is_answered_late_and_again() -> None:
    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(GET)  # its answer takes longer than the patience with a head
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert len(state.connections) == 1

    run(scene)


def test_a_reader_who_does_not_read_is_not_waited_for() -> None:
    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        _, writer = await connect()
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(200):
            await asyncio.sleep(0.05)
            if not state.connections and not state.tasks:
                return
        raise AssertionError("the answer still waits")

    run(scene)


def test_one_connection_too_many_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST", 1)

    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        first, second = await connect(), await connect()
        second[1].write(GET)
        head, _, body = (await second[0].read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 5" in head.lower()
        assert json.loads(body)["error"]["code"] == "overloaded"
        first[1].write(GET)
        assert (await first[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")

    run(scene)


@pytest.mark.parametrize(
    ("raw", "answered"),
    [
        (b"nonsense\r\n\r\n", True),
        (b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", True),
        (b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    ],
)
def test_what_is_no_http_is_refused_once(raw: bytes, answered: bool) -> None:
    """Where an answer is already on the line there is no second one."""

    async def scene(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(raw)
        if not answered:
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"ZZ\r\n")
        said = await _rest(reader)
        assert said.count(b"HTTP/1.1") == answered
        if answered:
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        await asyncio.sleep(0.7)  # the slow application has ended, too
        assert not state.connections and not state.tasks

    run(scene)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while part := await reader.read(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found

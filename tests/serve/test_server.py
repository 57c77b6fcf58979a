"""Connections with timeouts: clients that do not send, or do not read, are disconnected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import h11
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from rdlm.serve import server
from rdlm.serve.server import Connection

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond late, at once, or with more than any buffer holds."""
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(800 if scope["path"] == "/large" else 0):
        await send({"type": "http.response.body", "body": b"a" * (1 << 16), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def run(scenario: Callable[[Callable[[], Awaitable[Line]], ServerState], Awaitable[None]]) -> None:
    """Run a scenario with clients of a server on loopback; the event loop must report no error."""

    async def run_scenario() -> None:
        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        config, state = uvicorn.Config(app, http=Connection, ws="none", log_config=None, lifespan="off"), ServerState()
        listening = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
        lines: list[Line] = []

        async def connect() -> Line:
            lines.append(await asyncio.open_connection(*listening.sockets[0].getsockname()))
            return lines[-1]

        async with listening:
            await scenario(connect, state)
            for _, writer in lines:
                writer.close()
            await asyncio.sleep(0.05)
        assert errors == []

    asyncio.run(asyncio.wait_for(run_scenario(), 60))


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TIMEOUT", 0.3)


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_client_that_sends_no_request_is_disconnected(begin: bytes) -> None:
    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(begin)
        with pytest.raises((ConnectionResetError, EOFError)):
            await reader.readexactly(1)
        assert not state.connections

    run(scenario)


def test_a_client_that_sends_its_head_too_slowly_is_disconnected() -> None:
    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\n")
        for _ in range(20):
            await asyncio.sleep(0.05)
            writer.write(b"X: 1\r\n")
        assert not state.connections

    run(scenario)


def test_slow_responses_have_no_timeout_and_connections_are_reused() -> None:
    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(GET)  # the response takes longer than the timeout of a head
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert len(state.connections) == 1

    run(scenario)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        _, writer = await connect()
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(200):
            await asyncio.sleep(0.05)
            if not state.connections and not state.tasks:
                return
        raise AssertionError("the response is still pending")

    run(scenario)


def test_connections_above_the_limit_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)

    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        first, second = await connect(), await connect()
        second[1].write(GET)
        head, _, body = (await second[0].read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 5" in head.lower()
        assert json.loads(body)["error"]["code"] == "overloaded"
        first[1].write(GET)
        assert (await first[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")

    run(scenario)


@pytest.mark.parametrize(
    ("raw", "answered"),
    [
        (b"nonsense\r\n\r\n", True),
        (b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", True),
        (b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (
            b"POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET,
            True,
        ),
        (
            b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n" + GET,
            True,
        ),
    ],
)
def test_malformed_http_gets_one_response(raw: bytes, answered: bool) -> None:
    """If a response has already begun, there is no second one."""

    async def scenario(connect: Callable[[], Awaitable[Line]], state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(raw)
        if not answered:
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"ZZ\r\n")
        received = await _rest(reader)
        assert received.count(b"HTTP/1.1") == answered
        if answered:
            assert received.startswith(b"HTTP/1.1 400")
            assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        await asyncio.sleep(0.7)  # the slow application has ended, too
        assert not state.connections and not state.tasks

    run(scenario)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while part := await reader.read(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def feed(parser: h11.Connection, pieces: list[bytes]) -> None:
    for piece in pieces:
        parser.receive_data(piece)
        parser.next_event()


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET / HTTP/1.1\nHost: x\n\n", "carriage return"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\n", "carriage return"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n Content-Length: 5\r\n\r\n", "continues"),
        (b"PRI * HTTP/2.0\r\n\r\n", "versions"),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", "versions"),
        (POST + b"Content-Length: 1\r\ncontent-length: 1\r\n\r\na", "several lengths"),
        (POST + b"Content-Length: 1, 1\r\n\r\na", "several lengths"),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "several lengths"),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n", "HTTP/1.0 has no"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", "too large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n", "too large"),
    ],
)
def test_heads_that_other_parsers_read_differently_are_refused(head: bytes, reason: str) -> None:
    """In one piece and in single bytes: the limit of a head did not hold for one that arrived at once."""
    for step in (len(head), 1):
        parser = server.StrictParser(h11.SERVER, 1 << 15)
        with pytest.raises(h11.RemoteProtocolError, match=f"{reason}|too long"):
            feed(parser, [head[at : at + step] for at in range(0, len(head), step)])


def test_pipelined_heads_are_checked_alone() -> None:
    """The body of a request may have line feeds, and the head behind it is checked."""
    parser = server.StrictParser(h11.SERVER, 1 << 15)
    parser.receive_data(POST + b"Content-Length: 3\r\n\r\n\n a" + b"GET / HTTP/1.1\r\nHost: x\n\n")
    assert [type(parser.next_event()) for _ in range(3)] == [h11.Request, h11.Data, h11.EndOfMessage]
    parser.send(h11.Response(status_code=200, headers=[(b"Content-Length", b"0")]))
    parser.send(h11.EndOfMessage())
    parser.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError, match="carriage return"):
        parser.next_event()


def body(pieces: int, size: int) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (size, b"a" * size) * pieces + b"0\r\n\r\n"


@pytest.mark.parametrize(("pieces", "size"), [(1000, 1), (5000, 64), (1024, 1)])
def test_a_body_in_pieces_is_read(pieces: int, size: int) -> None:
    parser = server.StrictParser(h11.SERVER, 1 << 15)
    parser.receive_data(body(pieces, size))
    events = [parser.next_event() for _ in range(pieces + 2)]
    assert sum(len(one.data) for one in events if isinstance(one, h11.Data)) == pieces * size
    assert isinstance(events[-1], h11.EndOfMessage)


@pytest.mark.parametrize(("pieces", "size"), [(1025, 1), (5000, 63)])
def test_a_body_in_thousands_of_tiny_pieces_is_refused(pieces: int, size: int) -> None:
    """A megabyte of single bytes kept all other clients waiting for half a minute."""
    parser = server.StrictParser(h11.SERVER, 1 << 15)
    parser.receive_data(body(pieces, size))
    with pytest.raises(h11.RemoteProtocolError, match="tiny pieces"):
        [parser.next_event() for _ in range(pieces + 2)]

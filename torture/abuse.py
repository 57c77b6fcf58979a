"""Malformed and abusive requests by kind: bodies, addresses, headers, framing, and connections that are cut off."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from odd import ODD, RAW, fields, valid
from wire import PATIENCE, Answer, Tally, Target, answers

Abuse = Callable[[random.Random, Target], list[Answer]]

POSTS = ("/v1/completions", "/v1/score", "/v1/restore", "/v1/trajectory")
ANSWERED = {200, 429, 503}
"""What a request that is right may be told, where others ask at the same time."""
GETS = ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/process", "/static/app.js")


def odd_field(rng: random.Random, target: Target) -> list[Answer]:
    """A body with one or two fields of a wrong type or size."""
    path = rng.choice(POSTS)
    odd = {rng.choice(fields(target, path)): rng.choice(ODD) for _ in range(rng.randrange(1, 3))}
    body = valid(rng, path) | odd
    return target.ask(target.post(path, json.dumps(body).encode()))


def odd_json(rng: random.Random, target: Target) -> list[Answer]:
    """A body with a field that is invalid or extreme JSON, or with a duplicated field."""
    path = rng.choice(POSTS)
    field, value = rng.choice(fields(target, path)), rng.choice(RAW)
    form = rng.choice(('{"%s": %s}', '{"model": null, "%s": %s, "steps": 1}', '{"%s": 1, "prompt": %s}'))
    return refused_if_broken(target, path, (form % (field, value)).encode())


def odd_bytes(rng: random.Random, target: Target) -> list[Answer]:
    """A body that is not UTF-8, not an object, too large, truncated, corrupted, or random."""
    path = rng.choice(POSTS)
    body = json.dumps(valid(rng, path))
    flipped = bytearray(body.encode())
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    raw = rng.choice(
        (
            b"",
            b" ",
            b"null",
            b"[]",
            b'"a"',
            b"1",
            b"\xff\xfe",
            b"\xef\xbb\xbf" + body.encode(),
            body.encode("utf-16"),
            body.encode() + b"x",
            body.encode() * 2,
            body.encode()[: rng.randrange(len(body))],
            bytes(flipped),
            rng.randbytes(rng.randrange(1, 2000)),
            b" " * 1_000_000 + body.encode(),
            b'{"user":"' + b"a" * (1 << 20) + b'"}',
            b"{" + b",".join(b'"%d":0' % i for i in range(50_000)) + b"}",
            b'{"prompt": "\xff"}',
            b'{"\\ud800": 1}',
        )
    )
    return target.ask(target.post(path, raw))


def evidence_bomb(rng: random.Random, target: Target) -> list[Answer]:
    """Evidence of huge, deep, contradictory or impossible alternatives: it is rejected, or restored."""
    many = json.dumps([{"a": 1.0}] * rng.randrange(2_000, 50_000))
    symbols = json.dumps({f"{number}": 0.0 for number in range(20_000)})
    letters = json.dumps("[" + "ab" * 15_000 + "]")
    raw = rng.choice(
        (
            f'{{"evidence": {many}}}',
            f'{{"evidence": [{symbols}]}}',
            '{"evidence": [%s{}]}' % ("{}," * 1_000_000),
            '{"evidence": [%s{}]}' % ("{}," * rng.randrange(4_000, 200_000)),
            '{"evidence": [{"%s": 1}]}' % ("a" * 900_000),
            '{"model": "dna", "text": "%s", "channel": "keyboard"}' % ("ACGT" * 4_000),
            '{"model": "image", "text": "a?"}',
            f'{{"text": "a", "channel": {{"a": {symbols}}}}}',
            f'{{"text": {letters}, "steps": 1}}',
            '{"text": "%s", "steps": 1}' % ("[" * 30_000),
            '{"text": "%s", "steps": 1}' % ("\\\\" * 15_000),
            '{"evidence": [{"a": NaN}]}',
            '{"evidence": [{"a": 1e999}]}',
            '{"evidence": [{"a": %s}]}' % ("9" * 400),
            '{"evidence": [{"a": 0.5, "a": 0.5}]}',
            '{"evidence": [{"a": -0.0}]}',
            '{"evidence": [{"a": 1, "b": 1}]}',
            '{"evidence": [{"a": %s}]}' % ("[" * 500 + "]" * 500),
            '{"evidence": [{"a": "0.5", "b": true}, {}]}',
            '{"text": "ab", "channel": {"a": {"a": 1e-320, "b": 1}}, "error": 1e-320}',
        )
    )
    found = refused_if_broken(target, "/v1/restore", raw.encode())
    if len(found) != 1 or found[0].status not in {400, 413, *ANSWERED}:
        raise AssertionError(f"{raw[:100]!r} was answered {found}")
    return found


def refused_if_broken(target: Target, path: str, raw: bytes) -> list[Answer]:
    """Send a body, and check that invalid JSON is rejected."""
    found = target.ask(target.post(path, raw))
    try:
        json.loads(raw, parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        if not found or found[0].status != 400:
            raise AssertionError(f"{raw[:100]!r} is no JSON, and was answered {found}") from None
    return found


def address(rng: random.Random, target: Target) -> list[Answer]:
    """Addresses outside of the page's files, unknown addresses, and invalid ones."""
    up = rng.choice(("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "....//", "%252e%252e%252f", ".%00./"))
    inside = rng.choice(("etc/passwd", "app.py", "pyproject.toml", "proc/self/environ", "serve/app.py"))
    path = rng.choice(
        (
            f"/static/{up * rng.randrange(1, 9)}{inside}",
            f"/{up * rng.randrange(1, 9)}{inside}",
            f"/static//{inside}",
            f"/v1/models/{up}{inside}",
            "/static/%00",
            "/static/index.html%00.js",
            "/v1/models/" + "a" * 5000,
            "//",
            "/v1/models/%ff%fe",
            "/v1/models/%ed%a0%80",
            "/v1//models",
            "/V1/models",
            "/v1/models;a=b",
            "/v1/models/?%s%n",
            "http://evil.example/v1/models",
            "evil.example:80",
            "*",
            "/%",
            "/?" + "a=b&" * 2000,
            "/v1/models#x",
            "/" * 999,
            f"/v1/process?noise={rng.choice(('0', 'nan', '-1', '1e999', '1e-300', '9', '', 'x', '1;2', '%00'))}",
            f"/v1/process?start=uniform&dimension="
            f"{rng.choice((3, 28, 513, 9999, 2**63, -1, '', '3.5', '%D9%A3', '1e3'))}",
            f"/v1/process?start={rng.choice(('masked', 'uniform', '', 'x' * 40, '%00', '%ff'))}&schedule=linear",
            f"/v1/process?schedule={rng.choice(('geometric', 'cosine', '../x', '__init__', ''))}&schedule=linear",
        )
    )
    verb = rng.choice(("GET", "GET", "HEAD", "POST"))
    found = target.ask(target.head(verb, path), method=verb)
    if any(b"[project]" in one.body or b"import annotations" in one.body for one in found):
        raise AssertionError(f"{path} gave a file away")
    return found


def method(rng: random.Random, target: Target) -> list[Answer]:
    """Methods that an address does not support, and unknown methods."""
    names = (
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "HEAD",
        "get",
        "POST",
        "GET",
        "BREW",
        "M" * 300,
        "G\x00T",
        "",
        "GET/",
        "PRI",
        "-",
    )
    name, more = rng.choice(names), rng.choice(((), ("X-HTTP-Method-Override: DELETE",), ("X-Method: POST",)))
    found = target.ask(target.head(name, rng.choice((*GETS, *POSTS)), *more), method=name)
    if name in ("TRACE", "CONNECT", "DELETE", "PUT", "PATCH", "OPTIONS") and any(a.status < 400 for a in found):
        raise AssertionError(f"{name} was answered {found}")
    return found


def header(rng: random.Random, target: Target) -> list[Answer]:
    """Headers that are malformed, duplicated, very long or in conflict."""
    line = rng.choice(
        (
            "Host: evil.example",
            "Host: [",
            "Host: a b",
            "Host:",
            "Origin: http://[",
            "Origin: null",
            "Origin: \xff",
            "Origin: http://evil.example",
            "X: " + "a" * 40_000,
            "X\x00Y: 1",
            "X Y: 1",
            ": 1",
            "NoColon",
            " folded: 1",
            "X: a\r\n b",
            "Cookie: " + "a=b; " * 500,
            "Accept: " + "*/*," * 500,
            "Range: bytes=0-0",
            "X: \x00",
            "Range: bytes=-1,9-8,x",
            "If-None-Match: *",
            "Expect: 100-continue",
            "Expect: the impossible",
            "TE: trailers",
            "Forwarded: for=evil",
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Host: evil",
            "X-Original-URL: /v1/models",
            "Content-Type: application/json",
            "Connection: close, x",
            "Connection: upgrade\r\nUpgrade: h2c",
            "\xff\xfe: 1",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHh4eHh4eA==",
        )
    )
    more = [f"X-{i}: {i}" for i in range(rng.choice((0, 0, 0, 200, 2000)))]
    found = target.ask(target.head("GET", rng.choice(GETS), line, *more))
    if any(one.status == 101 for one in found):
        raise AssertionError("the line was turned over to another protocol")
    return found


def framing(rng: random.Random, target: Target) -> list[Answer]:
    """Wrong, conflicting or invalid content lengths and chunk sizes; an unsupported encoding."""
    path = rng.choice(POSTS)
    body = json.dumps(valid(rng, path)).encode()
    lengths = ("+5", "-1", "0x10", "1e3", "5, 5", "5, 6", "9" * 25, "9" * 5000, "", " ", "abc", "1048577", "\xb2", "0")
    length = f"Content-Length: {rng.choice(lengths)}"
    codings = ("chunked", "xchunked", "chunked, gzip", "gzip, chunked", "identity", "chunked\r\nX: y", "CHUNKED")
    coding = rng.choice(codings)
    chunk = rng.choice(
        (
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            b"ZZ\r\n",
            b"-1\r\n",
            b"F" * 30 + b"\r\n",
            b"5\r\nab",
            b"\r\n",
            b"1\r\na" * 50,
            b"%x;%b\r\n" % (len(body), b"x" * 9000),
            b"0\r\nTrailer: x\r\n\r\n",
            b"0\r\n\r\n",
        )
    )
    kind = "Content-Type: application/json"
    raw = rng.choice(
        (
            target.head("POST", path, kind, length) + body,
            target.head("POST", path, kind, f"Content-Length: {len(body)}", length) + body,
            target.head("POST", path, kind, f"Transfer-Encoding: {coding}") + chunk,
            target.head("POST", path, kind, "Transfer-Encoding: chunked", f"Content-Length: {len(body)}") + chunk,
            target.head("POST", path, kind, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + chunk,
            target.post(path, gzip.compress(bytes(1 << 20)), "Content-Encoding: gzip"),
            target.post(path, body, "Content-Type: multipart/form-data; boundary=x"),
            target.head("POST", path, "Content-Type: application/x-www-form-urlencoded", "Content-Length: 3") + b"a=b",
            target.post(path, body + b"GET /smuggled HTTP/1.1\r\n\r\n"),
            target.head("POST", path, kind) + body,
        )
    )
    with target.line() as line:
        line.sendall(raw)
        line.settimeout(1.0)  # what promised more than it sent is waited for; the promise is broken here
        try:
            return list(answers(line, 1, "POST"))
        except TimeoutError:
            return []


def ambiguous(rng: random.Random, target: Target) -> list[Answer]:
    """A head that a proxy may read differently, by which a request can be smuggled: it is rejected."""
    body = json.dumps(valid(rng, "/v1/score")).encode()
    coding, length = "Transfer-Encoding: chunked", f"Content-Length: {len(body)}"
    head, kind = partial(target.head, "POST", "/v1/score"), "Content-Type: application/json"
    plain = head(kind, length)
    raw = rng.choice(
        (
            head(kind, *rng.sample([coding, length], 2)),
            head(kind, length, length.lower()),
            head(kind, f"{length}, {len(body)}"),
            head(kind, "X: a\r\n b", length),
            plain.replace(b"\r\n", b"\n"),
            plain[:-2] + b"\n",
            head(kind, coding).replace(b"HTTP/1.1", b"HTTP/1.0"),
            plain.replace(b"HTTP/1.1", rng.choice((b"HTTP/2.0", b"HTTP/1.2", b"HTTP/3.1", b"HTTP/0.9"))),
        )
    )
    found = target.ask(raw + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", most=2)
    if [one.status for one in found] != [400]:
        raise AssertionError(f"an ambiguous head was answered {found}")
    return found


def pieces(rng: random.Random, target: Target) -> list[Answer]:
    """A body in thousands of tiny pieces, a chunk's extension or a trailer of megabytes: the line is closed."""
    body = b'{"text": "a?"' + b" " * 20_000 + b"}"
    singles = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    rest = rng.choice((singles, b"1;" + b"x" * 2_000_000 + b"\r\na\r\n", b"0\r\n" + b"X: y\r\n" * 300_000 + b"\r\n"))
    begin = time.monotonic()
    raw = target.head("POST", rng.choice(POSTS), "Content-Type: application/json", "Transfer-Encoding: chunked")
    found = target.ask(raw + rest)
    if any(one.status != 400 for one in found) or time.monotonic() - begin > PATIENCE / 2:
        raise AssertionError(f"a body in pieces was answered {found} after {time.monotonic() - begin:.1f} s")
    return found


def curves(rng: random.Random, target: Target) -> list[Answer]:
    """Many curves at once, all of them new: some are computed, the others are told to come back later."""
    found: list[Answer] = []
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(target.line()) for _ in range(24)]
        for line in lines:
            query = f"start=uniform&dimension={rng.randrange(3, 1 << 17)}&noise={rng.uniform(0.001, 0.1):.9f}"
            line.sendall(target.head("GET", f"/v1/process?{query}"))
        for line in lines:
            found += answers(line, 1, "GET")
    statuses = {one.status for one in found}
    if len(found) != len(lines) or not statuses <= ANSWERED:
        raise AssertionError(f"many curves were answered {statuses}, {len(found)} of them")
    return found


def protocol(rng: random.Random, target: Target) -> list[Answer]:
    """Other versions and protocols, and pipelined requests."""
    good = target.post("/v1/completions", json.dumps(valid(rng, "/v1/completions")).encode())
    way = rng.randrange(6)
    if way == 0:
        return target.ask(target.head("GET", rng.choice(GETS), version=rng.choice(("HTTP/1.0", "HTTP/1.1"))))
    if way == 1:
        versions = ("HTTP/0.9", "HTTP/2.0", "HTTP/9", "", "XTTP/1.1")
        return target.ask(target.head("GET", "/", version=rng.choice(versions)))
    if way == 2:
        return target.ask(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 3, most=3)
    if way == 3:
        found = target.ask(good * 5, most=5)
        if len(found) != 5 or not {one.status for one in found} <= ANSWERED:
            raise AssertionError(f"five requests on one line were answered {found}")
        return found
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(90)  # of TLS
    return left_open(
        target,
        rng.choice(
            (
                hello,
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\r\n" * 40 + b"x\r\n\r\n",
                rng.randbytes(300) + b"\r\n\r\n",
                b"SSH-2.0-x\r\n\r\n",
                b"A" * 70_000,
            )
        ),
    )


def left_open(target: Target, raw: bytes) -> list[Answer]:
    """Send bytes that may not be a request, close the sending side, and read the response."""
    with target.line() as line:
        line.sendall(raw)
        line.shutdown(socket.SHUT_WR)
        return list(answers(line, 1, "GET"))


def cut(rng: random.Random, target: Target) -> list[Answer]:
    """A truncated request, closed normally or by a reset; or a client that does not read the response."""
    path, body = rng.choice(
        (
            ("/v1/completions", valid(rng, "/v1/completions") | {"steps": 64, "stream": rng.random() < 0.5}),
            ("/v1/restore", {"text": "a?" * 200, "samples": 4, "passes": 2, "steps": 256, "likelihood": None}),
            ("/v1/restore", {"text": "a?b" * 4, "steps": 256, "likelihood": "bound"}),
            ("/v1/completions", {"model": "image", "n": 4, "steps": 64}),
        )
    )
    raw = target.post(path, json.dumps(body).encode())
    with target.line() as line:
        line.sendall(raw if rng.random() < 0.5 else raw[: rng.randrange(len(raw))])
        time.sleep(rng.choice((0, 0, 0.02)))
        if rng.random() < 0.5:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return []


def dear(rng: random.Random, target: Target) -> list[Answer]:
    """The most expensive request, from a client that disconnects soon."""
    most = {"prompt": ["a"] * rng.randrange(1, 3), "n": 16, "steps": 1024, "max_tokens": 4096}
    path, body = rng.choice(
        (
            ("/v1/completions", most),
            ("/v1/completions", most | {"stream": True, "model": "baseline"}),
            ("/v1/score", {"input": ["ab" * 16_000] * 16, "steps": 1024}),
            ("/v1/trajectory", {"steps": 1024}),
            ("/v1/restore", {"text": "a?" * 400, "samples": 4, "steps": 1024}),
        )
    )
    with target.line() as line:
        line.sendall(target.post(path, json.dumps(body).encode()))
        time.sleep(rng.uniform(0, 0.5))
    return []


def dripped(rng: random.Random, target: Target) -> list[Answer]:
    """A valid request that is sent slowly in small pieces."""
    path = rng.choice(POSTS)
    raw = target.post(path, json.dumps(valid(rng, path)).encode())
    with target.line() as line:
        for begin in range(0, len(raw), size := rng.randrange(20, 80)):
            line.sendall(raw[begin : begin + size])
            time.sleep(0.005)
        found = list(answers(line, 1, "POST"))
    if len(found) != 1 or found[0].status not in ANSWERED:
        raise AssertionError(f"a slow client was answered {found}")
    return found


def stranger(rng: random.Random, target: Target) -> list[Answer]:
    """A request without the token, with a wrong one, or from another origin: it is rejected."""
    path, token = rng.choice(("/v1/models", "/v1/process", "/%761/models", "/metrics", *POSTS)), target.token
    wrong = rng.choice(
        (
            None,
            "",
            "Bearer",
            "Bearer ",
            f"Bearer {token[:-1]}",
            f"Bearer {token}x",
            f"Basic {token}",
            token,
            f"Bearer {token.upper()}",
            f"Bearer {token} ,",
            "Bearer \xff",
            "Bearer " + "a" * 9000,
            f"Token {token}",
            "Bearer null",
            f"Bearer\x01{token}",
        )
    )
    lines = [f"Host: {target.host}:{target.port}", *([] if wrong is None else [f"Authorization: {wrong}"])]
    foreign = rng.random() < 0.3
    if foreign:  # a preflight, or a request that a foreign page sends with somebody's token
        own = f"http://{target.host}:{target.port}"
        page = rng.choice(
            (
                "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST",
                f"Origin: {own}\r\nOrigin: https://evil.example",
                f"Origin: evil{own.removeprefix('http')}",
                f"Origin: {own}.evil.example",
                "Sec-Fetch-Site: cross-site",
                "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors",
            )
        )
        lines = [lines[0], f"Authorization: Bearer {token}", *page.split("\r\n")]
    verb = rng.choice(("GET", "POST", "OPTIONS"))
    query = f"?token={quote(token)}&api_key={quote(token)}" if rng.random() < 0.2 else ""
    raw = "\r\n".join((f"{verb} {path}{query} HTTP/1.1", *lines, "", "")).encode("latin-1")
    found = target.ask(raw)
    if any(one.status not in ((403,) if foreign else (400, 401)) for one in found) or not found:
        raise AssertionError(f"{verb} {path} by a stranger was answered {found}")
    return found


def fine(rng: random.Random, target: Target) -> list[Answer]:
    """A valid request, which must succeed."""
    path = rng.choice(POSTS)
    found = target.ask(target.post(path, json.dumps(valid(rng, path)).encode()))
    if len(found) != 1 or found[0].status not in ANSWERED:
        raise AssertionError(f"a good request was answered {found}")
    return found


ABUSES: dict[str, tuple[int, Abuse]] = {
    "odd field": (8, odd_field),
    "odd JSON": (6, odd_json),
    "odd bytes": (4, odd_bytes),
    "evidence bomb": (3, evidence_bomb),
    "address": (6, address),
    "method": (4, method),
    "header": (6, header),
    "framing": (4, framing),
    "ambiguous": (2, ambiguous),
    "pieces": (1, pieces),
    "curves": (1, curves),
    "protocol": (4, protocol),
    "cut off": (4, cut),
    "dear": (1, dear),
    "dripped": (1, dripped),
    "stranger": (5, stranger),
    "fine": (4, fine),
}
"""Name -> weight, and what it does."""


def abuse(target: Target, count: int, seed: int, secrets: tuple[str, ...]) -> Tally:
    """Send `count` requests, every kind once and then at random by weight, and return the results."""
    tally, names = Tally(), list(ABUSES)
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        weights = [weight for weight, _ in ABUSES.values()]
        name = names[number] if number < len(names) else rng.choices(names, weights)[0]
        tally.tried[name] += 1
        try:
            for answer in ABUSES[name][1](rng, target):
                tally.judge(f"{name} (seed {seed}, number {number})", answer, secrets, answer.body == b"")
        except (AssertionError, OSError) as failure:
            tally.defects.append(f"{name} (seed {seed}, number {number}): {type(failure).__name__} {failure}"[:1500])
    return tally

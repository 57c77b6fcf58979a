"""Access control and invalid requests: every mistake gets an error in OpenAI's format, never status 500."""

from __future__ import annotations

import hmac
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from running import Served

from rdlm.errors import InputError
from rdlm.serve import app
from rdlm.serve.http_errors import HttpError
from rdlm.serve.middleware import AccessMiddleware, Metrics
from rdlm.serve.server import token_for

JSON = {"Content-Type": "application/json"}


def checked(answer: Any, status: int) -> str:
    """Return the message of an error, after checking its format and that it reveals no internals."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["type"], str)
    assert not re.search(r"Traceback|/src/|\.py\b|site-packages|/tmp/|torch|pydantic", answer.text)
    assert "server" not in answer.headers
    return str(error["message"])


DEEP = '{"prompt":' + "[" * 100_000 + "]" * 100_000 + "}"
BODIES = {
    "empty": "",
    "no JSON": "{",
    "an array": "[]",
    "a number": "1",
    "null": "null",
    "deep": DEEP,
    "NaN": '{"temperature": NaN}',
    "infinite": '{"temperature": 1e999}',
    "minus infinity": '{"top_p": -Infinity}',
    "huge number": '{"seed": ' + "9" * 5000 + "}",
    "seed too large": '{"seed": 9223372036854775808}',
    "seed no integer": '{"seed": 1.5}',
    "seed text": '{"seed": "1"}',
    "prompt number": '{"prompt": 5}',
    "prompt ids": '{"prompt": [3, -1]}',
    "ids and texts": '{"prompt": [3, "a"]}',
    "prompt nested": '{"prompt": [["a"]]}',
    "prompt null": '{"prompt": null}',
    "no prompts": '{"prompt": []}',
    "too many prompts": json.dumps({"prompt": ["a"] * 17}),
    "surrogate": '{"prompt": "\\ud800"}',
    "surrogate key": '{"\\ud800": 1}',
    "zero byte": '{"prompt": "\\u0000"}',
    "emoji": '{"prompt": "\\ud83d\\ude00"}',
    "long prompt": json.dumps({"prompt": "a" * 100_000}),
    "long suffix": json.dumps({"suffix": "a" * 100_000}),
    "long infill": json.dumps({"infill": "a_" * 50_000}),
    "long model": json.dumps({"model": "m" * 1000}),
    "model number": '{"model": 3}',
    "temperature below 0": '{"temperature": -1}',
    "temperature above 2": '{"temperature": 3}',
    "temperature text": '{"temperature": "hot"}',
    "top_p above 1": '{"top_p": 1.1}',
    "n 0": '{"n": 0}',
    "n 17": '{"n": 17}',
    "n true": '{"n": true}',
    "no tokens": '{"max_tokens": 0}',
    "many tokens": '{"max_tokens": 1000000}',
    "steps 0": '{"steps": 0}',
    "steps 1025": '{"steps": 1025}',
    "unknown solver": '{"solver": "rk4"}',
    "unknown grid": '{"grid": "../etc"}',
    "grid without a curve": '{"grid": "information"}',
    "stop empty": '{"stop": ""}',
    "five stops": '{"stop": ["a","b","c","d","e"]}',
    "stop number": '{"stop": 3}',
    "unknown field": '{"promt": "a"}',
    "logit bias": '{"logit_bias": {"5": 1}}',
    "penalty": '{"presence_penalty": 0.5}',
    "best of": '{"best_of": 3}',
    "logprobs": '{"logprobs": 0}',
    "infill without gap": '{"infill": "abc"}',
    "infill and prompt": '{"infill": "a_", "prompt": "b"}',
    "stream text": '{"stream": "yes"}',
    "stream options": '{"stream": true, "stream_options": {"x": 1}}',
}


@pytest.mark.parametrize("raw", BODIES.values(), ids=list(BODIES))
def test_invalid_bodies_are_rejected(served: Served, raw: str) -> None:
    message = checked(served.post("/v1/completions", content=raw.encode(), headers=JSON), 400)
    assert len(message) < 600


def test_mistakes_name_their_field(served: Served) -> None:
    found = served.post("/v1/completions", {"temperature": 3}).json()["error"]
    assert found["param"] == "temperature" and "less than or equal to 2" in found["message"]
    found = served.post("/v1/completions", {"promt": "a"}).json()["error"]
    assert found["param"] == "promt" and "unknown field" in found["message"]


def test_bodies_that_are_not_utf8_are_rejected(served: Served) -> None:
    assert "UTF-8" in checked(served.post("/v1/completions", content=b'{"prompt": "\xff"}', headers=JSON), 400)


def test_a_large_body_is_rejected(served: Served) -> None:
    raw = json.dumps({"user": "a" * (1 << 20)}).encode()
    assert "1048576 bytes" in checked(served.post("/v1/completions", content=raw, headers=JSON), 413)

    def dripping() -> Any:
        for _ in range(40):
            yield b" " * (1 << 15)

    checked(served.post("/v1/completions", content=dripping(), headers=JSON), 413)


def test_other_content_types_are_rejected(served: Served) -> None:
    """A foreign page could send a form or plain text without a preflight request."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        checked(served.post("/v1/completions", content=b"{}", headers={"Content-Type": kind}), 415)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/completions", 405),
        ("POST", "/", 405),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e/app.py", 404),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/static/", 404),
        ("GET", "/v1/models/%00", 404),
        ("GET", "/v1/models/", 404),
        ("PROPFIND", "/", 405),
        ("GET", "/v1/a/b", 404),
    ],
)
def test_unknown_paths_and_methods_are_rejected(served: Served, method: str, path: str, status: int) -> None:
    checked(httpx2.request(method, served.url + path), status)


def test_a_foreign_page_is_rejected(served: Served) -> None:
    checked(served.get("/v1/models", headers={"Host": "evil.example"}), 403)
    checked(served.get("/v1/models", headers={"Origin": "https://evil.example"}), 403)
    checked(served.get("/v1/models", headers={"Origin": "null"}), 403)
    foreign = {"Origin": served.url.replace("http", "evil")}, {"Sec-Fetch-Site": "cross-site"}
    for header in (*foreign, {"Sec-Fetch-Site": "same-site"}):
        checked(served.get("/v1/process", headers=header), 403)
    assert served.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page
    answer = served.get("/v1/models", headers={"Origin": served.url, "Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of any length are compared by `hmac.compare_digest`."""
    compared, real = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda given, own: (compared.append((given, own)), real(given, own))[1])
    middleware = AccessMiddleware(lambda *_: None, Metrics(), "secret")  # type: ignore[arg-type, return-value]
    for given in ("", "s", "secre", "secret and more", "SECRET", "\xff"):
        with pytest.raises(HttpError, match="a token is needed"):
            middleware._check_access(
                {"type": "http", "path": "/v1/x", "headers": [(b"authorization", f"Bearer {given}".encode("latin-1"))]}
            )
        assert compared.pop() == (given.encode("latin-1"), b"secret")
    middleware._check_access({"type": "http", "path": "/v1/x", "headers": [(b"authorization", b"Bearer secret")]})


@pytest.mark.parametrize("token", ["pässwörd, eine Umschrift", os.fsdecode(b"\xff not of UTF-8 \xfe")])
def test_a_token_may_have_any_bytes(token: str) -> None:
    """Such a token never matched, or every request ended with status 500."""
    middleware = AccessMiddleware(lambda *_: None, Metrics(), token)  # type: ignore[arg-type, return-value]
    scope = {"type": "http", "path": "/v1/x", "headers": [(b"authorization", b"Bearer " + os.fsencode(token))]}
    middleware._check_access(scope)
    with pytest.raises(HttpError, match="a token is needed"):
        middleware._check_access({**scope, "headers": [(b"authorization", "Bearer pässwörd".encode("latin-1"))]})


@pytest.mark.parametrize(
    "header", ["secret", " secret", "Basic secret", "Token secret", "Bearersecret", "Bearer  secret"]
)
def test_a_token_without_the_scheme_bearer_is_refused(header: str) -> None:
    middleware = AccessMiddleware(lambda *_: None, Metrics(), "secret")  # type: ignore[arg-type, return-value]
    with pytest.raises(HttpError, match="a token is needed") as error:
        middleware._check_access({"type": "http", "path": "/v1/x", "headers": [(b"authorization", header.encode())]})
    assert error.value.status == 401


def test_only_loopback_addresses_need_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDLM_TOKEN", raising=False)
    assert [token_for(host) for host in ("127.0.0.1", "127.9.9.9", "localhost", "::1")] == [None] * 4
    for host in ("0.0.0.0", "::", "192.168.0.1", "::ffff:10.0.0.1", "example.org", "localhost.example.org", ""):
        with pytest.raises(InputError, match="set RDLM_TOKEN to a secret first"):
            token_for(host)


def test_every_response_has_security_headers(served: Served) -> None:
    for path in ("/", "/v1/models", "/v1/nothing", "/docs", "/metrics"):
        headers = served.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and "server" not in headers


def test_the_page_writes_text_and_never_html() -> None:
    """No script of the page turns text into HTML or code."""
    scripts = sorted((Path(app.__file__).parent / "static").glob("**/*.js"))
    dangerous = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\(|new Function"
    assert scripts and [path.name for path in scripts if re.search(dangerous, path.read_text("utf-8"))] == []


def test_malformed_bytes_on_the_socket_are_harmless(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    long = b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"
    for raw in (b"\x16\x03\x01\x00\xa5", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, long):
        with socket.create_connection((host, int(port)), timeout=20) as line:
            line.sendall(raw)
            line.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: line.recv(4096), b""))
        assert b" 5" not in answer.split(b"\r\n")[0] and b"Traceback" not in answer
    assert served.get("/healthz").status_code == 200

"""A short version of the stress test of `make torture`: abuse, misuse, silent connections and many clients."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from abuse import ABUSES
from running import Served
from siege import besiege, failures
from starlette.requests import Request
from wire import Answer, faults

from rdlm.serve import app
from rdlm.serve.http_errors import HttpError
from rdlm.serve.schema import CompletionBody, read

SAID = b'{"error":{"message":"m","type":"t","param":null,"code":null}}'
LATE = b'{"error":{"message":"m","type":"t","param":null,"code":"deadline_exceeded"}}'
AGAIN = {"retry-after": "5"}


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (Answer(200, {}, b"{}"), 0),
        (Answer(400, {}, SAID), 0),
        (Answer(429, AGAIN, SAID), 0),
        (Answer(503, AGAIN, SAID), 0),
        (Answer(504, {}, LATE), 0),
        (Answer(500, {}, SAID), 1),
        (Answer(503, {}, SAID), 1),
        (Answer(429, {}, SAID), 1),
        (Answer(504, {}, SAID), 1),
        (Answer(404, {}, b"Not Found"), 1),
        (Answer(200, {}, b"Traceback"), 1),
        (Answer(200, {"server": "x"}, b""), 1),
        (Answer(200, {}, b"our secret"), 1),
        (Answer(200, {}, b'data: {"code":"internal_error"}'), 1),
        (Answer(200, {"access-control-allow-origin": "*"}, b"{}"), 1),
    ],
)
def test_bad_responses_are_recognised(answer: Answer, count: int) -> None:
    assert len(list(faults(answer, ["our secret"], bodiless=False))) == count


def test_errors_in_the_log_are_found() -> None:
    log = "rdlm: ERROR: a step failed\nTraceback (most recent call last):\n  x\nZeroDivisionError\nrdlm: serving\n"
    assert len(failures(log)) == 1 and failures("rdlm: serving models\n") == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/trajectory"])
def test_the_smallest_temperature_is_greedy(served: Served, path: str) -> None:
    coldest = served.post(path, {"prompt": "a", "seed": 1, "temperature": 5e-324})
    frozen = served.post(path, {"prompt": "a", "seed": 1, "temperature": 0})
    assert coldest.status_code == 200 and "internal_error" not in coldest.text
    name = "text" if path.endswith("completions") else "certainty"
    assert coldest.text.count(f'"{name}":') == frozen.text.count(f'"{name}":') > 0
    without = re.compile(r'"(?:id|created)":[^,]*')
    assert without.sub("", coldest.text) == without.sub("", frozen.text)


HOSTS = ("[", "[::1", "[::1%25lo]", "evil@127.0.0.1", "127.0.0.1/evil", "127.0.0.1?evil", "127.0.0.1#evil")
HOSTS += ("127.0.0.1:evil", "127.0.0.1:999999", "127.0.0.1:1:1", "localhost.", "127.1", "2130706433", "::1")


@pytest.mark.parametrize("header", [*({"Host": host} for host in HOSTS), {"Origin": "http://["}, {"Origin": "x"}])
def test_malformed_hosts_and_origins_are_rejected(served: Served, header: dict[str, str]) -> None:
    answer = served.get("/v1/models", headers=header)
    assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize("place", ["%s", '{"logit_bias": %s}', '{"stream_options": %s}'])
def test_objects_with_many_fields_get_one_error(place: str) -> None:
    raw = place % json.dumps({str(number): "x" for number in range(50_000)})
    with pytest.raises(HttpError) as caught:
        read(raw.encode(), CompletionBody)
    assert caught.value.status == 400 and "50000 fields; at most 1024" in caught.value.message


@pytest.mark.parametrize("raw", ['{"prompt": "a", "prompt": "b"}', '{"stream_options": {"x": 1, "y": 2, "x": 1}}'])
def test_a_field_given_twice_is_an_error(raw: str) -> None:
    with pytest.raises(HttpError, match=r"two fields (prompt|x)") as caught:
        read(raw.encode(), CompletionBody)
    assert caught.value.status == 400 and caught.value.param in ("prompt", "x")


def test_a_number_of_thousands_of_digits_is_an_error() -> None:
    with pytest.raises(HttpError, match="a number has 401 digits; at most 400 are read"):
        read(b'{"seed": %d}' % 10**400, CompletionBody)


LEAK = """
import sys
from rdlm.cli.main import main
from rdlm.serve.middleware import Metrics
kept, answered = [], Metrics.answered
Metrics.answered = lambda *given: (kept.append(b"x" * 300_000), answered(*given))[1]
sys.exit(main(sys.argv[1:]))
"""
"""A service that leaks memory with every request."""


def test_a_siege_detects_a_leak(tmp_path: Path) -> None:
    siege = besiege(tmp_path / "siege", requests=100, clients=10, seconds=1, program=("-c", LEAK))
    (defect,) = siege.defects
    assert re.match(r"the service has grown from \d+ to \d+ MB", defect)


def test_a_siege_finds_no_defects(tmp_path: Path) -> None:
    siege = besiege(tmp_path / "siege", requests=260, clients=30, seconds=2)
    assert siege.defects == []
    assert siege.tally.tried.keys() >= ABUSES.keys() | {"described, positive", "described, negative"}
    assert siege.tally.tried.total() >= 200 and siege.tally.answered["200"] > 20 and siege.tally.answered["400"] > 50
    assert siege.crowd is not None and siege.crowd.sent == siege.crowd.answered.total() >= 30
    assert siege.crowd.answered[200] > 10 and siege.crowd.repeated > 10


@pytest.mark.parametrize("sent", [b"", b'{"prompt": "a', b'{"prompt": "a"}'])
def test_an_incomplete_body_gets_408(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed for a body that does not arrive in time."""
    monkeypatch.setattr(app, "BODY_TIMEOUT", 0.2)
    parts = [{"type": "http.request", "body": sent, "more_body": True}]

    async def receive() -> dict[str, object]:
        return parts.pop() if parts else await asyncio.Future()

    async def ask() -> None:
        headers = [(b"content-type", b"application/json")]
        await app.body_of(Request({"type": "http", "method": "POST", "headers": headers}, receive), CompletionBody)

    with pytest.raises(HttpError) as caught:
        asyncio.run(asyncio.wait_for(ask(), 30))
    assert caught.value.status == 408 and "did not arrive within 0.2 s" in caught.value.message

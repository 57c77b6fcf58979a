"""What a request leaves behind in the service: no object, whatever was asked and however it ended.

The siege watches the memory of the whole process, in which a leak shows only once it has come to megabytes; here every
small object counts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import save

import rdlm
from rdlm.serve.app import create
from rdlm.serve.metrics import Metrics
from rdlm.serve.service import Limits, Service

ASKED: list[tuple[str, bytes]] = [
    ("/v1/completions", b'{"prompt": "a", "steps": 2, "seed": 1}'),
    ("/v1/completions", b'{"prompt": "a", "steps": 2, "seed": 1, "stream": true}'),
    ("/v1/trajectory", b'{"prompt": "a", "steps": 2, "seed": 1}'),
    ("/v1/score", b'{"input": "abc", "steps": 2}'),
    ("/v1/completions", b'{"prompt": 5}'),
    ("/v1/completions", b'{"prompt": "\\ud800"}'),
    ("/v1/completions", b"["),
    ("/v1/nothing", b""),
]
ROUNDS = 25
"""How often each of them is asked between two looks."""
LOOKS = 6
"""Looks, of which the first two come while threads begin and free lists fill: some 300 blocks, once."""


async def ask(app: Any, path: str, body: bytes, leaves: bool) -> None:
    """Ask, and take the whole answer, or leave as soon as it begins."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    begun, ended = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await (begun if leaves else ended).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        begun.set()
        if message["type"] == "http.response.body" and not message.get("more_body"):
            ended.set()

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
    }
    await app(scope, receive, send)


def grown(service: Service) -> float:
    """Return how many blocks of memory each request leaves, once all that is made once has been made."""
    app, counts = create(service), []

    async def live() -> None:
        for _ in range(LOOKS):
            for _ in range(ROUNDS):
                for number, (path, body) in enumerate(ASKED):
                    await ask(app, path, body, leaves=number in (1, 2))
            while service._jobs or any(host.engine and host.engine.live for host in service.hosts.values()):
                await asyncio.sleep(0.002)
            gc.collect()
            counts.append(sys.getallocatedblocks())

    asyncio.run(asyncio.wait_for(live(), 300))
    return (counts[-1] - counts[2]) / ((LOOKS - 3) * ROUNDS * len(ASKED))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service([rdlm.load(save(tmp_path / "run"))], Limits(steps=2))
    yield found
    found.close()


def test_a_request_leaves_nothing(service: Service) -> None:
    assert grown(service) < 0.5


def test_one_small_object_of_each_request_would_be_noticed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    answered = Metrics.answered
    monkeypatch.setattr(Metrics, "answered", lambda *given: (kept.append(object()), answered(*given))[1])
    assert grown(service) > 0.8

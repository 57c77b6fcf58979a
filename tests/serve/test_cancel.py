"""A client disconnects: whatever it requested, the network is evaluated at most once more."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from running import save
from torch import Tensor

import rdlm
from rdlm.sampling.denoisers import Query
from rdlm.serve.app import create
from rdlm.serve.service import Limits, Service


class Gate:
    """Lets one evaluation of a model's network pass at a time; `nfe` counts them."""

    def __init__(self, service: Service) -> None:
        self.nfe = 0
        self._open = threading.Semaphore(0)
        (host,) = service.models.values()
        if host.engine is None:
            host.model.method.network.register_forward_pre_hook(self._wait)
            return
        real = host.engine.batcher._run

        def run(blocks: Sequence[Query]) -> list[Tensor]:
            self._wait()
            return real(blocks)

        host.engine.batcher._run = run  # type: ignore[method-assign]

    def _wait(self, *_: object) -> None:
        self._open.acquire()
        self.nfe += 1

    async def passed(self, count: int, request: asyncio.Task[None]) -> None:
        """Let so many evaluations pass, and wait until they have."""
        for _ in range(count):
            self._open.release()
        while self.nfe < count:
            assert not request.done()
            await asyncio.sleep(0.002)

    def open(self) -> None:
        for _ in range(10_000):
            self._open.release()


async def ask(service: Service, gate: Gate, path: str, body: dict[str, Any]) -> int:
    """Send a request, disconnect after two evaluations, and return how many followed."""
    left = asyncio.Event()
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) in (200, 499), message

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
    request = asyncio.create_task(create(service)(scope, receive, send))
    await gate.passed(2, request)
    left.set()
    await request
    before = gate.nfe
    gate.open()
    (host,) = service.models.values()
    while service._jobs or (host.engine is not None and host.engine.live):
        await asyncio.sleep(0.002)
    return gate.nfe - before


CASES = [
    ("rdlm", "/v1/completions", {"prompt": "a", "n": 3}),
    ("rdlm", "/v1/completions", {"prompt": "a", "stream": True}),
    ("rdlm", "/v1/completions", {"prompt": "a", "max_tokens": 100, "stop": "never"}),
    ("rdlm", "/v1/trajectory", {"prompt": "a"}),
    ("rdlm", "/v1/score", {"input": "abc " * 40}),
    ("rdlm", "/v1/restore", {"text": "ab?" * 60, "samples": 2}),
    ("mdlm", "/v1/completions", {"prompt": "", "n": 3}),
    ("mdlm", "/v1/completions", {"prompt": "", "stream": True}),
    ("mdlm", "/v1/score", {"input": "abc " * 40}),
]


@pytest.mark.parametrize(("method", "path", "body"), CASES)
def test_a_disconnected_client_costs_at_most_one_evaluation(
    tmp_path: Path, method: str, path: str, body: dict[str, Any]
) -> None:
    service = Service([rdlm.load(save(tmp_path / "run", method=method))], Limits(steps=40))
    gate = Gate(service)
    try:
        assert asyncio.run(asyncio.wait_for(ask(service, gate, path, body), 60)) <= 1
    finally:
        gate.open()
        service.close()

"""Load test: many concurrent clients, each of which sends requests and obeys Retry-After."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from wire import Answer, Target, faults

LONGEST_PAUSE = 2.0
"""Seconds that a client waits at most before it comes back, whatever it was told: the queue must stay full."""


@dataclass
class Crowd:
    """The results of a load test."""

    clients: int
    sent: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    """Status -> how long each answer took."""
    texts: dict[int, str] = field(default_factory=dict)
    """Seed -> what was written for it."""
    ids: set[str] = field(default_factory=set)
    counted: int = 0
    """Requests that the service itself says it answered."""
    repeated: int = 0
    """Answers that were asked for again, alone, and were the same."""
    defects: list[str] = field(default_factory=list)

    def percentiles(self, status: int) -> dict[str, float]:
        """Return percentiles of the latency in milliseconds."""
        found = sorted(self.seconds.get(status, [0.0]))
        return {f"p{q}": round(1000 * found[min(len(found) - 1, q * len(found) // 100)], 1) for q in (50, 90, 99, 100)}

    def line(self) -> str:
        """Return the results as one line of text."""
        codes = ", ".join(
            f"{code}: {count} ({_words(self.percentiles(code))})" for code, count in sorted(self.answered.items())
        )
        return (
            f"service: {self.clients} clients at once sent {self.sent}, {self.answered.total()} answered once, "
            f"{self.repeated} compared with the same asked alone; {codes}"
        )


def _words(numbers: dict[str, float]) -> str:
    return " ".join(f"{name} {value:g} ms" for name, value in numbers.items())


def body(number: int) -> bytes:
    """Return the body of a request; its number is the seed."""
    return json.dumps({"prompt": "a" * (1 + number % 7), "steps": 2 + number % 3, "seed": number}).encode()


class Client:
    """A client with its own connection."""

    def __init__(self, target: Target, crowd: Crowd, place: int, secrets: tuple[str, ...]) -> None:
        self.target, self.crowd, self.place, self.secrets = target, crowd, place, secrets
        self.rng = random.Random(place)
        self.line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def live(self, end: float) -> None:
        """Send requests until the time is over."""
        turn = 0
        while time.monotonic() < end:
            status = await self.ask(self.place + self.crowd.clients * turn)
            turn += 1
            if status != 200:
                await asyncio.sleep(self.rng.uniform(0.2, LONGEST_PAUSE))
            if self.rng.random() < 0.1:
                await self.hang_up()
        await self.hang_up()

    async def ask(self, number: int) -> int:
        """Send one request and read its response."""
        begin = time.monotonic()
        self.crowd.sent += 1
        try:
            answer = await asyncio.wait_for(self._exchange(self.target.post("/v1/completions", body(number))), 120)
        except (OSError, TimeoutError, EOFError) as failure:
            self.crowd.defects.append(f"request {number} was lost: {failure!r}")
            self.line = None
            return 0
        self.crowd.answered[answer.status] += 1
        self.crowd.seconds.setdefault(answer.status, []).append(time.monotonic() - begin)
        self.crowd.defects += [f"request {number}: {fault}: {answer}" for fault in faults(answer, self.secrets, False)]
        if answer.status == 200:
            self._note(number, json.loads(answer.body))
        elif answer.status not in (429, 503):
            self.crowd.defects.append(f"request {number}: {answer}")
        return answer.status

    def _note(self, number: int, found: dict[str, Any]) -> None:
        if found["id"] in self.crowd.ids or found["choices"][0]["seed"] != number:
            self.crowd.defects.append(f"request {number} got the answer of another one: {found}")
        self.crowd.ids.add(found["id"])
        self.crowd.texts[number] = found["choices"][0]["text"]

    async def _exchange(self, raw: bytes) -> Answer:
        if self.line is None:
            self.line = await asyncio.open_connection(self.target.host, self.target.port)
        reader, writer = self.line
        writer.write(raw)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        answer = Answer(int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"])))
        if headers.get("connection") == "close":
            await self.hang_up()
        return answer

    async def hang_up(self) -> None:
        """Close the connection; unread bytes are an error."""
        if self.line is None:
            return
        reader, writer = self.line
        self.line = None
        try:
            if rest := await asyncio.wait_for(reader.read(1), 0.001):
                self.crowd.defects.append(f"an answer was followed by {rest!r}")
        except TimeoutError:
            pass
        writer.close()


def crowd(target: Target, clients: int, seconds: float, secrets: tuple[str, ...] = (), again: int = 50) -> Crowd:
    """Run the clients, repeat some of their requests alone, and return the results."""
    found = Crowd(clients)

    async def live() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(Client(target, found, place, secrets).live(end) for place in range(clients)))

    before = _counted(target)
    asyncio.run(live())
    found.counted = _counted(target) - before
    if found.counted != found.sent:
        found.defects.append(f"{found.sent} requests were sent, and the service counts {found.counted}")
    for number in random.Random(0).sample(sorted(found.texts), min(again, len(found.texts))):
        (alone,) = target.ask(target.post("/v1/completions", body(number)))
        if json.loads(alone.body)["choices"][0]["text"] != found.texts[number]:
            found.defects.append(f"request {number} is answered otherwise when it is asked alone")
        found.repeated += 1
    return found


def _counted(target: Target) -> int:
    """Return the number of completions in the metrics of the service."""
    (answer,) = target.ask(target.head("GET", "/metrics"))
    lines = [line for line in answer.body.decode().splitlines() if line.startswith("rdlm_requests_total{")]
    return sum(int(line.rpartition(" ")[2]) for line in lines if 'route="/v1/completions"' in line)

"""Measure the HTTP service: `python benchmarks/service.py [RUN] [--clients 200 --seconds 60] [--json]`.

| name | what | target |
|---|---|---|
| 8 at once | time to answer 8 simultaneous requests over the time of one alone | 3 |
| wrong | requests of the 8 whose text differs from the one they return alone | 0 |

With `--clients`, that many clients send one request after the other for `--seconds`, and wait as long as Retry-After
states: the report has latency percentiles, responses that are lost, duplicated or wrong, and the memory of the service
before and after. Without RUN an untrained model of the demo's size is served (1.0M parameters, length 64). The service
is started by its command, on a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2

from rdlm.config import TransformerConfig
from rdlm.display.text_table import print_json, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from running import save, serving  # type: ignore[import-not-found]

TARGET = 3.0
CROWD = 8


def untrained(run: Path) -> Path:
    """Write the folder of an untrained run of the demo's size."""
    network = TransformerConfig(width=128, layers=4, heads=4, time_width=64)
    return Path(save(run, network=network, corpus={"length": 64}, window=0.01))


def resident(pid: int) -> float:
    """Return a process's resident memory in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


async def text(client: httpx2.AsyncClient, seed: int, steps: int) -> str:
    answer = await client.post("/v1/completions", json={"prompt": "the ", "seed": seed, "steps": steps})
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def crowd(url: str, steps: int, turns: int) -> dict[str, Any]:
    """Time one request alone and eight together, in turns, and compare their texts."""
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        alone = [await text(client, seed, steps) for seed in range(CROWD)]
        ratios, singles, wrong = [], [], 0
        for turn in range(turns + 1):
            begin = time.perf_counter()
            await text(client, turn, steps)
            single = time.perf_counter() - begin
            begin = time.perf_counter()
            together = await asyncio.gather(*(text(client, seed, steps) for seed in range(CROWD)))
            if turn > 0:  # the first turn finds out which rows may share a forward pass
                ratios.append((time.perf_counter() - begin) / single)
                singles.append(single)
            wrong += sum(a != b for a, b in zip(alone, together, strict=True))
    ratio = statistics.median(ratios)
    return {
        "name": "8 at once",
        "ratio": ratio,
        "spread": max(ratios) - min(ratios),
        "target": TARGET,
        "ok": ratio <= TARGET and wrong == 0,
        "single_ms": 1e3 * statistics.median(singles),
        "wrong": wrong,
    }


async def one_client(
    client: httpx2.AsyncClient,
    number: int,
    until: float,
    steps: int,
    expected: list[str],
    seen: Counter[str],
    latencies: list[float],
    ids: Counter[str],
) -> None:
    """Send requests until the time is over; every response must be the text of its seed."""
    turn = 0
    while time.monotonic() < until:
        seed = (number + turn) % CROWD
        turn += 1
        begin = time.monotonic()
        try:
            answer = await client.post("/v1/completions", json={"prompt": "the ", "seed": seed, "steps": steps})
        except httpx2.HTTPError:
            seen["lost"] += 1
            continue
        seen[f"status {answer.status_code}"] += 1
        if answer.status_code == 429:
            await asyncio.sleep(float(answer.headers["Retry-After"]))
        elif answer.status_code == 200:
            content = answer.json()
            latencies.append(time.monotonic() - begin)
            ids[content["id"]] += 1
            seen["wrong"] += content["choices"][0]["text"] != expected[seed]


async def load(url: str, pid: int, clients: int, seconds: float, steps: int) -> dict[str, Any]:
    """Return latencies, errors and memory under many clients."""
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        expected = [await text(client, seed, steps) for seed in range(CROWD)]
        before, until = resident(pid), time.monotonic() + seconds
        seen: Counter[str] = Counter()
        latencies: list[float] = []
        ids: Counter[str] = Counter()
        await asyncio.gather(
            *(one_client(client, number, until, steps, expected, seen, latencies, ids) for number in range(clients))
        )
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [float("nan")] * 99
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": len(latencies),
        "per_second": len(latencies) / seconds,
        "p50_s": cuts[49],
        "p95_s": cuts[94],
        "p99_s": cuts[98],
        "lost": seen["lost"],
        "wrong": seen["wrong"],
        "doubled": sum(count - 1 for count in ids.values()),
        "statuses": {k: v for k, v in seen.items() if " " in k},
        "rss_before_mb": before,
        "rss_after_mb": resident(pid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run; an untrained one if not given")
    parser.add_argument("--steps", type=int, default=64, help="sampler steps")
    parser.add_argument("--turns", type=int, default=5, help="how often the 8 requests are timed")
    parser.add_argument("--clients", type=int, default=0, help="clients of the load test; 0: no load test")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the load test")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = arguments.run or untrained(Path(place) / "untrained")
        with serving(str(run)) as served:
            rows = [asyncio.run(crowd(served.url, arguments.steps, arguments.turns))]
            found: dict[str, Any] = {"rows": rows}
            if arguments.clients:
                pid, clients, seconds = served.process.pid, arguments.clients, arguments.seconds
                found["load"] = asyncio.run(load(served.url, pid, clients, seconds, arguments.steps))
    if arguments.json:
        print_json(found)
        return
    print(table(rows, ["name", "ratio", "spread", "target", "ok", "single_ms", "wrong"]))
    for name, value in found.get("load", {}).items():
        print(f"{name:>15}  {value}")


if __name__ == "__main__":
    main()

"""Soak test of the service: `python torture/soak.py --minutes 120` writes build/soak.json and build/soak.png.

A model with random weights (64 positions, 2 layers of width 64) is served to two clients. One sends small requests
(the page, a short completion, score and restoration). In every other half minute the other one sends longer ones at
the same time, so that latencies with and without load are of the same minutes of a machine that may have other work.
A small request is loaded if a longer one was running both when it was sent and when it was answered, alone if none
was at those moments, and in no percentile otherwise. Memory, threads and descriptors of the service are recorded
every ten seconds. The exit code is 1 if a request failed, the 99th percentile of a small request under load is more
than 3 times that without, or memory, threads or descriptors grew in the second half.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

import httpx2
import torch
from running import save, serving
from scipy import stats

from rdlm.config import TransformerConfig
from rdlm.display.figure import canvas

PHASE = 30.0
"""Seconds in which longer requests are sent, and seconds in which none is."""
EVERY = 10.0
"""Seconds between two records of the service."""
LONG_STEPS = 32
"""Steps of the longer requests: about a second on an idle core, so that they meet their deadline on a busy machine."""
WORST_RATIO = 3.0
BLOCKS = 10
"""Parts of the second half whose means are regressed: means of minutes are nearly independent, records are not."""
GROWTH = {"megabytes": 4.0, "threads": 0.5, "descriptors": 0.5}
"""Growth per hour that is told from none: its interval must end below."""
WORDS = "the first of the many small towns on the river was founded by people who came from the east "


def small(rng: random.Random) -> tuple[str, str, dict[str, Any] | None]:
    """Return kind, path and body of a small request; None is a GET."""
    text, seed = WORDS[: rng.randrange(8, 24)].strip(), rng.randrange(1 << 20)
    return rng.choice(
        (
            ("page", "/", None),
            ("generate", "/v1/completions", {"prompt": text, "max_tokens": 8, "steps": 4, "seed": seed}),
            ("score", "/v1/score", {"input": text, "steps": 4}),
            ("restore", "/v1/restore", {"text": text.replace("o", "?"), "passes": 0, "samples": 0}),
        )
    )


def medium(rng: random.Random) -> tuple[str, str, dict[str, Any] | None]:
    """Return kind, path and body of a longer request."""
    text, seed = WORDS * 2, rng.randrange(1 << 20)
    return rng.choice(
        (
            (
                "long generate",
                "/v1/completions",
                {"prompt": text[:40], "max_tokens": 24, "steps": LONG_STEPS, "n": 4, "seed": seed},
            ),
            ("long score", "/v1/score", {"input": text[:120], "steps": LONG_STEPS}),
            ("long restore", "/v1/restore", {"text": text[:120].replace("e", "?"), "samples": 4, "steps": LONG_STEPS}),
        )
    )


@dataclass
class Client:
    """Sends requests one after the other with pauses, while `active` holds, and notes how long each took."""

    url: str
    draw: Callable[[random.Random], tuple[str, str, dict[str, Any] | None]]
    share: float
    """The part of the time in which it waits for an answer."""
    active: Callable[[], bool]
    """Whether it is to send requests."""
    loaded: Callable[[], bool]
    """Whether a longer request is running."""
    waiting: bool = False
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """Kind, with or without load -> seconds."""
    failures: list[str] = field(default_factory=list)
    sent: int = 0

    def run(self, end: float) -> None:
        """Send requests until `end`."""
        rng = random.Random(0)
        with httpx2.Client(base_url=self.url, timeout=90) as http:
            while time.monotonic() < end:
                if not self.active():
                    time.sleep(0.1)
                    continue
                pause = self.ask(http, rng) * (1 / self.share - 1)
                time.sleep(min(5.0, pause * rng.uniform(0.5, 1.5)))

    def ask(self, http: httpx2.Client, rng: random.Random) -> float:
        """Send one request and return the seconds that it took."""
        kind, path, body = self.draw(rng)
        before, begin = self.loaded(), time.monotonic()
        self.sent, self.waiting = self.sent + 1, True
        try:
            answer = http.get(path) if body is None else http.post(path, json=body)
            if answer.status_code != 200:
                self.failures.append(f"{kind}: {answer.status_code} {answer.text[:300]}")
        except httpx2.HTTPError as error:
            self.failures.append(f"{kind}: {error!r}")
        taken = time.monotonic() - begin
        self.waiting = False
        if self.loaded() == before:
            self.latencies.setdefault(f"{kind}, {'loaded' if before else 'alone'}", []).append(taken)
        return taken


def record(pid: int, begin: float) -> dict[str, float]:
    """Return the state of the service and the load of the machine."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "megabytes": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "processor seconds": ticks / os.sysconf("SC_CLK_TCK"),
        "load of the machine": os.getloadavg()[0],
    }


def slope(seconds: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Return the growth per hour in the second half, with a 95% interval, from means of consecutive blocks."""
    half = len(values) // 2
    parts = torch.arange(half, len(values)).tensor_split(BLOCKS)
    x = [sum(seconds[i] for i in part) / len(part) / 3600 for part in parts if len(part)]
    y = [sum(values[i] for i in part) / len(part) for part in parts if len(part)]
    if len(x) < 3 or min(y) == max(y):
        return {"per hour": 0.0, "low": 0.0, "high": 0.0}
    found = stats.linregress(x, y)
    margin = float(stats.t.ppf(0.975, len(x) - 2) * found.stderr)
    return {"per hour": found.slope, "low": found.slope - margin, "high": found.slope + margin}


def percentile(values: Sequence[float], q: int) -> float:
    """Return a percentile in milliseconds."""
    found = sorted(values)
    return round(1000 * found[min(len(found) - 1, q * len(found) // 100)], 1)


def summary(clients: Sequence[Client], records: list[dict[str, float]]) -> dict[str, Any]:
    """Return latencies by kind, ratios, slopes and the verdict."""
    latencies = {kind: values for client in clients for kind, values in client.latencies.items()}
    times = {
        kind: {"requests": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
        for kind, values in sorted(latencies.items())
    }
    alone = {kind.removesuffix(", alone"): found["p99"] for kind, found in times.items() if kind.endswith(", alone")}
    both = {kind: p99 for kind, p99 in alone.items() if f"{kind}, loaded" in times}
    ratios = {kind: round(times[f"{kind}, loaded"]["p99"] / p99, 2) for kind, p99 in both.items()}
    seconds = [one["seconds"] for one in records]
    growth = {name: slope(seconds, [one[name] for one in records]) for name in GROWTH}
    defects = [failure for client in clients for failure in client.failures]
    defects += [f"{kind}: p99 {ratio} times that without load" for kind, ratio in ratios.items() if ratio > WORST_RATIO]
    for name, found in growth.items():
        if found["low"] > 0 and found["high"] > GROWTH[name]:
            defects.append(f"{name} grew by {found['per hour']:.2f} per hour")
    load = [one["load of the machine"] for one in records]
    return {
        "minutes recorded": round(seconds[-1] / 60, 1),
        "load of the machine (mean, least, most)": [round(f(load), 1) for f in (mean, min, max)],
        "requests": sum(client.sent for client in clients),
        "latencies (ms)": times,
        "p99 loaded / alone": ratios,
        "growth per hour": growth,
        "defects": defects,
    }


def draw(path: Path, found: dict[str, Any]) -> None:
    """Draw memory, threads and descriptors over time, and the latencies by kind."""
    records, times = found["records"], found["latencies (ms)"]
    minutes = [one["seconds"] / 60 for one in records]
    with canvas(path, columns=3, width=4.2, height=3.2) as (memory, counts, latency):
        memory.plot(minutes, [one["megabytes"] for one in records])
        memory.set(xlabel="minutes", ylabel="resident memory (MB)", ylim=(0, None))
        for name in ("threads", "descriptors"):
            counts.plot(minutes, [one[name] for one in records], label=name)
        counts.set(xlabel="minutes", ylabel="count", ylim=(0, None))
        counts.legend()
        kinds = list(found["p99 loaded / alone"])
        for shift, state in ((-0.2, "alone"), (0.2, "loaded")):
            values = [times[f"{kind}, {state}"]["p99"] for kind in kinds]
            latency.bar([index + shift for index in range(len(kinds))], values, 0.4, label=state)
        latency.set_xticks(range(len(kinds)), kinds)
        latency.set(ylabel="p99 of small requests (ms)", yscale="log")
        latency.legend()


def soak(minutes: float, share: float, write: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Run the test; `write` receives the results every minute and at the end."""
    with tempfile.TemporaryDirectory(prefix="rdlm-soak-") as home, (Path(home) / "messages").open("w") as messages:
        cache = {"HOME": home, "RDLM_CACHE": f"{home}/cache"}
        network = TransformerConfig(width=64, layers=2, heads=2, time_width=16)
        run = save(Path(home) / "run", network=network, corpus={"length": 64})
        with serving(str(run), "--threads", "1", messages=messages, cwd=Path(home), **cache) as served:
            begin = time.monotonic()
            longer = Client(
                served.url,
                medium,
                share,
                active=lambda: (time.monotonic() - begin) % (2 * PHASE) > PHASE,
                loaded=lambda: True,
            )
            clients = [Client(served.url, small, share, lambda: True, lambda: longer.waiting), longer]
            end, records = begin + 60 * minutes, list[dict[str, float]]()
            threads = [threading.Thread(target=client.run, args=(end,)) for client in clients]
            for thread in threads:
                thread.start()
            while time.monotonic() < end and served.process.poll() is None:
                records.append(record(served.process.pid, begin))
                time.sleep(EVERY)
                if len(records) % 6 == 0:
                    write(summary(clients, records) | {"records": records})
            for thread in threads:
                thread.join()
            found = summary(clients, records) | {"records": records}
        found["defects"] += ["the log has a traceback"] if "Traceback" in Path(messages.name).read_text() else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--share", type=float, default=0.5, help="part of the time in which each client has a request")
    parser.add_argument("--out", type=Path, default=Path("build/soak.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()

    def write(found: dict[str, Any]) -> None:
        about = {"commit": commit, "minutes": options.minutes, "share": options.share, "processors": os.cpu_count()}
        options.out.write_text(json.dumps(about | found, indent=1) + "\n")

    found = soak(options.minutes, options.share, write)
    write(found)
    draw(options.out.with_suffix(".png"), found)
    print(json.dumps({key: value for key, value in found.items() if key != "records"}, indent=1))
    return 1 if found["defects"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Counters of the service in Prometheus's text format."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """How many values lie below each of some limits."""

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits, self.counts, self.total, self.number = limits, [0] * len(limits), 0.0, 0

    def add(self, value: float) -> None:
        """Count a value."""
        self.number += 1
        self.total += value
        for index, limit in enumerate(self.limits):
            self.counts[index] += value <= limit

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the histogram's lines."""
        inner = f"{labels}," if labels else ""
        for limit, count in zip(self.limits, self.counts, strict=True):
            yield f'{name}_bucket{{{inner}le="{limit:g}"}} {count}'
        yield f'{name}_bucket{{{inner}le="+Inf"}} {self.number}'
        outer = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{outer} {self.total:.6f}"
        yield f"{name}_count{outer} {self.number}"


class Metrics:
    """What the service counts, from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._latency: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCIES))
        self._batch = Histogram(SIZES)
        self._steps = self._rows = self._cancelled = 0

    @property
    def requests(self) -> int:
        """Return how many requests were answered in all."""
        with self._lock:
            return self._requests.total()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by its route."""
        with self._lock:
            self._requests[method, route, status] += 1
            self._latency[route].add(seconds)

    def stepped(self, samples: int, rows: int) -> None:
        """Count a turn of an engine: steps of so many samples, with so many rows through the network."""
        with self._lock:
            self._steps += samples
            self._rows += rows
            self._batch.add(rows)

    def cancelled(self) -> None:
        """Count a sample that was dropped because its request was over."""
        with self._lock:
            self._cancelled += 1

    def text(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """Return all of it; `gauges` are numbers of the moment, by name and by model."""
        with self._lock:
            return "\n".join([*self._lines(gauges), ""])

    def _lines(self, gauges: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        yield from _head("rdlm_requests_total", "counter", "Requests by method, route and status.")
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'rdlm_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield from _head("rdlm_request_seconds", "histogram", "Time from a request's arrival to the end of its answer.")
        for route, histogram in sorted(self._latency.items()):
            yield from histogram.lines("rdlm_request_seconds", f'route="{route}"')
        yield from _head("rdlm_batch_rows", "histogram", "Rows that went through the network together in one turn.")
        yield from self._batch.lines("rdlm_batch_rows")
        for name, value, words in (
            ("rdlm_steps_total", self._steps, "Steps taken by samples."),
            ("rdlm_rows_total", self._rows, "Rows that went through the network."),
            ("rdlm_cancelled_total", self._cancelled, "Samples dropped because their request was over."),
        ):
            yield from _head(name, "counter", words)
            yield f"{name} {value}"
        for name, by_model in gauges.items():
            yield from _head(name, "gauge", name.removeprefix("rdlm_").replace("_", " ") + " by model.")
            for model, number in by_model.items():
                yield f'{name}{{model="{_escaped(model)}"}} {number}'


def _head(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Metrics with their intervals, units and conventions.

| name | convention |
|---|---|
| bits_per_character | nats of all sequences / characters of their text / ln 2 |
| bits_per_dimension, bits_per_base | the same per pixel value, per base |
| perplexity_per_token | exp(nats of all sequences / their tokens) |
| perplexity_per_word | exp(nats of all sequences / their words), separated by whitespace |
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rdlm.likelihood.estimate import Estimate, student


@dataclass(frozen=True)
class Metric:
    """A number with its 95% interval, its unit, and the convention by which it was computed."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    unit: str
    convention: str

    def to_json(self) -> dict[str, object]:
        """Return the fields by their names."""
        return asdict(self)


def metric_of(estimate: Estimate, unit: str, convention: str) -> Metric:
    """Return an estimate as a metric."""
    return Metric(estimate.value, estimate.stderr, estimate.low, estimate.high, unit, convention)


def perplexity_metric(estimate: Estimate, convention: str) -> Metric:
    """Return `exp` of an estimate in nats, also of the ends of its interval; the standard error is of first order."""
    value, low, high = map(_exp, (estimate.value, estimate.low, estimate.high))
    return Metric(value, value * estimate.stderr, low, high, "perplexity", convention)


def _exp(nats: float) -> float:
    return math.inf if nats > 709 else math.exp(nats)  # the range of float64


def count_metric(value: int, unit: str, convention: str) -> Metric:
    """Return an exact count as a metric without an interval."""
    return Metric(float(value), None, None, None, unit, convention)


@dataclass(frozen=True)
class Size:
    """Mean number of tokens, characters and words of the evaluated sequences."""

    tokens: float
    characters: float
    words: float


def size_of_texts(texts: Sequence[str], tokens: int, cut: bool = False) -> Size:
    """Return the mean size of texts with `tokens` tokens in total; `cut`: they are windows of a longer text."""
    words = sum(map(_starts if cut else lambda text: len(text.split()), texts))
    return Size(tokens / len(texts), sum(map(len, texts)) / len(texts), words / len(texts))


def _starts(window: str) -> float:
    """Return an unbiased estimate of the words that start in a window: those that start after its first character."""
    if len(window) < 2:
        return 0.0
    inside = len(window.split()) - (not window[0].isspace())
    return inside * len(window) / (len(window) - 1)


def likelihood(nats: Estimate, size: Size, kind: str, what: str) -> dict[str, Metric]:
    """Return the metrics of a bound in nats per sequence, for text, images or DNA; `what` describes the bound."""
    bits = 1 / math.log(2)
    found = {"nats_per_sequence": metric_of(nats, "nats", what)}
    if kind != "text":
        name, unit = ("bits_per_dimension", "pixel value") if kind == "image" else ("bits_per_base", "base")
        found[name] = metric_of(nats * (bits / size.tokens), f"bits per {unit}", f"{what}; over all {unit}s")
        return found
    per_token = nats * (1 / size.tokens)
    found["bits_per_character"] = metric_of(
        nats * (bits / size.characters), "bits per character", f"{what}; over the characters of the decoded sequences"
    )
    found["perplexity_per_token"] = perplexity_metric(per_token, f"{what}; exp of nats per token")
    if size.words > 0:
        found["perplexity_per_word"] = perplexity_metric(
            nats * (1 / size.words),
            f"{what}; exp of nats per whitespace-separated word, no end-of-text token; a word that is cut by the end "
            "of a sequence counts once",
        )
    return found


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a method and order: the mean of its runs with several seeds and the interval over them.

    `stderr` remains the standard error over sequences and noise. All runs are measured on the same sequences, so it is
    the mean of theirs.
    """
    bounds = [run["bound"] for run in runs]
    row = {key: value for key, value in runs[0].items() if key not in ("quality", "sample")}
    row |= {"seeds": len(runs), "stderr_over_seeds": None, "bounds": bounds, "interval": "sequences and noise"}
    if len(runs) == 1:
        return row
    mean, stderr = statistics.fmean(bounds), statistics.stdev(bounds) / math.sqrt(len(runs))
    margin = student(len(runs) - 1) * stderr
    row |= {key: statistics.fmean(run[key] for run in runs) for key in ("stderr", "seconds_per_step", "loss")}
    row |= {"bound": mean, "low": mean - margin, "high": mean + margin, "stderr_over_seeds": stderr}
    row |= {"interval": "seeds", "skipped": sum(run["skipped"] for run in runs)}
    return row | {"note": next((run["note"] for run in runs if run["note"] is not None), None)}

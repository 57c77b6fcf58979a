"""Metrics with their intervals, units and conventions: a number and the name of what it is.

| name | convention |
|---|---|
| bits_per_character | nats of all sequences / characters of their text / ln 2 |
| bits_per_dimension, bits_per_base | the same per pixel value, per base |
| perplexity_per_token | exp(nats of all sequences / their tokens) |
| perplexity_per_word | exp(nats of all sequences / their words), which whitespace separates within a sequence |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rdlm.likelihood import Estimate


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


def of(estimate: Estimate, unit: str, convention: str) -> Metric:
    """Return an estimate under a name."""
    return Metric(estimate.value, estimate.stderr, estimate.low, estimate.high, unit, convention)


def exponential(estimate: Estimate, unit: str, convention: str) -> Metric:
    """Return `exp` of an estimate: the interval's ends go along, the standard error to first order."""
    value, low, high = math.exp(estimate.value), math.exp(estimate.low), math.exp(estimate.high)
    return Metric(value, value * estimate.stderr, low, high, unit, convention)


def count(value: int, unit: str, convention: str) -> Metric:
    """Return a plain count, which has no error."""
    return Metric(float(value), None, None, None, unit, convention)


@dataclass(frozen=True)
class Size:
    """How much a mean sequence of the evaluated ones holds."""

    tokens: float
    characters: float
    words: float


def size_of_texts(texts: Sequence[str], tokens: int) -> Size:
    """Return the mean size of texts that have `tokens` tokens in all."""
    return Size(
        tokens / len(texts),
        sum(map(len, texts)) / len(texts),
        sum(len(text.split()) for text in texts) / len(texts),
    )


def likelihood(nats: Estimate, size: Size, kind: str, what: str) -> dict[str, Metric]:
    """Return the metrics of a bound in nats per sequence, for text, images or DNA; `what` says which bound it is."""
    bits = 1 / math.log(2)
    found = {"nats_per_sequence": of(nats, "nats", what)}
    if kind != "text":
        name, unit = ("bits_per_dimension", "pixel value") if kind == "image" else ("bits_per_base", "base")
        found[name] = of(nats * (bits / size.tokens), f"bits per {unit}", f"{what}; over all {unit}s")
        return found
    per_token = nats * (1 / size.tokens)
    found["bits_per_character"] = of(
        nats * (bits / size.characters), "bits per character", f"{what}; over the characters of the decoded sequences"
    )
    found["perplexity_per_token"] = exponential(per_token, "perplexity", f"{what}; exp of nats per token")
    if size.words > 0:
        found["perplexity_per_word"] = exponential(
            nats * (1 / size.words),
            "perplexity",
            f"{what}; exp of nats per whitespace-separated word of each sequence, no end-of-text token",
        )
    return found

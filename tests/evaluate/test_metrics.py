"""Metrics against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rdlm.evaluate.metrics import (
    Size,
    count_metric,
    likelihood,
    metric_of,
    perplexity_metric,
    size_of_texts,
)
from rdlm.likelihood.estimate import Estimate


def test_size_counts_characters_and_words_of_each_text() -> None:
    # 5 + 8 characters; "ab" "c" and " d" "ef " "g" -> 2 + 3 words; 13 tokens in all
    assert size_of_texts(["ab c ", " d ef  g"], 13) == Size(tokens=6.5, characters=6.5, words=2.5)


@pytest.mark.parametrize("length", [7, 16, 128])
def test_words_of_windows_are_those_of_the_text(length: int) -> None:
    """A word between two windows counts once, not as two."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 9, (length * 400,), generator=generator).tolist()
    text = " ".join("x" * size for size in sizes)
    windows = [text[at : at + length] for at in range(0, len(text) - length, length)]
    words = size_of_texts(windows, 1, cut=True).words * len(windows)
    assert words == pytest.approx(len(sizes), rel=0.02)
    assert size_of_texts(windows, 1).words * len(windows) > 1.02 * len(sizes)
    assert size_of_texts(["a", " "], 1, cut=True).words == 0


def test_text_metrics_by_hand() -> None:
    """20 nats a sequence of 10 characters in 4 tokens and 2 words."""
    found = likelihood(Estimate(20.0, 0.4), Size(4, 10, 2), "text", "bound")
    assert found["nats_per_sequence"].value == 20
    bits = found["bits_per_character"]
    assert bits.value == pytest.approx(2 / math.log(2))
    assert bits.stderr == pytest.approx(0.04 / math.log(2))
    assert bits.high == pytest.approx((2 + 1.96 * 0.04) / math.log(2))
    token = found["perplexity_per_token"]
    assert token.value == pytest.approx(math.exp(5))
    assert token.stderr == pytest.approx(math.exp(5) * 0.1)
    assert (token.low, token.high) == pytest.approx((math.exp(5 - 0.196), math.exp(5 + 0.196)))
    assert found["perplexity_per_word"].value == pytest.approx(math.exp(10))
    assert all("bound" in one.convention for one in found.values())


def test_other_kinds_have_their_own_units() -> None:
    image = likelihood(Estimate(6.0, 0.0), Size(3, 3, 0), "image", "bound")
    assert set(image) == {"nats_per_sequence", "bits_per_dimension"}
    assert image["bits_per_dimension"].value == pytest.approx(2 / math.log(2))
    assert "bits_per_base" in likelihood(Estimate(6.0, 0.0), Size(3, 3, 0), "dna", "bound")


def test_a_text_without_words_has_no_perplexity_per_word() -> None:
    assert "perplexity_per_word" not in likelihood(Estimate(1.0, 0.0), Size(2, 2, 0), "text", "bound")


def test_json_has_the_promised_keys() -> None:
    keys = {"value", "stderr", "low", "high", "unit", "convention"}
    estimate = Estimate(1.0, 0.1)
    for found in (metric_of(estimate, "nats", "c"), perplexity_metric(estimate, "c"), count_metric(3, "u", "c")):
        assert set(found.to_json()) == keys

"""Metrics against numbers computed by hand, and the maximum mean discrepancy against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.evaluate import metrics
from rdlm.evaluate.metrics import (
    Size,
    calibration,
    count_metric,
    likelihood,
    median_bandwidth,
    metric_of,
    permutation_test,
    perplexity_metric,
    size_of_texts,
)
from rdlm.likelihood import Estimate


def test_size_counts_characters_and_words_of_each_text() -> None:
    # 5 + 8 characters; "ab" "c" and " d" "ef " "g" -> 2 + 3 words; 13 tokens in all
    assert size_of_texts(["ab c ", " d ef  g"], 13) == Size(tokens=6.5, characters=6.5, words=2.5)


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


def normal(count, dimension, seed):
    return torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed))


def by_definition(x, y, width):
    def kernel(a, b):
        return torch.exp(-(a[:, None].double() - b).square().sum(-1) / (2 * width**2))

    n, m = len(x), len(y)
    within = (kernel(x, x).sum() - n) / (n * (n - 1)) + (kernel(y, y).sum() - m) / (m * (m - 1))
    return (within - 2 * kernel(x, y).mean()).item()


def squared_mmd(x, y, bandwidth):
    return permutation_test(x, y, 1, bandwidth=bandwidth).value


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(2, 40),
    m=st.integers(2, 40),
    dimension=st.integers(1, 8),
    width=st.floats(0.1, 5),
    shift=st.floats(0, 100),
    seed=st.integers(0, 1000),
)
def test_agrees_with_the_definition(n, m, dimension, width, shift, seed):
    x, y = normal(n, dimension, seed) + shift, 1.2 * normal(m, dimension, seed + 1) + shift
    assert squared_mmd(x, y, width) == pytest.approx(by_definition(x, y, width), abs=1e-9)
    assert squared_mmd(y, x, width) == pytest.approx(squared_mmd(x, y, width), abs=1e-12)


def test_the_result_does_not_depend_on_the_rows_at_once(monkeypatch):
    x, y = normal(50, 3, 1), normal(37, 3, 2)
    whole = permutation_test(x, y, 20, torch.Generator().manual_seed(3))
    monkeypatch.setattr(metrics, "_ROWS", 16)
    parts = permutation_test(x, y, 20, torch.Generator().manual_seed(3))
    assert parts.value == pytest.approx(whole.value, abs=1e-12) and parts.p_value == whole.p_value
    assert parts.high == pytest.approx(whole.high, abs=1e-12)


def test_is_unbiased():
    values = torch.tensor([squared_mmd(normal(30, 2, 2 * s), normal(20, 2, 2 * s + 1), 1.0) for s in range(400)])
    assert values.mean().abs() < 4 * values.std() / 20
    assert values.min() < 0  # an estimate that cannot be negative would be biased


def test_p_values_of_equal_distributions_are_uniform():
    values = torch.tensor(
        [
            permutation_test(
                normal(25, 2, 2 * s), normal(25, 2, 2 * s + 1), 99, torch.Generator().manual_seed(s)
            ).p_value
            for s in range(200)
        ]
    )
    assert abs(values.mean().item() - 0.5) < 4 * (1 / 12 / 200) ** 0.5
    assert abs((values <= 0.1).double().mean().item() - 0.1) < 4 * (0.09 / 200) ** 0.5


def test_sees_a_shift_and_a_change_of_scale():
    x = normal(400, 3, 5)
    for other in (normal(400, 3, 6) + 0.3, 1.3 * normal(400, 3, 7)):
        found = permutation_test(x, other, 199, torch.Generator().manual_seed(8))
        assert found.p_value == 1 / 200 and found.value > found.high > found.low


def test_median_bandwidth_is_the_median_distance():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [3.0]])
    assert median_bandwidth(x, y) == 2.0  # distances 0, 1, 2, 2, 3, 3: the median of the positive ones
    assert median_bandwidth(x[:1].repeat(2, 1), x[:1].repeat(2, 1)) == 1.0


def test_refuses_bad_input():
    with pytest.raises(InputError, match="at least 2 vectors"):
        squared_mmd(normal(1, 3, 0), normal(5, 3, 1), 1.0)
    with pytest.raises(InputError, match="one length"):
        squared_mmd(normal(4, 3, 0), normal(5, 2, 1), 1.0)
    with pytest.raises(InputError, match="positive, got -1"):
        squared_mmd(normal(4, 3, 0), normal(5, 3, 1), -1.0)
    with pytest.raises(InputError, match="at least one permutation"):
        permutation_test(normal(4, 3, 0), normal(5, 3, 1), 0)


def test_calibration_error_of_calibrated_and_of_too_certain_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    law = (2 * torch.randn(40_000, 5, generator=generator)).softmax(-1)
    truth = torch.multinomial(law, 1, generator=generator)[:, 0]
    found = calibration(law, truth)
    assert int(found.count.sum()) == 40_000
    assert 0.4 * found.floor < found.error < 2 * found.floor < 0.015
    sharp = (1.5 * law.log()).softmax(-1)
    excess = sharp.max(-1).values - (sharp.argmax(-1) == truth).float()
    assert 0.05 < calibration(sharp, truth).error == pytest.approx(float(excess.mean()), abs=0.01)


def test_the_floor_is_the_mean_error_of_calibrated_predictions() -> None:
    generator = torch.Generator().manual_seed(1)
    law = (2 * torch.randn(500, 3, generator=generator)).softmax(-1)
    draws = [torch.multinomial(law, 1, generator=generator)[:, 0] for _ in range(200)]
    errors = torch.tensor([calibration(law, truth).error for truth in draws])
    assert calibration(law, draws[0]).floor == pytest.approx(float(errors.mean()), rel=0.05)

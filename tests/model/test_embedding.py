"""The time embedding and the dropping of conditions."""

from __future__ import annotations

import math

import pytest
import torch

from rdlm.errors import InputError
from rdlm.model.layers import drop_condition, sinusoids


def test_sinusoids_are_those_of_the_formula() -> None:
    time = torch.tensor([0.0, 0.37, -5.2], dtype=torch.float64)
    features = sinusoids(time, 1000.0, 256)
    assert features.shape == (3, 256)
    half = 128
    for row, t in zip(features.tolist(), time.tolist(), strict=True):
        for j in (0, 1, 50, half - 1):
            angle = t * 1000.0 * 10 ** (-4 * j / half)
            assert row[j] == pytest.approx(math.cos(angle), abs=1e-10)
            assert row[half + j] == pytest.approx(math.sin(angle), abs=1e-10)


def test_scaled_time_is_far_from_constant_where_raw_time_is_not() -> None:
    time = torch.linspace(0, 1, 101)
    spread = {scale: sinusoids(time, scale, 256).std(0).mean() for scale in (1.0, 1000.0)}
    assert spread[1000.0] > 5 * spread[1.0]


def test_half_precision_times_are_widened() -> None:
    assert sinusoids(torch.zeros(2, dtype=torch.bfloat16), 1.0, 4).dtype == torch.float32


@pytest.mark.parametrize("condition", [torch.arange(4000), torch.ones(4000, 3, 2)], ids=["labels", "signal"])
def test_conditions_are_dropped_by_whole_sequences(condition: torch.Tensor) -> None:
    dropped = drop_condition(condition, 0.1, torch.Generator().manual_seed(0))
    gone = dropped == -1 if dropped.ndim == 1 else dropped.isnan().flatten(1)
    gone = gone.reshape(4000, -1)
    assert (gone.all(1) == gone.any(1)).all()
    assert torch.equal(dropped[~gone[:, 0]], condition[~gone[:, 0]])
    # 4000 draws: five standard errors of the frequency
    assert gone[:, 0].double().mean() == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / 4000))
    assert torch.equal(drop_condition(condition, 0.0), condition)


def test_a_probability_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"probability 1.5"):
        drop_condition(torch.zeros(2), 1.5)

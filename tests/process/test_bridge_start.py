"""Starts: unit vectors with one angle to every token, and points that are none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Start, masked_start, uniform_start

starts = st.builds(Start, st.integers(2, 300), st.floats(0, 1))


@given(start=starts)
def test_a_start_lies_on_the_sphere_at_one_angle_to_all_tokens(start: Start) -> None:
    point = start.point(torch.float64)
    assert point.shape == (start.dimension,) and start.dimension == start.vocabulary + 1
    assert point.norm().item() == pytest.approx(1, abs=1e-12)
    vertices = torch.eye(start.dimension, dtype=torch.float64)[:-1]
    angles = sphere.distance(point.expand_as(vertices), vertices)
    torch.testing.assert_close(angles, torch.full_like(angles, start.angle), rtol=0, atol=1e-7)
    assert point[-1].item() == pytest.approx(start.mask_coordinate)


def test_masked_is_the_mask_vertex() -> None:
    assert masked_start(5).point().tolist() == [0, 0, 0, 0, 0, 1]
    assert masked_start(5).angle == pytest.approx(math.pi / 2)


def test_uniform_includes_the_mask() -> None:
    point = uniform_start(3).point(torch.float64)
    assert point.tolist() == pytest.approx([0.5] * 4)
    assert uniform_start(3).angle == pytest.approx(math.pi / 3)


def test_full_spread_leaves_the_mask() -> None:
    assert Start(4, 1.0).point().tolist() == pytest.approx([0.5] * 4 + [0])


def test_dtype_is_the_asked_one() -> None:
    assert masked_start(3).point().dtype == torch.float32
    assert masked_start(3).point(torch.float64, "cpu").dtype == torch.float64


@pytest.mark.parametrize("vocabulary", [1, 0, -3])
def test_too_few_tokens_are_refused(vocabulary: int) -> None:
    with pytest.raises(InputError, match=f"at least 2 tokens, got {vocabulary}"):
        Start(vocabulary)


@pytest.mark.parametrize("token_weight", [-0.1, 1.1, math.nan])
def test_token_weight_outside_its_range_is_refused(token_weight: float) -> None:
    with pytest.raises(InputError, match=r"token weight of a start must lie in \[0, 1\]"):
        Start(3, token_weight)

"""The maximum mean discrepancy against its definition, and its permutation test."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import discrepancy
from experiments.discrepancy import median_bandwidth, permutation_test
from rdlm.errors import InputError


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
    monkeypatch.setattr(discrepancy, "_ROWS", 16)
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

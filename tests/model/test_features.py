"""The input features: what they contain, and the values at known points."""

from __future__ import annotations

import pytest
import torch

from rdlm.errors import InputError
from rdlm.model.layers import from_evidence, with_top


def test_top_features_are_values_and_places() -> None:
    x = torch.tensor([[0.3, -0.5, 0.7, 0.1]])
    expected = [0.3, -0.5, 0.7, 0.1, 0.7, 0.3, 1.0, 0.0, 1.0, 0.0]
    torch.testing.assert_close(with_top(x, 2), torch.tensor([expected]))
    assert with_top(torch.randn(2, 5, 9), 3).shape == (2, 5, 2 * 9 + 3)


@pytest.mark.parametrize("k", [0, 5])
def test_top_features_need_a_possible_number(k: int) -> None:
    with pytest.raises(InputError, match=f"number {k} of top features must lie between 1 and 4"):
        with_top(torch.zeros(1, 4), k)


def test_evidence_is_zero_when_flat_and_of_order_one_when_sure() -> None:
    assert from_evidence(torch.full((2, 27), -300.0)).abs().max() < 1e-6
    sure = torch.full((27,), -torch.inf)
    sure[4] = 0
    features = from_evidence(sure)
    torch.testing.assert_close(features.norm(), torch.tensor(27 - 1.0).sqrt())
    torch.testing.assert_close(features.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert features.argmax() == 4

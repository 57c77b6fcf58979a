"""Rules: what temperature, cuts, masks and wishes do to probabilities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rdlm.errors import InputError
from rdlm.sampling.constraints import Rules, tilt


def law_of(seed: int = 0, shape: tuple[int, ...] = (2, 3, 6)) -> Tensor:
    return torch.log_softmax(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), -1)


def test_without_rules_the_law_is_the_models() -> None:
    law = law_of()
    assert Rules().law(law, None) is law
    assert Rules().marginals(law) is law


@given(st.integers(1, 8), st.integers(0, 50))
def test_top_k_keeps_the_likeliest_in_proportion(k: int, seed: int) -> None:
    law = law_of(seed)
    cut = Rules(top_k=k).marginals(law)
    kept = cut > -torch.inf
    assert bool((kept.sum(-1) == min(k, 6)).all())
    assert bool((law.masked_fill(~kept, torch.inf).amin(-1) >= law.masked_fill(kept, -torch.inf).amax(-1)).all())
    torch.testing.assert_close(cut.exp().sum(-1), torch.ones(2, 3))
    ratio = (cut - law)[kept].view(2, 3, -1)
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))


@given(st.floats(0.05, 0.999), st.integers(0, 50))
def test_top_p_keeps_the_fewest_that_reach_it(p: float, seed: int) -> None:
    law = law_of(seed)
    kept = Rules(top_p=p).marginals(law) > -torch.inf
    mass = (law.exp() * kept).sum(-1)
    assert bool((mass >= p - 1e-6).all())
    smallest = law.masked_fill(~kept, torch.inf).amin(-1).exp()
    assert bool((mass - smallest < p + 1e-6).all())


def test_masks_and_settled_tokens_are_exact() -> None:
    allowed = torch.ones(3, 6, dtype=torch.bool)
    allowed[1, :5] = False
    settled = torch.tensor([[2, -1, -1], [-1, -1, 0]])
    law = Rules(allowed=allowed).law(law_of(), settled >= 0, settled.clamp_min(0)).exp()
    assert law[0, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert law[1, 2].tolist() == [1, 0, 0, 0, 0, 0]
    assert law[:, 1].tolist() == [[0, 0, 0, 0, 0, 1]] * 2
    torch.testing.assert_close(law[0, 2], law_of()[0, 2].exp())


def test_a_wish_that_is_a_sum_gives_the_posterior() -> None:
    """log p(y | tokens) = sum_i r(token_i): Bayes' rule multiplies each position's law by exp(r)."""
    reward = torch.tensor([0.0, 1.0, -2.0, 0.5, 0.0, 3.0])
    law = Rules(wish=lambda p: (p * reward).sum((-1, -2)), wish_scale=0.7).law(law_of(), None)
    torch.testing.assert_close(law, torch.log_softmax(law_of() + 0.7 * reward, -1))


def test_a_wish_with_gradients_off_and_of_a_wrong_shape() -> None:
    with torch.no_grad():
        found = tilt(lambda p: p[:, 0, 0].square(), law_of())
    torch.testing.assert_close(found[:, 0, 0], 2 * law_of().exp()[:, 0, 0])
    assert float(found[:, 1:].abs().sum()) == 0
    with pytest.raises(InputError, match="one number per sample"):
        tilt(lambda p: p.sum(), law_of())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top_k": 0}, "top-k must be at least 1"), ({"top_p": 1.5}, "top-p must lie"), ({"top_p": 0.0}, "got 0")],
)
def test_values_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rules(**options)  # type: ignore[arg-type]

"""Constraints: truncation, masks, known tokens and classifiers; digits that decode to tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rdlm.config import SamplingOptions
from rdlm.errors import InputError
from rdlm.process.layout import Layout
from rdlm.sampling.automaton import token_codes
from rdlm.sampling.constraints import Constraints, classifier_gradient, most_likely, valid_digits


def log_probs_of(seed: int = 0, shape: tuple[int, ...] = (2, 3, 6)) -> Tensor:
    return torch.log_softmax(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), -1)


def test_without_constraints_log_probs_are_the_models() -> None:
    log_probs = log_probs_of()
    assert Constraints().apply(log_probs) is log_probs
    assert Constraints().marginals(log_probs) is log_probs


@given(st.integers(1, 8), st.integers(0, 50))
def test_top_k_keeps_the_most_likely_in_proportion(k: int, seed: int) -> None:
    log_probs = log_probs_of(seed)
    truncated = Constraints(top_k=k).marginals(log_probs)
    kept = truncated > -torch.inf
    assert bool((kept.sum(-1) == min(k, 6)).all())
    assert bool(
        (log_probs.masked_fill(~kept, torch.inf).amin(-1) >= log_probs.masked_fill(kept, -torch.inf).amax(-1)).all()
    )
    torch.testing.assert_close(truncated.exp().sum(-1), torch.ones(2, 3))
    ratio = (truncated - log_probs)[kept].view(2, 3, -1)
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))


@given(st.floats(0.05, 0.999), st.integers(0, 50))
def test_top_p_keeps_the_fewest_that_reach_it(p: float, seed: int) -> None:
    log_probs = log_probs_of(seed)
    kept = Constraints(top_p=p).marginals(log_probs) > -torch.inf
    mass = (log_probs.exp() * kept).sum(-1)
    assert bool((mass >= p - 1e-6).all())
    smallest = log_probs.masked_fill(~kept, torch.inf).amin(-1).exp()
    assert bool((mass - smallest < p + 1e-6).all())


def test_masks_and_known_tokens_are_exact() -> None:
    allowed = torch.ones(3, 6, dtype=torch.bool)
    allowed[1, :5] = False
    fixed = torch.tensor([[2, -1, -1], [-1, -1, 0]])
    log_probs = Constraints(allowed=allowed).apply(log_probs_of(), fixed >= 0, fixed.clamp_min(0)).exp()
    assert log_probs[0, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert log_probs[1, 2].tolist() == [1, 0, 0, 0, 0, 0]
    assert log_probs[:, 1].tolist() == [[0, 0, 0, 0, 0, 1]] * 2
    torch.testing.assert_close(log_probs[0, 2], log_probs_of()[0, 2].exp())


def test_a_classifier_that_is_a_sum_gives_the_posterior() -> None:
    """log p(y | tokens) = sum_i r(token_i): Bayes' rule multiplies each position's probabilities by exp(r)."""
    reward = torch.tensor([0.0, 1.0, -2.0, 0.5, 0.0, 3.0])
    log_probs = Constraints(classifier=lambda p: (p * reward).sum((-1, -2)), classifier_scale=0.7).apply(log_probs_of())
    torch.testing.assert_close(log_probs, torch.log_softmax(log_probs_of() + 0.7 * reward, -1))


def test_a_classifier_with_gradients_off_and_of_a_wrong_shape() -> None:
    with torch.no_grad():
        found = classifier_gradient(lambda p: p[:, 0, 0].square(), log_probs_of())
    torch.testing.assert_close(found[:, 0, 0], 2 * log_probs_of().exp()[:, 0, 0])
    assert float(found[:, 1:].abs().sum()) == 0
    with pytest.raises(InputError, match="one number per sample"):
        classifier_gradient(lambda p: p.sum(), log_probs_of())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top_k": 0}, "top-k must be at least 1"), ({"top_p": 1.5}, "top-p must lie"), ({"top_p": 0.0}, "got 0")],
)
def test_values_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingOptions(**options)  # type: ignore[arg-type]


@given(st.integers(2, 40), st.integers(2, 4), st.integers(0, 50))
def test_decoded_digits_are_codes_of_tokens(vocabulary: int, base: int, seed: int) -> None:
    """Codes of tokens stay; others are drawn again where they decode, and counted."""
    layout = Layout(vocabulary, min(base, vocabulary), head="digit")
    codes, m = token_codes(vocabulary, layout.base, layout.digits), layout.digits
    log_probs = log_probs_of(seed, (3, 4 * m, layout.base))
    generator = torch.Generator().manual_seed(seed)
    digit = torch.randint(layout.base, (3, 4 * m), generator=generator)
    decoding = torch.tensor([True, False, True, True]).repeat_interleave(m).expand(3, -1)
    point = torch.rand(3, 4 * m, generator=generator, dtype=torch.float64)
    before = layout.decode(digit.unflatten(1, (-1, m)))
    wrong = (before < 0) & decoding[:, ::m]
    for choice in (lambda one: one, most_likely):
        found, invalid = valid_digits(codes, digit.clone(), decoding, log_probs, point, choice, m)
        after = layout.decode(found.unflatten(1, (-1, m)))
        assert invalid == int(wrong.sum())
        assert torch.equal(after[~wrong], before[~wrong]) and bool((after[wrong] >= 0).all())

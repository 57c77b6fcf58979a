"""The codec: round trips, invalid codes, and the sums between tokens and digits against a dense matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.process.layout import PLACEMENTS, Layout

sizes = st.integers(2, 400).flatmap(lambda v: st.tuples(st.just(v), st.integers(2, v)))


def dense(layout: Layout) -> torch.Tensor:
    """The 0/1 matrix [m, b, V] of which digit values a token has, from Python's own integers."""
    matrix = torch.zeros(layout.digits, layout.base, layout.vocabulary, dtype=torch.float64)
    for token in range(layout.vocabulary):
        rest = token
        for digit in reversed(range(layout.digits)):
            matrix[digit, rest % layout.base, token] = 1
            rest //= layout.base
    return matrix


@settings(deadline=None, max_examples=60)
@given(sizes, st.sampled_from(PLACEMENTS))
def test_every_id_returns(size: tuple[int, int], placement: str) -> None:
    layout = Layout(*size, placement)
    ids = torch.arange(layout.vocabulary)
    digits = layout.encode(ids[None])
    assert digits.shape == ((1, len(ids) * layout.digits) if placement == "serial" else (1, len(ids), layout.digits))
    assert digits.min() >= 0 and digits.max() < layout.base
    assert torch.equal(layout.decode(digits), ids[None])


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_every_code_is_a_token_or_invalid(size: tuple[int, int]) -> None:
    layout = Layout(*size)
    codes = Layout(layout.base**layout.digits, layout.base).encode(torch.arange(layout.base**layout.digits))
    ids = layout.decode(codes)
    assert torch.equal(ids[: layout.vocabulary], torch.arange(layout.vocabulary))
    assert (ids[layout.vocabulary :] == -1).all()


def test_digits_run_from_the_most_significant() -> None:
    assert Layout(30522, 3).encode(torch.tensor([5, 30521])).tolist() == [
        [0, 0, 0, 0, 0, 0, 0, 0, 1, 2],
        [1, 1, 1, 2, 2, 1, 2, 1, 0, 2],
    ]


@pytest.mark.parametrize(
    ("vocabulary", "base", "digits"),
    [
        (125, 5, 3),
        (126, 5, 4),
        (243, 3, 5),
        (1000, 10, 3),
        (3**20, 3, 20),
        (27, 27, 1),
        (2, 2, 1),
        (30522, 3, 10),
    ],
)
def test_number_of_digits_is_exact_at_powers(vocabulary: int, base: int, digits: int) -> None:
    assert Layout(vocabulary, base).digits == digits
    assert Layout(vocabulary, base, "packed").positions == 1
    assert Layout(vocabulary, base, "serial").positions == digits


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_marginals_and_evidence_are_the_dense_matrix_and_its_transpose(size: tuple[int, int]) -> None:
    layout = Layout(*size)
    matrix = dense(layout)
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(2, 3, layout.vocabulary, dtype=torch.float64, generator=generator).softmax(-1)
    torch.testing.assert_close(layout.marginals(probability), torch.einsum("xyv,mbv->xymb", probability, matrix))
    torch.testing.assert_close(layout.marginals(probability).sum(-1), torch.ones(2, 3, layout.digits).double())
    evidence = torch.randn(2, 3, layout.digits, layout.base, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(layout.evidence(evidence), torch.einsum("xymb,mbv->xyv", evidence, matrix))


@pytest.mark.parametrize("size", [(7, 3), (9, 3), (5, 5), (11, 2)])
def test_both_sums_have_the_right_derivatives(size: tuple[int, int]) -> None:
    layout = Layout(*size)
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(2, layout.vocabulary, dtype=torch.float64, generator=generator).requires_grad_()
    evidence = torch.rand(2, layout.digits, layout.base, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(layout.marginals, probability)
    assert torch.autograd.gradcheck(layout.evidence, evidence)
    assert torch.autograd.gradgradcheck(lambda p: layout.marginals(p).square(), probability)


def test_evidence_that_excludes_a_digit_excludes_its_tokens() -> None:
    layout = Layout(7, 3)
    evidence = torch.zeros(2, 3)
    evidence[0, 1] = -torch.inf
    assert layout.evidence(evidence).isneginf().tolist() == [False] * 3 + [True] * 3 + [False]


def test_sums_take_views_and_empty_batches() -> None:
    layout = Layout(9, 3)
    probability = torch.rand(9, 4).t()
    torch.testing.assert_close(layout.marginals(probability), layout.marginals(probability.contiguous()))
    assert layout.marginals(torch.empty(0, 9)).shape == (0, 2, 3)
    assert layout.evidence(torch.empty(0, 2, 3)).shape == (0, 9)
    assert Layout(9, 3, "serial").decode(torch.empty(0, 4, dtype=torch.long)).shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2), "at least 2 tokens, got 1"),
        ((27, 1), "base 1 must be at least 2"),
        ((27, 28), "use base = 27"),
        ((27, 3, "pakced"), "did you mean 'packed'"),
    ],
)
def test_wrong_sizes_are_refused(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layout(*arguments)


def test_wrong_tensors_are_refused() -> None:
    layout = Layout(27, 3)
    with pytest.raises(InputError, match=r"token ids must lie in \[0, 26\], got -1 to 27"):
        layout.encode(torch.tensor([-1, 27]))
    with pytest.raises(InputError, match=r"digits must lie in \[0, 2\], got 0 to 3"):
        layout.decode(torch.tensor([[0, 3, 0]]))
    with pytest.raises(InputError, match="tokens have 3 digits, got 2"):
        layout.decode(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(InputError, match="4 digits are not whole tokens of 3"):
        Layout(27, 3, "serial").decode(torch.zeros(1, 4, dtype=torch.long))

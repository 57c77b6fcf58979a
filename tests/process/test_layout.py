"""The codec: round trips, invalid codes, and the sums between tokens and digits against a dense matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.process.layout import LAYOUTS, Codec

sizes = st.integers(2, 400).flatmap(lambda v: st.tuples(st.just(v), st.integers(2, v)))


def dense(codec: Codec) -> torch.Tensor:
    """The 0/1 matrix [m, b, V] of which digit values a token has, from Python's own integers."""
    matrix = torch.zeros(codec.digits, codec.base, codec.vocabulary, dtype=torch.float64)
    for token in range(codec.vocabulary):
        rest = token
        for digit in reversed(range(codec.digits)):
            matrix[digit, rest % codec.base, token] = 1
            rest //= codec.base
    return matrix


@settings(deadline=None, max_examples=60)
@given(sizes, st.sampled_from(LAYOUTS))
def test_every_id_returns(size: tuple[int, int], layout: str) -> None:
    codec = Codec(*size, layout)
    ids = torch.arange(codec.vocabulary)
    digits = codec.encode(ids[None])
    assert digits.shape == ((1, len(ids) * codec.digits) if layout == "serial" else (1, len(ids), codec.digits))
    assert digits.min() >= 0 and digits.max() < codec.base
    decoded = codec.decode(digits)
    assert torch.equal(decoded.ids, ids[None])
    assert decoded.invalid == 0


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_every_code_is_a_token_or_invalid(size: tuple[int, int]) -> None:
    codec = Codec(*size)
    codes = Codec(codec.base**codec.digits, codec.base).encode(torch.arange(codec.base**codec.digits))
    ids, invalid = codec.decode(codes)
    assert torch.equal(ids[: codec.vocabulary], torch.arange(codec.vocabulary))
    assert (ids[codec.vocabulary :] == -1).all()
    assert invalid == len(ids) - codec.vocabulary
    assert invalid / len(ids) == pytest.approx(codec.invalid_fraction)


def test_digits_run_from_the_most_significant() -> None:
    assert Codec(30522, 3).encode(torch.tensor([5, 30521])).tolist() == [
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
    assert Codec(vocabulary, base).digits == digits
    assert Codec(vocabulary, base, "packed").positions == 1
    assert Codec(vocabulary, base, "serial").positions == digits


def test_half_of_the_base_3_strings_spell_no_wordpiece() -> None:
    assert Codec(30522, 3).invalid_fraction == pytest.approx(0.4831, abs=1e-4)
    assert Codec(243, 3).invalid_fraction == 0


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_marginals_and_evidence_are_the_dense_matrix_and_its_transpose(size: tuple[int, int]) -> None:
    codec = Codec(*size)
    matrix = dense(codec)
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(2, 3, codec.vocabulary, dtype=torch.float64, generator=generator).softmax(-1)
    torch.testing.assert_close(codec.marginals(probability), torch.einsum("xyv,mbv->xymb", probability, matrix))
    torch.testing.assert_close(codec.marginals(probability).sum(-1), torch.ones(2, 3, codec.digits).double())
    evidence = torch.randn(2, 3, codec.digits, codec.base, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(codec.evidence(evidence), torch.einsum("xymb,mbv->xyv", evidence, matrix))


@pytest.mark.parametrize("size", [(7, 3), (9, 3), (5, 5), (11, 2)])
def test_both_sums_have_the_right_derivatives(size: tuple[int, int]) -> None:
    codec = Codec(*size)
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(2, codec.vocabulary, dtype=torch.float64, generator=generator).requires_grad_()
    evidence = torch.rand(2, codec.digits, codec.base, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(codec.marginals, probability)
    assert torch.autograd.gradcheck(codec.evidence, evidence)
    assert torch.autograd.gradgradcheck(lambda p: codec.marginals(p).square(), probability)


def test_evidence_that_excludes_a_digit_excludes_its_tokens() -> None:
    codec = Codec(7, 3)
    evidence = torch.zeros(2, 3)
    evidence[0, 1] = -torch.inf
    assert codec.evidence(evidence).isneginf().tolist() == [False] * 3 + [True] * 3 + [False]


def test_sums_take_views_and_empty_batches() -> None:
    codec = Codec(9, 3)
    probability = torch.rand(9, 4).t()
    torch.testing.assert_close(codec.marginals(probability), codec.marginals(probability.contiguous()))
    assert codec.marginals(torch.empty(0, 9)).shape == (0, 2, 3)
    assert codec.evidence(torch.empty(0, 2, 3)).shape == (0, 9)
    assert Codec(9, 3, "serial").decode(torch.empty(0, 4, dtype=torch.long)).ids.shape == (0, 2)


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
        Codec(*arguments)


def test_wrong_tensors_are_refused() -> None:
    codec = Codec(27, 3)
    with pytest.raises(InputError, match="token ids -1 to 27 leave the range 0 to 26"):
        codec.encode(torch.tensor([-1, 27]))
    with pytest.raises(InputError, match="digits from 0 to 3 leave the range 0 to 2"):
        codec.decode(torch.tensor([[0, 3, 0]]))
    with pytest.raises(InputError, match="tokens have 3 digits, got 2"):
        codec.decode(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(InputError, match="4 digits are not whole tokens of 3"):
        Codec(27, 3, "serial").decode(torch.zeros(1, 4, dtype=torch.long))

"""Automata over tokens: exact marginals and joint draws against all strings; regexes against Python's own engine."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from rdlm.errors import InputError
from rdlm.process.layout import Layout
from rdlm.sampling.automaton import Automaton, Restriction, compile_regex, token_codes


def even() -> Automaton:
    """Return the strings over 3 tokens with an even number of 1 and no 2 after a 1."""
    table = torch.tensor([[0, 2, 1], [1, 2, 1], [2, 3, 4], [3, 2, 4], [4, 4, 4]])
    return Automaton(table, torch.tensor([True, True, False, True, False]))


def accepted(automaton: Automaton, length: int) -> Tensor:
    strings = torch.tensor(list(itertools.product(range(automaton.table.shape[1]), repeat=length)))
    return strings[automaton.accepting[automaton.run(strings)]]


def log_probs_of(seed: int, length: int) -> Tensor:
    return torch.log_softmax(2 * torch.randn(1, length, 3, generator=torch.Generator().manual_seed(seed)), -1)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 1000))
def test_marginals_are_those_of_the_accepted_strings(length: int, seed: int) -> None:
    automaton, log_probs = even(), log_probs_of(seed, length)
    strings = accepted(automaton, length)
    weight = log_probs[0].double().gather(1, strings.T).sum(0).softmax(0)
    expected = torch.stack([torch.zeros(3).double().index_add_(0, column, weight) for column in strings.T])
    restriction = Restriction(automaton, torch.tensor([0]), automaton.accepting)
    torch.testing.assert_close(restriction.marginals(log_probs)[0].exp().double(), expected, rtol=0, atol=1e-5)


def test_draws_have_the_joint_distribution_of_the_accepted_strings() -> None:
    automaton, log_probs, count = even(), log_probs_of(7, 4), 20_000
    restriction = Restriction(automaton, torch.zeros(count, dtype=torch.long), automaton.accepting)
    point = torch.rand(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = restriction.draw(log_probs.expand(count, -1, -1), point, lambda one: one)
    strings = accepted(automaton, 4)
    weight = log_probs[0].double().gather(1, strings.T).sum(0).softmax(0)
    code = 3 ** torch.arange(4)
    found = torch.tensor([int(((drawn * code).sum(1) == (s * code).sum()).sum()) for s in strings])
    assert int(found.sum()) == count
    likely = weight * count > 5
    merged = [torch.cat([part[likely], part[~likely].sum()[None]]).numpy() for part in (found.double(), weight * count)]
    assert stats.chisquare(*merged).pvalue > 1e-3


def test_an_improbable_language_is_not_lost_in_rounding() -> None:
    """The only accepted string has a log-probability of minus thousands of nats, far below the smallest float64."""
    table = torch.tensor([[0, 1, 1], [1, 1, 1]])
    automaton = Automaton(table, torch.tensor([True, False]))
    log_probs = torch.tensor([-4000.0, 0.0, -5.0]).expand(1, 6, 3)
    restriction = Restriction(automaton, torch.tensor([0]), automaton.accepting)
    assert restriction.draw(log_probs, torch.full((1, 6), 0.5, dtype=torch.float64), lambda one: one).tolist() == [
        [0] * 6
    ]
    assert restriction.marginals(log_probs)[0].exp()[:, 0].tolist() == [1.0] * 6


def test_alive_states_can_still_reach_an_accepting_one() -> None:
    automaton = even()
    assert automaton.alive(torch.ones(0, 3, dtype=torch.bool)).tolist() == automaton.accepting.tolist()
    only_two = torch.tensor([[False, False, True]])
    assert automaton.alive(only_two).tolist() == [True, True, False, False, False]


@settings(max_examples=30)
@given(st.integers(2, 60), st.integers(2, 5))
def test_token_codes_accept_the_codes_of_tokens(vocabulary: int, base: int) -> None:
    base = min(base, vocabulary)
    layout = Layout(vocabulary, base)
    automaton = token_codes(vocabulary, base, layout.digits)
    codes = torch.tensor(list(itertools.product(range(base), repeat=layout.digits)))
    assert torch.equal(automaton.accepting[automaton.run(codes)], layout.decode(codes[:, None])[:, 0] >= 0)


ALPHABET = "ab1 "
STRINGS = ["".join(s) for n in range(5) for s in itertools.product(ALPHABET, repeat=n)]

atoms = st.sampled_from(["a", "b", "1", " ", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "[a-b1]", r"[\d ]"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("({0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{0}"])).map("({0[0]}){0[1]}".format),
    ),
    max_leaves=6,
)


def accepts(automaton: Automaton, text: str) -> bool:
    ids = torch.tensor([[ALPHABET.index(character) for character in text]], dtype=torch.long)
    return bool(automaton.accepting[automaton.run(ids)])


@settings(max_examples=60)
@given(patterns)
def test_a_regex_agrees_with_python(pattern: str) -> None:
    automaton, oracle = compile_regex(pattern, ALPHABET), re.compile(pattern)
    assert [s for s in STRINGS if accepts(automaton, s)] == [s for s in STRINGS if oracle.fullmatch(s)]


@pytest.mark.parametrize("pattern", ["a|", "", "(a|b|)1", "a{2,3}b*", r"a\*"])
def test_edge_cases_agree_with_python(pattern: str) -> None:
    alphabet = ALPHABET + "*"
    automaton = compile_regex(pattern, alphabet)
    for text in [*STRINGS, "a*", "*"]:
        ids = torch.tensor([[alphabet.index(c) for c in text]], dtype=torch.long)
        assert bool(automaton.accepting[automaton.run(ids)]) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("pattern", [r"\w+", r"\d\d", r"\w\s\w", r"[\w\s]*", r"[^\w]+", r"[^\d\s]+"])
def test_classes_have_the_characters_of_all_scripts(pattern: str) -> None:
    alphabet = "я中ع٣_\u2003."
    automaton, oracle = compile_regex(pattern, alphabet), re.compile(pattern)
    for text in map("".join, itertools.product(alphabet, repeat=3)):
        for part in (text[:1], text[:2], text):
            ids = torch.tensor([[alphabet.index(c) for c in part]], dtype=torch.long)
            assert bool(automaton.accepting[automaton.run(ids)]) == bool(oracle.fullmatch(part)), part


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(ab", "the closing '\\)' of a group is missing"),
        ("ab)", "unmatched '\\)'"),
        ("*a", "nothing to repeat before '\\*'"),
        ("[ab", "the closing '\\]' of a class is missing"),
        ("a{3,2}", "counts must be increasing"),
        ("a{x}", "a count must have the form"),
        ("a{99999}", "at most 4096"),
        ("aZ", "the character 'Z' is not in"),
        (r"\q", "unknown escape"),
        ("a\\", "the character after a backslash is missing"),
        ("((a{200}){200}){200}", "more than 65536 states"),
    ],
)
def test_mistakes_in_a_regex_are_named(pattern: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        compile_regex(pattern, ALPHABET)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(" * 20_000, "more than 32 groups are nested"),
        ("(" * 20_000 + "a" + ")" * 20_000, "more than 32 groups are nested"),
        ("a" + "*" * 20_000, "more than 4 repetitions follow each other"),
        ("a{" + "9" * 20_000 + "}", "counts must be at most 4096"),
    ],
)
def test_a_regex_of_any_depth_gets_a_short_answer(pattern: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        compile_regex(pattern, ALPHABET)
    assert len(str(error.value)) < 300


def test_the_deepest_accepted_regex_compiles_on_a_deep_stack() -> None:
    pattern = "(" * 32 + "a" + "){1}{1}{1}{1}" * 32

    def compiled(frames: int) -> Automaton:
        return compiled(frames - 1) if frames else compile_regex(pattern, ALPHABET)

    assert accepts(compiled(300), "a")

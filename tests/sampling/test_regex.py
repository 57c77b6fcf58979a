"""Regular expressions: Python's own engine is the oracle, on every short string."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.sampling.automaton import Automaton, compile_regex

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
def test_agrees_with_python(pattern: str) -> None:
    automaton, oracle = compile_regex(pattern, ALPHABET), re.compile(pattern)
    assert [s for s in STRINGS if accepts(automaton, s)] == [s for s in STRINGS if oracle.fullmatch(s)]


@pytest.mark.parametrize("pattern", ["a|", "", "(a|b|)1", "a{2,3}b*", r"a\*"])
def test_edges_agree_with_python(pattern: str) -> None:
    alphabet = ALPHABET + "*"
    automaton = compile_regex(pattern, alphabet)
    for text in [*STRINGS, "a*", "*"]:
        ids = torch.tensor([[alphabet.index(c) for c in text]], dtype=torch.long)
        assert bool(automaton.accepting[automaton.run(ids)]) == bool(re.fullmatch(pattern, text)), text


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
def test_mistakes_are_named(pattern: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        compile_regex(pattern, ALPHABET)

"""Automata over tokens: exact marginals and joint draws, against the enumeration of all strings."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from rdlm.process.layout import Layout
from rdlm.sampling.automaton import Automaton, Restriction, spellings


def even() -> Automaton:
    """Return the strings over 3 tokens with an even number of 1 and no 2 after a 1."""
    table = torch.tensor([[0, 2, 1], [1, 2, 1], [2, 3, 4], [3, 2, 4], [4, 4, 4]])
    return Automaton(table, torch.tensor([True, True, False, True, False]))


def accepted(automaton: Automaton, length: int) -> Tensor:
    strings = torch.tensor(list(itertools.product(range(automaton.table.shape[1]), repeat=length)))
    return strings[automaton.accepting[automaton.run(strings)]]


def law_of(seed: int, length: int) -> Tensor:
    return torch.log_softmax(2 * torch.randn(1, length, 3, generator=torch.Generator().manual_seed(seed)), -1)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 1000))
def test_marginals_are_those_of_the_accepted_strings(length: int, seed: int) -> None:
    automaton, law = even(), law_of(seed, length)
    strings = accepted(automaton, length)
    weight = law[0].double().gather(1, strings.T).sum(0).softmax(0)
    expected = torch.stack([torch.zeros(3).double().index_add_(0, column, weight) for column in strings.T])
    restriction = Restriction(automaton, torch.tensor([0]), automaton.accepting)
    torch.testing.assert_close(restriction.marginals(law)[0].exp().double(), expected, rtol=0, atol=1e-5)


def test_draws_have_the_joint_law_of_the_accepted_strings() -> None:
    automaton, law, count = even(), law_of(7, 4), 20_000
    restriction = Restriction(automaton, torch.zeros(count, dtype=torch.long), automaton.accepting)
    point = torch.rand(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = restriction.draw(law.expand(count, -1, -1), point, lambda one: one)
    strings = accepted(automaton, 4)
    weight = law[0].double().gather(1, strings.T).sum(0).softmax(0)
    code = 3 ** torch.arange(4)
    found = torch.tensor([int(((drawn * code).sum(1) == (s * code).sum()).sum()) for s in strings])
    assert int(found.sum()) == count
    likely = weight * count > 5
    merged = [torch.cat([part[likely], part[~likely].sum()[None]]).numpy() for part in (found.double(), weight * count)]
    assert stats.chisquare(*merged).pvalue > 1e-3


def test_an_improbable_language_is_not_lost_in_rounding() -> None:
    """A law that all but excludes the only accepted string: thousands of nats, far below the smallest float64."""
    table = torch.tensor([[0, 1, 1], [1, 1, 1]])
    automaton = Automaton(table, torch.tensor([True, False]))
    law = torch.tensor([-4000.0, 0.0, -5.0]).expand(1, 6, 3)
    restriction = Restriction(automaton, torch.tensor([0]), automaton.accepting)
    assert restriction.draw(law, torch.full((1, 6), 0.5, dtype=torch.float64), lambda one: one).tolist() == [[0] * 6]
    assert restriction.marginals(law)[0].exp()[:, 0].tolist() == [1.0] * 6


def test_alive_knows_what_can_still_end_well() -> None:
    automaton = even()
    assert automaton.alive(torch.ones(0, 3, dtype=torch.bool)).tolist() == automaton.accepting.tolist()
    only_two = torch.tensor([[False, False, True]])
    assert automaton.alive(only_two).tolist() == [True, True, False, False, False]


@settings(max_examples=30)
@given(st.integers(2, 60), st.integers(2, 5))
def test_spellings_are_the_codes_of_tokens(vocabulary: int, base: int) -> None:
    base = min(base, vocabulary)
    layout = Layout(vocabulary, base)
    automaton = spellings(vocabulary, base, layout.digits)
    codes = torch.tensor(list(itertools.product(range(base), repeat=layout.digits)))
    assert torch.equal(automaton.accepting[automaton.run(codes)], layout.decode(codes[:, None])[0][:, 0] >= 0)

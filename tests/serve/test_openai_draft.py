"""Drafts: in whatever pieces tokens become final, the pieces add up to the text, and a stop ends it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.data.tokenizer import Bytes, Characters, Levels, Tokenizer
from rdlm.serve.openai import Draft

LETTERS = Characters("ab ")


def written(tokenizer: Tokenizer, ids: list[int], cuts: list[int], begin: int, end: int, stops: list[str]) -> Draft:
    """Return the draft after tokens have become final in pieces; the sum of the pieces is checked."""
    draft, at, seen = Draft(tokenizer, begin, end, stops), 0, ""
    for cut in sorted(cuts):
        seen += draft.add(ids[at : max(at, cut)])
        at = max(at, cut)
        assert seen == draft.text
    assert seen + draft.finish(ids) == draft.text
    return draft


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3),
    st.integers(0, 5),
)
def test_pieces_add_up_to_the_text_before_its_first_stop(
    ids: list[int], cuts: list[int], stops: list[str], begin: int
) -> None:
    draft = written(LETTERS, ids, cuts, begin, len(ids), stops)
    whole = LETTERS.decode(ids[begin:])
    places = [whole.find(stop) for stop in stops if stop in whole]
    assert draft.text == (whole[: min(places)] if places else whole)
    assert draft.reason == ("stop" if places else "length")


@settings(max_examples=200)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=6))
def test_characters_of_several_bytes_are_never_sent_in_halves(ids: list[int], cuts: list[int]) -> None:
    assert written(Bytes(), ids, cuts, 0, len(ids), []).text == Bytes().decode(ids)


def test_numbers_keep_their_spaces() -> None:
    draft = Draft(Levels(256), 1, 4)
    assert [draft.add([7, 1]), draft.add([2]), draft.finish([7, 1, 2, 33, 9])] == ["1", " 2", " 33"]


def test_what_could_begin_a_stop_is_held_back() -> None:
    draft = Draft(LETTERS, 0, 9, ["ab"])
    assert [draft.add([1, 0]), draft.add([0]), draft.add([1, 0])] == ["b", "a", ""]
    assert draft.stopped and draft.reason == "stop" and draft.finish([1, 0, 0, 1, 0]) == ""

"""Streamed text: in whatever pieces tokens become final, the pieces add up to the text, and a stop ends it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.data.tokenizer import Bytes, Characters, Levels, Tokenizer
from rdlm.serve.openai import StreamedText

LETTERS = Characters("ab ")


def written(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], begin: int, end: int, stops: list[str]
) -> StreamedText:
    """Return the text after tokens have become final in pieces; the sum of the pieces is checked."""
    streamed, at, seen = StreamedText(tokenizer, begin, end, stops), 0, ""
    for cut in sorted(cuts):
        seen += streamed.add(ids[at : max(at, cut)])
        at = max(at, cut)
        assert seen == streamed.text
    assert seen + streamed.finish(ids) == streamed.text
    return streamed


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
    streamed = written(LETTERS, ids, cuts, begin, len(ids), stops)
    whole = LETTERS.decode(ids[begin:])
    places = [whole.find(stop) for stop in stops if stop in whole]
    assert streamed.text == (whole[: min(places)] if places else whole)
    assert streamed.reason == ("stop" if places else "length")


@settings(max_examples=200)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=6))
def test_characters_of_several_bytes_are_never_sent_in_halves(ids: list[int], cuts: list[int]) -> None:
    assert written(Bytes(), ids, cuts, 0, len(ids), []).text == Bytes().decode(ids)


def test_numbers_keep_their_spaces() -> None:
    streamed = StreamedText(Levels(256), 1, 4)
    assert [streamed.add([7, 1]), streamed.add([2]), streamed.finish([7, 1, 2, 33, 9])] == ["1", " 2", " 33"]


def test_what_could_begin_a_stop_is_held_back() -> None:
    streamed = StreamedText(LETTERS, 0, 9, ["ab"])
    assert [streamed.add([1, 0]), streamed.add([0]), streamed.add([1, 0])] == ["b", "a", ""]
    assert streamed.stopped and streamed.reason == "stop" and streamed.finish([1, 0, 0, 1, 0]) == ""

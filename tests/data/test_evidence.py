"""Readings of sequences as evidence: notation, channels, files, and mistakes in them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.data import channels, evidence
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError

TEXT8 = " abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("make", [channels.symmetric, channels.keyboard])
@given(error=st.floats(1e-3, 0.9))
def test_channels_are_laws_with_the_error_rate(make, error: float) -> None:
    matrix = make(TEXT8, error)
    assert torch.allclose(matrix.sum(1), torch.ones(27).double())
    assert torch.allclose(matrix.diagonal(), torch.full((27,), 1 - error).double())
    assert bool((matrix >= 0).all())


def test_keyboard_errors_are_neighbours() -> None:
    matrix = channels.keyboard(TEXT8, 0.1)
    for true, near, far in (("g", "fhtyvb", "qp "), ("q", "wa", "ps"), ("p", "ol", "q")):
        row = matrix[TEXT8.index(true)]
        assert all(row[TEXT8.index(key)] > 0 for key in near)
        assert all(row[TEXT8.index(key)] == 0 for key in far)
    read = matrix > 0
    assert bool((read == read.T).all())  # if a is hit for b, b is hit for a


def test_notation_of_uncertain_text() -> None:
    reading = evidence.from_text(r"a?_[bc]d", TEXT8, channels.symmetric(TEXT8, 0.1))
    assert reading.symbols == "a???d" and reading.evidence.shape == (5, 27)
    assert float(reading.evidence[0, TEXT8.index("a")]) == pytest.approx(math.log(0.9))
    assert torch.equal(reading.evidence[1], torch.zeros(27).double())
    assert reading.evidence[3].exp().nonzero().flatten().tolist() == [TEXT8.index("b"), TEXT8.index("c")]
    plain = evidence.from_text("ab", TEXT8).evidence.exp()
    assert torch.equal(plain.argmax(-1), torch.tensor([1, 2])) and torch.equal(plain.sum(-1), torch.ones(2).double())
    quoted = evidence.from_text(r"\[\?", "[]?x")
    assert quoted.symbols == "[?" and quoted.evidence.exp().argmax(-1).tolist() == [0, 2]


def test_confusion_matrices_from_csv_and_json() -> None:
    table = "true,a,b,space\na,0.8,0.2,0\nspace,0,0.1,0.9\n"
    rows = {"a": {"a": 0.8, "b": 0.2}, " ": {"b": 0.1, " ": 0.9}}
    for mark in (";", "\t"):
        assert torch.equal(channels.confusion(table.replace(",", mark), "ab "), channels.confusion(table, "ab "))
    by_csv, by_json = (channels.confusion(text, "ab ") for text in (table, json.dumps(rows)))
    assert torch.equal(by_csv, by_json)
    assert by_csv.tolist() == [[0.8, 0.2, 0], [0, 1, 0], [0, 0.1, 0.9]]


def test_json_lines_spread_what_is_said_to_be_left() -> None:
    lines = '{"a": 0.7, "b": 0.2, "rest": 0.1}\n\n{"c": 1}\n{"a": 0.3333, "d": 0.6666}\n{"rest": 1}\n'
    reading = evidence.from_json_lines(lines, "abcd")
    assert reading.symbols == "acd?"
    assert torch.allclose(reading.evidence[0].exp(), torch.tensor([0.7, 0.2, 0.05, 0.05]).double())
    assert reading.evidence[1].exp().tolist() == [0, 0, 1, 0]
    assert torch.allclose(reading.evidence[2].exp(), torch.tensor([0.3333, 0, 0, 0.6666]).double())  # rounded: allowed
    assert reading.evidence[3].exp().tolist() == [0.25] * 4


def test_arrays() -> None:
    reading = evidence.from_array(np.array([[0.0, -1.0], [0.0, 0.0], [-np.inf, 0.0]]), "ab")
    assert reading.symbols == "a?b"


def test_qualities_of_bases() -> None:
    reads = evidence.from_fastq("@one\nACN\n+\n?+!\n@two\nG\n+two\n!\n")
    assert [read.name for read in reads] == ["one", "two"] and reads[0].symbols == "AC?"
    assert torch.allclose(reads[0].evidence[0].exp(), torch.tensor([0.999, 1e-3 / 3, 1e-3 / 3, 1e-3 / 3]).double())
    assert torch.allclose(reads[0].evidence[1].exp(), torch.tensor([0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3]).double())
    for row in (reads[0].evidence[2], reads[1].evidence[0]):  # N, and a quality of 0, say nothing
        assert torch.allclose(row.softmax(-1), torch.full((4,), 0.25).double())


def test_wrapped_reads_and_blank_lines_between_reads() -> None:
    wrapped = evidence.from_fastq("\n@one\r\nAC\r\nG\r\n+\r\n@!\r\n+\r\n\n@two\nT\n+\n!\n")
    plain = evidence.from_fastq("@one\nACG\n+\n@!+\n@two\nT\n+\n!\n")
    assert [(one.name, one.symbols) for one in wrapped] == [("one", "ACG"), ("two", "T")]
    assert all(torch.equal(a.evidence, b.evidence) for a, b in zip(wrapped, plain, strict=True))


def test_grey_levels() -> None:
    found = evidence.from_levels(torch.tensor([3.2, 0.0]), 17, 1.0)
    assert found.argmax(-1).tolist() == [3, 0]
    assert float(found[0, 3] - found[0, 4]) == pytest.approx((0.8**2 - 0.2**2) / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: channels.symmetric("ab", 0.0), "between 0 and 1"),
        (lambda: channels.symmetric("ab", 1.5), "between 0 and 1"),
        (lambda: evidence.from_text("aXb", "ab"), "'X' at position 1"),
        (lambda: evidence.from_text("a[]", "ab"), "no alternatives"),
        (lambda: evidence.from_text("a[b", "ab"), "is not closed"),
        (lambda: evidence.from_text("", "ab"), "empty"),
        (lambda: channels.confusion('{"a": {"a": 0.5}}', "ab"), "sums to 0.5"),
        (lambda: channels.confusion('{"a": {}}', "ab"), "sums to 0"),
        (lambda: channels.confusion('{"a": {"a": -0.5, "b": 1.5}}', "ab"), "must be a probability"),
        (lambda: channels.confusion('{"x": {"a": 1}}', "ab"), "'x' is not a symbol"),
        (lambda: channels.confusion("{", "ab"), "not JSON"),
        (lambda: channels.confusion("[1]", "ab"), "header"),
        (lambda: channels.confusion("t,a,b\na,1\n", "ab"), "line 2: 1 numbers under a header of 2"),
        (lambda: evidence.from_json_lines('{"a": 0.9, "b": 0.9}', "ab"), "sum to 1.8, not to 1$"),
        (
            lambda: evidence.from_json_lines('{"a": 1}\n{"a": 0.9}', "ab"),
            'position 1.* 0.9, .* add "rest": 0.1$',
        ),
        (lambda: evidence.from_json_lines('{"a": 0.6, "b": 0.3}', "ab"), "sum to 0.9, not to 1$"),
        (lambda: evidence.from_json_lines('{"a": 0.7, "rest": 0.2}', "abc"), "sum to 0.9"),
        (lambda: evidence.from_json_lines('{"a": 0.7, "rest": -0.3}', "abc"), "'rest' must be a probability"),
        (lambda: evidence.from_json_lines('{"a": 0.5, "b": 0.2, "rest": 0.3}', "ab"), "all symbols are named"),
        (lambda: evidence.from_json_lines('{"a": 0}', "abc"), "excludes every symbol"),
        (
            lambda: evidence.from_array(np.array([[0.0, 0.0], [-np.inf, -np.inf]]), "ab"),
            "position 1: the evidence",
        ),
        (lambda: evidence.from_text("b[az]", "ab"), "alternative 'z' at position 1"),
        (lambda: channels.confusion("t,a,b\na,1,0\nb,0,0\n", "ab"), "the row of 'b' sums to 0"),
        (lambda: channels.confusion("t,a,b,c\na,1,0,0\n", "ab"), "'c' is not a symbol"),
        (lambda: evidence.from_json_lines('{"a": -1}', "ab"), "must be a probability"),
        (lambda: evidence.from_json_lines('{"a": "x"}', "ab"), "must be a probability"),
        (lambda: evidence.from_json_lines('{"a": true}', "ab"), "must be a probability"),
        (lambda: evidence.from_json_lines('{"z": 1}', "ab"), "'z' is not a symbol"),
        (lambda: evidence.from_json_lines("[1]", "ab"), "must be an object"),
        (lambda: evidence.from_json_lines("{" * 100000, "ab"), "not JSON"),
        (lambda: evidence.from_json_lines("\n", "ab"), "nothing to restore"),
        (lambda: evidence.from_json_lines('{"a": 0, "b": 0}', "ab"), "excludes every symbol"),
        (lambda: evidence.from_array(np.zeros((2, 3)), "ab"), "shape"),
        (lambda: evidence.from_array(np.zeros((0, 2)), "ab"), r"got \[0, 2\]"),
        (lambda: evidence.from_array(np.array([["a", "b"]]), "ab"), "real numbers"),
        (lambda: evidence.from_array(np.array([[np.nan, 0.0]]), "ab"), "position 0"),
        (lambda: evidence.from_fastq("@a\nAC\n+\n!\n"), "2 bases and 1 qualities"),
        (lambda: evidence.from_fastq("@a\nAC\n+\n"), "line 1: the read is not complete: it has four lines"),
        (lambda: evidence.from_fastq("@a\nA\n+\n!\n\n@b\nACGT\n"), "line 6: the read is not complete"),
        (lambda: evidence.from_fastq("@a\nAC\nA\n+\n!!\n"), "four lines"),
        (lambda: evidence.from_fastq("\n\n"), "no read"),
        (
            lambda: evidence.from_array(np.array([[0.25, 0.75], [1.0, 0.0]]), "ab"),
            "probabilities; give their logarithms",
        ),
        (lambda: evidence.from_fastq("a\nAC\n+\n!!\n"), "not the beginning"),
        (lambda: evidence.from_fastq("@a\nAX\n+\n!!\n"), "read 'a': character 'X' at position 1"),
        (lambda: channels.confusion('{"a": {"a": 0.9, "bb": 0.1}}', "ab"), "'bb' is not one character"),
        (lambda: channels.confusion("true,a,bb\na,0.9,0.1\n", "ab"), "one character per position"),
        (
            lambda: evidence.from_text("1 a2b", "ab ", channels.confusion('{"b": {"a": 1}}', "ab ")),
            "'b' at position 4: the channel reads no symbol as 'b'",
        ),
        (lambda: evidence.from_fastq("@a\nA\n+\n\x7f\n"), "not a Phred quality"),
        (lambda: evidence.from_levels(torch.zeros(2), 4, 0.0), "positive"),
    ],
)
def test_mistakes_are_named(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# -- ordinary text -----------------------------------------------------------------------------------

ordinary = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("aB ?.\n-'3é")), max_size=40)
readings = st.lists(st.none() | st.sampled_from("aBz .,\n-'3éßΩ\u0301"), max_size=30)


def restored(read, seen, symbols: str) -> str:
    return "".join(evidence.put_back(read, seen, symbols))


@given(text=ordinary, fill=st.sampled_from(TEXT8))
def test_what_the_model_sees_is_put_back_as_it_was(text: str, fill: str) -> None:
    seen = evidence.to_symbols(text, TEXT8)
    views = [view for view in seen if view != ""]
    assert len(seen) == len(text) and all(view is None or view in TEXT8 for view in views)
    assert restored(text, seen, "".join(view or fill for view in views)) == text
    assert "  " not in "".join(view or fill.strip() or "x" for view in views)  # as in the texts of such alphabets


@given(read=readings, data=st.data())
def test_whatever_is_restored_the_rest_and_the_case_stay(read, data: st.DataObject) -> None:
    seen = evidence.to_symbols(read, TEXT8)
    count = sum(view != "" for view in seen)
    new = data.draw(st.text(st.sampled_from(TEXT8), min_size=count, max_size=count))
    found = evidence.put_back(read, seen, new)
    assert len(found) == len(read) and all(len(char) == 1 for char in found)
    symbols = iter(new)
    for char, view, after in zip(read, seen, found, strict=True):
        symbol = next(symbols) if view != "" else ""
        if evidence.is_kept(char, view):
            assert after == (char or "?")
        else:
            assert evidence.nearest_symbol(after, TEXT8) == symbol  # the model's symbol, in one case or the other
            if char is not None and char.isalpha() and after.isalpha():
                assert after.isupper() == char.isupper()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Don't", "don t"),
        ("Taxes, Duties  &\n Imposts", "taxes duties imposts"),
        ("collec-\ntion", "collection"),
        ("“Café”", "cafe"),
        ("in 17?? we", "in we"),
        ("a Ω b", "a ? b"),
        ("e\u0301t", "et"),
        ("thi\u017f i\u017f", "this is"),  # the long s of old prints
        ("\uff37ide", "wide"),
        ("o\ufb03ce", "o?ce"),  # a ligature is one character for several
    ],
)
def test_what_a_model_of_27_characters_sees(text: str, seen: str) -> None:
    assert evidence.from_text(text, TEXT8).symbols == seen


@pytest.mark.parametrize(
    ("text", "new", "expected"),
    [
        ("The Cinbress", "the congress", "The Congress"),
        ("CON?RESS", "congress", "CONGRESS"),
        ("T?e", "the", "The"),
        ("FOR ONE PEO__E", "for one people", "FOR ONE PEOPLE"),
        ("U?A, I?", "usa it", "USA, It"),
        ("of 17?? and", "of and", "of 17?? and"),
        ("Dont stop", "done stop", "Done stop"),
        ("?he End. ?t was", "the end it was", "The End. It was"),
        ("?he end. ?t was", "the end it was", "the end. it was"),  # a text without capitals
        ("The e.?. and\n?t", "the e g and it", "The e.g. and\nit"),
        ("“?o!” ?aid Tom. “?t", "no said tom it", "“No!” said Tom. “It"),
    ],
)
def test_restored_symbols_take_the_case_of_the_reading(text: str, new: str, expected: str) -> None:
    reading = evidence.from_text(text, TEXT8)
    assert restored(reading.read, reading.seen, new) == expected


def test_alphabets_of_one_case_read_both_and_without_a_space_only_line_breaks_are_kept() -> None:
    reading = evidence.from_text("acg\nT?a", "ACGT")
    assert reading.symbols == "ACGT?A" and restored(reading.read, reading.seen, "ACTTGA") == "act\nTGa"
    with pytest.raises(InputError, match="'N' at position 1"):
        evidence.from_text("aN", "ACGT")


def test_kept_characters_are_certain_spaces_and_counted() -> None:
    reading = evidence.from_text("a, b.", TEXT8, channels.symmetric(TEXT8, 0.1))
    assert reading.symbols == "a b" and reading.kept == 2
    assert float(reading.evidence[1, 0]) == pytest.approx(math.log(0.9))  # the blank itself was read
    dash = evidence.from_text("a—b", TEXT8, channels.symmetric(TEXT8, 0.1)).evidence
    assert dash[1].exp().tolist() == [1.0] + 26 * [0.0]


def test_literal_text_has_no_gaps() -> None:
    reading = evidence.from_text("a? [b]", TEXT8, literal=True)
    assert reading.symbols == "a b" and restored(reading.read, reading.seen, "a b") == "a? [b]"


def test_a_reading_is_normalised_between_its_marks() -> None:
    text8 = Characters(TEXT8)
    found, changed = evidence.normalised_reading(text8, r"The [Aa]pp?e, 19_5 \? Yes?")
    assert found == r"the [Aa]pp?e one nine _ five \? yes?"
    assert changed == "2 case changed, 3 digits spelled, 1 to spaces"
    assert evidence.normalised_reading(text8, "Why_[x]?", literal=True) == ("why x ", "1 case changed, 4 to spaces")
    assert evidence.normalised_reading(text8, "a[b")[0] == "a[b"  # which `from_text` refuses


@given(st.text("[]\\?_ab", max_size=30))
def test_marks_are_found_in_one_pass(text: str) -> None:
    """A megabyte of open brackets would take hours by the expression alone."""
    assert evidence._marks(text) == evidence._MARKED.split(text)
    assert evidence._marks("[a" * 500_000) == ["[a" * 500_000]

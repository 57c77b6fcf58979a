"""Tokenizers: round trips, JSON, and what lies outside the alphabet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers

from rdlm.data import tokenizer as module
from rdlm.data.text import letters
from rdlm.data.tokenizer import (
    TEXT8_ALPHABET,
    Bytes,
    Characters,
    Levels,
    Tokenizer,
    Unknown,
    bases,
    foreign,
    from_json,
    id_type,
    normalisation_rule,
    normalised,
    to_standard,
    train_bpe,
    wordpiece,
)
from rdlm.errors import DamagedFileError, InputError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "un", "##happy", ",", "sat"]


@settings(deadline=None, max_examples=50)
@given(st.text(TEXT8_ALPHABET))
def test_characters_round_trip(text: str) -> None:
    characters = Characters(TEXT8_ALPHABET)
    ids = characters.encode(text)
    assert ids.dtype == np.uint8 and characters.decode(ids) == text


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1))
def test_any_alphabet_round_trips(text: str) -> None:
    characters = Characters("".join(sorted(set(text))))
    assert characters.decode(characters.encode(text)) == text


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_round_trip(text: str) -> None:
    assert Bytes().decode(Bytes().encode(text)) == text


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bpe_encodes_text_it_has_never_seen(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


BPE = train_bpe(["the cat sat on the mat, the cat sat on the hat"] * 5, 270)


def test_bpe_learns_pairs() -> None:
    assert 257 < BPE.size <= 270
    assert len(BPE.encode("the cat")) < len("the cat")


def test_wordpiece_splits_lowercases_and_decodes() -> None:
    pieces = wordpiece(WORDS)
    ids = pieces.encode("The CATS, unhappy zebra")
    assert [WORDS[i] for i in ids] == ["the", "cat", "##s", ",", "un", "##happy", "[UNK]"]
    assert pieces.decode(pieces.encode("the cats sat")) == "the cats sat"
    assert [list(i) for i in pieces.encode_many(["the", "cat"])] == [[4], [5]]
    assert pieces.special("[SEP]") == 3
    with pytest.raises(InputError, match="no token"):
        pieces.special("[MASK]")


@pytest.mark.parametrize(
    "tokenizer",
    [Characters("ab ", "skip"), Bytes(), Levels(17), bases(), wordpiece(WORDS), BPE],
    ids=["characters", "bytes", "levels", "bases", "wordpiece", "bpe"],
)
def test_json_round_trip(tokenizer: Tokenizer) -> None:
    again = from_json(json.loads(json.dumps(tokenizer.to_json())))
    text = {"levels": "0 16 3"}.get(tokenizer.to_json()["kind"], "AAA" if tokenizer.size == 4 else "a b")
    assert again.size == tokenizer.size
    assert list(again.encode(text)) == list(tokenizer.encode(text))
    assert again.to_json() == tokenizer.to_json()


def test_character_outside_the_alphabet_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"'é' at position 3"):
        Characters(TEXT8_ALPHABET).encode("cafés")
    skip, replace = (Characters(TEXT8_ALPHABET, u) for u in ("skip", "replace"))
    assert skip.decode(skip.encode("cafés")) == "cafs"
    assert replace.decode(replace.encode("cafés")) == "caf s"


@pytest.mark.parametrize(("alphabet", "unknown"), [("", "error"), ("aa", "error"), ("ab", "replace"), ("ab", "ignore")])
def test_bad_alphabets_are_refused(alphabet: str, unknown: Unknown) -> None:
    with pytest.raises(InputError):
        Characters(alphabet, unknown)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for tokenizer, bad in ((bases(), 4), (Levels(17), 17), (Bytes(), -1), (wordpiece(WORDS), 99)):
        with pytest.raises(InputError, match="outside the vocabulary"):
            tokenizer.decode([bad])
    with pytest.raises(InputError, match="whole numbers"):
        Levels(17).encode("1 x")
    with pytest.raises(InputError, match="at least 257"):
        train_bpe(["a"], 100)
    with pytest.raises(InputError, match=r"needs \[PAD\]"):
        wordpiece(["[UNK]", "[CLS]", "[SEP]"])


@pytest.mark.parametrize("description", [{}, {"kind": "runes"}, {"kind": "levels"}])
def test_a_damaged_description_is_named(description: dict[str, str]) -> None:
    with pytest.raises(DamagedFileError):
        from_json(description)


@pytest.mark.parametrize(("size", "width"), [(2, 1), (256, 1), (257, 2), (65536, 2), (65537, 4)])
def test_id_type_is_the_smallest(size: int, width: int) -> None:
    assert id_type(size).itemsize == width


# -- normalisation ----------------------------------------------------------------------------------


@given(text=st.text(alphabet=st.characters(max_codepoint=0x2FF), max_size=60))
def test_normalised_text8_is_the_rule_of_its_corpus(text: str) -> None:
    found, changed = normalised(Characters(TEXT8_ALPHABET), text)
    assert found.strip() == letters(text.encode()).decode().strip()
    Characters(TEXT8_ALPHABET).encode(found)
    assert bool(changed) == bool(set(text) - set(TEXT8_ALPHABET))


def test_what_was_changed_is_counted() -> None:
    changed = "3 case changed, 1 digits spelled, 1 to spaces"
    assert normalised(Characters(TEXT8_ALPHABET), "The 2 US.") == ("the two us ", changed)
    assert normalised(Characters("ACGT"), "acgTn") == ("ACGTn", "3 case changed")
    assert normalised(Characters("ACGT"), "aCGUu") == ("ACGTT", "1 case changed, 2 U to T")
    with pytest.raises(
        InputError, match=r"normalise \(--normalise\): upper case, U to T, unknown='skip' .* drops such"
    ):
        Characters("ACGT").encode("ACGU")
    assert normalised(Bytes(), "The") == ("The", "")


@pytest.mark.parametrize(
    ("tokenizer", "rule"),
    [
        (Characters(TEXT8_ALPHABET), "lower case, digits spelled, other characters to spaces"),
        (Characters("ACGT"), "upper case, U to T"),
        (Characters("aAbB"), ""),
        (Bytes(), ""),
    ],
)
def test_a_small_alphabet_has_a_rule(tokenizer: Characters | Bytes, rule: str) -> None:
    assert normalisation_rule(tokenizer) == rule


# -- foreign descriptions ---------------------------------------------------------------------------


def described(kind: str, changes: dict[str, object]) -> dict[str, object]:
    """Return the description of a tokenizer with other values under dotted keys."""
    found = json.loads(json.dumps((BPE if kind == "bpe" else wordpiece(WORDS)).to_json()))
    for path, value in changes.items():
        *keys, last = path.split(".")
        place = found["model"]
        for key in keys:
            place = place[key]
        place[last] = value
    return found


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
"""Each such normalizer doubles the letters a of a text: 21 of them took 12 s and 350 MB for one letter."""
SPLIT = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
"""Backtracks without end on forty a and a b, where the library panics."""
STEPS: list[tuple[str, dict[str, object]]] = [
    ("bpe", {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 40}}),
    ("wordpiece", {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 40}}),
    ("bpe", {"pre_tokenizer": SPLIT}),
    ("wordpiece", {"pre_tokenizer": SPLIT}),
    ("bpe", {"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}}),
    ("bpe", {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}),
    ("bpe", {"padding": {"strategy": {"Fixed": 10**12}}}),
    ("bpe", {"added_tokens": [{"id": 0, "content": "a", "single_word": False}]}),
    ("bpe", {"model.continuing_subword_prefix": "longer than a merge"}),
    ("bpe", {"model.dropout": 0.5}),
    ("bpe", {"model.new": 1}),
    ("bpe", {"new": None}),
    ("wordpiece", {"model.max_input_chars_per_word": 10**9}),
]


@pytest.mark.parametrize(("kind", "changes"), STEPS)
def test_only_the_steps_of_this_package_are_restored(kind: str, changes: dict[str, object]) -> None:
    assert from_json(described(kind, {})).size == (BPE if kind == "bpe" else wordpiece(WORDS)).size
    with pytest.raises(DamagedFileError, match="other steps"):
        from_json(described(kind, changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.vocab": 3}, "object"),
        ({"model.vocab": {"a": 0, "b": 0}}, "each once"),
        ({"model.vocab": {"a": 1}}, "each once"),
        ({"model.vocab": {"a": True}}, "object"),
        ({"model.vocab": {"a" * 1025: 0}}, "1025 characters"),
        ({"model.vocab": {"\ud800": 0}}, "cannot be read"),
        ({"model.merges": [["no", "such"]]}, "cannot be read"),
        ({"model.merges": [["a"]]}, "pairs"),
        ({"model.merges": [["a", 1]]}, "pairs"),
        ({"model.merges": "ab"}, "pairs"),
        ({"model": None}, "without a vocabulary"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        from_json(described("bpe", changes))


def test_merges_of_older_versions_are_restored() -> None:
    merges = [" ".join(pair) for pair in BPE.to_json()["model"]["model"]["merges"]]
    again = from_json(described("bpe", {"model.merges": merges}))
    assert merges and again.to_json() == BPE.to_json()


# -- the format of the library ----------------------------------------------------------------------

ALL: list[tuple[Tokenizer, str]] = [
    (Characters("ab ", "skip"), "abz b\n"),
    (Characters("ab \n]\\-^[", "replace"), "a]b\\-^[zé"),
    (Characters("ab"), "abba"),
    (Bytes(), "aé \n\x00€"),
    (Levels(17), "0 16 3"),
    (wordpiece(WORDS), "The cats, unhappy"),
    (wordpiece(WORDS, normalizers.BertNormalizer(lowercase=False)), "The cats"),
    (BPE, " the cat é"),
]


@pytest.mark.parametrize(("tokenizer", "text"), ALL)
def test_the_library_reads_our_files_and_finds_the_same_tokens(tokenizer: Tokenizer, text: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(to_standard(tokenizer)), "utf-8")
    theirs = tokenizers.Tokenizer.from_file(str(file))
    ids = tokenizer.encode(text).tolist()
    assert theirs.get_vocab_size() == tokenizer.size and theirs.encode(text).ids == ids
    assert theirs.decode(ids) == tokenizer.decode(ids)
    assert from_json(json.loads(file.read_text("utf-8"))).to_json() == tokenizer.to_json()


def test_the_library_refuses_what_our_tokenizer_refuses() -> None:
    theirs = tokenizers.Tokenizer.from_str(json.dumps(to_standard(Characters("ab"))))
    with pytest.raises(Exception, match="Missing"):
        theirs.encode("abz")


@pytest.mark.parametrize(
    ("index", "key", "value"),
    [
        (0, "normalizer", {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}),
        (2, "normalizer", {"type": "Lowercase"}),
        (2, "decoder", None),
        (3, "pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}),
        (4, "added_tokens", [{"id": 17, "content": "x"}]),
        (5, "post_processor", {"type": "ByteLevel"}),
        (7, "pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}),
    ],
)
def test_a_file_with_another_step_is_refused(index: int, key: str, value: object) -> None:
    with pytest.raises(DamagedFileError):
        from_json({**to_standard(ALL[index][0]), key: value})


def published(words: str = "", **model: object) -> dict[str, Any]:
    """Return a tokenizer.json as others publish it: special tokens, a template, empty affixes, other offsets."""
    found = json.loads(BPE.inner.to_str())
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    found["added_tokens"] = [{"id": BPE.size, "content": "<|endoftext|>", **special}]
    found["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    found["pre_tokenizer"]["trim_offsets"] = False
    found["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", **model}
    if words:
        split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
        bytes_only = {**found["pre_tokenizer"], "use_regex": False}
        found["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
        found["normalizer"] = {"type": "NFC"}
    return found


@pytest.mark.parametrize("words", ["", *module.WORDS])
def test_a_bpe_of_others_finds_the_tokens_that_the_library_finds(words: str) -> None:
    description = published(words, ignore_merges=bool(words))
    theirs, ours = tokenizers.Tokenizer.from_str(json.dumps(description)), foreign(description, "tokenizer.json")
    for text in ("the cat sat", " on  the\n\n mat 12345, don't\tsay e\u0301 日本", ""):
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert ours.size == BPE.size + 1 and ours.decode([BPE.size]) == "<|endoftext|>"
    assert BPE.size not in ours.encode("<|endoftext|>").tolist(), "special tokens are not recognised in text"
    assert from_json(json.loads(json.dumps(ours.to_json()))).to_json() == ours.to_json()


def test_a_wordpiece_of_others_keeps_its_case() -> None:
    description = json.loads(wordpiece([*WORDS, "The"], normalizers.BertNormalizer(lowercase=False)).inner.to_str())
    description["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    description["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert foreign(description, "tokenizer.json").encode("The cats the").tolist() == [11, 5, 6, 4]


@pytest.mark.parametrize(
    "description",
    [
        json.loads(tokenizers.Tokenizer(models.Unigram([("a", 0.0)])).to_str()),
        published(r"(a|aa)+$"),
        published(byte_fallback=True, vocab={"a": 0}, merges=[]),
        {},
        {"model": 3},
        {"model": {"type": "BPE", "vocab": [1]}},
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": 3, "normalizer": [1]},
    ],
)
def test_other_tokenizers_of_others_are_refused_by_name(description: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"their.json .*cannot be used.*Byte-level BPE"):
        foreign(description, "their.json")

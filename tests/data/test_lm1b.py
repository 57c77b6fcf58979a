"""LM1B's official file names on fixtures, in both protocols."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdlm.data import load, text
from rdlm.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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


def test_padded(bert: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LM1B_LENGTH", 6)
    corpus = load("lm1b", file=folder)
    assert corpus.protocol == "lm1b-padded"
    rows = [" ".join(bert[i] for i in row) for row in corpus.train]
    assert rows == ["[CLS] the cat ##s sat [SEP]", "[CLS] a dog , the [SEP]"]
    assert [" ".join(bert[i] for i in row) for row in corpus.test] == [
        "[CLS] the cat [SEP] [PAD] [PAD]",
        "[CLS] the dog [SEP] [PAD] [PAD]",
    ]
    assert corpus.validation.shape == (1, 6)


def test_packed(bert: list[str], folder: Path) -> None:
    corpus = load("lm1b", file=folder, protocol="lm1b-packed")
    assert " ".join(bert[i] for i in corpus.train) == "the cat ##s sat . [SEP] a dog , the dog [SEP]"
    assert " ".join(bert[i] for i in corpus.test) == "the cat [SEP] the dog [SEP]"


def test_one_file_is_a_test_split_alone(bert: list[str], folder: Path) -> None:
    corpus = load("lm1b", file=next(folder.rglob("*heldout-00000*")))
    assert corpus.test.shape == (2, 128)
    with pytest.raises(InputError, match="no split 'train'"):
        _ = corpus.train


def test_missing_files_are_named(bert: list[str], folder: Path) -> None:
    next(folder.rglob("*heldout-00000*")).unlink()
    with pytest.raises(InputError, match="heldout-00000-of-00050 for the test split"):
        load("lm1b", file=folder)
    with pytest.raises(InputError, match="official folder"):
        load("lm1b")

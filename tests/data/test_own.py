"""Tests of own data: each format is recognised by its content whatever its name, read safely, and split 90/5/5."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from rdlm.data import corpus, own
from rdlm.data.image import encode_png
from rdlm.errors import DamagedFileError, InputError

LINES = [f"line {i}, which has: words, and a number {i * i}" for i in range(40)]
FASTA = "".join(f">seq{i} x\nACGTACGTNNACGT\nacgu\n" for i in range(6))
FASTQ = "".join(f"@r{i}\nACGTACGT\n+\nIIIIIIII\n" for i in range(6))
CSV = "id,text,n\n" + "".join(f'{i},"{line}",7\n' for i, line in enumerate(LINES))
TSV = "id\tbody\n" + "".join(f"{i}\t{line}\n" for i, line in enumerate(LINES))
JSONL = "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in LINES)
PROTEIN = ">p\nMKVLAAGHERRWQQ\n>q\nMKVLEEGHERRWQQPPPPPPPP\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))


def written(tmp_path: Path, content: str | bytes, name: str = "data.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "found"),
    [("\n".join(LINES), "text"), (FASTA, "FASTA"), (FASTQ, "FASTQ"), (CSV, "CSV"), (TSV, "TSV"), (JSONL, "JSONL")],
)
def test_a_format_is_recognised_by_its_content(content: str, found: str, tmp_path: Path) -> None:
    assert own.recognised(written(tmp_path, content)) == found
    packed = written(tmp_path, gzip.compress(content.encode()), "data.txt.gz")
    assert own.recognised(packed) == found
    if found != "text":
        with pytest.raises(InputError, match=f"not plain text but {found}: rdlm train --data"):
            corpus.load("textfile", file=written(tmp_path, content))


@pytest.mark.parametrize("text", ["One line, no more.", "> quoted, as in mail\nand answered", "{ not json\n{ at all\n"])
def test_prose_is_text(text: str, tmp_path: Path) -> None:
    assert own.recognised(written(tmp_path, text)) == "text"


@pytest.mark.parametrize(("content", "column"), [(CSV, None), (CSV, "text"), (TSV, "body"), (JSONL, None)])
def test_a_column_is_the_text(content: str, column: str | None, tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, content), column=column)
    ids = np.concatenate([found.train, found.validation, found.test])
    assert found.tokenizer.decode(ids) == "\n".join(LINES)
    assert f"of {len(LINES)} records" in found.source and found.kind == "text"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns id, body; choose one with --column"):
        corpus.load("own", file=written(tmp_path, TSV))
    with pytest.raises(InputError, match="there is no 'title'"):
        corpus.load("own", file=written(tmp_path, CSV), column="title")
    with pytest.raises(InputError, match="which has no columns"):
        corpus.load("own", file=written(tmp_path, FASTA), column="text")


def test_sequences_are_bases_and_other_letters_are_counted(tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, FASTA))
    ids = np.concatenate([found.train, found.validation, found.test])
    assert found.kind == "dna" and found.tokenizer.decode(ids) == "ACGTACGTACGTACGT" * 6
    assert "6 records, 96 bases, 12 other letters left out" in found.source
    assert corpus.load("own", file=written(tmp_path, FASTQ, "b")).tokenizer.size == 4
    protein = corpus.load("own", file=written(tmp_path, PROTEIN, "c"))
    assert protein.kind == "text" and "proteins" in protein.source


def test_images_of_subfolders_have_classes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, low in (("bright", 200), ("dark", 0)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(15):
            grey = generator.integers(low, low + 50, (4, 6, 1)).astype(np.uint8)
            (tmp_path / "images" / name / f"{i}.png").write_bytes(encode_png(np.repeat(grey, 3, 2)))
    found = corpus.load("own", file=tmp_path / "images")
    assert (found.kind, found.image, found.classes, found.length) == ("image", (4, 6, 1), ("bright", "dark"), 24)
    for split in ("train", "validation", "test"):
        assert ((found.split(split).mean(1) < 100) == found.labels[split]).all()
    assert len(found.train) == 26 and set(found.labels["train"]) == {0, 1}
    (tmp_path / "images" / "dark" / "odd.png").write_bytes(encode_png(np.zeros((5, 5, 3), np.uint8)))
    with pytest.raises(InputError, match="several sizes"):
        corpus.load("own", file=tmp_path / "images")


@pytest.mark.parametrize("shape", [(400,), (40, 10), (40, 3, 4), (40, 3, 4, 3)])
def test_arrays_are_streams_rows_or_images(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 12, shape)
    np.save(tmp_path / "a.npy", array)
    found = corpus.load("own", file=tmp_path / "a.npy")
    assert found.train.shape == ((360,) if len(shape) == 1 else (36, int(np.prod(shape[1:]))))
    assert found.tokenizer.size == int(array.max()) + 1
    assert found.kind == ("image" if len(shape) > 2 else "text")


def test_nothing_is_unpickled_and_files_are_regular(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DamagedFileError, match="array of real numbers"):
        corpus.load("own", file=tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.zeros(40))
    with pytest.raises(InputError, match="whole numbers"):
        corpus.load("own", file=tmp_path / "b.npy")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot read"):
        corpus.load("own", file=tmp_path / "pipe")


def test_normalised_text_has_27_characters(tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, "The 2 United States! " * 20), normalise=True)
    assert found.tokenizer.size == 27 and found.tokenizer.decode(found.train[:22]) == " the two united states"

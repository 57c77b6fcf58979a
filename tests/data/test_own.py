"""Tests of own data: each format is recognised by its content whatever its name, read safely, and split 90/5/5."""

from __future__ import annotations

import bz2
import gzip
import importlib
import importlib.util
import io
import json
import lzma
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from PIL import Image

from rdlm.data import corpus, formats, own, recipe
from rdlm.data.image import encode_png
from rdlm.data.tokenizer import train_bpe
from rdlm.errors import DamagedFileError, InputError

LINES = [f"line {i}, which has: words, and a number {i * i}" for i in range(40)]
FASTA = "".join(f">seq{i} x\nACGTACGTNNACGT\nacgu\n" for i in range(6))
FASTQ = "".join(f"@r{i}\nACGTACGT\n+\nIIIIIIII\n" for i in range(6))
CSV = "id,text,n\n" + "".join(f'{i},"{line}",7\n' for i, line in enumerate(LINES))
TSV = "id\tbody\n" + "".join(f"{i}\t{line}\n" for i, line in enumerate(LINES))
JSONL = "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in LINES)
SEMICOLONS = "id;text\n" + "".join(f'{i};"{line}"\n' for i, line in enumerate(LINES))
JSON = json.dumps([{"text": line, "n": 1} for line in LINES])
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
    [
        ("\n".join(LINES), "text"),
        (FASTA, "FASTA"),
        (FASTQ, "FASTQ"),
        (CSV, "CSV"),
        (SEMICOLONS, "CSV"),
        (TSV, "TSV"),
        (JSONL, "JSONL"),
        (JSON, "JSON"),
        (json.dumps(json.loads(JSON), indent=2), "JSON"),
    ],
)
def test_a_format_is_recognised_by_its_content(content: str, found: str, tmp_path: Path) -> None:
    assert formats.recognised(written(tmp_path, content)) == found
    packed = written(tmp_path, gzip.compress(content.encode()), "data.txt.gz")
    assert formats.recognised(packed) == found
    if found != "text":
        with pytest.raises(InputError, match=f"not plain text but {found}: rdlm train --data"):
            corpus.load("textfile", file=written(tmp_path, content))


@pytest.mark.parametrize(
    "text",
    [
        "One line, no more.",
        "> quoted, as in mail\nand answered",
        "{ not json\n{ at all\n",
        "@@ -1,3 +1,4 @@\n the\n+added\n dog",
        "[{not json}, either]\nof both lines",
        "one; two\nthree\nfour; five; six\n",
    ],
)
def test_prose_is_text(text: str, tmp_path: Path) -> None:
    assert formats.recognised(written(tmp_path, text)) == "text"


@pytest.mark.parametrize(
    ("content", "column"),
    [(CSV, None), (CSV, "text"), (SEMICOLONS, None), (TSV, "body"), (JSONL, None), (JSON, "text")],
)
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


def test_a_column_that_the_first_record_lacks(tmp_path: Path) -> None:
    """The first record alone decided: the column n was learned."""
    found = corpus.load("own", file=written(tmp_path, '{"n": 1}\n{"n": 2, "text": null}\n' + JSONL))
    assert "column 'text' of 40 records (2 have none)" in found.source
    with pytest.raises(InputError, match=r"has values such as \['a'\], which are not text"):
        corpus.load("own", file=written(tmp_path, '{"text": ["a"]}\n' + JSONL))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (JSONL + '{"text": "open\n', "is JSONL, but line 41 is not a JSON object"),
        (JSON[:-3], "is not a JSON array of objects: Expecting"),
        (JSON[:-1] + ", 3]", "it has other members"),
        (FASTQ + "@r\nACGT\nIIII\n", "read 7: FASTQ has four lines per read"),
        ("@r\nACGT\nIIII\n" + FASTQ, "read 1: FASTQ has four lines per read"),
        (FASTQ + "@r\nACGT\n+\nIII\n", "read 7 has 4 bases and 3 qualities"),
        ("Größe und Maß".encode("latin1") * 9, "iconv -f latin1 -t utf-8"),
    ],
)
def test_a_damaged_file_of_records_is_not_read_as_text(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        corpus.load("own", file=written(tmp_path, content))


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


def test_images_with_transparency_or_more_than_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits were clipped at 255."""
    levels = np.random.default_rng(0).integers(0, 1 << 16, (5, 5)).astype(np.uint16)
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(20):
        Image.fromarray(np.full((5, 5, 4), 7 * i, np.uint8)).save(folder / f"{i}.png")
    assert corpus.load("own", file=folder).image == (5, 5, 1)
    Image.fromarray(levels).save(folder / "deep.png")
    with pytest.raises(InputError, match=r"deep\.png has more than 8 bits per channel: convert it"):
        corpus.load("own", file=folder)
    monkeypatch.setattr(own.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"0\.png is not a PNG file of 8 bits without .* need pillow: pip install"):
        corpus.load("own", file=folder)


@pytest.mark.parametrize("shape", [(400,), (40, 10), (40, 3, 4), (40, 3, 4, 3)])
def test_arrays_are_streams_rows_or_images(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 12, shape)
    np.save(tmp_path / "a.npy", array)
    found = corpus.load("own", file=tmp_path / "a.npy")
    assert found.train.shape == ((360,) if len(shape) == 1 else (36, int(np.prod(shape[1:]))))
    assert found.tokenizer.size == int(array.max()) + 1
    assert found.kind == ("image" if len(shape) > 2 else "text")


def test_images_of_an_array_have_one_or_three_channels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((40, 3, 4, 2), np.uint8))
    with pytest.raises(InputError, match="images of 2 channels, not of 1 or 3"):
        corpus.load("own", file=tmp_path / "a.npy")


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


@pytest.mark.parametrize("name", ["own", "textfile"])
def test_links_out_of_a_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    folder, secret = tmp_path / "data", tmp_path / "secret"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(LINES))
    (folder / "b.txt").symlink_to(folder / "a.txt")
    assert corpus.load(name, file=folder).train.size > 0
    secret.write_text("a secret of the user " * 9)
    (folder / "c.txt").symlink_to(secret)
    with pytest.raises(InputError, match=r"c\.txt is a link to .*secret, outside of the folder"):
        corpus.load(name, file=folder)


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first of them is read; a link to a folder is not followed, and pipes and hidden files do not count."""
    for name in ("b/1.txt", "a/2.txt", "3.txt", ".4.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(LINES))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "c").symlink_to(tmp_path)
    monkeypatch.setattr(recipe, "MOST_FILES", 3)
    assert recipe.files_of(tmp_path, hidden=False) == [tmp_path / name for name in ("3.txt", "a/2.txt", "b/1.txt")]
    monkeypatch.setattr(recipe, "MOST_FILES", 2)
    with pytest.raises(InputError, match="more than 2 files: join them"):
        corpus.load("own", file=tmp_path)


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 41 is not a JSON object"):
        corpus.load("own", file=written(tmp_path, JSONL + '{"text": "\\ud800"}\n'))


def compressed(name: str) -> bytes:
    """Return the content of an archive or of a compressed file."""
    text = "\n".join(LINES).encode()
    if name.startswith("xz"):
        return lzma.compress(text)
    if name.startswith("bz2"):
        return bz2.compress(text)
    if name.startswith("gzip"):
        return gzip.compress(text)
    file = io.BytesIO()
    if name.startswith("tar"):
        with tarfile.open(fileobj=file, mode="w") as tar:
            entry = tarfile.TarInfo("a.txt")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    else:
        with zipfile.ZipFile(file, "w") as archive:
            for member in ("a.txt", "b.txt"):
                archive.writestr(member, text)
    return gzip.compress(file.getvalue()) if name.endswith(".gz") else file.getvalue()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("book.epub", r"book.epub is a zip archive, as .epub and .docx are: unpack it"),
        ("two.zip", r"two.zip has 2 files, not one: unpack it, and give the folder"),
        ("xz.txt.xz", "is compressed by xz: unpack it with xz -d"),
        ("bz2.txt.bz2", "is compressed by bzip2: unpack it with bzip2 -d"),
        ("gzip.txt", "is compressed by gzip: name it .gz"),
        ("tar.tar", "is a tar archive: unpack it, and give the folder"),
        ("tar.tar.gz", "is a tar archive: unpack it, and give the folder"),
    ],
)
def test_archives_are_named(name: str, message: str, tmp_path: Path) -> None:
    """A tar archive was trained on as if it were text, and the others were said to be of another encoding."""
    with pytest.raises(InputError, match=message):
        corpus.load("own", file=written(tmp_path, compressed(name), name))


def test_binary_content_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a null character at position 3, so it is not text"):
        corpus.load("own", file=written(tmp_path, b"abc\0" + b"def" * 100))


def test_the_mark_of_an_encoding_is_no_character(tmp_path: Path) -> None:
    """Spreadsheets write it before the name of the first column."""
    for content, column in [(CSV.replace("id,text", "text,id"), None), (JSONL, None), ("\n".join(LINES), None)]:
        found = corpus.load("own", file=written(tmp_path, b"\xef\xbb\xbf" + content.encode()), column=column)
        assert "\ufeff" not in str(found.tokenizer.to_json()["alphabet"])


def test_fields_of_any_length(tmp_path: Path) -> None:
    """Articles have more than the 131,072 characters that are Python's default."""
    long = "word " * 60_000
    found = corpus.load("own", file=written(tmp_path, f"id,text\n1,{long}\n2,{long}\n3,x\n"), column="text")
    assert len(found.train) + len(found.validation) + len(found.test) == 2 * len(long) + 3


def test_parquet_has_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, b"PAR1" + b"\0" * 100, "data.bin")
    assert formats.recognised(path) == "Parquet"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    with pytest.raises(InputError, match=r'Parquet, which needs the package pyarrow: pip install "rdlm\[hf\]"'):
        corpus.load("own", file=path)
    monkeypatch.undo()
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(DamagedFileError, match=r"data\.bin is not Parquet"):
        corpus.load("own", file=path)
    table = pyarrow.table({"text": [*LINES, None, ""], "id": list(range(len(LINES) + 2))})
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    with pytest.raises(InputError, match="Parquet with the columns text, id; there is no 'body'"):
        corpus.load("own", file=path, column="body")
    found = corpus.load("own", file=path)
    assert f"Parquet, column 'text' of {len(LINES)} records (2 have none)" in found.source
    assert found.tokenizer.decode(found.train).startswith(LINES[0])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_cannot_be_unpacked_is_damage(tmp_path: Path, method: int) -> None:
    """Found by a coverage-guided fuzzer: bzip2 raised an OSError."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as zipped:
        zipped.writestr("a.txt", "\n".join(LINES))
    raw = bytearray(path.read_bytes())
    raw[50:150] = bytes(100)
    path.write_bytes(raw)
    with pytest.raises(DamagedFileError, match=r"a\.zip is damaged"):
        corpus.load("own", file=path)


def test_normalised_text_has_27_characters(tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, "The 2 United States! " * 20), normalise=True)
    assert found.tokenizer.size == 27 and found.tokenizer.decode(found.train[:22]) == " the two united states"


# -- datasets of the hub ----------------------------------------------------------------------------


class Dataset(list[dict[str, Any]]):
    """Records in place of a streamed dataset."""

    def __init__(self, records: list[dict[str, Any]], kind: str = "parquet") -> None:
        super().__init__(records)
        self.info = SimpleNamespace(builder_name=kind)
        self.read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in super().__iter__():
            self.read += 1
            yield record


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A module in place of `datasets`; `calls` has the arguments of `load_dataset`, `dataset` is what it returns."""
    state: dict[str, Any] = {"calls": [], "dataset": Dataset([{"text": line, "n": 1} for line in LINES])}

    def load_dataset(*names: str | None, **options: object) -> Dataset:
        state["calls"].append((names, options))
        if isinstance(state["dataset"], Exception):
            raise state["dataset"]
        found: Dataset = state["dataset"]
        return found

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("datasets", None)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(own, "version", lambda package: "4.0.0")
    return state


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf://letters", ("letters", None, "train")),
        ("hf://letters/test", ("letters", None, "test")),
        ("hf://me/letters", ("me/letters", None, "train")),
        ("hf://me/letters/validation", ("me/letters", None, "validation")),
        ("hf://me/letters:old-2.0", ("me/letters", "old-2.0", "train")),
        ("hf://letters:old/dev", ("letters", "old", "dev")),
    ],
)
def test_the_parts_of_a_name_of_the_hub(text: str, parts: tuple[str, str | None, str]) -> None:
    assert own.parsed_hub_name(text) == parts


@pytest.mark.parametrize("text", ["hf://", "hf://../x", "hf:///etc/passwd", "hf://a/b/c/d", "hf://a:b:c", "hf://a b"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a dataset of the hub"):
        own.parsed_hub_name(text)


def test_a_dataset_is_streamed_into_the_store(hub: dict[str, Any]) -> None:
    found = corpus.load("own", hub="hf://me/letters:old/dev", column="text")
    assert hub["calls"] == [(("me/letters", "old"), {"split": "dev", "streaming": True})], "and no remote code"
    whole = "".join(found.tokenizer.decode(found.split(name)) for name in ("train", "validation", "test"))
    assert whole == "\n".join(LINES)
    assert "dataset me/letters, dev, column 'text' of 40 records" in found.source
    corpus.load("own", hub="hf://me/letters:old/dev", column="text")
    assert len(hub["calls"]) == 1, "the second time it is read from the store"


def test_a_limit_ends_the_stream(hub: dict[str, Any]) -> None:
    found = corpus.load("own", hub="hf://me/letters", limit=100)
    assert sum(len(found.split(name)) for name in ("train", "validation", "test")) == 100
    assert hub["dataset"].read == 3, "44 characters each: no more records are read than needed"


@pytest.mark.parametrize(
    ("dataset", "column", "message"),
    [
        (Dataset([{"a": "x", "b": "y"}]), None, "has the columns a, b; choose one with --column"),
        (Dataset([{"a": "x", "b": "y"}]), "c", "has no column 'c'; it has a, b"),
        (Dataset([{"a": 3}]), "a", "has values such as 3, which are not text"),
        (Dataset([{"a": None}]), "a", "has no text in the column 'a'"),
        (Dataset([{"a": "x"}], "pandas"), "a", "has the format pandas; parquet"),
        (ValueError("Bad split: dev. Available: ['train']"), None, "cannot be read from the hub: Bad split: dev"),
        (ConnectionError("no route"), None, "cannot be read from the hub: no route"),
    ],
)
def test_what_a_dataset_lacks_is_named(hub: dict[str, Any], dataset: object, column: str | None, message: str) -> None:
    hub["dataset"] = dataset
    with pytest.raises(InputError, match=message):
        corpus.load("own", hub="hf://me/letters", column=column)


def test_versions_that_run_code_of_datasets_are_refused(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "version", lambda package: "3.6.0")
    with pytest.raises(InputError, match="before version 4 can run code"):
        corpus.load("own", hub="hf://me/letters")
    assert not hub["calls"]


def test_a_limit_also_holds_for_files_of_text_alone(tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, "\n".join(LINES)), limit=60)
    assert sum(len(found.split(name)) for name in ("train", "validation", "test")) == 60
    with pytest.raises(InputError, match=r"is FASTA, and data.limit counts characters"):
        corpus.load("own", file=written(tmp_path, FASTA), limit=60)


# -- tokenizers of others ---------------------------------------------------------------------------


def test_own_text_with_a_tokenizer_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = train_bpe(LINES, 300)
    file = tmp_path / "their.json"
    theirs.inner.save(str(file))
    text = written(tmp_path, "\n".join(LINES))
    found = corpus.load("own", file=text, tokenizer=str(file))
    assert found.protocol == "own-their.json"
    assert found.tokenizer.decode(found.train) == "\n".join(LINES)[: len("\n".join(LINES)) * 90 // 100]
    assert found.tokenizer.to_json() == theirs.to_json()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file_name, **options: str(file))
    again = corpus.load("own", file=text, tokenizer="hf://some/model")
    assert again.protocol == "own-some/model" and again.train.tolist() == found.train.tolist()
    with pytest.raises(InputError, match="no such file or folder"):
        corpus.load("own", file=text, tokenizer=str(tmp_path / "none.json"))
    file.write_text("{}")
    with pytest.raises(InputError, match=r"their.json .*it is not a tokenizer.json"):
        corpus.load("own", file=text, tokenizer=str(file))


def test_a_table_of_few_records_and_one_long_field_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "data").write_text('a,b\n1,2\n3,4\n1,"' + "x" * (1 << 20))
    with pytest.raises(InputError, match="is CSV with the columns a, b; choose one with --column"):
        corpus.load("own", file=tmp_path / "data")

"""Files of strangers whose format was not recognised, or recognised as another one."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from rdlm.data import corpus, formats
from rdlm.data.image import encode_png
from rdlm.errors import InputError

WORDS = [f"the cat number {i} sat on the mat" for i in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))


def written(tmp_path: Path, content: str | bytes, name: str) -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def learned(path: Path, column: str | None = None) -> str:
    found = corpus.load("own", file=path, column=column)
    return found.tokenizer.decode(np.concatenate([found.train, found.validation, found.test]))


def test_a_table_with_an_index_without_a_name(tmp_path: Path) -> None:
    path = written(tmp_path, ",text,label\n" + "".join(f"{i},{w},x\n" for i, w in enumerate(WORDS)), "pandas.csv")
    assert learned(path, "text") == "\n".join(WORDS)
    with pytest.raises(InputError, match="with the columns text, label; there is no 'body'"):
        corpus.load("own", file=path, column="body")


def test_records_with_other_numbers_of_fields_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [f"{i},{w}" for i, w in enumerate(WORDS)]
    lines[5] = "5,an unquoted comma, and more"
    lines[39] = "39"
    path = written(tmp_path, "id,text\n" + "\n".join(lines), "ragged.csv")
    found = corpus.load("own", file=path)
    assert "of 38 records (2 have none, or more or fewer fields than columns)" in found.source


def test_a_table_whose_texts_are_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    file = io.StringIO()
    rows = [["text", "label"], *([("a line, and\n" * 20_000) + str(i), "x"] for i in range(12))]
    csv.writer(file).writerows(rows)
    assert len(file.getvalue()) > 2 * formats.HEAD
    assert formats.recognised(written(tmp_path, file.getvalue(), "long.csv")) == "CSV"


def test_quotes_that_do_not_close_are_characters_of_tsv(tmp_path: Path) -> None:
    rows = [f'{i}\t"{w}' if i % 3 == 0 else f"{i}\t{w}" for i, w in enumerate(WORDS)]
    path = written(tmp_path, "id\ttext\n" + "\n".join(rows), "quotes.tsv")
    assert learned(path, "text") == "\n".join('"' * (i % 3 == 0) + w for i, w in enumerate(WORDS))
    quoted = [f'{i}\t"{w}, ""yes"""' for i, w in enumerate(WORDS)]
    path = written(tmp_path, "id\ttext\n" + "\n".join(quoted), "quoted.tsv")
    assert learned(path, "text") == "\n".join(f'{w}, "yes"' for w in WORDS)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_separators_of_unicode_are_part_of_json_strings(separator: str, tmp_path: Path) -> None:
    texts = [f"{w}{separator}second line" for w in WORDS]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    assert learned(written(tmp_path, "\r\n".join(lines), "posts.jsonl")) == "\n".join(texts)


def test_members_of_inner_objects_are_columns(tmp_path: Path) -> None:
    records = [{"id": i, "body": {"text": w, "tags": [i]}, "a.b": {"c": {}}} for i, w in enumerate(WORDS)]
    path = written(tmp_path, "\n".join(map(json.dumps, records)), "nested.jsonl")
    assert learned(path, "body.text") == "\n".join(WORDS)
    with pytest.raises(InputError, match=r"columns id, body\.text, body\.tags, a\.b\.c; choose one"):
        corpus.load("own", file=path)
    with pytest.raises(InputError, match=r"'body\.tags' .* has values such as \[0\], which are not text"):
        corpus.load("own", file=path, column="body.tags")


def test_one_record_is_a_table(tmp_path: Path) -> None:
    text = " ".join(WORDS)
    assert learned(written(tmp_path, json.dumps({"text": text}), "one.jsonl")) == text
    book = " ".join(WORDS * (formats.HEAD // 1000))
    assert len(book) > formats.HEAD
    path = written(tmp_path, json.dumps({"text": book}) + "\n" + json.dumps({"text": text}), "b.jsonl")
    assert learned(path) == f"{book}\n{text}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id, text\n" + "".join(f"{i}, {w}\n" for i, w in enumerate(WORDS))),
        ("a.tsv", "\n".join(WORDS)),
        ("a.json", json.dumps({"messages": [{"text": w} for w in WORDS]}, indent=1)),
        ("a.jsonl", "\n".join(json.dumps({"text": w}, indent=1) for w in WORDS)),
        ("a.fasta", ">name\n1 acgtacgt 8\n9 acgtacgt 17\n"),
    ],
)
def test_plain_text_that_is_named_as_records_is_refused(name: str, content: str, tmp_path: Path) -> None:
    path = written(tmp_path, content, name)
    way_out = f"to learn it as plain text: rdlm train textfile --data.file {path}"
    with pytest.raises(InputError, match=f"is named as .* but its content is not .*{re.escape(way_out)}"):
        corpus.load("own", file=path)
    if len(content) > 100:
        assert corpus.load("textfile", file=path).source


def test_formats_of_a_folder_are_named_with_a_file_each(tmp_path: Path) -> None:
    written(tmp_path, "a,b\n1,2\n3,4\n", "mixed/data.csv")
    written(tmp_path, "\n".join(WORDS), "mixed/sub/note.md")
    with pytest.raises(InputError, match=r"several formats: CSV \(data.csv\), text \(sub/note.md\)"):
        corpus.load("own", file=tmp_path / "mixed")


def test_empty_files_have_no_format(tmp_path: Path) -> None:
    written(tmp_path, "text,n\n" + "".join(f"{w},1\n" for w in WORDS), "tables/a.csv")
    written(tmp_path, "", "tables/b.csv")
    assert formats.recognised(tmp_path / "tables") == "CSV"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("> A quotation\n---\nIt was said, and it was written.\n", "text"),
        ("; a comment\nsection\nmov ax, bx\n", "text"),
        (">empty record\n>r1\nACGTRYSWKM\n", "FASTA"),
        (">a\nACDE.FGH--IK\nacd*\n*\n", "FASTA"),
        (">spaced\nacgtacgtac gtacgtacgt\n", "FASTA"),
    ],
)
def test_fasta_is_recognised_by_all_lines(text: str, found: str, tmp_path: Path) -> None:
    assert formats.recognised(written(tmp_path, text, "data.txt")) == found


def test_sequences_with_gaps_groups_and_masks(tmp_path: Path) -> None:
    found = corpus.load("own", file=written(tmp_path, ">a\nacgtacgtac gtacgtacgt\nXXXX..--\n" * 3, "a.fa"))
    assert found.kind == "dna" and "60 bases, 24 other letters left out" in found.source
    with pytest.raises(InputError, match="the line 'ACGT1' is neither a name after '>' nor a sequence"):
        corpus.load("own", file=written(tmp_path, ">a\n" + "ACGTACGTAC\n" * 40 + "ACGT1\n", "b.fa"))


def test_a_grey_image_among_images_in_colour(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(24):
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        pixels[...] = pixels[..., :1] if i == 7 else pixels
        written(tmp_path, encode_png(pixels), f"colour/{i}.png")
    assert corpus.load("own", file=tmp_path / "colour").image == (4, 4, 3)
    written(tmp_path, encode_png(np.zeros((4, 5, 3), np.uint8)), "colour/99.png")
    with pytest.raises(InputError, match=r"several sizes, such as 4 x 4 \(.*\.png\) and 5 x 4 \(.*99\.png\)"):
        corpus.load("own", file=tmp_path / "colour")


def test_arrays_of_booleans_are_two_levels_and_floats_are_explained(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "b.npy", rng.integers(0, 2, (30, 4, 4)).astype(bool))
    found = corpus.load("own", file=tmp_path / "b.npy")
    assert found.image == (4, 4, 1) and found.tokenizer.size == 2
    np.save(tmp_path / "f.npy", rng.random(100))
    with pytest.raises(InputError, match=r"type float64 .*; quantise them"):
        corpus.load("own", file=tmp_path / "f.npy")
    np.savez(tmp_path / "z.npz", a=np.arange(100))
    with pytest.raises(InputError, match=r"archive of arrays: save one of them with numpy\.save"):
        corpus.load("own", file=tmp_path / "z.npz")

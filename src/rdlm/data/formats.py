"""The format of a file or folder of the user, recognised from its content."""

from __future__ import annotations

import csv
import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rdlm.data.image import SIGNATURE
from rdlm.data.recipe import files_of, open_regular, read_bytes
from rdlm.errors import InputError

Format = Literal["text", "CSV", "TSV", "JSONL", "JSON", "Parquet", "FASTA", "FASTQ", "images", "array"]

TABLES = ("CSV", "TSV", "JSONL", "JSON", "Parquet")
"""Formats with columns."""

DELIMITERS: tuple[tuple[Format, str], ...] = (("TSV", "\t"), ("CSV", ","), ("CSV", ";"))
"""Delimiters of tables; spreadsheets of many countries write CSV with semicolons."""

csv.field_size_limit(1 << 30)  # of a column of articles; the size of files is limited

HEAD = 1 << 20
"""Number of bytes from which a format is detected."""

_IMAGES = (SIGNATURE, b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF")
_READ = re.compile(r"[ACGTUNacgtun]{4,}")
RESIDUES = re.compile(r"[A-Za-z*.-]+|[ACGTUNacgtun\s]+")
"""A line of a sequence; bases may be in groups."""
_RECORDS = re.compile(rb'\s*\[\s*\{\s*"')
_RECORD = re.compile(rb'\s*\{\s*"')
_NAMED: dict[str, Format] = {
    **{suffix: "FASTA" for suffix in (".fa", ".fasta", ".fna", ".ffn", ".faa")},
    **{".fq": "FASTQ", ".fastq": "FASTQ", ".jsonl": "JSONL", ".ndjson": "JSONL"},
    **{".csv": "CSV", ".tsv": "TSV", ".json": "JSON", ".parquet": "Parquet"},
}
"""Endings of names -> the formats that they promise."""
_TABLE = "at least three records of equally many fields, the first with the names of the columns, without spaces around"
_SHAPES: dict[Format, str] = {
    "CSV": _TABLE,
    "TSV": _TABLE,
    "JSON": "an array of objects, or one object per line",
    "JSONL": "one object per line",
    "FASTA": "lines of letters below lines that begin with '>'",
    "FASTQ": "four lines per read: '@name', bases, '+', qualities",
    "Parquet": "a file that begins with PAR1",
}


def recognised(path: Path) -> Format:
    """Return the format of a file, or of the files of a folder, which must have one format; by content, not by name."""
    files = data_files(path)
    with open_regular(files[0]) as file:
        if file.read(6) == b"\x93NUMPY":
            return "array"
    found: dict[Format, Path] = {}
    for each in files[:64]:
        if head := _head(each):
            found.setdefault(_recognised(head), each)
    if len(found) > 1:
        kinds = ", ".join(f"{kind} ({each.relative_to(path)})" for kind, each in sorted(found.items()))
        raise InputError(f"{path} has files of several formats: {kinds}; give a folder of one")
    return next(iter(found), "text")


def check_file_name(path: Path) -> None:
    """Raise InputError for a file of plain text that is named as another format: it would be learned with its marks."""
    suffix = (path.with_suffix("") if path.suffix in (".gz", ".zip") else path).suffix.lower()
    if not path.is_dir() and (named := _NAMED.get(suffix)) is not None:
        raise InputError(
            f"{path} is named as {named}, but its content is not ({_SHAPES[named]}); "
            f"to learn it as plain text: rdlm train textfile --data.file {path}"
        )


def data_files(path: Path) -> list[Path]:
    """Return the regular files of a folder without hidden ones, or the file itself."""
    if not path.is_dir():
        return [path]
    return files_of(path, hidden=False)


def _head(path: Path) -> bytes:
    if path.suffix in (".gz", ".zip"):
        return read_bytes(path)[:HEAD]
    with open_regular(path) as file:
        return file.read(HEAD)


def _recognised(head: bytes) -> Format:
    head = head.removeprefix(BOM_UTF8)
    if head.startswith(_IMAGES):
        return "images"
    if head.startswith(b"PAR1"):
        return "Parquet"
    if _RECORDS.match(head):
        return "JSON"
    cut = len(head) >= HEAD
    whole = head[: head.rfind(b"\n") + 1] if cut else head
    if cut and not whole:  # one line, such as a book in a JSON string
        return "JSONL" if _RECORD.match(head) else "text"
    text = whole.decode("utf-8", "replace")
    lines = [line.strip() for line in islice((line for line in lines_of(text) if line.strip()), 32)]
    if lines and lines[0][0] == "{" and json_object(lines[0]) is not None:
        return "JSONL"
    if len(lines) < 2:
        return "text"
    if lines[0][0] in ">;" and _is_fasta(lines):
        return "FASTA"
    if lines[0][0] == "@" and _READ.fullmatch(lines[1]):
        return "FASTQ"
    return next((name for name, delimiter in DELIMITERS if is_table(text, delimiter, cut)), "text")


def lines_of(text: str) -> Iterator[str]:
    """Return the lines of a text; `str.splitlines` also splits at U+2028 and others, which JSON strings may have."""
    return iter(io.StringIO(text, newline=None))


def _is_fasta(lines: list[str]) -> bool:
    """Return whether lines are names and sequences, and not a quotation or comments above single words."""
    sequences = [line for line in lines if line[0] not in ">;"]
    letters = any(letter.isalpha() for line in sequences for letter in line)
    return letters and any(line[0] == ">" for line in lines) and all(map(RESIDUES.fullmatch, sequences))


def fasta_records(text: str) -> dict[int, str]:
    """Return the sequences of FASTA by the number of the line with their name; {} for other texts."""
    lines = [line.strip() for line in lines_of(text)]
    head = [line for line in lines if line][:32]
    if not head or head[0][0] not in ">;" or not _is_fasta(head):
        return {}
    parts: dict[int, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if line[:1] in (">", ";"):
            parts[number] = []
        elif line:
            parts[next(reversed(parts))].append("".join(line.split()))
    return {number: "".join(found) for number, found in parts.items() if found}


def json_object(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for anything else, and for text that is not Unicode."""
    try:
        found = json.loads(line)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_table(text: str, delimiter: str, cut: bool = False) -> bool:
    """Return whether at least three records have equally many columns, two or more, and the first one has names.

    One record in ten may have another number. The last record of a text that was cut may not be whole.
    """
    ways = (True, False) if delimiter == "\t" else (True,)
    try:
        return any(_have_columns(list(islice(rows_of(text, delimiter, way), 32 + cut)), cut) for way in ways)
    except csv.Error:
        return False


def _have_columns(rows: list[list[str]], cut: bool) -> bool:
    if cut and rows and len(rows[-1]) != len(rows[0]):
        rows = rows[:-1]
    names = rows[0] if rows else []
    named = len(set(names)) == len(names) and all(len(name) <= 64 and name.strip() == name for name in names)
    named &= all(names[1:])  # the first column has no name in tables with an index
    other = sum(len(row) != len(names) for row in rows)
    return len(rows) > 2 and len(names) > 1 and named and other <= len(rows) // 10


def rows_of(text: str, delimiter: str, quoting: bool = True, strict: bool = False) -> Iterator[list[str]]:
    """Return the records of delimited text, without empty lines; with `quoting`, quotes are marks around fields."""
    kind: Literal[0, 3] = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=kind, strict=strict)
    return (row for row in rows if row)


def quotes_close(text: str, delimiter: str) -> bool:
    """Return whether quotes are marks around fields; in many TSV files they are ordinary characters."""
    try:
        for _ in rows_of(text, delimiter, strict=True):
            pass
    except csv.Error:
        return False
    return True


def check_plain(path: Path) -> None:
    """Raise InputError for a file of records that is given as plain text."""
    if not path.is_dir() and (found := recognised(path)) != "text":
        column = " --column NAME" if found in TABLES else ""
        raise InputError(
            f"{path} is not plain text but {found}: rdlm train --data {path}{column} reads it as such; "
            "a folder that contains it is read as plain text"
        )

"""User data: the format of a file or folder is detected from its content, and read as text, DNA or images.

| format | content | corpus |
|---|---|---|
| text | UTF-8, or a folder of such files | characters, or another tokenizer |
| CSV, TSV, JSONL, JSON, Parquet | one column of the records | its texts, one per line |
| FASTA, FASTQ | sequences | bases A, C, G, T; other letters end a sequence. Proteins are text |
| images | PNG (others with pillow), equal sizes; subfolders are classes | 256 levels per channel |
| hf://NAME[:CONFIG][/SPLIT] | one column of a dataset of the Hugging Face hub, streamed | its texts, one per line |
| array | .npy of whole numbers, [N], [N, length], [N, height, width] or [N, height, width, channels] | levels |

Files must be regular and within the size limit; nothing is unpickled, and no code of a dataset is run.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rdlm.data.formats import (
    DELIMITERS,
    RESIDUES,
    TABLES,
    Format,
    check_file_name,
    data_files,
    is_table,
    json_object,
    lines_of,
    quotes_close,
    recognised,
    rows_of,
)
from rdlm.data.image import decode_png, is_plain_png
from rdlm.data.recipe import LARGEST_RATIO, CorpusRequest, Recipe, open_regular, read_bytes, unpacked_limit
from rdlm.data.store import SPLITS, Draft
from rdlm.data.text import draft_of_text
from rdlm.data.tokenizer import Levels, bases
from rdlm.display.progress import bar
from rdlm.errors import DamagedFileError, InputError, require
from rdlm.storage.files import too_large

LARGEST_IMAGE = 3 * 64 * 64
"""Levels of the largest image: each is a token."""

FEWEST = 20
"""Tokens, images or rows of the smallest data set, of which two each are for validation and test."""

_OTHERS = {
    b"PK\x03\x04": "a zip archive, as .epub and .docx are: unpack it, and give the folder of its texts",
    b"%PDF": "a PDF: convert it, for example with pdftotext",
    b"\x1f\x8b": "compressed by gzip: name it .gz",
    b"\xfd7zXZ": "compressed by xz: unpack it with xz -d",
    b"BZh": "compressed by bzip2: unpack it with bzip2 -d",
    b"(\xb5/\xfd": "compressed by zstd: unpack it with zstd -d",
    b"7z\xbc\xaf": "a 7z archive: unpack it, and give the folder",
    b"SQLite format 3": "an SQLite database: export a table as CSV",
    b"{\\rtf": "RTF: save it as plain text",
}
"""First bytes of files that are not read -> what they are, and what to do."""
_BASES = re.compile(r"[ACGT]+")


def own(request: CorpusRequest) -> Draft:
    """Return the data in a file or folder of the user, split 90/5/5."""
    if request.hub is not None:
        texts, source = hub_texts(request.hub, request.column, request.limit or HUB_LIMIT)
        return draft_of_text(request, "\n".join(texts), source)
    if request.file is None:
        raise InputError("own data need a file, a folder or a dataset: rdlm train --data PATH or hf://NAME")
    if (found := recognised(request.file)) == "text":
        check_file_name(request.file)
    if request.limit is not None and found not in ("text", *TABLES):
        raise InputError(f"{request.file} is {found}, and data.limit counts characters of text: leave it out")
    if request.column is not None and found not in TABLES:
        raise InputError(f"{request.file} is {found}, which has no columns: leave out --column")
    match found:
        case "images":
            return _images(request, request.file)
        case "array":
            return _array(request, request.file)
        case "FASTA" | "FASTQ":
            return _sequences(request, request.file, found)
        case "text":
            texts = [_decoded(file) for file in data_files(request.file)]
            source = f"text, {len(texts):,} file{'s' * (len(texts) > 1)}"
        case _:
            texts, source = _column(request.file, found, request.column)
    return draft_of_text(request, "\n".join(texts), f"{source}, {sum(map(len, texts)):,} characters")


def _decoded(path: Path) -> str:
    content = read_bytes(path)
    if content.startswith(b"PK\x03\x04") and b".npy" in content[30:4096]:
        raise InputError(f"{path} is an archive of arrays: save one of them with numpy.save, as .npy")
    if (other := next((how for first, how in _OTHERS.items() if content.startswith(first)), None)) is not None:
        raise InputError(f"{path} is {other}")
    if content[257:262] == b"ustar":
        raise InputError(f"{path} is a tar archive: unpack it, and give the folder")
    try:
        text = content.decode("utf-8-sig")  # without the mark that some editors and spreadsheets write
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text at byte {error.start}; if it is text, convert it, for example with "
            f"iconv -f latin1 -t utf-8 (or -f utf-16) {path} > utf8.txt; else leave it out"
        ) from None
    if (at := text.find("\0")) >= 0:
        raise InputError(f"{path} has a null character at position {at}, so it is not text but binary")
    return text


def _column(path: Path, kind: Format, column: str | None) -> tuple[list[str], str]:
    """Return the texts of a column and a description of them; records without a text are left out and counted."""
    tables = [_table(file, kind) for file in data_files(path)]
    names = list(dict.fromkeys(name for table in tables for name in table.names if name))
    if column is None:
        column = "text" if "text" in names else names[0] if len(names) == 1 else None
    if column is None or column not in names:
        asked = "choose one" if column is None else f"there is no {column!r}: choose one of them"
        raise InputError(f"{path} is {kind} with the columns {', '.join(names)}; {asked} with --column")
    found = [value for table in tables for value in table.values(column)]
    values = [value for value in found if value not in (None, "")]
    if (other := next((value for value in values if isinstance(value, list | dict | bytes)), None)) is not None:
        raise InputError(f"the column {column!r} of {path} has values such as {other!r:.60}, which are not text")
    empty = len(found) - len(values)
    why = "have none, or more or fewer fields than columns" if kind in ("CSV", "TSV") else "have none"
    source = f"{kind}, column {column!r} of {len(values):,} records" + (f" ({empty:,} {why})" if empty else "")
    return list(map(str, values)), source


class Table(NamedTuple):
    """The columns of a file of records."""

    names: list[str]
    values: Callable[[str], Iterable[Any]]
    """Column -> its value in every record, None where it has none."""


def _table(path: Path, kind: Format) -> Table:
    match kind:
        case "Parquet":
            return _parquet(path)
        case "CSV" | "TSV":
            return _delimited(path, kind)
    records = [_flat(record) for record in _records(path, kind)]
    names = list(dict.fromkeys(name for record in records for name in record))
    return Table(names, lambda column: (record.get(column) for record in records))


def _flat(record: dict[str, Any], levels: int = 8) -> dict[str, Any]:
    """Return the members of a record and of the objects in it, whose names are joined by dots: `body.text`."""
    if levels == 0 or not any(isinstance(value, dict) and value for value in record.values()):
        return record
    flat = {name: value for name, value in record.items() if not (isinstance(value, dict) and value)}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": found for inner, found in _flat(value, levels - 1).items()}
    return flat


def _parquet(path: Path) -> Table:
    require("pyarrow", "hf", f"{path} is Parquet, which")
    import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        with open_regular(path) as file:
            names = list(parquet.read_schema(file).names)
    except pyarrow.ArrowException as error:
        raise DamagedFileError(f"{path} is not Parquet: {error}") from None

    def values(column: str) -> Iterator[Any]:
        """Yield the values of a column; a small file can have any number of equal ones."""
        left = unpacked_limit(path)
        try:
            with open_regular(path) as file:
                for batch in parquet.ParquetFile(file).iter_batches(1024, columns=[column] if column in names else []):
                    left -= batch.nbytes
                    if left < 0:
                        raise too_large(path, f"unpacked more than {unpacked_limit(path):,}", LARGEST_RATIO)
                    yield from batch.column(0).to_pylist() if column in names else [None] * len(batch)
        except (pyarrow.ArrowException, OSError) as error:
            raise DamagedFileError(f"{path} is damaged: {error}") from None

    return Table(names, values)


def _delimited(path: Path, kind: Format) -> Table:
    """Return the columns of a file of delimited fields, whose first record has their names."""
    text = _decoded(path)
    marks = [mark for name, mark in DELIMITERS if name == kind]
    delimiter = next((mark for mark in marks if is_table(text, mark)), marks[0])
    quoting = delimiter != "\t" or quotes_close(text, delimiter)

    def records() -> Iterator[list[str]]:
        try:
            yield from rows_of(text, delimiter, quoting)
        except csv.Error as error:
            raise InputError(f"{path} is not {kind}: {error}") from None

    names = next(records(), [])

    def values(column: str) -> Iterator[str | None]:
        rows, at = records(), names.index(column) if column in names else None
        next(rows, None)
        return (None if at is None or len(row) != len(names) else row[at] for row in rows)

    return Table(names, values)


def _records(path: Path, kind: Format) -> Iterator[dict[str, Any]]:
    text = _decoded(path)
    if kind == "JSON":
        yield from _array_of_objects(text, path)
        return
    for number, line in enumerate(lines_of(text), 1):
        if line.strip():
            if (found := json_object(line)) is None:
                raise InputError(f"{path} is JSONL, but line {number} is not a JSON object")
            yield found


def _array_of_objects(text: str, path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON array of objects: {error!s:.200}") from None
    if not all(isinstance(record, dict) for record in found):
        raise InputError(f"{path} is not a JSON array of objects: it has other members, too")
    records: list[dict[str, Any]] = found
    return records


# -- datasets of the hub ----------------------------------------------------------------------------

HUB_LIMIT = 100_000_000
"""Characters that are read of a dataset of the hub if no limit is given."""

HUB_FORMATS = ("parquet", "json", "csv", "text", "arrow")
"""Formats of datasets that are read; others can hold pickles."""

_HUB_PART = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(
    rf"(?:hf://)?(?P<name>{_HUB_PART}(?:/(?!(?:train|validation|test)$){_HUB_PART})?)"
    rf"(?::(?P<config>{_HUB_PART}))?(?:/(?P<split>{_HUB_PART}))?",
    re.ASCII,
)


def parsed_hub_name(text: str) -> tuple[str, str | None, str]:
    """Return name, configuration and split of hf://NAME[:CONFIG][/SPLIT]; the split is train if none is given."""
    found = _HUB_NAME.fullmatch(text)
    if found is None:
        raise InputError(
            f"{text!r} is not a dataset of the hub: hf://NAME[:CONFIG][/SPLIT], such as hf://user/name/train"
        )
    return found["name"], found["config"], found["split"] or "train"


def check_datasets() -> None:
    """Raise InputError if the package `datasets` is missing, or so old that it can run the code of a dataset."""
    require("datasets", "hf", "a dataset of the hub")
    if int(version("datasets").partition(".")[0]) < 4:
        raise InputError('datasets before version 4 can run code of a dataset: pip install --upgrade "rdlm[hf]"')


def hub_texts(name: str, column: str | None, limit: int) -> tuple[list[str], str]:
    """Return the texts of a column of a dataset, `limit` characters at most, streamed; and a description of them."""
    path, config, split = parsed_hub_name(name)
    check_datasets()
    import datasets  # type: ignore[import-not-found,unused-ignore]

    texts: list[str] = []
    try:
        found = datasets.load_dataset(path, config, split=split, streaming=True)
        if (kind := found.info.builder_name) not in HUB_FORMATS:
            raise InputError(f"{name} has the format {kind}; {', '.join(HUB_FORMATS)} are read")
        with bar(limit, path, "character") as progress:
            for record in found:
                column = column or _only_column(record, name)
                if len(text := _text_of(record, column, name)[:limit]):
                    texts.append(text)
                    limit -= len(text) + 1
                    progress.update(len(text) + 1)
                if limit <= 0:
                    break
    except InputError:
        raise
    except Exception as error:  # of the library, of the hub and of the formats, of many kinds
        raise InputError(f"{name} cannot be read from the hub: {str(error).strip() or type(error).__name__}") from error
    if not texts:
        raise InputError(f"{name} has no text in the column {column!r}")
    total = sum(map(len, texts))
    return texts, f"dataset {path}, {split}, column {column!r} of {len(texts):,} records, {total:,} characters"


def _only_column(record: dict[str, Any], name: str) -> str:
    if "text" in record or len(record) == 1:
        return "text" if "text" in record else next(iter(record))
    raise InputError(f"{name} has the columns {', '.join(record)}; choose one with --column")


def _text_of(record: dict[str, Any], column: str, name: str) -> str:
    if column not in record:
        raise InputError(f"{name} has no column {column!r}; it has {', '.join(record)}")
    value = record[column]
    if value is not None and not isinstance(value, str):
        raise InputError(f"the column {column!r} of {name} has values such as {value!r:.60}, which are not text")
    return value or ""


# -- DNA --------------------------------------------------------------------------------------------


def _sequences(request: CorpusRequest, path: Path, kind: Format) -> Draft:
    found = [record for file in data_files(path) for record in _biological(file, kind)]
    letters = set("".join(found))
    if letters - set("ACGTUNRYSWKMBDHVX-."):
        source = f"{kind} of proteins, {len(found):,} records, {sum(map(len, found)):,} residues"
        return draft_of_text(request, "\n".join(found), source)
    runs = [run for record in found for run in _BASES.findall(record.replace("U", "T"))]
    count, total = sum(map(len, runs)), sum(map(len, found))
    source = f"{kind} of DNA, {len(found):,} records, {count:,} bases, {total - count:,} other letters left out"
    ids = bases().encode("".join(runs))
    return Draft("own-dna", bases(), _stream(ids, path), source, kind="dna")


def _biological(path: Path, kind: Format) -> list[str]:
    """Return the sequences of a file in upper case."""
    lines = [line.strip() for line in lines_of(_decoded(path)) if line.strip()]
    if kind == "FASTQ":
        return [_read(lines[at : at + 4], f"{path}, read {at // 4 + 1:,}") for at in range(0, len(lines), 4)]
    records: list[list[str]] = [[]] if lines and lines[0][0] not in ">;" else []
    for line in lines:
        if line[0] in ">;":
            records.append([])
        elif not RESIDUES.fullmatch(line):
            raise InputError(f"{path} is FASTA, but the line {line!r:.60} is neither a name after '>' nor a sequence")
        else:
            records[-1].append("".join(line.split()).upper())
    return ["".join(record) for record in records]


def _read(lines: list[str], place: str) -> str:
    """Return the sequence of a read of FASTQ; a missing line would shift qualities into the sequences after it."""
    if len(lines) < 4 or lines[0][0] != "@" or lines[2][0] != "+":
        raise InputError(f"{place}: FASTQ has four lines per read: '@name', bases, '+', qualities")
    if len(lines[1]) != len(lines[3]):
        raise InputError(f"{place} has {len(lines[1])} bases and {len(lines[3])} qualities")
    return lines[1].upper()


def _stream(ids: NDArray[Any], path: Path) -> dict[str, list[NDArray[Any]]]:
    if len(ids) < FEWEST:
        raise InputError(f"{path} has {len(ids)} tokens; a split into 90/5/5 needs at least {FEWEST}")
    held_out = max(2, len(ids) // 20)  # an interval needs two rows
    ends = [0, len(ids) - 2 * held_out, len(ids) - held_out, len(ids)]
    return {split: [ids[a:b]] for split, a, b in zip(SPLITS, ends, ends[1:], strict=False)}


# -- images and arrays ------------------------------------------------------------------------------


def _images(request: CorpusRequest, path: Path) -> Draft:
    files = data_files(path)
    arrays = [_pixels(file) for file in files]
    sizes = {array.shape[:2]: file for array, file in zip(arrays, files, strict=True)}
    if len(sizes) > 1:
        two = " and ".join(f"{width} x {height} ({file})" for (height, width), file in sorted(sizes.items())[:2])
        raise InputError(f"{path} has images of several sizes, such as {two}: resize them to one")
    channels = max(array.shape[2] for array in arrays)  # 3 if at least one has colours
    arrays = [np.broadcast_to(array, (*array.shape[:2], channels)) for array in arrays]
    names = [file.parent.relative_to(path).as_posix() if path.is_dir() else "." for file in files]
    classes = tuple(sorted(set(names))) if len(set(names)) > 1 else ()
    labels = np.array([classes.index(name) for name in names], np.uint16) if classes else None
    return _rows(request, path, np.stack(arrays), "images", labels, classes)


def _pixels(path: Path) -> NDArray[np.uint8]:
    """Return an image [height, width, 1 or 3]; grey if all channels are equal."""
    data = read_bytes(path)
    if importlib.util.find_spec("PIL") is not None:
        pixels = _opened(path, data)
    elif is_plain_png(data):
        pixels = decode_png(data)
    else:
        raise InputError(
            f"{path} is not a PNG file of 8 bits without transparency, palette or interlacing: "
            "other images need pillow: pip install 'rdlm[viz]'"
        )
    if pixels.size > 3 * LARGEST_IMAGE:
        raise _too_many_pixels(path, *pixels.shape[:2])
    grey = bool((pixels == pixels[..., :1]).all())
    return pixels[..., :1] if grey else pixels


def _opened(path: Path, data: bytes) -> NDArray[np.uint8]:
    """Return the 8-bit RGB values that pillow reads, without transparency."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise _too_many_pixels(path, image.height, image.width)
            if image.mode[0] in "IF":  # pillow clips these at 255 when it converts them
                raise InputError(f"{path} has more than 8 bits per channel: convert it to 8 bits, or use an .npy array")
            return np.array(image.convert("RGB"))
    except InputError:
        raise
    except Exception as error:  # its decoders raise errors of many kinds
        raise DamagedFileError(f"{path} is not an image that pillow can read: {error}") from None


def _too_many_pixels(path: Path, height: int, width: int) -> InputError:
    advice = "resize images to at most 64 x 64 pixels in colour"
    return InputError(f"{path} has {width} x {height} pixels, too many tokens for one sequence: {advice}")


def decode_npy(data: bytes) -> NDArray[Any]:
    """Return the array of numbers in NumPy's format, of the size that its header claims; DamagedFileError for others.

    `numpy.load` also opens archives and allocates what a header claims.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(file)
    except Exception as error:  # its parser raises errors of many kinds
        raise DamagedFileError(f"not an array in NumPy's format: {error!s:.200}") from None
    if version not in ((1, 0), (2, 0)) or dtype.kind not in "fiub" or dtype.hasobject:
        raise DamagedFileError(f"not an array of real numbers in NumPy's format 1.0 or 2.0 but of {dtype!s:.80}")
    body = memoryview(data)[file.tell() :]
    if len(shape) > 8 or min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(body):
        raise DamagedFileError(f"an array whose header claims {list(shape[:8])} of {dtype}, with {len(body)} bytes")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if by_column else "C")


def _array(request: CorpusRequest, path: Path) -> Draft:
    if path.is_dir():
        raise InputError(f"{path} is a folder of .npy files: give one file")
    try:
        with open_regular(path) as file:
            array = decode_npy(file.read())
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is {error}") from None
    if array.dtype.kind == "b":
        array = array.astype("<u2")  # two levels; images of uint8 have 256
    if array.dtype.kind not in "ui" or array.ndim not in (1, 2, 3, 4) or array.size == 0:
        advice = "; quantise them, then .astype(numpy.uint8)" if array.dtype.kind == "f" else ""
        raise InputError(
            f"{path} has type {array.dtype} and shape {array.shape}: whole numbers [N], [N, length] or images{advice}"
        )
    if array.ndim == 4 and array.shape[3] not in (1, 3):
        raise InputError(f"{path} has images of {array.shape[3]} channels, not of 1 or 3: [N, height, width, channels]")
    if array.min() < 0 or array.max() >= 1 << 16:
        raise InputError(f"{path} has numbers from {array.min()} to {array.max()}, not within 0 .. {(1 << 16) - 1}")
    if array.ndim == 1:
        tokenizer = Levels(max(2, int(array.max()) + 1))
        ids = array.astype(np.uint8 if tokenizer.size <= 256 else "<u2")
        return Draft("own-array", tokenizer, _stream(ids, path), f"array of {array.size:,} tokens", kind="text")
    return _rows(request, path, array[..., None] if array.ndim == 3 else array, "array", None, ())


def _rows(
    request: CorpusRequest,
    path: Path,
    array: NDArray[Any],
    what: str,
    labels: NDArray[Any] | None,
    classes: tuple[str, ...],
) -> Draft:
    """Return rows [N, length] or images [N, height, width, channels], in a fixed random order, split 90/5/5."""
    count, shape = len(array), array.shape[1:]
    if count < FEWEST:
        raise InputError(f"{path} has {count} {what}; a split into 90/5/5 needs at least {FEWEST}")
    size = 256 if what == "images" or (array.dtype == np.uint8 and array.ndim == 4) else max(2, int(array.max()) + 1)
    order = np.random.default_rng(0).permutation(count)
    rows = array.reshape(count, -1)[order].astype(np.uint8 if size <= 256 else "<u2")
    if rows.shape[1] > LARGEST_IMAGE:
        raise InputError(f"{path} has rows of {rows.shape[1]:,} tokens, more than {LARGEST_IMAGE:,}")
    parts = {split: [part] for split, (part,) in _stream(rows, path).items()}
    marked = {} if labels is None else {split: part for split, (part,) in _stream(labels[order], path).items()}
    image = tuple(shape) if array.ndim == 4 else None
    source = f"{what}, {count:,} of shape {'x'.join(map(str, shape))}, {size} levels"
    source += f", classes {', '.join(classes)}" if classes else ""
    kind: Literal["image", "text"] = "image" if image else "text"
    length = rows.shape[1]
    return Draft(f"own-{what}", Levels(size), parts, source, marked, {}, classes, image, kind, length)


RECIPES = (
    Recipe(
        name="own",
        kind="text",
        summary="your text, CSV, JSONL, FASTA, FASTQ, images or array, recognised by content, split 90/5/5",
        licence="yours",
        length=256,
        prepare=own,
        protocols=("own",),
        options=frozenset(
            {"file", "hub", "limit", "column", "tokenizer", "alphabet", "normalise", "unknown", "vocabulary"}
        ),
    ),
)

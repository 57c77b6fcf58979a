"""The prepared form of a corpus: raw arrays that are memory-mapped, and one JSON page about them.

<cache>/data/<name>-<key>/
    meta.json        protocol, source, licence, shapes, counts, the SHA-256 of every other file
    tokenizer.json   see `rdlm.data.tokenizer.from_json`
    train.bin validation.bin test.bin           tokens: a stream [N], or rows [N, length]
    train.label.bin ... train.signal.bin ...    where there are classes or a per-position signal
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rdlm.data.tokenizer import Tokenizer, from_json
from rdlm.display.progress import bar
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import FULL, read_json, sha256_of, sync_folder

Kind = Literal["text", "image", "dna"]
SPLITS = ("train", "validation", "test")
SUFFIXES = (".bin", ".label.bin", ".signal.bin")
FORMAT = 1


@dataclass(frozen=True)
class Draft:
    """What a corpus's recipe hands over to be written."""

    protocol: str
    tokenizer: Tokenizer
    tokens: Mapping[str, Iterable[NDArray[Any]]]
    """Split -> blocks, which are written one after the other: 1-D for a stream, 2-D for rows."""

    source: str
    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    signals: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    image: tuple[int, int, int] | None = None
    """Height, width, channels of an image's row."""


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk, memory-mapped."""

    name: str
    protocol: str
    kind: Kind
    length: int
    """The sequence length of the literature; a stream can be cut into any other."""

    tokenizer: Tokenizer
    licence: str
    source: str
    folder: Path
    tokens: Mapping[str, NDArray[Any]]
    labels: Mapping[str, NDArray[Any]]
    signals: Mapping[str, NDArray[Any]]
    classes: tuple[str, ...] = ()
    image: tuple[int, int, int] | None = None
    digest: str = ""
    """What tells this content from any other: a SHA-256 over those of the files; empty if it lies on no disk."""

    @property
    def train(self) -> NDArray[Any]:
        """Return the training split."""
        return self.split("train")

    @property
    def validation(self) -> NDArray[Any]:
        """Return the validation split."""
        return self.split("validation")

    @property
    def test(self) -> NDArray[Any]:
        """Return the test split."""
        return self.split("test")

    def split(self, name: str) -> NDArray[Any]:
        """Return a split's tokens, [N] or [N, length]; a split that this protocol lacks is an error."""
        if name not in self.tokens:
            raise InputError(f"{self.protocol} has no split {name!r}; it has {', '.join(self.tokens)}")
        return self.tokens[name]


def write(folder: Path, draft: Draft, about: Mapping[str, Any]) -> None:
    """Write a corpus so that its folder is there whole or not at all; `about` goes into meta.json."""
    with writable(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            _fill(aside, draft, about)
            if not folder.exists():  # else another process was faster, and made the same
                os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync_folder(folder.parent)


def _fill(folder: Path, draft: Draft, about: Mapping[str, Any]) -> None:
    files = {}
    for split, blocks in draft.tokens.items():
        files[f"{split}.bin"] = _write_array(folder / f"{split}.bin", blocks)
    for suffix, arrays in (("label", draft.labels), ("signal", draft.signals)):
        for split, array in arrays.items():
            files[f"{split}.{suffix}.bin"] = _write_array(folder / f"{split}.{suffix}.bin", [array])
    vocabulary = json.dumps(draft.tokenizer.to_json()).encode()
    (folder / "tokenizer.json").write_bytes(vocabulary)
    files["tokenizer.json"] = {"sha256": hashlib.sha256(vocabulary).hexdigest(), "bytes": len(vocabulary)}
    for name, entry in files.items():
        entry["modified"] = (folder / name).stat().st_mtime_ns
    meta = {
        "format": FORMAT,
        **about,
        "protocol": draft.protocol,
        "source": draft.source,
        "vocabulary": draft.tokenizer.size,
        "classes": list(draft.classes),
        "image": draft.image,
        "files": files,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def _write_array(path: Path, blocks: Iterable[NDArray[Any]]) -> dict[str, Any]:
    digest, rows, tail, kind = hashlib.sha256(), 0, (), "u1"
    with path.open("wb") as file, bar(None, f"writing {path.name}", "B") as progress:
        for block in blocks:
            kind = block.dtype.newbyteorder("<").str
            raw = np.ascontiguousarray(block, kind).tobytes()
            digest.update(raw)
            file.write(raw)
            progress.update(len(raw))
            rows, tail = rows + len(block), block.shape[1:]
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return {"sha256": digest.hexdigest(), "bytes": size, "dtype": kind, "shape": [rows, *tail]}


def describe(folder: Path) -> dict[str, Any]:
    """Return a prepared corpus's meta.json; one that could not have been written by `write` is damage."""
    path = folder / "meta.json"
    meta = read_json(path)
    if meta.get("format") != FORMAT:
        raise DamagedFileError(f"{path} has format {meta.get('format')!r}, not {FORMAT}: delete {folder}")
    files: Any = meta.get("files")
    names = {"tokenizer.json", *(f"{split}{suffix}" for split in SPLITS for suffix in SUFFIXES)}
    try:
        if not isinstance(files, dict) or not names >= set(files) >= {"tokenizer.json"}:
            raise ValueError("its list of files is not that of a corpus")
        for name, entry in files.items():
            _check_entry(name, entry)
        missing = {"name", "protocol", "kind", "length", "licence", "source", "classes", "image"} - set(meta)
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}; delete {folder}") from None
    return meta


def _check_entry(name: str, entry: Mapping[str, Any]) -> None:
    if type(entry["bytes"]) is not int or entry["bytes"] < 0 or type(entry["sha256"]) is not str:
        raise ValueError(f"{name} has no size or no checksum")
    if name != "tokenizer.json":
        shape, kind = entry["shape"], np.dtype(entry["dtype"])
        if kind.kind not in "uif" or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{name} is no array of numbers")
        if math.prod(shape) * kind.itemsize != entry["bytes"]:
            raise ValueError(f"{name} has {entry['bytes']} bytes, which are not its shape {shape}")


def read(folder: Path) -> Corpus:
    """Return a prepared corpus; a file that was edited or cut since it was written is an error.

    A file whose size and time are those of its making is taken as it is, any other one is read through and compared
    with its checksum. What changes a file behind the file system's back is for `verify`.
    """
    meta = describe(folder)
    for name, entry in meta["files"].items():
        _check_unchanged(folder / name, entry)
    arrays = {name: _map(folder / name, entry) for name, entry in meta["files"].items() if "shape" in entry}
    tokens = {s: arrays[f"{s}.bin"] for s in SPLITS if f"{s}.bin" in arrays}
    labels = {s: arrays[f"{s}.label.bin"] for s in SPLITS if f"{s}.label.bin" in arrays}
    signals = {s: arrays[f"{s}.signal.bin"] for s in SPLITS if f"{s}.signal.bin" in arrays}
    tokenizer = from_json(read_json(folder / "tokenizer.json"))
    image = tuple(meta["image"]) if meta["image"] else None
    return Corpus(
        meta["name"],
        meta["protocol"],
        meta["kind"],
        meta["length"],
        tokenizer,
        meta["licence"],
        meta["source"],
        folder,
        tokens,
        labels,
        signals,
        tuple(meta["classes"]),
        image,
        _digest(meta["files"]),
    )


def _digest(files: Mapping[str, Any]) -> str:
    return hashlib.sha256("".join(files[name]["sha256"] for name in sorted(files)).encode()).hexdigest()


def _check_unchanged(path: Path, entry: Mapping[str, Any]) -> None:
    size = path.stat().st_size if path.is_file() else -1
    if size != entry["bytes"]:
        raise DamagedFileError(f"{path} is not the {entry['bytes']} bytes it should be: delete {path.parent}")
    if path.stat().st_mtime_ns != entry.get("modified"):
        _check_content(path, entry)


def _check_content(path: Path, entry: Mapping[str, Any], seen: Callable[[int], object] = lambda count: None) -> None:
    if (found := sha256_of(path, seen)) != entry["sha256"]:
        raise DamagedFileError(f"{path} has SHA-256 {found}, not {entry['sha256']}: delete {path.parent}")


def _map(path: Path, entry: Mapping[str, Any]) -> NDArray[Any]:
    if entry["bytes"] == 0:
        return np.empty(entry["shape"], entry["dtype"])
    return np.memmap(path, entry["dtype"], "r", shape=tuple(entry["shape"]))


def verify(folder: Path) -> int:
    """Return the number of bytes whose checksums agree; a file that differs is a DamagedFileError."""
    files = describe(folder)["files"]
    total = sum(entry["bytes"] for entry in files.values())
    with bar(total, f"verifying {folder.name}", "B") as progress:
        for name, entry in files.items():
            path = folder / name
            if not path.is_file():
                raise DamagedFileError(f"{path} is missing: delete {folder} and get the corpus again")
            _check_content(path, entry, progress.update)
    return int(total)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn a failure to write below `folder` into the user's error that names it."""
    known = FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
    try:
        yield
    except OSError as error:
        if error.errno not in known:
            raise
        raise InputError(f"cannot write to {folder}: {error.strerror}; set RDLM_CACHE") from None

"""Prepared corpora: raw arrays, which are memory-mapped, and a JSON file that describes them.

<cache>/data/<name>-<key>/
    meta.json        protocol, source, licence, classes; manifest of the other files with dtypes and shapes
    tokenizer.json   see `rdlm.data.tokenizer.from_json`
    train.bin validation.bin test.bin           tokens: a stream [N], or rows [N, length]
    train.label.bin ... train.signal.bin ...    for corpora with classes or with a signal per position
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

from rdlm.data.tokenizer import Tokenizer, from_json
from rdlm.display.progress import bar
from rdlm.errors import InputError
from rdlm.storage.files import UNWRITABLE, damaged, explained_write_errors, new_folder, read_json, sync
from rdlm.storage.manifest import Manifest

Kind = Literal["text", "image", "dna"]
SPLITS = ("train", "validation", "test")
SUFFIXES = (".bin", ".label.bin", ".signal.bin")
TOKENIZER = "tokenizer.json"
FORMAT = 1
LONGEST, LARGEST_CHECKED = 1 << 20, 1 << 28
"""The longest sequence that an index may claim, and the bytes of the largest array whose tokens are checked."""
ROW = 4096
"""Tokens of a row into which `Corpus.rows` divides a stream."""


@dataclass(frozen=True)
class Draft:
    """The content of a corpus before it is written to disk."""

    protocol: str
    tokenizer: Tokenizer
    tokens: Mapping[str, Iterable[NDArray[Any]]]
    """Split -> arrays that are concatenated: 1-D for a stream, 2-D for rows."""

    source: str
    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    signals: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    image: tuple[int, int, int] | None = None
    """Height, width and channels, if a row is an image."""
    kind: Kind | None = None
    """The kind of the data where it is not that of the recipe."""
    length: int | None = None
    """The sequence length where it is not that of the recipe."""


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk, memory-mapped."""

    name: str
    protocol: str
    kind: Kind
    length: int
    """The sequence length of the literature; a stream can be split into sequences of any length."""

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
    """SHA-256 over the checksums of the files; empty if the corpus is not on disk."""

    @property
    def train(self) -> NDArray[Any]:
        """The training split."""
        return self.split("train")

    @property
    def validation(self) -> NDArray[Any]:
        """The validation split."""
        return self.split("validation")

    @property
    def test(self) -> NDArray[Any]:
        """The test split."""
        return self.split("test")

    def split(self, name: str) -> NDArray[Any]:
        """Return the tokens of a split, [N] or [N, length]; InputError if the protocol does not have the split."""
        if name not in self.tokens:
            raise InputError(f"{self.protocol} has no split {name!r}; it has {', '.join(self.tokens)}")
        return self.tokens[name]

    def rows(self) -> Shaped[Tensor, "n length"]:
        """Return the training split as rows, those of a stream as long as `ROW`; what is left of it is dropped."""
        train = self.train
        if train.ndim == 1:
            length = min(ROW, len(train))
            train = train[: len(train) // length * length].reshape(-1, length)
        return torch.from_numpy(np.array(train))


def write(folder: Path, draft: Draft, about: Mapping[str, Any]) -> None:
    """Write a corpus into a folder, atomically; `about` is added to meta.json."""
    with cache_errors(folder.parent):
        with new_folder(folder) as temporary:
            _write_files(temporary, draft, about)
            if not folder.exists():  # else another process has written the same corpus
                os.rename(temporary, folder)
        sync(folder.parent)


def cache_errors(folder: Path) -> AbstractContextManager[None]:
    """Turn a failure to write into the cache folder into an InputError."""
    return explained_write_errors(folder, "set RDLM_CACHE", UNWRITABLE)


def _write_files(folder: Path, draft: Draft, about: Mapping[str, Any]) -> None:
    arrays = {f"{split}.bin": blocks for split, blocks in draft.tokens.items()}
    arrays |= {f"{split}.label.bin": [array] for split, array in draft.labels.items()}
    arrays |= {f"{split}.signal.bin": [array] for split, array in draft.signals.items()}
    layouts = {name: _write_array(folder / name, blocks) for name, blocks in arrays.items()}
    (folder / TOKENIZER).write_text(json.dumps(draft.tokenizer.to_json()), "utf-8")
    files = {
        name: {**entry, **layouts.get(name, {}), "modified": (folder / name).stat().st_mtime_ns}
        for name, entry in Manifest.of(folder).files.items()
    }
    meta = {
        "format": FORMAT,
        **about,
        **({} if draft.kind is None else {"kind": draft.kind}),
        **({} if draft.length is None else {"length": draft.length}),
        "protocol": draft.protocol,
        "source": draft.source,
        "vocabulary": draft.tokenizer.size,
        "classes": list(draft.classes),
        "image": draft.image,
        "files": files,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def _write_array(path: Path, blocks: Iterable[NDArray[Any]]) -> dict[str, Any]:
    """Write the concatenation of arrays and return its dtype and shape."""
    rows, tail, dtype = 0, (), "u1"
    with path.open("wb") as file, bar(None, f"writing {path.name}", "B") as progress:
        for block in blocks:
            dtype = block.dtype.newbyteorder("<").str
            raw = np.ascontiguousarray(block, dtype).tobytes()
            file.write(raw)
            progress.update(len(raw))
            rows, tail = rows + len(block), block.shape[1:]
        file.flush()
        os.fsync(file.fileno())
    return {"dtype": dtype, "shape": [rows, *tail]}


def describe(folder: Path) -> dict[str, Any]:
    """Return the meta.json of a prepared corpus after checking its keys and types."""
    return _read_meta(folder)[0]


def _read_meta(folder: Path) -> tuple[dict[str, Any], Manifest]:
    path, advice = folder / "meta.json", f"delete {folder}"
    meta = read_json(path)
    if meta.get("format") != FORMAT:
        raise damaged(path, f"it has format {meta.get('format')!r}, not {FORMAT}", advice)
    optional = [f"{split}{suffix}" for split in SPLITS for suffix in SUFFIXES]
    manifest = Manifest.parse(path, meta.get("files"), required=[TOKENIZER], optional=optional, advice=advice)
    try:
        for name, entry in manifest.files.items():
            if name != TOKENIZER:
                _check_array(name, entry)
        _check_about(meta)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise damaged(path, str(error), advice) from None
    return meta, manifest


def _check_about(meta: Mapping[str, Any]) -> None:
    """Raise ValueError for a description with a key that is missing or of another type."""
    texts = ("name", "protocol", "kind", "licence", "source")
    if missing := {*texts, "length", "classes", "image"} - set(meta):
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    image = meta["image"]
    right = {name: isinstance(meta[name], str) for name in texts}
    right["length"] = type(meta["length"]) is int and 0 < meta["length"] <= LONGEST
    right["classes"] = isinstance(meta["classes"], list) and all(isinstance(name, str) for name in meta["classes"])
    right["image"] = image is None or (isinstance(image, list) and [type(size) for size in image] == [int] * 3)
    if wrong := [name for name, is_right in right.items() if not is_right]:
        raise ValueError(f"its {wrong[0]} is {meta[wrong[0]]!r:.80}")


def _check_array(name: str, entry: Mapping[str, Any]) -> None:
    shape, dtype = entry["shape"], np.dtype(entry["dtype"])
    if dtype.kind not in "uif" or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} is not an array of numbers")
    if math.prod(shape) * dtype.itemsize != entry["bytes"]:
        raise ValueError(f"{name} has {entry['bytes']} bytes, which contradicts its shape {shape}")


def read(folder: Path) -> Corpus:
    """Return a prepared corpus; DamagedFileError if a file was modified since it was written.

    The content of a file is compared with its checksum only if the modification time differs; `verify` compares always.
    """
    meta, manifest = _read_meta(folder)
    manifest.check_sizes()
    for name, entry in manifest.files.items():
        if (folder / name).stat().st_mtime_ns != entry.get("modified"):
            manifest.check_content(name)
    arrays = {name: _map(folder / name, entry) for name, entry in manifest.files.items() if name != TOKENIZER}
    tokens, labels, signals = (
        {split: arrays[f"{split}{suffix}"] for split in SPLITS if f"{split}{suffix}" in arrays} for suffix in SUFFIXES
    )
    tokenizer = from_json(read_json(folder / TOKENIZER))
    for split, ids in tokens.items():
        if 0 < ids.nbytes <= LARGEST_CHECKED and not 0 <= ids.min() <= ids.max() < tokenizer.size:
            raise damaged(
                folder / f"{split}.bin", "its tokens exceed the vocabulary of its tokenizer", f"delete {folder}"
            )
    return Corpus(
        name=meta["name"],
        protocol=meta["protocol"],
        kind=meta["kind"],
        length=meta["length"],
        tokenizer=tokenizer,
        licence=meta["licence"],
        source=meta["source"],
        folder=folder,
        tokens=tokens,
        labels=labels,
        signals=signals,
        classes=tuple(meta["classes"]),
        image=tuple(meta["image"]) if meta["image"] else None,
        digest=manifest.digest,
    )


def _map(path: Path, entry: Mapping[str, Any]) -> NDArray[Any]:
    if entry["bytes"] == 0:  # an empty file cannot be mapped
        return np.empty(entry["shape"], entry["dtype"])
    return np.memmap(path, entry["dtype"], "r", shape=tuple(entry["shape"]))


def verify(folder: Path) -> int:
    """Return the number of bytes after comparing all files with their checksums."""
    manifest = _read_meta(folder)[1]
    with bar(manifest.size, f"verifying {folder.name}", "B") as progress:
        manifest.verify(progress.update)
    return manifest.size

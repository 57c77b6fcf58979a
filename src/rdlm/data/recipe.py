"""Recipes of corpora, with common functions for reading archives and user files."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.store import Draft, Kind
from rdlm.data.tokenizer import Unknown
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import most_bytes, open_plain, too_large

Content = TypeVar("Content")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusRequest:
    """The options of a user for a corpus; options that the corpus does not have must keep their defaults."""

    protocol: str = ""
    file: Path | None = None
    hub: str | None = None
    """Dataset of the Hugging Face hub in place of a file, as NAME[:CONFIG][/SPLIT]."""
    limit: int | None = None
    """Characters that are read at most."""
    tokenizer: str | Path | None = None
    """Name of a tokenizer, a tokenizer.json, or hf://NAME of the hub."""
    column: str | None = None
    alphabet: str | None = None
    normalise: bool = False
    unknown: Unknown | Literal["extend"] = "error"
    """What is done with characters outside of the alphabet; extend: they are further tokens."""
    vocabulary: int = 8192
    accept_licence: bool = False


@dataclass(frozen=True)
class Recipe:
    """A corpus that can be prepared: its description, and the function that does it."""

    name: str
    kind: Kind
    summary: str
    licence: str
    length: int
    prepare: Callable[[CorpusRequest], Draft]
    protocols: tuple[str, ...]
    """The available protocols; the first is the default."""

    fallback: tuple[str, ...] = ()
    """Protocols tried in turn if the default one is unavailable and none was requested."""

    options: frozenset[str] = frozenset()
    """The fields of CorpusRequest that apply to this corpus, besides `protocol`."""

    archives: tuple[Archive, ...] = ()
    must_accept: bool = False
    """Whether the user must accept the licence before anything is downloaded."""


MOST_FILES = 1 << 18
"""Files of a folder of data: more take minutes before the first of them is read."""

LARGEST_RATIO = 32
"""Bytes of a decompressed file for each of its own, beyond 64 MB: text has 3 to 10, a bomb 1,000."""


class LimitedReader(io.RawIOBase):
    """A stream that ends with an InputError after `limit` bytes: a small compressed file can have any content."""

    def __init__(self, inner: IO[bytes], path: Path, limit: int) -> None:
        super().__init__()
        self._inner, self._path, self._limit, self._left = inner, path, limit, limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer and return their number."""
        try:
            content = self._inner.read(len(buffer))
        except Exception as error:  # the libraries of compression raise errors of many kinds
            raise DamagedFileError(f"{self._path} is damaged: {error}") from None
        self._left -= len(content)
        if self._left < 0:
            raise too_large(self._path, f"unpacked more than {self._limit:,}", LARGEST_RATIO)
        buffer[: len(content)] = content
        return len(content)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file of the user; InputError if it is no regular file, such as a device or a pipe, or too large."""
    try:
        file = open_plain(path, follow=True)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if (size := os.fstat(file.fileno()).st_size) > most_bytes():
        file.close()
        raise too_large(path, f"{size:,}")
    return file


def files_of(folder: Path, hidden: bool = True) -> list[Path]:
    """Return the regular files below a folder of the user, sorted, with or without those whose names begin with a dot.

    InputError for a link to a file outside of the folder, which another user may have created, and for too many bytes.
    """
    found, size, place = [], 0, folder.resolve()
    for entry in _entries_below(folder):
        if not entry.is_file() or (entry.name.startswith(".") and not hidden):
            continue
        path = Path(entry.path)
        if entry.is_symlink() and not (target := path.resolve()).is_relative_to(place):
            raise InputError(f"{path} is a link to {target}, outside of the folder: copy the file, or remove it")
        found.append(path)
        size += entry.stat().st_size
        if len(found) > MOST_FILES:
            raise InputError(f"{folder} has more than {MOST_FILES:,} files: join them")
    if not found:
        raise InputError(f"{folder} is an empty folder")
    if size > most_bytes():
        raise too_large(folder, f"{size:,}")
    return sorted(found, key=lambda path: path.parts)


def _entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a folder; links to folders are not followed."""
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            raise InputError(f"cannot read {error.filename or folder}: {error.strerror}") from None


def unpacked_limit(path: Path) -> int:
    """Return the largest number of bytes into which a compressed file may be unpacked."""
    return min(most_bytes(), max(1 << 26, LARGEST_RATIO * path.stat().st_size))


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of the user for reading; .gz files and .zip files with one member are decompressed."""
    try:
        with ExitStack() as stack:
            inner = stack.enter_context(open_regular(path))
            most = unpacked_limit(path)
            if path.suffix == ".gz":
                inner = cast(IO[bytes], stack.enter_context(gzip.open(inner)))
            elif path.suffix == ".zip":
                inner = stack.enter_context(fetch.open_member(path, "*"))
            yield io.BufferedReader(LimitedReader(inner, path, most), 1 << 16)
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def read_bytes(path: Path) -> bytes:
    """Return the decompressed content of a file of the user."""
    with open_file(path) as file:
        return file.read()


def check_sha256(data: bytes, sha256: str, name: str) -> bytes:
    """Return the data; DamagedFileError, which names them, if they have another SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise DamagedFileError(f"{name} has SHA-256 {digest}, not {sha256}")
    return data


def first_available(archives: tuple[Archive, ...], read: Callable[[Archive, Path], Content]) -> tuple[Content, str]:
    """Return the result of `read` for the first intact archive, and its origin; cached archives are tried first.

    If there is none, the error gives the reason for each. A downloaded archive that `read` refuses is deleted.
    """
    reasons: list[Exception] = []
    for archive in sorted(archives, key=lambda archive: not fetch.archive_path(archive).exists()):
        cached = fetch.archive_path(archive).exists()
        try:
            return read(archive, fetch.fetch(archive)), archive.origin
        except (InputError, DamagedFileError) as error:
            log.info("%s", error)
            reasons.append(error)
            if not cached:
                fetch.archive_path(archive).unlink(missing_ok=True)
    raise combined(reasons)


def combined(reasons: list[Exception]) -> Exception:
    """Return one error for several: DamagedFileError if there is one among them, else InputError."""
    if len(reasons) == 1:
        return reasons[0]
    kind = DamagedFileError if any(isinstance(r, DamagedFileError) for r in reasons) else InputError
    return kind("; ".join(str(reason) for reason in reasons))

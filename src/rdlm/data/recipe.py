"""What a corpus is before it is prepared: its card in the catalogue, and a user's request for it."""

from __future__ import annotations

import gzip
import hashlib
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeVar

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.store import Draft, Kind
from rdlm.data.tokenizer import Unknown
from rdlm.errors import DamagedFileError, InputError

TokenizerName = Literal["characters", "bytes", "wordpiece", "bpe"]
Content = TypeVar("Content")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What the user asks of a corpus; a field that the corpus does not know must keep its default."""

    protocol: str = ""
    file: Path | None = None
    tokenizer: TokenizerName | None = None
    alphabet: str | None = None
    unknown: Unknown = "error"
    vocabulary: int = 8192
    accept_licence: bool = False


@dataclass(frozen=True)
class Recipe:
    """A corpus of the catalogue: what it is, and the function that prepares it."""

    name: str
    kind: Kind
    summary: str
    licence: str
    length: int
    prepare: Callable[[Request], Draft]
    protocols: tuple[str, ...]
    """Every protocol that can be asked for; the first is the default."""

    fallback: tuple[str, ...] = ()
    """Protocols tried in turn when the default one cannot be had and none was asked for."""

    options: frozenset[str] = frozenset()
    """The fields of Request that this corpus knows, besides `protocol`."""

    archives: tuple[Archive, ...] = ()
    must_accept: bool = False
    """Whether the user must accept the licence before anything is fetched."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a user's file for reading, unpacked if it is .gz or a .zip of one file."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as unpacked:
                yield unpacked  # type: ignore[misc]
        elif path.suffix == ".zip":
            with fetch.open_member(path, "*") as member:
                yield member
        else:
            with path.open("rb") as file:
                yield file
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def content(path: Path) -> bytes:
    """Return a user's file, unpacked."""
    with opened(path) as file:
        return file.read()


def checked(found: bytes, sha256: str, what: str) -> bytes:
    """Return the content when its hash is the pinned one."""
    digest = hashlib.sha256(found).hexdigest()
    if digest != sha256:
        raise DamagedFileError(f"{what} has SHA-256 {digest}, not {sha256}")
    return found


def first_good(archives: tuple[Archive, ...], read: Callable[[Archive, Path], Content]) -> tuple[Content, str]:
    """Return what `read` makes of the first archive that can be had whole, one in the cache before others.

    When none can, the error gives every reason. What was fetched and turns out damaged is not kept.
    """
    reasons: list[Exception] = []
    for archive in sorted(archives, key=lambda one: not fetch.archive_path(one).exists()):
        kept = fetch.archive_path(archive).exists()
        try:
            return read(archive, fetch.fetch(archive)), archive.origin
        except (InputError, DamagedFileError) as error:
            log.info("%s", error)
            reasons.append(error)
            if not kept:
                fetch.archive_path(archive).unlink(missing_ok=True)
    raise combined(reasons)


def combined(reasons: list[Exception]) -> Exception:
    """Return one error for several: damage if there was any, since trying elsewhere would not explain it."""
    if len(reasons) == 1:
        return reasons[0]
    kind = DamagedFileError if any(isinstance(r, DamagedFileError) for r in reasons) else InputError
    return kind("; ".join(str(reason) for reason in reasons))

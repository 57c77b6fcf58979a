"""Files that are whole or absent: atomic writes, checksums, and the folder of caches."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def cache_dir() -> Path:
    """Return the folder of caches: `$RDLM_CACHE`, else `$XDG_CACHE_HOME/rdlm`, else `~/.cache/rdlm`."""
    if given := os.environ.get("RDLM_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rdlm"


@contextmanager
def atomic_open(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` that replaces it on success and vanishes on any failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path, on_bytes: Callable[[int], object] = lambda count: None) -> str:
    """Return the SHA-256 of a file in hexadecimal, reporting each block's size to `on_bytes`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()

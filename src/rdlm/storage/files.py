"""Files that are whole or absent: atomic writes, checksums, suspicious reading, and the folder of caches."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from rdlm.errors import DamagedFileError, InputError

LARGEST_JSON = 1 << 24
"""Bytes of the largest JSON file that is read: a vocabulary of some hundred thousand entries fits."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says when there is no room left on the disk, in a quota, or below a limit of file sizes."""


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
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    # Who may read it is for the user's mask to say, as with any file; `tempfile` would keep it for the owner alone.
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def room(folder: Path, advice: str) -> Iterator[None]:
    """Turn a full disk into the user's error that names the folder and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InputError(f"cannot write to {folder}: {error.strerror}; {advice}") from error


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


def open_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading; a link, a pipe or a device is an OSError, and nothing waits for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """Return the object in a JSON file; anything else is damage: a link, NaN, infinity, a key twice, too many bytes."""
    try:
        with open_plain(path) as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"it has more than {largest} bytes")
        found = parse_json(content)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise DamagedFileError(f"{path} is damaged: it is not a JSON object")
    return found


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text; a ValueError also where Python's own reader would let something odd pass."""
    return json.loads(
        content.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_number, parse_float=_finite
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value

"""Atomic writes, checksums, strict reading of untrusted JSON, and the cache folder."""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import glob
import grp
import hashlib
import json
import math
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from rdlm.errors import DamagedFileError, InputError

LARGEST_JSON = 1 << 24
"""Bytes of the largest JSON file that is read: enough for a vocabulary of some hundred thousand entries."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a full disk, an exhausted quota and a file size limit."""

COMPILED, COMPILED_VARIABLE = "inductor", "TORCHINDUCTOR_CACHE_DIR"
"""The cache folder of compiled code, and the environment variable of torch for it."""

OWN_CACHE = "set RDLM_CACHE to a folder of your own"

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escapes of surrogates, as in the pairs of an emoji."""

DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Error numbers of files and folders without permission."""

UNWRITABLE = FULL | DENIED | {errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
"""All of these, and those of a folder that cannot be created."""


def cache_dir(*parts: str) -> Path:
    """Return the cache folder, or a folder within it; it need not exist, and InputError is raised if it is not private.

    The contents of the cache, which include compiled code, are trusted, so other users must not be able to write to the
    folder or to replace it.
    """
    folder = _cache_root()
    _check_private(folder)
    _check_above(folder)
    for part in parts:
        folder /= part
        _check_private(folder)
    return folder


def make_cache_dir(*parts: str) -> Path:
    """Return a folder of the cache, created for its owner alone if it does not exist; OSError if that fails."""
    folder = _cache_root()
    for above in reversed(folder.parents):
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
    for part in ("", *parts):
        folder /= part
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
    _check_above(_cache_root())
    return folder


def _check_private(folder: Path) -> None:
    """Raise InputError for a folder of the cache that is a symbolic link or that other users can write to."""
    try:
        found = folder.lstat()
    except OSError:  # it does not exist, or will fail when it is used
        return
    if stat.S_ISLNK(found.st_mode):
        raise InputError(f"the cache folder {folder} is a symbolic link; {OWN_CACHE}")
    if stat.S_ISDIR(found.st_mode) and found.st_uid != os.geteuid():
        raise InputError(f"the cache folder {folder} belongs to another user; {OWN_CACHE}")
    if stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"run chmod go-w {folder} and delete what others wrote there"
        raise InputError(f"other users can write to the cache folder {folder}: {remedy}, or {OWN_CACHE}")


def _check_above(folder: Path) -> None:
    """Raise InputError if other users can rename the cache folder: they could replace it between check and use.

    They can if a folder above it, or a link in its path, belongs to another user, or is writable without a sticky bit.
    """
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid}  # in a sandbox, another number stands for root
    for above in {*folder.absolute().parents, *folder.resolve().parents}:
        try:
            found = above.lstat()
        except OSError:
            continue
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid))
        is_open = stat.S_ISDIR(found.st_mode) and others and not found.st_mode & stat.S_ISVTX
        if is_open or found.st_uid not in trusted:
            raise InputError(
                f"other users can replace the cache folder {folder}, because of {above} above it; {OWN_CACHE}"
            )


def _is_own_group(number: int) -> bool:
    """Return whether a group has only this user, or only root: many systems have a group for each user."""
    try:
        group = grp.getgrgid(number)
        names = {"root", pwd.getpwuid(os.geteuid()).pw_name} if number else {"root"}
    except KeyError:  # a user or group without a name, as in some containers
        return False
    return {group.gr_name, *group.gr_mem} <= names


def _cache_root() -> Path:
    """Return `$RDLM_CACHE`, else `$XDG_CACHE_HOME/rdlm`, else `~/.cache/rdlm`."""
    if given := os.environ.get("RDLM_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rdlm"


def use_compile_cache() -> None:
    """Let torch store compiled code in our cache, unless the user has set a folder, without files of killed processes.

    torch writes shared libraries in place, and would load an incomplete one. So each process holds a lock in the folder
    until it ends; a folder is emptied if a process did not remove its lock, or if it has files of another user. If
    other processes use it, or there is no cache, this process uses a temporary folder: torch would use one in /tmp.
    """
    try:
        folder = make_cache_dir(COMPILED)
    except OSError:
        if COMPILED_VARIABLE not in os.environ:
            os.environ[COMPILED_VARIABLE] = str(_temporary(None))
        return
    if os.environ.get(COMPILED_VARIABLE, str(folder)) != str(folder):
        return
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = {path: _is_locked(path) for path in folder.glob(".user-*")}
        if not all(users.values()) and any(users.values()):
            folder = _temporary(folder.parent)
        elif (users and not any(users.values())) or not all(map(_is_own, folder.rglob("*"))):
            for path in set(folder.iterdir()) - {folder / ".lock"}:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        os.environ[COMPILED_VARIABLE] = str(folder)
        user = (folder / f".user-{os.getpid()}").open("w")
        fcntl.flock(user, fcntl.LOCK_SH)
        atexit.register(user.close)  # in the reverse order
        atexit.register(Path(user.name).unlink, missing_ok=True)


def _temporary(parent: Path | None) -> Path:
    """Return a new folder for compiled code that this process removes."""
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{COMPILED}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_own(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def damaged(path: Path, reason: str, advice: str = "") -> DamagedFileError:
    """Return the error for a damaged file or folder; `reason` is a clause about it, `advice` an instruction."""
    return DamagedFileError(f"{path} is damaged: {reason}{f'; {advice}' if advice else ''}")


@contextmanager
def atomic_open(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` that replaces it on success and is removed on any failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    # Permissions follow the umask, as for any file; `tempfile` would make it readable by its owner only.
    try:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileNotFoundError:  # as in /proc
        raise PermissionError(errno.EACCES, "no file can be created there", str(path.parent)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    sync(path.parent)


ABANDONED = 60.0
"""Seconds after which a folder that no process holds was left by one that was killed."""


@contextmanager
def new_folder(beside: Path) -> Iterator[Path]:
    """Context manager: a new folder beside a path, to be renamed to it; if it is not, it is removed at the end.

    It is locked, so that the next call for the same path recognises and removes what a killed process has left.
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    for left in beside.parent.glob(f".{glob.escape(beside.name)}.*.part"):
        with suppress(OSError):
            if _is_own(left) and time.time() - left.lstat().st_mtime > ABANDONED and not _is_locked(left):
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", suffix=".part", dir=beside.parent))
    holder = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(holder)
        shutil.rmtree(folder, ignore_errors=True)


def exchange(new: Path, old: Path) -> None:
    """Exchange the names of two folders; in one step where the system can, so that no moment is without either."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename is not None and rename(here, os.fsencode(new), here, os.fsencode(old), both) == 0:
        return
    aside = new.with_name(f"{new.name}.old.part")
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` so that a reader gets the old file or the complete new one."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output(flag: str, path: Path, overwrite: bool) -> None:
    """Raise InputError for an output file that exists, unless it is a regular file and may be overwritten."""
    if not path.is_symlink() and not path.exists():
        return
    if path.is_dir():
        raise InputError(f"{flag} {path} is a folder: give a file")
    if path.is_symlink() or not path.is_file():  # a rename onto it would replace the link or the device itself
        raise InputError(f"{flag} {path} is a link or a device: give the name of a file")
    if not overwrite:
        raise InputError(f"{flag} {path} exists: give another name, or --overwrite to replace it")


def check_no_link(path: Path) -> None:
    """Raise InputError for a link or a device in a folder that others may have made: it leads to another file."""
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
        raise InputError(f"{path} is a link or a device, and nothing is written through it: remove it")


@contextmanager
def explained_write_errors(folder: Path, advice: str, numbers: Collection[int] = FULL) -> Iterator[None]:
    """Turn an OSError with one of these numbers into an InputError that names the folder and gives advice."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise
        raise InputError(f"cannot write to {folder}: {error.strerror}; {advice}") from error


def sync(path: Path) -> None:
    """Flush a folder (or a file) to disk, so that a rename survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path, on_bytes: Callable[[int], object] = lambda count: None) -> str:
    """Return the SHA-256 of a file in hexadecimal; `on_bytes` receives the size of each block read."""
    digest = hashlib.sha256()
    with open_plain(path, follow=True) as file:  # a pipe in its place would not end
        while block := file.read(1 << 20):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def most_bytes() -> int:
    """Return the largest size in bytes of content to read: preparing a corpus takes several times its size in
    memory."""
    return memory_bytes() // 4


def too_large(path: Path, size: str, ratio: int | None = None) -> InputError:
    """Return the error for a file, or the files of a folder, with more bytes than are read."""
    packed = "" if ratio is None else f", and of packed files beyond 64 MB {ratio} times their size (unpack it first)"
    quarter = f"at most a quarter of this machine's memory is read, {most_bytes():,}{packed}"
    return InputError(f"{path} has {size} bytes; {quarter}")


def open_plain(path: Path, *, follow: bool = False) -> IO[bytes]:
    """Open a regular file for reading without blocking; OSError for a pipe, a device or, unless `follow`, a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """Return the object in a JSON file.

    DamagedFileError for anything else: a symbolic link, NaN, infinity, a duplicate key, more than `largest` bytes.
    """
    try:
        with open_plain(path) as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"it has more than {largest} bytes")
        found = parse_json(content)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    if not isinstance(found, dict):
        raise damaged(path, "it is not a JSON object")
    return found


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text.

    ValueError also for duplicate keys, numbers that are not finite, and unpaired surrogates, which cannot be written to
    a text file or terminal.
    """
    found = json.loads(
        content.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite
    )
    if _SURROGATE.search(content):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has a duplicate key {key[:80]!r}")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value

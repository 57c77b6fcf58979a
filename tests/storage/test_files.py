from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from rdlm.errors import DamagedFileError
from rdlm.storage.files import atomic_open, cache_dir, read_json, sha256_of, write_atomic


def test_cache_dir_prefers_its_own_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("RDLM_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("RDLM_CACHE")
    assert cache_dir() == Path("/elsewhere/rdlm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "rdlm"


@pytest.mark.parametrize(("content", "stored"), [("théta\n", "théta\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_write_atomic_makes_folders_and_stores(tmp_path: Path, content: bytes | str, stored: bytes) -> None:
    path = tmp_path / "a folder" / "file.bin"
    write_atomic(path, content)
    assert path.read_bytes() == stored
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_who_may_read(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "file", "content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail_halfway() -> None:
        with atomic_open(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(failure):
        fail_halfway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with atomic_open(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 7])
def test_sha256_of_reads_every_block(tmp_path: Path, size: int) -> None:
    content = bytes(i % 251 for i in range(size))
    path = tmp_path / "file"
    path.write_bytes(content)
    counts: list[int] = []
    assert sha256_of(path, counts.append) == hashlib.sha256(content).hexdigest()
    assert sum(counts) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "a duplicate key 'a'"),
        ('{"outer": [{"bc": 1, "bc": 1}]}', "a duplicate key 'bc'"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("[" * 100_000, "recursion"),
        ("9" * 5000, "4300 digits"),
        ("[]", "not a JSON object"),
        ('{"a": "' + "x" * 2000 + '"}', "more than 1000 bytes"),
        (b"\xff\xfe{}", "can't decode"),
    ],
)
def test_invalid_json_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DamagedFileError, match=message):
        read_json(path, 1 << 20 if "x" * 2000 not in str(text) else 1000)

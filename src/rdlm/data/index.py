"""Where a package registry keeps an archive, by the user's own settings of pip and npm."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import pathname2url, url2pathname

from rdlm.data.transport import Transport
from rdlm.errors import DamagedFileError, InputError

PYPI = "https://pypi.org/simple"
NPM = "https://registry.npmjs.org"


@dataclass(frozen=True)
class Registry:
    """The addresses that a package manager would ask, and how it would reach them."""

    addresses: tuple[str, ...]
    transport: Transport


def pypi() -> Registry:
    """Return the package indexes of pip's configuration, find-links folders first, else PyPI."""
    setting = pip_settings()
    indexes = [] if setting.get("no-index") in ("1", "true") else [setting.get("index-url", PYPI)]
    indexes += setting.get("extra-index-url", "").split()
    links = [_as_url(link) for link in setting.get("find-links", "").split()]
    transport = Transport(certificates=setting.get("cert"), proxy=setting.get("proxy"))
    return Registry(tuple(f"links+{link}" for link in links) + tuple(indexes), transport)


def pip_settings() -> dict[str, str]:
    """Return pip's settings from its files and environment; without pip, from the environment alone."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}}
    for line in answer.stdout.splitlines() if answer.returncode == 0 else ():
        key, _, value = line.partition("=")  # such as global.index-url='https://...'
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = str(ast.literal_eval(value)).strip()
    given = {k[4:].lower().replace("_", "-"): v.strip() for k, v in os.environ.items() if k.startswith("PIP_")}
    return sections["global"] | sections["download"] | given


def npm() -> Registry:
    """Return the registry of npm's configuration; without npm, the public one."""
    setting: dict[str, str | None] = {}
    if program := shutil.which("npm"):
        command = [program, "config", "list", "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        setting = json.loads(answer.stdout) if answer.returncode == 0 else {}
    transport = Transport(setting.get("cafile"), setting.get("https-proxy") or setting.get("proxy"))
    return Registry(((setting.get("registry") or NPM).rstrip("/"),), transport)


def pypi_address(registry: Registry, package: str, file: str) -> str:
    """Return the address of one file of a package; when no index has it, the error says why for each."""
    project = package.lower().replace("_", "-").replace(".", "-")
    reasons = []
    for index in registry.addresses:
        is_links = index.startswith("links+")
        page = index.removeprefix("links+") if is_links else f"{index.rstrip('/')}/{project}/"
        try:
            for name, address in listing(registry.transport, page):
                if name == file:
                    return address
            reasons.append(f"{_shown(page)}: no such file")
        except (InputError, DamagedFileError) as error:
            reasons.append(str(error))
    raise InputError(f"no package index has {file}: {'; '.join(reasons)}")


def listing(transport: Transport, page: str) -> Iterator[tuple[str, str]]:
    """Yield (file name, address) for every file of an index page: JSON, HTML, or a folder of this machine."""
    if page.startswith("file:") and (folder := Path(url2pathname(urlsplit(page).path))).is_dir():
        if not (folder / "index.html").is_file():
            yield from ((path.name, path.as_uri()) for path in folder.iterdir() if path.is_file())
            return
        page = (folder / "index.html").as_uri()
    body, kind, page = transport.page(page)
    if kind == "application/vnd.pypi.simple.v1+json":
        yield from ((entry["filename"], urljoin(page, entry["url"])) for entry in json.loads(body)["files"])
        return
    links = _Links()
    links.feed(body.decode(errors="replace"))
    for href in links.found:
        address = urljoin(page, href.partition("#")[0])
        yield unquote(urlsplit(address).path.rpartition("/")[2]), address


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _as_url(link: str) -> str:
    return link if "://" in link else "file://" + pathname2url(str(Path(link).expanduser().absolute()))


def _shown(address: str) -> str:
    # A password in an index's address stays out of messages.
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

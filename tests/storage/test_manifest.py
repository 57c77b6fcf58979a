"""Manifests: names, sizes and contents are checked, in this order, and errors name the file and the advice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.manifest import Manifest, with_checksum, without_checksum

CONTENTS = {"a.bin": b"some bytes", "b.bin": b"", "c.json": b"{}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def parse(folder: Path, files: object) -> Manifest:
    return Manifest.parse(folder / "list.json", files, required=["c.json"], optional=["a.bin", "b.bin"], advice="retry")


def test_a_manifest_survives_a_file(folder: Path) -> None:
    manifest = parse(folder, dict(Manifest.of(folder).files))
    counts: list[int] = []
    manifest.verify(counts.append)
    manifest.check_memory()
    assert manifest.size == sum(counts) == 12
    assert manifest.digest == Manifest.of(folder).digest


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.pop("c.json"),
        lambda files: files.update({"../x": files["a.bin"]}),
        lambda files: files.update({"a.bin": None}),
        lambda files: files["a.bin"].pop("sha256"),
        lambda files: files["a.bin"].update(bytes=True),
        lambda files: files["a.bin"].update(bytes=-1),
        lambda files: files["a.bin"].update(bytes=10.0),
        lambda files: files["a.bin"].update(sha256=5),
    ],
)
def test_an_invalid_list_is_refused(change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    files = dict(Manifest.of(folder).files)
    change(files)
    with pytest.raises(DamagedFileError, match=r"list\.json is damaged: .*; retry"):
        parse(folder, files)


@pytest.mark.parametrize("files", [None, [], "c.json", 3])
def test_what_is_not_a_list_of_files_is_refused(files: object, folder: Path) -> None:
    with pytest.raises(DamagedFileError, match="its list of files is wrong"):
        parse(folder, files)


def test_every_kind_of_damage_names_the_file(folder: Path) -> None:
    manifest, path = parse(folder, dict(Manifest.of(folder).files)), folder / "a.bin"
    path.write_bytes(b"same size!")
    manifest.check_sizes()
    with pytest.raises(DamagedFileError, match=r"a\.bin is damaged: its SHA-256 is .*, not .*; retry"):
        manifest.verify()
    path.write_bytes(b"longer than before")
    with pytest.raises(DamagedFileError, match=r"a\.bin is damaged: it has 18 bytes, not 10; retry"):
        manifest.check_sizes()
    path.unlink()
    for make in (lambda: None, lambda: path.symlink_to("b.bin"), lambda: (path.unlink(), os.mkfifo(path))):
        make()
        with pytest.raises(DamagedFileError, match=r"a\.bin is damaged: it is missing or not a regular file; retry"):
            manifest.verify()


def test_a_file_larger_than_memory_is_refused(folder: Path) -> None:
    os.truncate(folder / "a.bin", 1 << 43)
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": ""} for name in CONTENTS}
    with pytest.raises(InputError, match=r"a\.bin does not fit: it has 8,796,093,022,208 bytes, this machine has"):
        parse(folder, files).check_memory()


def test_an_object_with_its_checksum_is_read_back(tmp_path: Path) -> None:
    content = {"b": [1, 2.5, None], "a": {"é": "x"}}
    assert without_checksum(tmp_path, with_checksum(content)) == content
    for wrong in (content, with_checksum(content) | {"b": []}, {**content, "sha256": 5}):
        with pytest.raises(DamagedFileError, match="its own checksum differs; retry"):
            without_checksum(tmp_path, wrong, "retry")

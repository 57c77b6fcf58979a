"""The prepared form: whole or absent, memory-mapped, and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdlm.data import corpus, load, store
from rdlm.data.tokenizer import Levels
from rdlm.errors import DamagedFileError, InputError

ABOUT = {"name": "toy", "kind": "image", "length": 3, "licence": "none"}


def draft(**tokens: Any) -> store.Draft:
    rows = [np.arange(6, dtype=np.uint16).reshape(2, 3), np.arange(3, dtype=np.uint16).reshape(1, 3)]
    signal = {"train": np.linspace(0, 1, 9, dtype=">f4").reshape(3, 3)}
    return store.Draft(
        "toy-1",
        Levels(300),
        {"train": rows, **tokens},
        "made up",
        {"train": np.array([0, 1, 0], np.uint8)},
        signal,
        ("x", "y"),
        (1, 3, 1),
    )


def test_round_trip(tmp_path: Path) -> None:
    store.write(tmp_path / "toy", draft(), ABOUT)
    found = store.read(tmp_path / "toy")
    assert isinstance(found.train, np.memmap) and found.train.dtype == "<u2"
    assert found.train.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert found.labels["train"].tolist() == [0, 1, 0]
    assert np.allclose(found.signals["train"], np.linspace(0, 1, 9).reshape(3, 3))
    assert (found.protocol, found.classes, found.image, found.kind) == ("toy-1", ("x", "y"), (1, 3, 1), "image")
    assert store.verify(tmp_path / "toy") == sum(
        p.stat().st_size for p in (tmp_path / "toy").iterdir() if p.name != "meta.json"
    )
    with pytest.raises(InputError, match="it has train"):
        _ = found.test


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Any:
        yield np.zeros((1, 3), np.uint16)
        raise InputError("broken in the middle")

    with pytest.raises(InputError, match="middle"):
        store.write(tmp_path / "data" / "toy", draft(test=failing()), ABOUT)
    assert list((tmp_path / "data").iterdir()) == []


def test_the_faster_of_two_writers_wins(tmp_path: Path) -> None:
    def slow() -> Any:
        store.write(tmp_path / "toy", draft(), ABOUT)
        yield np.zeros((1, 3), np.uint16)

    store.write(tmp_path / "toy", draft(test=slow()), ABOUT)
    assert list(store.read(tmp_path / "toy").tokens) == ["train"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_damage_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    store.write(folder, draft(), ABOUT)
    path = folder / "train.bin"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"x")
    for check in (store.read, store.verify):
        with pytest.raises(DamagedFileError, match=r"train\.bin is damaged: its SHA-256"):
            check(folder)
    path.write_bytes(good)  # at another time than it was made, with what it was made with
    assert store.read(folder).train.shape == (3, 3)
    path.write_bytes(good[:-2])
    with pytest.raises(DamagedFileError, match="16 bytes, not 18"):
        store.read(folder)
    path.unlink()
    with pytest.raises(DamagedFileError, match="missing"):
        store.verify(folder)
    for bad in ("{", "[]", '{"format": 99}'):
        (folder / "meta.json").write_text(bad)
        with pytest.raises(DamagedFileError, match=r"meta\.json"):
            store.describe(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", 7), ("classes", [1]), ("length", "9"), ("length", 1 << 40), ("image", [1]), ("name", 1)],
)
def test_a_crafted_index_is_refused(key: str, value: object, tmp_path: Path) -> None:
    store.write(tmp_path / "toy", draft(), ABOUT)
    path = tmp_path / "toy" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(DamagedFileError, match=f"its {key} is"):
        store.read(tmp_path / "toy")


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    store.write(tmp_path / "toy", draft(train=[np.array([[0, 1, 300]], np.uint16)]), ABOUT)
    with pytest.raises(DamagedFileError, match="tokens exceed the vocabulary of its tokenizer"):
        store.read(tmp_path / "toy")


def test_requests_are_checked_before_any_work(cache: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'text8'"):
        load("text9")
    with pytest.raises(InputError, match="unknown protocol of cifar10"):
        load("cifar10", protocol="cifar10-40k")
    with pytest.raises(InputError, match="no such file"):
        load("text8", file="/no/such/text8")
    assert not cache.exists()


def test_every_recipe_is_complete() -> None:
    for name, recipe in corpus.RECIPES.items():
        assert recipe.name == name and recipe.licence and recipe.summary and recipe.length > 0
        assert set(recipe.fallback) <= set(recipe.protocols)
        assert recipe.archives or "file" in recipe.options
        for archive in recipe.archives:
            assert archive.kind == "url" or (archive.sha256 and len(archive.sha256) == 64)

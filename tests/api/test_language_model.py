"""Models are loaded from checkpoints whose content, with correct checksums, may be an attacker's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rdlm
from rdlm.cli import main as cli
from rdlm.errors import DamagedFileError, InputError
from tests.storage.crafted import rewrite_state


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of RDLM."""
    place = tmp_path_factory.mktemp("model")
    (place / "book.txt").write_text("some text of mine " * 60)
    options = {
        "data.file": place / "book.txt",
        "data.length": 8,
        "model.width": 8,
        "model.layers": 1,
        "model.heads": 1,
        "process.levels": 8,
        "process.pairs": 8,
        "training.steps": 1,
        "training.batch": 2,
        "training.device": "cpu",
        "training.validation-sequences": 2,
        "training.validation-calls": 2,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    assert cli.main(["train", "textfile", "--out", str(place / "run"), *words, "--json"]) == 0
    return place / "run" / "checkpoint-00000001"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["config"]["model"].update(width=1 << 20), "a model that is larger than its files"),
        (lambda s: s["config"]["model"].update(layers=1 << 30), "a model that is larger than its files"),
        (lambda s: s["config"]["model"].update(kind=[]), "unknown value of model.kind"),
        (lambda s: s["config"]["process"].update(levels=1 << 40), "a model that is larger than its files"),
        (lambda s: s["config"]["model"].update(width=16), "shape|another network"),
        (lambda s: s["config"].update(steps=1), "unknown key 'steps'.*another version of rdlm"),
        (lambda s: s["corpus"].update(length=-5), "a wrong length"),
        (lambda s: s["corpus"].update(length=(1 << 20) + 1), "a wrong length"),
        (lambda s: s["corpus"].update(length=(1 << 24) - 1), "a wrong length"),
        (lambda s: s["corpus"].update(kind="../..", image=[1, 2], signal=1), "a wrong kind and signal and image"),
        (lambda s: s["corpus"].update(kind="image"), "a wrong image"),
        (lambda s: s["corpus"].update(image=[10**9, 10**9, 1]), "a wrong image"),
        (lambda s: s["corpus"].update(image=[2, s["corpus"]["length"] // 4, 2]), "a wrong image"),
        (lambda s: s["config"]["process"].update(total=1e300), "process.total must be positive and at most 1e"),
        (lambda s: s["corpus"].pop("classes"), "no model can be built from it: 'classes'"),
        (lambda s: s.pop("corpus"), "no model can be built from it: 'corpus'"),
    ],
)
def test_a_crafted_state_builds_no_model(
    change: Callable[[dict[str, Any]], object], message: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / model.name
    shutil.copytree(model, path)
    rewrite_state(path, change)
    with pytest.raises((InputError, DamagedFileError), match=message):
        rdlm.load(path)
    assert rdlm.load(model).length == 8


def test_the_claimed_length_of_a_foreign_model_is_not_sampled_unasked(model: Path, tmp_path: Path) -> None:
    path = tmp_path / model.name
    shutil.copytree(model, path)
    rewrite_state(path, lambda state: state["corpus"].update(length=1 << 20))
    loaded = rdlm.load(path)
    with pytest.raises(InputError, match="sequences of 1,048,576 tokens: request a length"):
        loaded.generate()
    assert len(loaded.generate(length=8, steps=2).samples[0].tokens) == 8


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "characters", "alphabet": 5, "unknown": "error"},
        {"kind": "characters", "alphabet": "aa", "unknown": "x"},
        {"kind": "characters", "alphabet": "ab", "unknown": [1]},
        {"kind": "levels", "size": 10**12},
        {"kind": ["bytes"]},
        {"kind": "bpe", "model": {"vocab": 3}},
        {"kind": "bpe", "model": []},
        {},
    ],
)
def test_a_crafted_tokenizer_is_refused(tokenizer: dict[str, Any], model: Path, tmp_path: Path) -> None:
    path = tmp_path / model.name
    shutil.copytree(model, path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    rewrite_state(path)
    with pytest.raises(DamagedFileError, match="tokenizer"):
        rdlm.load(path)

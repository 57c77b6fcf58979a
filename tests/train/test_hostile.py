"""Checkpoints that somebody made to do harm, with all checksums right, and runs that are not what they seem."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Toy, toy_config, toy_corpus

import rdlm
from rdlm.cli import main as cli
from rdlm.config import RunConfig
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import from_json, train_bpe
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint
from rdlm.storage.allocation_limit import AllocationLimit
from rdlm.storage.files import read_json
from rdlm.storage.manifest import with_checksum
from rdlm.train.loop import train

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3)}
PARTS = {"network": TENSORS, "ema": TENSORS, "optimizer": {}, "method": {}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path, 7, PARTS, {"counters": {}, "config": {}}, {"kind": "bytes"})


def signed(path: Path, change: Callable[[dict[str, Any]], object] = lambda state: None) -> None:
    """Change state.json, and make every checksum agree."""
    state = json.loads((path / "state.json").read_text())
    change(state)
    state.pop("sha256")
    for name, entry in state["files"].items():
        content = (path / name).read_bytes()
        entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (path / "state.json").write_text(json.dumps(with_checksum(state)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "a duplicate key"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("[" * 100_000, "recursion"),
        ("9" * 5000, "4300 digits"),
        ("[]", "not a JSON object"),
        ('{"a": "' + "x" * 2000 + '"}', "more than 1000 bytes"),
        (b"\xff\xfe{}", "can't decode"),
    ],
)
def test_odd_json_is_damage(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DamagedFileError, match=message):
        read_json(path, 1 << 20 if "x" * 2000 not in str(text) else 1000)


@pytest.mark.parametrize("kind", ["link", "endless", "pipe", "folder"])
def test_only_regular_files_are_opened(kind: str, saved: Path, tmp_path: Path) -> None:
    path = saved / "state.json"
    path.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(path)  # to open it would wait for a writer for ever
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere" if kind == "link" else "/dev/zero")
    with pytest.raises(DamagedFileError, match=r"state\.json is damaged"):
        checkpoint.describe(saved)


def test_a_file_with_a_hole_is_not_hashed_for_days(saved: Path) -> None:
    os.truncate(saved / "ema.safetensors", 1 << 43)
    state = json.loads((saved / "state.json").read_text())
    state["files"]["ema.safetensors"]["bytes"] = 1 << 43
    state.pop("sha256")
    (saved / "state.json").write_text(json.dumps(with_checksum(state)))
    with pytest.raises(InputError, match=r"ema\.safetensors does not fit.* 8,796,093,022,208 bytes, this machine"):
        checkpoint.verify(saved)


def twice(header: bytes) -> bytes:
    return header[:-1] + b"," + header[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, "a duplicate key"),
        (lambda h: h.replace(b'"weight"', b'"../../x"'), r"another network or method: '\.\./\.\./x', 'weight'"),
        (lambda h: h.replace(b"[2,3]", b"[3,2]"), r"shape \[3, 2\], not \[2, 3\]"),
        (lambda h: h.replace(b"F32", b"I32"), "type torch.int32, not torch.float32"),
        (lambda h: h.replace(b"[0,24]", b"[0,23]"), "is damaged"),
        (lambda h: h + b" " * (1 << 24), "its list of tensors has 16,"),
    ],
)
def test_a_crafted_list_of_tensors_is_refused(change: Callable[[bytes], bytes], message: str, saved: Path) -> None:
    path = saved / "network.safetensors"
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = change(content[8 : 8 + size].strip())
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    signed(saved)
    checkpoint.verify(saved)
    with pytest.raises((InputError, DamagedFileError), match=message):
        checkpoint.read_part(saved, "network", TENSORS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the real method."""
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
        (lambda s: s["corpus"].update(kind="../..", image=[1, 2], signal=1), "a wrong kind and signal and image"),
        (lambda s: s["corpus"].pop("classes"), "no model can be built from it: 'classes'"),
        (lambda s: s.pop("corpus"), "no model can be built from it: 'corpus'"),
    ],
)
def test_what_no_run_wrote_builds_no_model(
    change: Callable[[dict[str, Any]], object], message: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / model.name
    shutil.copytree(model, path)
    signed(path, change)
    with pytest.raises((InputError, DamagedFileError), match=message):
        rdlm.load(path)
    assert rdlm.load(model).length == 8


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
def test_a_crafted_tokenizer_is_damage(tokenizer: dict[str, Any], model: Path, tmp_path: Path) -> None:
    path = tmp_path / model.name
    shutil.copytree(model, path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    signed(path)
    with pytest.raises(DamagedFileError, match="tokenizer"):
        rdlm.load(path)


def test_a_tokenizer_at_which_the_library_panics_is_damage() -> None:
    model = train_bpe(["some text of mine, some text"], 270).to_json()["model"]
    model["model"]["continuing_subword_prefix"] = "longer than a merge"
    with pytest.raises(DamagedFileError, match="a bpe tokenizer that cannot be read"):
        from_json({"kind": "bpe", "model": model})


def test_an_allowance_counts_before_it_allocates() -> None:
    with AllocationLimit(1000, 9), pytest.raises(DamagedFileError, match="larger than its files"):
        torch.empty(1 << 50)
    with AllocationLimit(1000, 9) as limit:
        torch.nn.Linear(10, 10)
        assert limit.bytes_left == 1000 - 4 * 110
        with pytest.raises(DamagedFileError, match="larger"):
            torch.nn.Linear(20, 20)
    with AllocationLimit(1000, 2), pytest.raises(DamagedFileError, match="larger"):
        [torch.zeros(1) for _ in range(3)]


def test_another_runs_checkpoint_is_not_continued(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(toy_config(steps=5, seed=seed), tmp_path / str(seed), Toy, load=toy_corpus)
    swapped = tmp_path / "0" / "checkpoint-00000005"
    shutil.rmtree(swapped)
    shutil.copytree(tmp_path / "1" / swapped.name, swapped)
    with pytest.raises(InputError, match=r"checkpoint-00000005 belongs to a run with another configuration: training\.seed"):
        train(toy_config(steps=5), tmp_path / "0", Toy, load=toy_corpus)


def test_other_data_is_not_continued_unless_it_is_accepted(tmp_path: Path) -> None:
    def edited(config: RunConfig) -> Corpus:
        return replace(toy_corpus(config), digest="of an edited file")

    train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)
    with pytest.raises(InputError, match="was trained on other data than the corpus 'toy' now contains"):
        train(toy_config(steps=5), tmp_path / "run", Toy, load=edited)
    result = train(toy_config(steps=5), tmp_path / "run", Toy, load=edited, accept_changes=True)
    assert result.steps == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(step=4),
        lambda c: c.update(updates="5"),
        lambda c: c.update(seconds=None),
        lambda c: c.update(best={"step": "../..", "bound": 1.0, "stderr": 0.1}),
        lambda c: c.update(window=-1),
        lambda c: c.update(best={"step": 99, "bound": 1.0, "stderr": 0.1}),
        lambda c: c.pop("loss"),
        lambda c: c.update(extra=1),
        lambda c: c.update(updates=True),
    ],
)
def test_crafted_counters_are_damage(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)
    signed(tmp_path / "run" / "checkpoint-00000005", lambda state: change(state["counters"]))
    with pytest.raises(DamagedFileError, match="counter"):
        train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint
from rdlm.storage.files import read_json
from rdlm.storage.manifest import with_checksum
from tests.storage.crafted import rewrite_state

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}
PARTS = {"network": TENSORS, "ema": TENSORS, "optimizer": {}, "method": {}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path, 7, PARTS, {"counters": {}, "config": {}}, {"kind": "bytes"})


def test_what_is_saved_is_read(saved: Path, tmp_path: Path) -> None:
    assert saved.name == "checkpoint-00000007"
    state = checkpoint.verify(saved)
    assert (state["format"], state["step"]) == (1, 7)
    found = checkpoint.read_part(saved, "network", TENSORS)
    assert all(found[name].equal(TENSORS[name]) for name in TENSORS)
    assert checkpoint.read_part(saved, "method", {}) == {}
    assert read_json(saved / "tokenizer.json") == {"kind": "bytes"}
    assert os.listdir(tmp_path) == [saved.name]


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda p: flip(p / "network.safetensors"),
    "truncated": lambda p: os.truncate(p / "ema.safetensors", 20),
    "missing": lambda p: (p / "optimizer.safetensors").unlink(),
    "swapped": lambda p: shutil.copy(p / "method.safetensors", p / "network.safetensors"),
    "linked": lambda p: ((p / "ema.safetensors").unlink(), (p / "ema.safetensors").symlink_to("network.safetensors")),
    "edited": lambda p: (p / "state.json").write_text((p / "state.json").read_text().replace('"step": 7', '"step": 8')),
    "no state": lambda p: (p / "state.json").unlink(),
    "no JSON": lambda p: (p / "state.json").write_text("{"),
    "not a number": lambda p: (p / "state.json").write_text('{"step": NaN}'),
    "deep": lambda p: (p / "state.json").write_text("[" * 100_000),
    "a list": lambda p: (p / "state.json").write_text("[]"),
    "tokenizer": lambda p: flip(p / "tokenizer.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed(damage: str, saved: Path) -> None:
    DAMAGES[damage](saved)
    with pytest.raises(DamagedFileError, match="is damaged"):
        checkpoint.verify(saved)


def test_another_name_is_noticed(saved: Path) -> None:
    with pytest.raises(DamagedFileError, match="its state is of step 7"):
        checkpoint.verify(saved.rename(saved.with_name("checkpoint-00000009")))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"weight": torch.zeros(2, 3)}, "another network or method: 'count'"),
        ({"weight": torch.zeros(3, 2), "count": torch.tensor(3)}, r"shape \[2, 3\], not \[3, 2\]"),
        ({"weight": torch.zeros(2, 3, dtype=torch.float64), "count": torch.tensor(3)}, "float32, not torch.float64"),
    ],
)
def test_what_does_not_fit_is_refused(template: dict[str, torch.Tensor], message: str, saved: Path) -> None:
    with pytest.raises(InputError, match=message):
        checkpoint.read_part(saved, "network", template)


def test_a_crafted_file_is_refused(saved: Path) -> None:
    path = saved / "network.safetensors"
    save_file({"weight": torch.full((2, 3), torch.nan), "count": torch.tensor(3)}, path)
    with pytest.raises(DamagedFileError, match="not finite"):
        checkpoint.read_part(saved, "network", TENSORS)
    for content in (b"", b"\x80\x04K\x01.", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match="is damaged"):
            checkpoint.read_part(saved, "network", TENSORS)


@pytest.mark.parametrize("number", [0, 99])
def test_another_format_older_or_newer_says_what_to_do(number: int, saved: Path) -> None:
    state = json.loads((saved / "state.json").read_text()) | {"format": number}
    state.pop("sha256")
    state = with_checksum(state)
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=f"format {number}, this version reads 1 and 2: open it with the version"):
        checkpoint.verify(saved)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="weight is not finite"):
        checkpoint.save(tmp_path, 7, PARTS | {"ema": {"weight": torch.tensor(torch.inf)}}, {}, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(InputError, match=r"cannot write the checkpoint .*00000007: No space left"):
        checkpoint.save(tmp_path, 7, PARTS, {}, {})
    assert os.listdir(tmp_path) == []


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


def test_a_sparse_file_is_refused_before_it_is_hashed(saved: Path) -> None:
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
        (lambda h: h.replace(b"[8,32]", b"[8,31]"), "is damaged"),
        (lambda h: h + b" " * (1 << 24), "its list of tensors has 16,"),
    ],
)
def test_a_crafted_list_of_tensors_is_refused(change: Callable[[bytes], bytes], message: str, saved: Path) -> None:
    path = saved / "network.safetensors"
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = change(content[8 : 8 + size].strip())
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    rewrite_state(saved)
    checkpoint.verify(saved)
    with pytest.raises((InputError, DamagedFileError), match=message):
        checkpoint.read_part(saved, "network", TENSORS)

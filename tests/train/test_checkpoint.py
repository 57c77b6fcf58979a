from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy import Toy, toy_config, toy_corpus

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint
from rdlm.storage import run_folder as folder
from rdlm.storage.files import read_json
from rdlm.storage.manifest import with_checksum
from rdlm.train.loop import train

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
    with pytest.raises(InputError, match=f"format {number}, this version reads 1: open it with the version"):
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


def test_a_damaged_newest_checkpoint_is_set_aside(tmp_path: Path, runs, caplog: pytest.LogCaptureFixture) -> None:
    train(toy_config(), tmp_path / "whole", Toy, load=toy_corpus)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / ".checkpoint-00000025.part").mkdir()
    flip(tmp_path / "run" / "checkpoint-00000020" / "ema.safetensors")
    with caplog.at_level(logging.WARNING):
        train(toy_config(), tmp_path / "run", Toy, load=toy_corpus)
    assert "ema.safetensors is damaged" in caplog.text and "damaged-checkpoint-00000020" in caplog.text
    assert (tmp_path / "run" / "damaged-checkpoint-00000020").is_dir()
    assert not (tmp_path / "run" / ".checkpoint-00000025.part").exists()
    runs.assert_same(tmp_path / "run", tmp_path / "whole")


def test_the_best_is_kept_while_others_go(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        checkpoint.save(tmp_path, step, PARTS, {}, {})
        folder.update_pointers(tmp_path, step, {"step": 10, "bound": 1.0})
    assert sorted(p.name[-2:] for p in tmp_path.glob("checkpoint-*")) == ["10", "30", "40"]
    assert folder.find_checkpoint(tmp_path).name == "checkpoint-00000010"
    assert folder.find_checkpoint(tmp_path, "latest").name == "checkpoint-00000040"
    (tmp_path / "best.json").write_text('{"checkpoint": "../../etc"}')
    with pytest.raises(DamagedFileError, match="not the name of a checkpoint"):
        folder.find_checkpoint(tmp_path)
    with pytest.raises(InputError, match="holds no checkpoint"):
        folder.find_checkpoint(tmp_path / "nothing")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from rdlm.storage.run_folder import locked\n"
    code += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        refusal = pytest.raises(InputError, match=f"is in use by process {holder.pid}; wait for it")
        with refusal, folder.locked(tmp_path):
            pytest.fail("two runs in one folder")
        holder.kill()
    with folder.locked(tmp_path):  # its lock file is still there, its claim is not
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()}\n"


def test_a_checkpoint_holds_what_a_method_needs(tmp_path: Path) -> None:
    train(toy_config(steps=2), tmp_path / "run", Toy, load=toy_corpus)
    path = folder.find_checkpoint(tmp_path / "run")
    state = checkpoint.verify(path)
    assert state["corpus"]["protocol"] == "toy" and state["config"]["training"]["steps"] == 2
    assert read_json(path / "tokenizer.json")["kind"] == "characters"
    assert load_file(path / "method.safetensors")["memory"].shape == (3,)

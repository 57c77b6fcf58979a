from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint, run_folder

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3)}
PARTS = {"network": TENSORS, "ema": TENSORS, "optimizer": {}, "method": {}}


def test_the_best_is_kept_while_others_go(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        checkpoint.save(tmp_path, step, PARTS, {}, {})
        run_folder.update_pointers(tmp_path, step, {"step": 10, "bound": 1.0})
    assert sorted(p.name[-2:] for p in tmp_path.glob("checkpoint-*")) == ["10", "30", "40"]
    assert run_folder.find_checkpoint(tmp_path).name == "checkpoint-00000010"
    assert run_folder.find_checkpoint(tmp_path, "latest").name == "checkpoint-00000040"
    (tmp_path / "best.json").write_text('{"checkpoint": "../../etc"}')
    with pytest.raises(DamagedFileError, match="not the name of a checkpoint"):
        run_folder.find_checkpoint(tmp_path)
    with pytest.raises(InputError, match="has no checkpoint"):
        run_folder.find_checkpoint(tmp_path / "nothing")


def test_a_pointer_that_was_changed_is_refused(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint.save(tmp_path, step, PARTS, {}, {})
    run_folder.update_pointers(tmp_path, 20, None)
    path = tmp_path / "latest.json"
    path.write_text(path.read_text().replace("20", "10"))
    with pytest.raises(DamagedFileError, match=r"latest.json is damaged: its own checksum differs; delete it"):
        run_folder.find_checkpoint(tmp_path)
    path.write_text('{"checkpoint": "checkpoint-00000010", "step": 10}\n')  # as version 0.1.0 wrote it
    assert run_folder.find_checkpoint(tmp_path).name == "checkpoint-00000010"
    path.write_text('{"checkpoint": "checkpoint-00000010", "step": [1]}\n')
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(DamagedFileError, match=r"its step is \[1\]"):
        run_folder.progress(tmp_path)


@pytest.mark.parametrize("name", run_folder.WRITTEN)
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    run, letter = tmp_path / "run", tmp_path / "letter"
    run.mkdir()
    letter.write_text("dear")
    for target in (letter, tmp_path / "new", Path("/dev/zero")):
        (run / name).symlink_to(target)
        with pytest.raises(InputError, match=f"{name} is a link or a device.*remove it"), run_folder.locked(run):
            pytest.fail("a run beside a link")
        (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(InputError, match="a link or a device"), run_folder.locked(run):
        pytest.fail("a run beside a pipe")
    assert letter.read_text() == "dear" and not (tmp_path / "new").exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from rdlm.storage.run_folder import locked\n"
    code += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        refusal = pytest.raises(
            InputError, match=f"is in use by process {holder.pid} on {socket.gethostname()}; wait for it"
        )
        with refusal, run_folder.locked(tmp_path):
            pytest.fail("two runs in one folder")
        holder.kill()
    with run_folder.locked(tmp_path):  # its lock file is still there, its claim is not
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import FEW, Toy, blockwise_config, coded_config, toy_config, toy_corpus

from rdlm.config import TrainingConfig
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods import build
from rdlm.model.network import device_of
from rdlm.storage import checkpoint, run_folder
from rdlm.train import record
from rdlm.train.loop import train
from rdlm.train.parallel import Team, check_equal_passes, team

HERE = Path(__file__).parent


def begun(run: Path, place: Path) -> Path:
    """Return a copy of a finished run that lacks its last checkpoint."""
    shutil.copytree(run, place)
    shutil.rmtree(place / "checkpoint-00000020")
    return place


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same batches and noise in one process, in two parts."""
    place = tmp_path_factory.mktemp("alone") / "run"
    train(toy_config(accumulate=2), place, Toy, load=toy_corpus)
    return place


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, alone: Path) -> Path:
    """The folder of what two processes trained, one of which died on the way; see worker.py."""
    place = tmp_path_factory.mktemp("pair")
    for name in ("ddp-joined", "fsdp-joined"):
        begun(alone, place / name)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(HERE / "worker.py"), str(place)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    with (place / "messages").open("w+") as messages:
        process = subprocess.Popen(command, env=environment, stderr=messages, start_new_session=True)
        try:
            code = process.wait(timeout=500)  # seconds, on a machine that may be busy
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the whole family, should it hang
        messages.seek(0)
        assert code == 0, messages.read()[-3000:]
    return place


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(parallel: str, pair: Path, alone: Path, runs) -> None:
    assert runs.distance(pair / parallel, alone) < 1e-5
    for one, other in zip(runs.record(pair / parallel), runs.record(alone), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_processes_give_no_warnings_of_torch(pair: Path) -> None:
    assert "FutureWarning" not in (pair / "messages").read_text()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_muon_makes_whole_matrices_orthogonal(parallel: str, pair: Path, tmp_path: Path, runs) -> None:
    train(toy_config(accumulate=2, optimizer="muon"), tmp_path / "run", Toy, load=toy_corpus)
    names = runs.tensors(tmp_path / "run")
    assert "optimizer/blocks.0.0.weight.momentum" in names and "optimizer/blocks.0.0.weight.exp_avg" not in names
    # Rounding errors of directions in which a gradient hardly has a size are blown up, hence the tolerance.
    assert runs.distance(pair / f"{parallel}-muon", tmp_path / "run") < 1e-4


def test_codes_are_trained_alike_by_two_processes(tmp_path: Path, runs, pair: Path) -> None:
    train(coded_config(accumulate=2), tmp_path / "run", build, load=toy_corpus)
    codes = runs.tensors(pair / "ddp-coded")["network/codes.weight"]
    torch.testing.assert_close(codes.norm(dim=1), torch.ones(len(codes)))
    assert runs.distance(pair / "ddp-coded", tmp_path / "run", but="attention.qkv.bias") < 1e-4


def test_a_run_with_codes_resumes_bit_for_bit(tmp_path: Path, runs) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(coded_config(), whole, build, load=toy_corpus)
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoint-00000020")
    train(coded_config(), parts, build, load=toy_corpus)
    found, again = runs.tensors(whole), runs.tensors(parts)
    assert all(found[name].equal(again[name]) for name in found) and "optimizer/codes.weight.exp_avg" in found
    moved = (found["network/codes.weight"] - found["ema/codes.weight"]).abs().max()
    assert float(moved) > 0


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_network_with_two_forward_passes_per_step_trains_alike(
    parallel: str, pair: Path, tmp_path: Path, runs
) -> None:
    train(blockwise_config(accumulate=2), tmp_path / "run", build, load=toy_corpus)
    # The bias of keys changes no attention: all its gradient is rounding, which Adam blows up.
    assert runs.distance(pair / f"{parallel}-blockwise", tmp_path / "run", but="attention.qkv.bias") < 1e-5
    assert runs.distance(pair / f"{parallel}-blockwise", tmp_path / "run") < 1e-4


def test_processes_may_draw_unequal_numbers_of_forward_passes(pair: Path, tmp_path: Path, runs) -> None:
    """One process has a blockwise sequence where the other has none; with buffers to broadcast, both waited forever."""
    train(blockwise_config(FEW, accumulate=2), tmp_path / "run", build, load=toy_corpus)
    assert runs.distance(pair / "ddp-uneven", tmp_path / "run") < 1e-4


def test_sharded_processes_need_equal_numbers_of_forward_passes() -> None:
    check_equal_passes(blockwise_config(), 2)
    with pytest.raises(InputError, match=r"use training\.parallel ddp"):
        check_equal_passes(blockwise_config(FEW), 4)
    config = blockwise_config(0)
    with pytest.raises(InputError, match=r"model\.self_condition"):
        check_equal_passes(replace(config, model=replace(config.model, self_condition=True)), 4)


def test_a_crash_of_sharded_training_loses_nothing(pair: Path, runs) -> None:
    runs.assert_same(pair / "fsdp-resumed", pair / "fsdp")


def test_one_of_two_dies_and_nothing_is_lost(pair: Path, runs) -> None:
    assert (pair / "mark").exists()
    runs.assert_same(pair / "ddp-killed", pair / "ddp")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_continues_what_two_began(parallel: str, pair: Path, alone: Path, tmp_path: Path, runs) -> None:
    place = begun(pair / parallel, tmp_path / "run")
    result = train(toy_config(accumulate=2), place, Toy, load=toy_corpus)
    assert result.steps == 20
    assert [line["step"] for line in record.read_lines(place)] == [line["step"] for line in record.read_lines(alone)]
    assert runs.distance(place, alone) < 1e-5


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_continue_what_one_began(parallel: str, pair: Path, alone: Path, runs) -> None:
    place = pair / f"{parallel}-joined"
    assert [line["step"] for line in record.read_lines(place)] == [line["step"] for line in record.read_lines(alone)]
    assert (place / "checkpoint-00000020").is_dir() and runs.distance(place, alone) < 1e-5


def test_each_process_writes_its_rows(pair: Path) -> None:
    path = pair / "fsdp" / "checkpoint-00000020"
    states = [checkpoint.verify(pair / parallel / "checkpoint-00000020") for parallel in ("ddp", "fsdp")]
    assert [state["format"] for state in states] == [1, 2] and states[1]["shards"] == 2
    assert json.dumps(states[0]["corpus"]) == json.dumps(states[1]["corpus"])
    files = [path / checkpoint.shard_name("network", rank, 2) for rank in range(2)]
    assert not (path / "network.safetensors").exists()
    first, second = (load_file(file) for file in files)
    name = "blocks.0.0.weight"
    whole = load_file(pair / "ddp" / "checkpoint-00000020" / "network.safetensors")[name]
    assert len(first[name]) + len(second[name]) == len(whole) and 0 < len(second[name]) < len(whole)
    torch.testing.assert_close(torch.cat([first[name], second[name]]), whole, atol=1e-5, rtol=0)


def test_rows_across_shards_are_read(pair: Path) -> None:
    path = pair / "fsdp" / "checkpoint-00000020"
    pieces = [load_file(path / checkpoint.shard_name("network", rank, 2)) for rank in range(2)]
    whole = {name: torch.cat([p[name] for p in pieces if name in p]) for name in pieces[0]}
    found = checkpoint.read_part(path, "network", whole)
    assert all(found[name].equal(whole[name]) for name in whole)
    for first, last in ((0, 1), (1, 3), (2, 2)):
        some = checkpoint.read_part(path, "network", whole, dict.fromkeys(whole, (first, last)))
        assert all(some[name].equal(whole[name][first:last]) for name in whole)
    for change in ("missing", "damaged"):
        copy = path.parent.parent / change / path.name
        shutil.copytree(path, copy)
        file = copy / checkpoint.shard_name("network", 1, 2)
        file.unlink() if change == "missing" else file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(DamagedFileError):
            checkpoint.verify(copy)


def test_a_kill_between_the_shards_leaves_the_checkpoint_before(pair: Path, alone: Path, tmp_path: Path, runs) -> None:
    """Both processes had written their rows of step 20 when the leader died before the checkpoint got its name."""
    place = tmp_path / "run"
    shutil.copytree(pair / "fsdp-cut", place)
    left = [path.name for path in place.iterdir() if path.name.startswith(".checkpoint-00000020")]
    assert left == [".checkpoint-00000020.part"] and not (place / "checkpoint-00000020").exists()
    assert len(list((place / left[0]).glob("network-*.safetensors"))) == 2
    kept = run_folder.newest(place)
    assert 0 < kept < 20 and checkpoint.verify(place / checkpoint.name_of(kept))["shards"] == 2
    result = train(toy_config(accumulate=2), place, Toy, load=toy_corpus)
    assert result.steps == 20 and not list(place.glob(".*.part"))
    assert runs.distance(place, alone) < 1e-5


def test_a_shard_that_cannot_be_written_ends_all_processes_and_keeps_the_checkpoint_before(pair: Path) -> None:
    steps = [int(path.name[-8:]) for path in (pair / "fsdp-full").glob("checkpoint-*")]
    assert steps and max(steps) < 20 and not list((pair / "fsdp-full").glob(".*.part"))
    assert checkpoint.verify(pair / "fsdp-full" / checkpoint.name_of(max(steps)))


def test_a_checkpoint_on_several_disks_is_refused(tmp_path: Path) -> None:
    parts = {part: {"x": torch.zeros(2)} for part in checkpoint.PARTS}
    checkpoint.begin(tmp_path, 3, {"kind": "bytes"})
    checkpoint.write_parts(tmp_path, 3, parts, (0, 2))
    with pytest.raises(InputError, match=r"ema-00001-of-00002.safetensors is missing: all processes must write"):
        checkpoint.finish(tmp_path, 3, {}, 2)


def test_one_process_is_a_team() -> None:
    with team("cpu", {}) as members:
        assert members == Team()
        assert members.add([1.0, 2.0]) == [1.0, 2.0]
        assert members.decide(lambda: 3) == 3
        assert members.leader_first(lambda: "done") == "done"
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match=r"'cpu:x' is not a device"):
        device_of("cpu:x")


def test_compiling_where_the_compiler_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/my models/torch/__init__.py")
    with pytest.raises(InputError, match="a folder with a space in its name, /my models/torch"):
        Team().share(torch.nn.Linear(1, 1), TrainingConfig(compile=True))

"""Runs that resume: from intact checkpoints of the same configuration and data only."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from toy import Toy, toy_config, toy_corpus

from rdlm.config import RunConfig
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Characters, from_json
from rdlm.errors import InputError
from rdlm.storage import checkpoint, run_folder
from rdlm.storage.files import read_json
from rdlm.train.loop import train


def test_a_damaged_newest_checkpoint_is_renamed(tmp_path: Path, runs, caplog: pytest.LogCaptureFixture) -> None:
    train(toy_config(), tmp_path / "whole", Toy, load=toy_corpus)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / ".checkpoint-00000025.part").mkdir()
    path = tmp_path / "run" / "checkpoint-00000020" / "ema.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with caplog.at_level(logging.WARNING):
        train(toy_config(), tmp_path / "run", Toy, load=toy_corpus)
    assert "ema.safetensors is damaged" in caplog.text and "damaged-checkpoint-00000020" in caplog.text
    assert (tmp_path / "run" / "damaged-checkpoint-00000020").is_dir()
    assert not (tmp_path / "run" / ".checkpoint-00000025.part").exists()
    runs.assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_checkpoint_holds_what_a_method_needs(tmp_path: Path) -> None:
    train(toy_config(steps=2), tmp_path / "run", Toy, load=toy_corpus)
    path = run_folder.find_checkpoint(tmp_path / "run")
    state = checkpoint.verify(path)
    assert state["corpus"]["protocol"] == "toy" and state["config"]["training"]["steps"] == 2
    assert isinstance(from_json(read_json(path / "tokenizer.json")), Characters)
    assert load_file(path / "method.safetensors")["memory"].shape == (3,)


def test_another_runs_checkpoint_is_not_continued(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(toy_config(steps=5, seed=seed), tmp_path / str(seed), Toy, load=toy_corpus)
    swapped = tmp_path / "0" / "checkpoint-00000005"
    shutil.rmtree(swapped)
    shutil.copytree(tmp_path / "1" / swapped.name, swapped)
    with pytest.raises(
        InputError, match=r"checkpoint-00000005 belongs to a run with another configuration: training\.seed"
    ):
        train(toy_config(steps=5), tmp_path / "0", Toy, load=toy_corpus)


def test_other_data_is_not_continued_unless_it_is_accepted(tmp_path: Path) -> None:
    def edited(config: RunConfig) -> Corpus:
        return replace(toy_corpus(config), digest="of an edited file")

    train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)
    with pytest.raises(InputError, match="was trained on other data than the corpus 'toy' now contains"):
        train(toy_config(steps=5), tmp_path / "run", Toy, load=edited)
    result = train(toy_config(steps=5), tmp_path / "run", Toy, load=edited, accept_changes=True)
    assert result.steps == 5

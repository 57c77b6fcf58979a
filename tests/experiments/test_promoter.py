"""The published promoter protocol end to end: its file format, its presets with small networks, and a predictor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments import promoter
from rdlm import methods
from rdlm.config import ConvolutionConfig
from rdlm.errors import InputError
from rdlm.presets import preset
from rdlm.train.loop import train

RANDOM = np.random.default_rng(0)


def share_of_gc(ids: Tensor) -> Tensor:
    """A predictor that can be checked: the share of G and C."""
    return ((ids == 1) | (ids == 2)).double().mean(-1)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sequences of 1,024 bases with signals, in the arrays of the published set."""
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    arrays: dict[str, Any] = {}
    for split, count in (("train", 8), ("validation", 2), ("test", 5)):
        arrays[f"{split}_sequence"] = RANDOM.integers(0, 4, (count, 1024))
        arrays[f"{split}_signal"] = RANDOM.random((count, 1024)).astype("f4")
    np.savez(tmp_path / "promoters.npz", **arrays)
    return tmp_path / "promoters.npz"


@pytest.mark.parametrize("name", ["promoter", "promoter-paper", "fisher_flow"])
def test_from_the_published_format_to_the_error(
    name: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preset("promoter" if name == "fisher_flow" else name)
    model = ConvolutionConfig(width=8, stacks=1, dilations=(1,), kernel=3)
    training = replace(config.training, steps=2, batch=2, warmup=1, device="cpu", validation_sequences=2)
    process = replace(config.process, levels=8, pairs=64)
    config = replace(config, data=replace(config.data, file=file), model=model, process=process)
    config = replace(config, training=replace(training, validate_every=2, validation_nfe=2))
    method: Any = "fisher_flow" if name == "fisher_flow" else "rdlm"
    train(replace(config, method=method), tmp_path / "run", methods.build)
    flags = ["--file", str(file), "--predictor", f"{__name__}:share_of_gc", "--steps", "2", "--csv"]
    promoter.main([str(tmp_path / "run"), *flags, str(tmp_path / "x.csv")])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["sequences"] == 5 and row["protocol"] == "promoter-custom" and row["method"] == method
    # independent uniform bases on both sides: the error is the sum of two variances of a share
    assert row["mse"] == pytest.approx(2 * 0.25 / 1024, rel=1.5)
    assert (tmp_path / "x.csv").read_text().startswith("method,protocol,mse")


def test_the_error_of_the_real_sequences_is_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        name, about = "same", {"signal": True}
        config = preset("promoter")

    monkeypatch.setattr(promoter, "generated", lambda model, batch, steps, generator: batch.ids)
    model: Any = Model()
    assert promoter.measured(model, file, share_of_gc, 3, 1, 0)["mse"] == 0
    monkeypatch.setattr(promoter, "generated", lambda model, batch, steps, generator: torch.zeros_like(batch.ids))
    assert promoter.measured(model, file, share_of_gc, 3, 1, 0)["mse"] == pytest.approx(0.25, abs=0.05)
    model.about = {"signal": False}
    with pytest.raises(InputError, match="without a signal"):
        promoter.measured(model, file, share_of_gc, 3, 1, 0)


def test_an_unknown_predictor_is_named() -> None:
    with pytest.raises(InputError, match="nothing:here"):
        promoter.predictor_of("nothing:here")

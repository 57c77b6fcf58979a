"""The comparison of image models, on digits of 8 x 8 pixels and networks of a few weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import images
from rdlm.api import language_model
from rdlm.config import Convolution2DConfig, DataConfig, RunConfig
from rdlm.data.store import Corpus
from rdlm.presets import preset
from rdlm.train.run import load_corpus


def tiny(name: str) -> RunConfig:
    """Return the preset on digits, with a network of a few weights."""
    config = preset(name)
    model = Convolution2DConfig(image=(8, 8, 1), width=8, layers=1, kernel=3)
    training = replace(config.training, batch=2, validation_sequences=4, device="cpu")
    return replace(config, data=DataConfig("digits"), model=model, training=training)


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Digits, in place of CIFAR-10; two steps of training and few network calls."""
    monkeypatch.setattr(images, "preset", tiny)
    monkeypatch.setattr(images, "ORDERS", (("strided", 4), ("synchronous", 4)))
    monkeypatch.setattr(images, "CALLS", {"masked": 4, "D3PM Gauss": 4, "autoregressive": 0})
    monkeypatch.setattr(images, "seconds_per_step", lambda config, folder: 30.0)
    monkeypatch.setitem(images.ROWS, "D3PM Gauss", ("d3pm", {"d3pm": {"matrix": "gauss", "steps": 8}}))
    return load_corpus(tiny("cifar10-small"))


def test_all_rows_are_trained_and_measured_once(corpus: Corpus, tmp_path: Path) -> None:
    out, file = tmp_path / "runs", tmp_path / "table.csv"
    command = ["cifar10", "--minutes", "1", "--evaluations", "16", "--out", str(out), "--csv", str(file)]
    images.main(command)
    rows = file.read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 + 3 and rows[0].startswith("name,order,calls,bits,low,high")
    assert {row.split(",")[-3] for row in rows[1:]} == {"2"}  # steps
    began = {path: path.stat().st_mtime_ns for path in out.glob("*.bounds.json")}
    images.main([*command, "--table"])
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.bounds.json")} == began


def test_codecs_are_measured_on_the_images_of_the_models(corpus: Corpus) -> None:
    pytest.importorskip("PIL")
    rows = images.measured_codecs(corpus, 16)
    bits = {row["name"]: row["bits"] for row in rows if row["order"] == "a file each"}
    assert {"zlib", "PNG", "WebP"} <= set(bits)
    pixels = images.compared_images(corpus, count=16).ids.numpy().astype(np.uint8)
    expected = np.mean([8 * len(images.zlib.compress(row.tobytes(), 9)) / 64 for row in pixels])
    assert bits["zlib"] == pytest.approx(expected)


def test_pictures_show_what_was_given(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images.train_for(images.configuration("cifar10", "ours", 0), tmp_path / "run", 1)
    model: Any = language_model.load(tmp_path / "run")
    images.pictures(model, corpus, tmp_path / "figures", steps=2)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "digits-half.png",
        "digits-noise.png",
        "digits-samples.png",
    ]
    ids = images.compared_images(corpus, count=1).ids[0]
    given, half = images.restored(model, ids, (8, 8, 1), "half", 2)[:2]
    assert (half[:4] == given[:4]).all() and (half[4:] == 8).all()

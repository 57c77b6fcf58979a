"""The analyses that train, on a text of a few kilobytes and networks of a few weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rdlm import cli
from rdlm.analysis import objectives, speed, splitting
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TrainingConfig
from rdlm.model.config import TransformerConfig

TINY = RunConfig(
    process=ProcessConfig(bridge="logarithm", levels=8, pairs=64),
    model=TransformerConfig(width=8, layers=1, heads=1),
    training=TrainingConfig(steps=2, batch=4, validation_sequences=4, validation_calls=4, device="cpu"),
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A configuration on a short text, in place of the small scale's."""
    (tmp_path / "book.txt").write_text("how vexingly quick daft zebras jump " * 60)
    config = replace(TINY, data=DataConfig("textfile", length=8, file=tmp_path / "book.txt"))
    for analysis in (objectives, splitting):
        monkeypatch.setattr(analysis, "small", lambda: config)
    monkeypatch.setattr(splitting, "variants", lambda base, known=splitting.variants: known(5))
    return config


def test_objectives_are_a_table_and_a_picture(
    tiny: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["analyze", "objectives", "--steps", "3", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == list(objectives.OBJECTIVES)
    for row in found["rows"]:
        assert row["low"] < row["bits_per_character"] < row["high"] and row["training_steps"] == 3
    assert json.loads((tmp_path / "out" / "objectives.json").read_text())["rows"] == found["rows"]
    assert (tmp_path / "out" / "objectives.png").read_bytes().startswith(b"\x89PNG")


def test_splitting_compares_one_sphere_with_digits(tiny: RunConfig, tmp_path: Path) -> None:
    rows = splitting.run(tmp_path / "out")
    assert [row["name"] for row in rows] == ["one sphere", "one sphere, top 8", "split, base 5"]
    assert len({row["parameters"] for row in rows}) == 3
    assert (tmp_path / "out" / "splitting.png").exists()


def test_speed_is_measured_against_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STEPS_OF_SIMULATION", 30)
    rows = speed.run(tmp_path, repeats=1)
    assert [row["law"] for row in rows] == ["exact", "normal", "simulated"]
    assert rows[-1]["step_speedup"] == rows[-1]["states_speedup"] == 1
    assert float(str(rows[0]["states_speedup"])) > 2
    assert (tmp_path / "speed.png").exists()


def test_paper_scale_keeps_the_papers_network() -> None:
    assert splitting.large().model.layers == 14  # type: ignore[union-attr]
    assert splitting.large().process.layout == "packed"


def test_steps_are_for_training_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", "radial", "--steps", "3"]) == 2
    assert "objectives and splitting" in capsys.readouterr().err

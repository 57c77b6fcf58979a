"""The analyses that train, on a text of a few kilobytes and networks of a few weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from experiments import changes, objectives, speed, splitting
from experiments.trial import Budget, trial
from rdlm.cli import main as cli
from rdlm.config import DataConfig, ObjectiveConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.errors import InputError

TINY = RunConfig(
    process=ProcessConfig(bridge="logarithm", levels=8, pairs=64),
    model=TransformerConfig(width=8, layers=1, heads=1),
    objective=ObjectiveConfig(proposal="interval"),
    training=TrainingConfig(steps=2, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A configuration on a short text, in place of the small scale's."""
    (tmp_path / "book.txt").write_text("how vexingly quick daft zebras jump " * 60)
    config = replace(TINY, data=DataConfig("textfile", length=8, file=tmp_path / "book.txt"))
    for analysis in (changes, objectives, splitting):
        monkeypatch.setattr(analysis, "small", lambda: config)
    monkeypatch.setattr(splitting, "variants", lambda base, known=splitting.variants: known(5))
    return config


def test_objectives_are_a_table_and_a_picture(
    tiny: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["analyze", "objectives", "--steps", "3", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["drift error", "cross-entropy", "cross-entropy, importance"]
    for row in found["rows"]:
        assert row["low"] < row["bits_per_character"] < row["high"] and row["training_steps"] == 3
    assert json.loads((tmp_path / "out" / "objectives.json").read_text())["rows"] == found["rows"]
    assert (tmp_path / "out" / "objectives.png").read_bytes().startswith(b"\x89PNG")
    assert "upper bound" in (tmp_path / "out" / "objectives.txt").read_text()


def test_splitting_compares_one_sphere_with_digits(tiny: RunConfig, tmp_path: Path) -> None:
    rows = splitting.run(tmp_path / "out")
    assert [row["name"] for row in rows] == ["one sphere", "one sphere, top 8", "split, base 5"]
    assert len({row["parameters"] for row in rows}) == 3
    assert (tmp_path / "out" / "splitting.png").exists()


def test_every_change_can_be_trained_and_measured(tiny: RunConfig, tmp_path: Path) -> None:
    """One change each: no two configurations are alike, and each gives a bound."""
    process, model = replace(tiny.process, bridge="brownian"), replace(tiny.model, time_scale=10.0)
    found = changes.variants(replace(tiny, process=process, model=model, objective=ObjectiveConfig()))
    assert len({repr(config) for config in found.values()}) == len(found)
    for number, (name, config) in enumerate(found.items()):
        row = trial(name, config, tmp_path / str(number), Budget(4, 4, 8))
        assert 0 < float(str(row["bits_per_character"])) < float("inf"), name


def test_changes_are_a_table_and_a_picture(tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SYNCHRONOUS", {"as it is": {}})
    monkeypatch.setattr(changes, "WINDOWS", {"windows: all narrow": {"objective": {"narrow": 1.0}}})
    assert cli.main(["analyze", "changes", "--steps", "3", "--out", str(tmp_path)]) == 0
    assert len(json.loads((tmp_path / "changes.json").read_text())["rows"]) == 2
    assert (tmp_path / "changes.png").exists()
    assert cli.main(["analyze", "changes", "--steps", "3", "--out", str(tmp_path), "--only", "windows; as it"]) == 0
    assert cli.main(["analyze", "changes", "--only", "window; no such"]) == 2
    assert cli.main(["analyze", "radial", "--only", "windows"]) == 2


def test_changes_are_chosen_by_how_they_begin() -> None:
    names = ["noise: half", "noise: double", "windows: all"]
    assert changes.chosen(names, []) == names
    assert changes.chosen(names, ["windows", "noise: h"]) == ["noise: half", "windows: all"]
    with pytest.raises(InputError, match=r"begins with 'nose'; there are: noise: half; "):
        changes.chosen(names, ["noise", "nose"])


def test_speed_is_measured_against_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STEPS_OF_SIMULATION", 30)
    rows = speed.run(tmp_path, repeats=1)
    assert [row["law"] for row in rows] == ["exact", "normal", "simulated"]
    assert rows[-1]["step_speedup"] == rows[-1]["states_speedup"] == 1
    assert float(str(rows[0]["states_speedup"])) > 2
    assert (tmp_path / "speed.png").exists()


class Asked(list[RunConfig]):
    """Stands in for the trials, which would take weeks, and keeps what was asked of them."""

    def trial(self, name: str, config: RunConfig, folder: Path, budget: object) -> dict[str, object]:
        self.append(config)
        return {"name": name, "bits_per_character": 1.3, "stderr": 0.1, "low": 1.1, "high": 1.5, "calls": 256}


@pytest.mark.parametrize("analysis", [objectives, splitting])
def test_paper_scale_is_what_the_paper_says(
    analysis: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    monkeypatch.setattr(analysis, "trial", asked.trial)
    name = analysis.__name__.rpartition(".")[2]
    assert cli.main(["analyze", name, "--paper-scale", "--out", str(tmp_path)]) == 0
    assert len(asked) == 3
    for config in asked:
        training, model = config.training, config.model
        assert (training.steps, training.batch, training.ema) == (1_000_000, 512, 0.9999)
        assert isinstance(model, TransformerConfig) and (model.width, model.heads) == (768, 12)
        assert config.process.bridge == "logarithm" and config.process.path == "switch"
        assert config.process.law == "normal" and not config.denoiser.evidence
    if analysis is objectives:
        assert {config.data.name for config in asked} == {"text8"} and asked[0].model.layers == 12  # type: ignore[union-attr]
        assert [config.objective.loss for config in asked] == ["drift_error", "cross_entropy", "cross_entropy"]
        assert [config.objective.proposal for config in asked] == ["uniform", "uniform", "interval"]
        assert asked[2].objective.interval == (0.3, 0.6)
    else:
        assert [config.process.base for config in asked] == [None, None, 3]
        assert [config.denoiser.features for config in asked] == ["coordinates", "top", "tokens"]
        assert (asked[2].process.layout, asked[2].denoiser.head) == ("serial", "digit")
        assert asked[0].data.length == 128 and asked[0].model.layers == 14  # type: ignore[union-attr]


def test_changes_at_paper_scale_are_those_of_its_text8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    monkeypatch.setattr(changes, "trial", asked.trial)
    assert cli.main(["analyze", "changes", "--paper-scale", "--out", str(tmp_path)]) == 0
    assert {(config.data.name, config.training.steps, config.model.width) for config in asked} == {
        ("text8", 1_000_000, 768)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["radial", "--steps", "3"], "objectives, splitting and changes"),
        (["radial", "runs/demo"], "for frontier and steps, not for radial"),
        (["frontier", "runs/demo"], "needs a run and a scorer"),
        (["frontier", "runs/demo", "--scorer", "runs/judge", "--temperatures", "warm"], "--temperatures"),
        (["frontier", "runs/demo", "--scorer", "runs/judge", "--solvers", "mixtur"], "did you mean 'mixture'"),
    ],
)
def test_options_of_other_analyses_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["analyze", *options]) == 2
    assert message in capsys.readouterr().err

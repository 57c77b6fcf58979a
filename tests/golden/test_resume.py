"""Runs of version 0.1.0 are loaded, evaluated and continued as before (resumed-0.1.json)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rdlm.storage import config_file
from rdlm.train import record

from .test_golden import RECORD, golden

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "resumed-0.1.json").read_text("utf-8"))

command = golden.command


@pytest.fixture(params=EXPECTED)
def old_run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run of 20 steps; its configuration names the corpus by a relative path."""
    shutil.copy(golden.files()["corpus"], tmp_path / "corpus.txt")
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(HERE / "checkpoint-0.1" / request.param, request.param))


def train(run: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        command("train", str(run / "config.yaml"), "--out", str(run), *options, "--json")
    )
    return found


def test_an_old_configuration_is_the_same_configuration(old_run: Path) -> None:
    """Nothing is left to train, and no change needs to be accepted."""
    result = train(old_run)
    last = record.read_lines(old_run)[-1]
    assert result["steps"] == 20 and result["bound"]["value"] == pytest.approx(last["bits"])
    assert "rate:" not in (old_run / "config.yaml").read_text()
    assert config_file.read(old_run / "config.yaml").training.lr == 0.002


def test_an_old_run_continues_as_it_did(old_run: Path) -> None:
    result = train(old_run, "--training.steps", "24", "--training.record-every", "1", "--accept-changes")
    lines = record.read_lines(old_run)
    assert result["steps"] == 24 and [line["step"] for line in lines[:5]] == [5, 10, 15, 20, 20]
    assert all("lr" in line for line in lines if line["kind"] == "step")
    for line, expected in zip(lines[5:], EXPECTED[old_run.name]["record"], strict=True):
        numbers = {key: value for key, value in expected.items() if key != "kind"}
        assert line["kind"] == expected["kind"]
        assert {key: line[key] for key in numbers} == pytest.approx(numbers, rel=1e-5)


@pytest.mark.skipif(RECORD["about"] != golden.about(), reason="samples of another torch or processor may differ")
def test_an_old_run_is_evaluated_as_it_was(old_run: Path) -> None:
    options = ("--calls", "6", "--sequences", "6", "--evaluations", "24", "--samples", "2", "--file", "corpus.txt")
    metrics = json.loads(command("evaluate", str(old_run), *options, "--json"))["metrics"]
    found = {name: metric["value"] for name, metric in metrics.items()}
    assert found == pytest.approx(EXPECTED[old_run.name]["evaluation"], rel=1e-5)

"""`rdlm demo` from end to end on a small text of one's own in place of the speeches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdlm.cli import main as cli
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "book.txt"
    book.write_text("some text of mine " * 400)
    config = RunConfig(
        data=DataConfig("textfile", length=8, file=book),
        process=ProcessConfig(levels=16, pairs=64),
        model=TransformerConfig(width=8, layers=1, heads=1),
        training=TrainingConfig(steps=3, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
    )
    monkeypatch.setattr("rdlm.cli.demo.preset", lambda name: config)


@pytest.mark.usefixtures("small")
def test_the_demo_trains_measures_samples_and_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--nfe", "4"]) == 0
    shown = capsys.readouterr()
    assert "bits_per_character" in shown.out and "three samples" in shown.out
    samples = [line.strip("\n")[2:] for line in shown.out.split("not selected:\n")[1].splitlines()]
    assert [len(text) for text in samples] == [8, 8, 8] and set("".join(samples)) <= set("some text of mine ")
    assert Path("runs/demo/denoising.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("runs/demo/report.html").read_text()
    assert cli.main(["demo", "--nfe", "4", "--json"]) == 0  # nothing left to train: it measures again
    assert "bits_per_character" in json.loads(capsys.readouterr().out)["metrics"]


@pytest.mark.parametrize("options", [["--minutes", "0"], ["--nfe", "0"]])
def test_nonsense_is_refused_before_any_work(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *options]) == 2
    assert "must be positive" in capsys.readouterr().err

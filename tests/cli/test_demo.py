"""`rdlm demo` from end to end on a small text of one's own in place of the speeches."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from rdlm.cli import main as cli
from rdlm.cli.demo import orders_table
from rdlm.config import DataConfig, OrderName, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.presets import TEXT


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "book.txt"
    book.write_text("some text of mine " * 400)
    config = RunConfig(
        data=DataConfig("textfile", length=8, file=book),
        process=ProcessConfig(levels=16, pairs=64, order="synchronous"),
        model=TransformerConfig(width=8, layers=1, heads=1, belief="ngram", order=3, states=64),
        objective=TEXT,
        training=TrainingConfig(steps=3, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
    )
    monkeypatch.setattr("rdlm.cli.demo.preset", lambda name: config)


@pytest.mark.usefixtures("small")
def test_the_demo_trains_measures_samples_and_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--nfe", "4"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"order +4 calls +8 calls\n", shown)
    bounds = dict(re.findall(r"^(synchronous|random|strided|left-to-right) .*(\d\.\d\d) ±", shown, re.MULTILINE))
    assert len(bounds) == 4 and all(0 < float(value) < 5 for value in bounds.values())
    assert re.search(r"^       1  [a-z .]{8}$", shown, re.MULTILINE)
    sample = re.search(r"^  sample  ([a-z ]{8})$", shown, re.MULTILINE)
    groups = re.findall(r"of order ([a-z-]+) in (\d) calls, \d\.\d\d bits per character.*:\n\n((?:  .{8}\n)+)", shown)
    assert len(groups) == 2 and groups[0][:2] == ("synchronous", "4") and groups[1][0] != "synchronous"
    texts = [line[2:] for group in groups for line in group[2].splitlines()]
    assert len(texts) == 6 and set("".join(texts)) <= set("some text of mine ")
    assert sample is not None and sample[1] == texts[0]
    assert shown.count("the best of the table") <= 1
    assert re.search(r"truth  .{8}\n +read  .{8}\n +restored  .{8}\n", shown)
    assert Path("runs/demo/denoising.png").read_bytes().startswith(b"\x89PNG")
    assert all(f"runs/demo/{name}.html" in shown for name in ("denoising", "report"))
    assert "<canvas" in Path("runs/demo/denoising.html").read_text()
    assert "<svg" in Path("runs/demo/report.html").read_text()


@pytest.mark.usefixtures("small")
def test_the_demo_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--nfe", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 3 and found["orders"]["unit"] == "bits per character"
    assert {row["order"] for row in found["orders"]["rows"]} == set(get_args(OrderName))
    assert [(len(made["samples"]), made["calls"] > 0) for made in found["generated"]] == [(3, True)] * 2
    assert {len(text) for text in found["restoration"].values()} == {8}
    assert all(Path(file).is_file() for file in found["files"])
    assert cli.main(["demo", "--nfe", "4", "--json"]) == 0  # nothing left to train: it measures again
    assert json.loads(capsys.readouterr().out)["orders"] == found["orders"]


@pytest.mark.usefixtures("small")
def test_the_demo_does_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    monkeypatch.setattr("rdlm.cli.demo._can_draw", lambda: False)
    assert cli.main(["demo", "--nfe", "4", "--json"]) == 0
    shown = capsys.readouterr()
    assert [Path(file).name for file in json.loads(shown.out)["files"]] == ["denoising.html", "report.html"]
    assert not Path("runs/demo/denoising.png").exists() and "rdlm[viz]" in shown.err


def test_the_table_has_a_row_for_each_order() -> None:
    rows = [
        {"order": "synchronous", "calls": 16, "value": 2.0, "low": 1.9, "high": 2.1},
        {"order": "synchronous", "calls": 8, "value": 2.5, "low": 2.3, "high": 2.7},
        {"order": "strided", "calls": 8, "value": 2.25, "low": 2.2, "high": 2.3},
    ]
    lines = orders_table(rows).splitlines()
    assert lines[0].split() == ["order", "8", "calls", "16", "calls"]
    assert lines[2].split() == ["synchronous", "2.50", "±", "0.20", "2.00", "±", "0.10"]
    assert lines[3].split() == ["strided", "2.25", "±", "0.05", "-"]


@pytest.mark.parametrize("options", [["--minutes", "0"], ["--nfe", "0"]])
def test_nonsense_is_refused_before_any_work(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *options]) == 2
    assert "must be positive" in capsys.readouterr().err

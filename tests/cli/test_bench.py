"""`rdlm bench`: cheap figures in quick mode, as a table and as JSON, and errors in its flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.growth import plot
from benchmarks.registry import REGISTRY, chosen
from rdlm.cli.main import main
from rdlm.errors import InputError


def test_quick_figures_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "--quick", "--json", "--only", "draw", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quick"] is True and len(found["rows"]) == 2
    for row in found["rows"]:
        assert {"name", "ratio", "spread", "target", "ok"} <= row.keys()
        assert 0 < row["spread"][0] <= row["ratio"] <= row["spread"][1] < 100
        assert row["ok"] == (row["ratio"] <= 2.0) and row["target"] == "at most 2"
    assert json.loads((tmp_path / "bench.json").read_text())["rows"] == found["rows"]


def test_the_table_reports_missed_targets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import draw
    from benchmarks.measure import Figure, at_most

    figures = [Figure("dear thing", "cheap thing", [3.0, 4.0, 5.0], at_most(2.0)), Figure("untold", "x", [1.0])]
    monkeypatch.setattr(draw, "draw", lambda quick: figures)
    assert main(["bench", "--only", "draw"]) == 0
    out = capsys.readouterr().out
    assert "dear thing" in out and "3.5 to 4.5" in out and "at most 2" in out
    assert "0 of 1 targets met" in out


@pytest.mark.parametrize(
    "options", [["--only", "nonsense"], ["--only", ","], ["--no-such-flag"], ["--out", __file__, "--only", "draw"]]
)
def test_mistakes_are_the_users(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *options]) == 2
    assert capsys.readouterr().out == ""


def test_all_figures_are_chosen_without_a_choice() -> None:
    assert chosen(None) == list(REGISTRY)
    assert chosen(" draw, growth ") == ["draw", "growth"]
    with pytest.raises(InputError, match="drow"):
        chosen("drow")


def test_growth_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"name": "growth of the step in d", "ratio": 1.0, "axis": "d", "points": [[4, 0.1], [28, 0.7]]},
        {"name": "growth of the step in batch", "ratio": 0.9, "axis": "batch", "points": [[1, 0.1], [8, 0.7]]},
        {"name": "something else", "ratio": 1.0},
    ]
    plot(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")

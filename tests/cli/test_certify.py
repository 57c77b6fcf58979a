"""`rdlm certify`: what it prints and writes, and the exit code that a broken bound earns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rdlm.cli import main as cli
from rdlm.likelihood import certificate

KEYS = {"source", "states", "path", "steps", "entropy", "bound", "stderr", "slack", "claims_bound", "ok"}
SMALL = ["certify", "--steps", "6", "--paths", "12"]


def test_json_is_one_object_with_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["steps"], answer["paths"], answer["seed"], answer["unit"]) == (6, 12, 0, "nats")
    rows = answer["rows"]
    assert len(rows) == len(list(certificate.cases(6)))
    for row in rows:
        assert row.keys() >= KEYS
        assert row["slack"] == pytest.approx(row["bound"] - row["entropy"])
        assert row["stderr"] >= 0 and row["ok"] is True
    assert [row["path"] for row in rows if not row["claims_bound"]] == ["spliced (paper)"] * 2


def test_table_names_every_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(SMALL) == 0
    captured = capsys.readouterr()
    header, _, *lines = captured.out.splitlines()
    assert header.split()[:3] == ["source", "path", "bridge"] and header.split()[-1] == "verdict"
    cases = list(certificate.cases(6))
    assert len([line for line in lines if line.endswith("holds")]) == sum(not case.spliced for case in cases)
    assert len([line for line in lines if "not a bound" in line]) == 2
    assert "BELOW" not in captured.out and "below" not in captured.err  # a slow machine shows progress there


def test_same_seed_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for seed in ("3", "3", "4"):
        cli.main([*SMALL, "--json", "--seed", seed])
        answers.append([row["bound"] for row in json.loads(capsys.readouterr().out)["rows"]])
    assert answers[0] == answers[1] != answers[2]


def broken(*arguments: Any) -> Tensor:
    """Return the terms of a bound that forgets its decode step."""
    return path_terms(*arguments)[:-1]


path_terms = certificate.path_terms


def test_a_broken_bound_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(certificate, "path_terms", broken)
    assert cli.main(["certify", "--steps", "2", "--paths", "200", "--json"]) == 1
    captured = capsys.readouterr()
    failed = [row for row in json.loads(captured.out)["rows"] if not row["ok"]]
    assert failed and all(row["claims_bound"] and row["bound"] < row["entropy"] for row in failed)
    assert f"{len(failed)} of " in captured.err and "below the entropy" in captured.err


def test_a_broken_bound_is_named_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certificate, "path_terms", broken)
    assert cli.main(["certify", "--steps", "2", "--paths", "200"]) == 1
    assert "BELOW THE ENTROPY" in capsys.readouterr().out


def test_results_and_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert cli.main([*SMALL, "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert sorted(path.name for path in out.iterdir()) == ["certify.json", "information.png"]
    written = json.loads((out / "certify.json").read_text())
    assert written["rows"] == json.loads(captured.out)["rows"] and written["seed"] == 0
    assert (out / "information.png").read_bytes().startswith(b"\x89PNG")
    assert "certify.json" in captured.err  # messages leave standard output to the JSON object


@pytest.mark.parametrize(("flag", "value"), [("--steps", "1"), ("--steps", "-3"), ("--paths", "1")])
def test_too_little_work_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", flag, value]) == 2
    error = capsys.readouterr().err
    assert "at least 2 steps and 2 paths" in error and value in error


def test_out_must_not_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "taken"
    file.write_text("mine")
    assert cli.main([*SMALL, "--out", str(file)]) == 2
    assert "taken is a file" in capsys.readouterr().err and file.read_text() == "mine"


def test_flags_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", "--stepps", "4"]) == 2
    assert cli.main(["certify", "--steps", "many"]) == 2
    capsys.readouterr()


def test_what_an_estimator_prints_is_not_part_of_the_report(tmp_path: Path) -> None:
    lines = [
        "import subprocess",
        "def talkative(oracle):",
        "    print('shown')",
        "    subprocess.run(['echo', 'shown too'])",
    ]
    (tmp_path / "mine.py").write_text(
        "\n".join([*lines, "    return oracle.surprise(oracle.left_to_right()).sum(-1)\n"])
    )
    estimator = f"{tmp_path / 'mine.py'}:talkative"
    command = [
        sys.executable,
        "-m",
        "rdlm",
        "certify",
        "--estimator",
        estimator,
        "--samples",
        "400",
        "--laws",
        "--json",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0 and json.loads(found.stdout)["verdict"] == "bound held"
    assert "shown\n" in found.stderr and "shown too\n" in found.stderr

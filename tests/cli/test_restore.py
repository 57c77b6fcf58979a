"""`rdlm restore` as a command: inputs, channels, output and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rdlm import methods
from rdlm.cli.main import main
from rdlm.config import DataConfig, ObjectiveConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.train.loop import train
from tests.train.toy import toy_corpus

ERRORS = "the quixk brown fox jumpa over the lszy dog and runs away the quick brown fox"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chain of the toy text; its network is not trained."""
    folder = tmp_path_factory.mktemp("restore") / "run"
    config = RunConfig(
        data=DataConfig("toy", length=16),
        model=TransformerConfig(width=16, layers=1, heads=2, belief="ngram", order=5, states=128),
        objective=ObjectiveConfig(asynchronous=0.3, mixed=0.3),
        training=TrainingConfig(steps=2, batch=8, validate_every=2, validation_sequences=4, validation_nfe=4),
    )
    train(config, folder, methods.build, load=toy_corpus)
    return str(folder)


def command(*arguments: str) -> int:
    return main(["restore", *arguments])


def test_gaps_and_alternatives_are_filled(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the qu?ck bro[wz]n f_x jumps\n")
    assert command(run, str(file)) == 0
    assert capsys.readouterr().out == "the quick brown fox jumps\n"


@pytest.mark.parametrize("channel", ["symmetric", "keyboard"])
def test_errors_are_corrected(run: str, tmp_path: Path, channel: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text(ERRORS)
    assert (
        command(run, str(file), "--channel", channel, "--error", "0.1", "--json", "--samples", "2", "--steps", "8") == 0
    )
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    assert row["text"].startswith("the quick brown fox jumps over the lazy dog")
    assert row["changed"] == 3 and len(row["samples"]) == 2 and found["error"] == 0.1
    wrong = row["positions"][ERRORS.index("xk")]
    assert wrong["symbol"] == "c" and wrong["read"] == "x" and wrong["probability"] > 0.5


def test_the_error_rate_is_estimated(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text(ERRORS)
    assert command(run, str(file), "--channel", "symmetric", "--error", "auto", "--json") == 0
    assert json.loads(capsys.readouterr().out)["error"] == pytest.approx(3 / len(ERRORS), abs=0.02)


def test_evidence_files(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({letter: 0.9}) for letter in "the quic"] + [json.dumps({"x": 0.5, "k": 0.4})]
    (tmp_path / "reading.jsonl").write_text("\n".join(lines))
    assert command(run, str(tmp_path / "reading.jsonl")) == 0
    assert capsys.readouterr().out == "the quick\n"
    alphabet = "".join(sorted(set("the quick brown fox jumps over the lazy dog and runs away ")))
    array = np.full((3, len(alphabet)), -3.0)
    array[np.arange(3), [alphabet.index(letter) for letter in "fox"]] = 0
    np.save(tmp_path / "reading.npy", array)
    assert command(run, str(tmp_path / "reading.npy")) == 0
    assert capsys.readouterr().out == "fox\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channel", "symmetric", "--error", "much"], "--error must be a number"),
        (["--channel", "symmetric", "--error", "2"], "between 0 and 1"),
        (["--channel", "nosuch.csv"], "nosuch.csv"),
        (["--samples", "-1"], "samples must be at least 0"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--format", "jsonl"], "not JSON"),
        (["--format", "npy"], "not an array"),
        (["--format", "fastq"], "four lines"),
    ],
)
def test_mistakes_are_named(
    run: str, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the quick")
    assert command(run, str(file), *arguments) == 2
    assert message in capsys.readouterr().err


def test_an_array_with_objects_is_not_loaded(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert command(run, str(tmp_path / "bad.npy")) == 2
    assert "not an array" in capsys.readouterr().err


def test_a_model_with_a_time_input_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("??")
    old = Path(__file__).parents[1] / "golden" / "published-0.1" / "rdlm"
    assert command(str(old), str(file)) == 2
    assert "without a time input" in capsys.readouterr().err

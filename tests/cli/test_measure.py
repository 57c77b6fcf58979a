"""`rdlm evaluate` and `rdlm score` on runs of a few steps, from the command line to the files."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import rdlm
from rdlm.api.score import Effort, order_for
from rdlm.cli import main as cli
from rdlm.cli.evaluate import parse_nfe
from rdlm.config import DataConfig, MethodName, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data import corpus
from rdlm.data.corpus import prepared
from rdlm.errors import InputError
from rdlm.methods import build
from rdlm.train.loop import train
from tests.storage.crafted import rewrite_state

TEXT = "the quick brown fox jumps over the lazy dog and runs away "


def trained(folder: Path, method: MethodName = "rdlm") -> Path:
    """A run of three steps on a short text."""
    (folder / "book.txt").write_text(TEXT * 60)
    config = RunConfig(
        method=method,
        data=DataConfig("textfile", length=12, file=folder / "book.txt"),
        process=ProcessConfig(levels=8, pairs=64),
        model=TransformerConfig(width=16, layers=1, heads=2),
        training=TrainingConfig(steps=3, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
    )
    train(config, folder / method, build)
    return folder / method


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("measure"))


def answer(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert cli.main([*options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_evaluation_from_flags_to_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys,
        "evaluate",
        str(run),
        "--nfe",
        "6",
        "--curve-nfe",
        "2,inf",
        "--evaluations",
        "120",
        "--sequences",
        "14",
        "--samples",
        "4",
        "--paper",
        "--out",
        str(tmp_path),
    )
    metrics = found["metrics"]
    assert (found["split"], found["steps"], found["claims_bound"], found["sequences"]) == ("validation", 6, True, 14)
    for name in ("bits_per_character", "perplexity_per_token", "perplexity_per_word", "entropy_pooled_bits"):
        assert set(metrics[name]) == {"value", "stderr", "low", "high", "unit", "convention"}
        assert metrics[name]["low"] < metrics[name]["value"] < metrics[name]["high"]
    bits = metrics["bits_per_character"]["value"]
    assert metrics["perplexity_per_token"]["value"] == pytest.approx(2**bits)
    assert metrics["paper_estimator"]["convention"].startswith("not a bound")
    assert metrics["invalid_codes"]["value"] == 0
    assert [row["calls"] for row in found["rows"]] == [2, 6, "inf"]
    assert json.loads((tmp_path / "evaluation.json").read_text())["metrics"] == metrics
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64") == 3 and "://" not in page
    curve = json.loads((run / "checkpoint-00000003" / "curve.json").read_text())
    assert curve["noise"][-1] == 0 and sorted(curve["noise"], reverse=True) == curve["noise"]
    assert curve["nats"][0] == 0 and curve["nats"][-1] == pytest.approx(metrics["nats_per_sequence"]["value"])


def test_a_sequence_with_blocks_is_evaluated_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token by token its bound has no noise of its own, so that more looks would narrow the interval for nothing."""
    options = ("evaluate", str(run), "--block", "1", "--nfe", "12", "--sequences", "14", "--samples", "2", "--paper")
    few, many = (
        answer(capsys, *options, "--evaluations", count, "--out", str(tmp_path))["metrics"] for count in ("14", "500")
    )
    assert "in blocks of 1" in many["bits_per_character"]["convention"]
    for key in ("value", "stderr"):
        assert many["bits_per_character"][key] == pytest.approx(few["bits_per_character"][key], rel=1e-4)


def test_test_split_leaves_no_curve(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = run / "checkpoint-00000003" / "curve.json"
    curve.unlink(missing_ok=True)
    options = ("--nfe", "4", "--evaluations", "60", "--samples", "0", "--window", "0.5", "--out", str(tmp_path))
    found = answer(capsys, "evaluate", str(run), "--split", "test", *options)
    assert found["split"] == "test" and not curve.exists()
    assert "windows of width 0.5" in found["metrics"]["nats_per_sequence"]["convention"]
    assert cli.main(["evaluate", str(run), *options]) == 0
    assert not curve.exists()  # positions with clocks of their own have no common one
    assert "bits per character" in capsys.readouterr().out


def test_path_estimator_agrees(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("evaluate", str(run), "--nfe", "4", "--samples", "0", "--out", str(tmp_path))
    steps = answer(capsys, *common, "--evaluations", "600")["metrics"]["nats_per_sequence"]
    path = answer(capsys, *common, "--evaluations", "56", "--estimator", "path")["metrics"]["nats_per_sequence"]
    assert steps["value"] == pytest.approx(path["value"], abs=5 * math.hypot(steps["stderr"], path["stderr"]))


def test_simulated_states_give_the_same_bound(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("evaluate", str(run), "--nfe", "5", "--samples", "0", "--evaluations", "400", "--out", str(tmp_path))
    exact = answer(capsys, *common)["metrics"]["nats_per_sequence"]
    walked = answer(capsys, *common, "--states", "simulated", "--seed", "1")["metrics"]["nats_per_sequence"]
    assert exact["value"] == pytest.approx(walked["value"], abs=4 * math.hypot(exact["stderr"], walked["stderr"]))
    assert walked["convention"].endswith("simulated states")


@pytest.mark.parametrize("method", ["mdlm", "autoregressive", "fisher_flow"])
def test_runs_of_other_methods(method: MethodName, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(trained(tmp_path, method))
    quick = ("--nfe", "4", "--evaluations", "28", "--samples", "4", "--out", str(tmp_path / "out"))
    found = answer(capsys, "evaluate", run, "--curve-nfe", "2", *quick)
    bits = found["metrics"]["bits_per_character"]
    assert bits["low"] < bits["value"] < bits["high"] and [row["calls"] for row in found["rows"]] == [2, 4]
    assert {"bigram_divergence", "entropy_pooled_bits", "invalid_codes"} <= set(found["metrics"])
    assert found["claims_bound"] == (method != "fisher_flow")
    assert bits["convention"].startswith("upper bound" if found["claims_bound"] else "not a bound")
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/png;base64") == 2
    for option in (["--window", "0.5"], ["--nfe", "inf"], ["--estimator", "path"], ["--paper"]):
        assert cli.main(["evaluate", run, *quick, *option]) == 2
        assert f"method '{method}'" in capsys.readouterr().err
    (tmp_path / "text.txt").write_text("the lazy dog and the fox")
    scored = answer(capsys, "score", run, str(tmp_path / "text.txt"), "--nfe", "4", "--positions")
    assert scored["claims_bound"] == scored["rows"][0]["claims_bound"] == (method != "fisher_flow")
    assert scored["rows"][0]["positions"] == [] and scored["rows"][0]["nats"] > 0
    assert cli.main(["score", run, str(tmp_path / "text.txt"), "--nfe", "4"]) == 0
    assert ("not a bound" in capsys.readouterr().out) == (method == "fisher_flow")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--states", "simulated", "--nfe", "inf"], "simulated states"),
        (["--curve-nfe", "4,x"], "'x'"),
        (["--nfe", "0"], "at least one network call"),
        (["--samples", "1"], "2 samples"),
        (["--nfe", "inf", "--estimator", "path"], "continuous time"),
        (["--nfe", "inf", "--window", "0.5"], "use --order synchronous"),
    ],
)
def test_mistakes_are_named(run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(run), *options]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_written_through_a_link_in_the_folder_of_a_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "yours").mkdir()
    place = run / "evaluation-test"
    place.symlink_to(tmp_path / "yours")
    try:
        assert cli.main(["evaluate", str(run), "--split", "test", "--sequences", "2", "--samples", "0"]) == 2
        assert "evaluation-test is a link or a device" in capsys.readouterr().err
        assert list((tmp_path / "yours").iterdir()) == []
    finally:
        place.unlink()


def test_calls_are_parsed() -> None:
    assert parse_nfe("4, 8,inf") == (4, 8, None)
    with pytest.raises(InputError, match="'0'"):
        parse_nfe("0")


def test_lines_and_standard_input(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the fox\n\nlazy dog\n")
    quick = ("--nfe", "4", "--draws", "3")
    rows = answer(capsys, "score", str(run), str(path), *quick)["rows"]
    assert [row["chars"] for row in rows] == [7, 8]
    for row in rows:
        assert row["low"] < row["nats"] < row["high"]
        assert row["bits_per_char"] == pytest.approx(row["nats"] / row["chars"] / math.log(2))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert answer(capsys, "score", str(run), "-", *quick)["rows"] == rows
    (first, _) = answer(capsys, "score", str(run), str(path), *quick, "--positions")["rows"]
    assert "".join(first["tokens"]) == "the fox"
    assert sum(first["positions"]) == pytest.approx(first["bits_per_char"] * 7)
    assert cli.main(["score", str(run), str(path), "--positions"]) == 2
    assert "--json" in capsys.readouterr().err


def test_a_document_by_steps(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "document.txt"
    path.write_text(TEXT * 5 + "\n")
    (row,) = answer(capsys, "score", str(run), str(path), "--document", "--nfe", "4")["rows"]
    assert (row["chars"], row["windows"]) == (290, 25)
    assert row["stderr"] > 0
    found = answer(capsys, "score", str(run), str(path), "--nfe", "4", "--estimator", "steps", "--draws", "3")
    assert found["rows"][0]["windows"] == 25 and found["network_windows"] == 75 and found["seconds"] > 0
    assert found["rows"][0]["nats"] == pytest.approx(
        row["nats"], abs=4 * math.hypot(row["stderr"], found["rows"][0]["stderr"])
    )
    assert cli.main(["score", str(run), str(path), "--document", "--nfe", "4"]) == 0
    assert "bits_per_char" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b" \n\n", "is empty"), (b"a\n", "at least 2 tokens"), (b"fox!", "'!'"), (b"\xff", "UTF-8")],
)
def test_texts_without_a_score(
    run: Path, tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert cli.main(["score", str(run), str(path)]) == 2
    assert message in capsys.readouterr().err


def test_lines_that_are_too_short_are_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the fox\n\na\nof it\nb\n")
    assert cli.main(["score", str(run), str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [(row["line"], row["text"]) for row in rows] == [(1, "the fox"), (4, "of it")]
    assert "2 lines of less than 2 tokens are left out, the first is line 3" in err
    path.write_text("the fox\nthe Fox\n")
    assert cli.main(["score", str(run), str(path)]) == 2
    assert "line 2: character 'F' at position 4" in capsys.readouterr().err


def test_unknown_characters_may_be_skipped(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.txt"
    path.write_text("fox!")
    for choice, chars in (("skip", 3), ("replace", 4)):
        found = answer(capsys, "score", str(run), str(path), "--unknown", choice, "--nfe", "4")
        assert found["rows"][0]["chars"] == chars


def test_a_missing_file_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["score", str(run), "nowhere.txt"]) == 2
    assert "nowhere.txt" in capsys.readouterr().err


def test_a_checkpoint_makes_evaluate_open_no_device(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "foreign")
    (checkpoint,) = (tmp_path / "foreign").glob("checkpoint-*")
    rewrite_state(checkpoint, lambda state: state["config"]["data"].update(file="/dev/zero"))
    assert cli.main(["evaluate", str(checkpoint)]) == 2
    assert "cannot read /dev/zero: it is not a regular file" in capsys.readouterr().err


def test_a_checkpoint_that_names_a_whole_disk_is_refused_at_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_identity", lambda path: pytest.fail(f"{path} was listed"))
    shutil.copytree(run, tmp_path / "foreign")
    (checkpoint,) = (tmp_path / "foreign").glob("checkpoint-*")
    rewrite_state(checkpoint, lambda state: state["config"]["data"].update(file="/"))
    assert cli.main(["evaluate", str(checkpoint)]) == 2
    assert "the model names /, which was not prepared on this machine" in capsys.readouterr().err


def test_a_checkpoint_makes_evaluate_read_no_file_that_was_not_prepared_here(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the quick brown fox jumps over the lazy dog " * 400)
    shutil.copytree(run, tmp_path / "foreign")
    (checkpoint,) = (tmp_path / "foreign").glob("checkpoint-*")
    rewrite_state(checkpoint, lambda state: state["config"]["data"].update(file=str(secret)))
    before = set(prepared())
    assert cli.main(["evaluate", str(checkpoint)]) == 2
    assert f"was not prepared on this machine: if it is yours, name it (--file {secret})" in capsys.readouterr().err
    assert set(prepared()) == before
    options = [
        "evaluate",
        str(checkpoint),
        "--nfe",
        "2",
        "--evaluations",
        "8",
        "--samples",
        "0",
        "--out",
        str(tmp_path),
    ]
    assert answer(capsys, *options, "--file", str(secret))["claims_bound"]


def test_the_file_of_a_published_model_is_given_by_the_user(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)  # here, the author's book.txt could be found by its name
    published = rdlm.load(run).save(tmp_path / "published")
    assert rdlm.load(published).config.data.file is None
    options = ["evaluate", str(published), "--nfe", "2", "--evaluations", "8", "--samples", "0", "--out", str(tmp_path)]
    assert cli.main(options) == 2
    assert "needs a file" in capsys.readouterr().err
    assert answer(capsys, *options, "--file", str(run.parent / "book.txt"))["claims_bound"]


def test_a_text_is_scored_behind_a_prompt(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.txt"
    path.write_text("fox\nd\n")
    order = ("--order", "left-to-right", "--nfe", "12", "--prompt", "the lazy ")
    first, second = answer(capsys, "score", str(run), str(path), *order)["rows"]
    (whole,) = rdlm.load(run).score(["fox"], prompts=["the lazy "], effort=left_to_right(rdlm.load(run)))
    assert first["exact"] is True and first["nats"] == pytest.approx(whole.nats.value, abs=1e-4)
    assert first["chars"] == 3 and second["chars"] == 1 and first["stderr"] == 0
    bound = answer(capsys, "score", str(run), str(path), "--nfe", "4", "--prompt", "the lazy ")["rows"][0]
    assert bound["exact"] is False and bound["claims_bound"] and bound["stderr"] > 0


def left_to_right(model: Any) -> Effort:
    return Effort(12, order=order_for(model, "left-to-right", 12))


def test_each_sequence_of_fasta_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "genes.fa").write_text(">one x\nACGTAC\ngtacgu\n\n>empty\n>two\nGGGG CCCC\n")
    options = ("--nfe", "2", "--draws", "3")
    rows = answer(capsys, "score", "dna", str(tmp_path / "genes.fa"), "--normalise", *options)["rows"]
    assert [(row["line"], row["text"]) for row in rows] == [(1, "ACGTACGTACGT"), (6, "GGGGCCCC")]
    assert cli.main(["score", "dna", str(tmp_path / "genes.fa"), *options]) == 2
    assert "line 1: character 'g' at position 6" in capsys.readouterr().err

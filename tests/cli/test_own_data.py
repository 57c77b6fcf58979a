"""A stranger's hour in seconds: own text, a CSV column, FASTA and images are trained on, evaluated, sampled, restored,
published and loaded, by the command line alone; and what score and generate say about text outside of an alphabet."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import rdlm
from rdlm.cli import main as cli
from rdlm.data.image import encode_png
from rdlm.presets import PRESETS

SENTENCES = ["The cat sat on the mat.", "A dog, in 1990, ate the cat!", "Über uns: ein Maß - 20 €."]
SETTINGS = {
    "model.width": 16,
    "model.layers": 1,
    "model.heads": 1,
    "model.states": 300,
    "model.order": 3,
    "process.levels": 16,
    "process.pairs": 64,
    "training.batch": 4,
    "training.validation-sequences": 4,
    "training.validation-nfe": 4,
    "training.device": "cpu",
}
SMALL = [part for name, value in SETTINGS.items() for part in (f"--{name}", str(value))]
TINY = [*SMALL, "--training.steps", "3"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def written(kind: str) -> list[str]:
    """Write data of a kind and return the options that read them."""
    match kind:
        case "text":
            Path("texts").mkdir()
            for i in range(5):
                Path(f"texts/{i}.txt").write_text("\n".join(SENTENCES * 5), "utf-8")
            return ["texts", "--data.length", "8"]
        case "CSV":
            rows = "".join(f'{i},"{SENTENCES[i % 3]}"\n' for i in range(60))
            Path("posts.csv").write_text("id,body\n" + rows, "utf-8")
            return ["posts.csv", "--column", "body", "--data.length", "8"]
        case "FASTA":
            Path("genome.fa").write_text("".join(f">s{i}\nACGTTGCANNACGTAC\n" for i in range(40)))
            return ["genome.fa", "--data.length", "8"]
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        Path(f"images/{name}").mkdir(parents=True)
        for i in range(12):
            pixels = generator.integers(0, 256, (3, 3, 3)).astype(np.uint8)
            Path(f"images/{name}/{i}.png").write_bytes(encode_png(pixels))
    return ["images"]


def run(*command: str) -> None:
    assert cli.main(list(command)) == 0, command


@pytest.mark.parametrize("kind", ["text", "CSV", "FASTA", "images"])
def test_own_data_from_training_to_publication(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "--data", *written(kind), *TINY)
    said = capsys.readouterr().err
    assert f"rdlm: {'texts' if kind == 'text' else ''}" in said and f": {kind}" in said
    run("evaluate", "runs/own", "--sequences", "4", "--evaluations", "8", "--nfe", "4")
    out = ["--out", "samples.png"] if kind == "images" else []
    run("generate", "runs/own", "--steps", "4", *out)
    run("publish", "runs/own", "published")
    model = rdlm.load("published")
    assert model.kind == {"FASTA": "dna", "images": "image"}.get(kind, "text")
    if kind != "images":
        capsys.readouterr()
        Path("reading.txt").write_text("ACG?AC" if kind == "FASTA" else "the ?at")
        run("restore", "published", "reading.txt", "--json")
        assert json.loads(capsys.readouterr().out)


def test_minutes_are_kept_by_the_real_method(capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "--data", *written("text"), *SMALL, "--minutes", "0.1", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] > 3 and "rdlm: 0.1 minutes: width 16" in captured.err


def test_normalised_text_is_scored_and_continued(capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "--data", *written("text"), "--normalise", *TINY)
    Path("line.txt").write_text("The 2 US\n")
    capsys.readouterr()
    assert cli.main(["score", "runs/own", "line.txt", "--nfe", "4"]) == 2
    assert "'T' at position 0 is outside the alphabet" in capsys.readouterr().err
    run("score", "runs/own", "line.txt", "--nfe", "4", "--normalise", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"][0]["text"] == "the two us"
    assert "3 case changed, 1 digits spelled" in captured.err
    run("score", "runs/own", "line.txt", "--steps", "4", "--unknown", "skip", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["outside_of_vocabulary"] == 4
    assert "4 characters outside of the alphabet are left out: 2 S T U" in captured.err
    run("generate", "runs/own", "--nfe", "4", "--prompt", "The", "--normalise")
    assert capsys.readouterr().out.startswith("the")
    Path("gaps.txt").write_text("The ?at 2\n")
    run("restore", "runs/own", "gaps.txt", "--normalise")
    captured = capsys.readouterr()
    assert re.fullmatch("the .at two ?\n", captured.out) and "1 case changed, 1 digits spelled" in captured.err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["score", "nosuch.txt"]) == 2
    assert "no such file: nosuch.txt" in capsys.readouterr().err


def test_presets_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    run("presets", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == list(PRESETS) and all(row["summary"].endswith(".") for row in rows)


def test_a_run_begins_with_the_weights_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """A larger n-gram model, another length and other tokens: what fits is taken, and the rest is stated."""
    text = written("text")
    assert cli.main(["train", "--data", *text, "--out", "first", *TINY]) == 0
    first = rdlm.load("first").method.network
    weights = dict(first.named_parameters())
    larger = [part if part != "300" else "400" for part in SMALL]
    still = ["--training.steps", "1", "--training.lr", "1e-12"]
    assert (
        cli.main(
            ["train", "--data", text[0], "--data.length", "12", "--out", "second", *larger, *still, "--init", "first"]
        )
        == 0
    )
    assert "weights of first\n" in capsys.readouterr().err
    second = rdlm.load("second").method.network
    for name, parameter in second.named_parameters():
        assert torch.allclose(parameter, weights[name], atol=1e-9), name
    assert second.belief.states == 400 and first.belief.states == 300  # type: ignore[union-attr]
    Path("other.txt").write_text("0123456789\n" * 60)
    assert (
        cli.main(
            ["train", "--data", "other.txt", "--data.length", "8", "--out", "third", *SMALL, *still, "--init", "first"]
        )
        == 0
    )
    said = capsys.readouterr().err
    assert "other tokens" in said and "these are new" in said


def test_a_layer_is_put_below_a_network_that_was_trained_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The head has two outputs more: those of the tokens are kept, and so are all of them on the way back."""
    text = written("text")
    assert cli.main(["train", "--data", *text, "--out", "plain", *TINY, "--model.belief", "none"]) == 0
    plain = dict(rdlm.load("plain").method.network.named_parameters())
    still = [*SMALL, "--training.steps", "1", "--training.lr", "1e-12"]
    assert cli.main(["train", "--data", *text, "--out", "above", *still, "--init", "plain"]) == 0
    assert "weights of plain\n" in capsys.readouterr().err
    network = rdlm.load("above").method.network
    above = {name.removeprefix("network."): parameter for name, parameter in network.named_parameters()}
    assert above.keys() == plain.keys() and len(above["head.bias"]) == len(plain["head.bias"]) + 2
    for name, parameter in plain.items():
        assert torch.allclose(above[name][: len(parameter)], parameter, atol=1e-9), name
    again = ["--model.belief", "none", "--init", "above"]
    assert cli.main(["train", "--data", *text, "--out", "again", *still, *again]) == 0
    for name, parameter in rdlm.load("again").method.network.named_parameters():
        assert torch.allclose(parameter, plain[name], atol=1e-9), name


def test_weights_of_another_network_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = written("text")
    assert cli.main(["train", "--data", *text, "--out", "first", *TINY]) == 0
    wider = [part if part != "16" else "24" for part in TINY]
    assert cli.main(["train", "--data", *text, "--out", "second", *wider, "--init", "first"]) == 2
    assert "most weights of the given model do not fit" in capsys.readouterr().err


def test_a_missing_package_is_named_before_any_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "datasets" else find(name))
    assert cli.main(["train", "--data", "hf://me/letters"]) == 2
    message = capsys.readouterr().err
    assert 'a dataset of the hub needs the package datasets: pip install "rdlm[hf]"' in message
    assert not Path("runs").exists() and not Path("cache").exists()
    assert cli.main(["train", "--data", "hf://a/b/c/d"]) == 2
    assert "hf://NAME[:CONFIG][/SPLIT]" in capsys.readouterr().err


def test_an_unknown_tokenizer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--data", *written("text"), "--data.tokenizer", "bpee"]) == 2
    assert "did you mean 'bpe'?" in " ".join(capsys.readouterr().err.split())


def test_changes_are_not_offered_where_they_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    """New data with the same characters can be accepted; other characters are other tokens, and cannot."""
    options = ["--data", "mine.txt", "--data.length", "8", *TINY]
    for text, accepted, message in [
        ("abcd efgh\n" * 60, [], ""),
        ("hgfe dcba\n" * 60, [], "continue with the new data with --accept-changes"),
        ("hgfe dcba\n" * 60, ["--accept-changes"], ""),
        ("abcd efghz\n" * 60, [], "--init runs/own"),
        ("abcd efghz\n" * 60, ["--accept-changes"], "--init runs/own"),
    ]:
        Path("mine.txt").write_text(text)
        capsys.readouterr()
        assert cli.main(["train", *options, *accepted]) == (2 if message else 0)
        said = capsys.readouterr().err
        assert message in said and ("--accept-changes" in said) == ("--accept-changes" in message)
    Path("other.txt").write_text("abcd efghz\n" * 60)  # a file of another name is another configuration, too
    assert cli.main(["train", "--data", "other.txt", *options[2:]]) == 2
    said = capsys.readouterr().err
    assert "--init runs/own" in said and "--accept-changes" not in said


def test_changes_that_do_not_fit_leave_the_run_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration was replaced before the checkpoint was found not to fit: the run could not continue at all."""
    Path("mine.txt").write_text("abcd efgh\n" * 60)
    command = ["train", "--data", "mine.txt", "--data.length", "8", *TINY]
    assert cli.main(command) == 0
    before = Path("runs/own/config.yaml").read_bytes()
    assert cli.main([*command, "--model.layers", "3", "--accept-changes"]) == 2
    assert "does not fit this run" in capsys.readouterr().err
    assert Path("runs/own/config.yaml").read_bytes() == before
    assert cli.main(command) == 0

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
    assert "there is no file or model named nosuch.txt" in capsys.readouterr().err


def test_presets_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    run("presets", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == list(PRESETS) and all(row["summary"].endswith(".") for row in rows)


STILL = ["--training.steps", "1", "--training.lr", "1e-12", "--training.codes-lr", "1e-12"]
"""Training that changes no weight: what is saved are the initial ones."""


def first_run() -> list[str]:
    """Train a run in the folder `first` and return the options of its data."""
    text = written("text")
    run("train", "--data", *text, "--out", "first", *TINY)
    return text


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    """Return the parameters by their names without the prefix of an inference layer."""
    network = rdlm.load(folder).method.network
    return {name.removeprefix("network."): parameter for name, parameter in network.named_parameters()}


def test_a_run_begins_with_the_weights_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Network, tokens and length are those of the initial model; a larger n-gram model and a new length are options."""
    text = first_run()
    weights = weights_of("first")
    run("train", "--data", text[0], "--out", "second", *STILL, "--init", "first")
    assert "weights of first\n" in capsys.readouterr().err
    second = rdlm.load("second")
    assert second.length == 8 and second.config.model == rdlm.load("first").config.model
    options = ["--data.length", "12", "--model.states", "400"]
    run("train", "--data", text[0], "--out", "third", *options, *STILL, "--init", "first")
    third = rdlm.load("third")
    assert third.length == 12 and third.method.network.belief.states == 400  # type: ignore[union-attr]
    for folder in ("second", "third"):
        for name, parameter in weights_of(folder).items():
            assert torch.allclose(parameter, weights[name], atol=1e-9), name


def test_minutes_keep_the_network_of_an_initial_model(capsys: pytest.CaptureFixture[str]) -> None:
    """With a corpus of other characters, too: this failed, since the minutes chose another network."""
    first_run()
    Path("other.txt").write_text("0123456789 abc\n" * 100)
    options = ["--training.validation-sequences", "4", "--training.validation-nfe", "4", "--minutes", "0.1"]
    run("train", "--data", "other.txt", "--out", "second", *options, "--init", "first")
    said = capsys.readouterr().err
    assert "0.1 minutes: width 16, 1 layers" in said and "tokens of first are kept" in said
    assert rdlm.load("second").config.model == rdlm.load("first").config.model


def test_the_rows_of_shared_tokens_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """The alphabet is extended by new characters, or replaced; each character keeps its rows of input and output."""
    first_run()
    old = rdlm.load("first")
    weights = weights_of("first")
    Path("other.txt").write_text("The cat @ sea ~\n" * 60)
    alphabet = "zyxtac "  # in another order, with tokens that the model lacks
    for options, tokens, said in [
        ([], old.tokenizer.alphabet + "@~", "2 tokens are new: @ ~"),  # type: ignore[attr-defined]
        (
            ["--alphabet", alphabet],
            alphabet,
            "tokens of first are kept, 3 tokens are new: z y x",
        ),
    ]:
        capsys.readouterr()
        run("train", "--data", "other.txt", "--out", f"next{len(options)}", *options, *STILL, "--init", "first")
        assert said in capsys.readouterr().err
        model = rdlm.load(f"next{len(options)}")
        assert model.tokenizer.alphabet == tokens  # type: ignore[attr-defined]
        own = weights_of(f"next{len(options)}")
        for token in set(tokens) & set(old.tokenizer.alphabet):  # type: ignore[attr-defined]
            i, j = (one.alphabet.index(token) for one in (old.tokenizer, model.tokenizer))  # type: ignore[attr-defined]
            for name in ("input.weight", "head.weight", "head.bias"):
                assert torch.allclose(own[name][j], weights[name][i], atol=1e-9), (token, name)
        assert torch.allclose(own["head.bias"][-2:], weights["head.bias"][-2:], atol=1e-9)  # of the inference layer
        for name in set(weights) - {"input.weight", "head.weight", "head.bias"}:
            assert torch.allclose(own[name], weights[name], atol=1e-9), name


def test_more_tokens_than_one_hot_states_get_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """A Chinese text after an alphabet: the process is chosen anew, and the layers are those of the initial model."""
    first_run()
    generator = np.random.default_rng(0)
    Path("many.txt").write_text("".join(map(chr, generator.integers(0x4E00, 0x4E00 + 1500, 6000))), "utf-8")
    run("train", "--data", "many.txt", "--out", "second", *STILL, "--init", "first")
    said = capsys.readouterr().err
    assert "process.codes learned" in said and "but these are new: input.weight" in said
    own, weights = weights_of("second"), weights_of("first")
    assert torch.allclose(own["blocks.0.inner.weight"], weights["blocks.0.inner.weight"], atol=1e-9)


def test_other_tokenizers_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A trained BPE is used again; bytes, too; and an option replaces them."""
    text = written("text")
    for kind in ("bpe", "bytes"):
        run("train", "--data", *text, "--out", kind, "--data.tokenizer", kind, "--data.vocabulary", "260", *TINY)
        Path("other.txt").write_text(f"zebra {kind} cats\n" * 60)
        capsys.readouterr()
        run("train", "--data", "other.txt", "--out", f"{kind}2", *STILL, "--init", kind)
        assert f"weights of {kind}\n" in capsys.readouterr().err
        assert rdlm.load(f"{kind}2").tokenizer.to_json() == rdlm.load(kind).tokenizer.to_json()
    options = ["--data.tokenizer", "characters", "--out", "letters", "--init", "bytes"]
    run("train", "--data", "other.txt", *STILL, *options)
    assert rdlm.load("letters").tokenizer.size == len(set("zebra bytes cats\n"))


def test_a_published_model_is_trained_on_with_another_order() -> None:
    """From the command line and from Python, with blocks in place of the synchronous order."""
    text = first_run()
    run("publish", "first", "published")
    options = ["--objective.blockwise", "1", "--process.block", "2"]
    run("train", "--data", text[0], "--out", "second", *STILL, *options, "--init", "published")
    assert rdlm.load("second").config.process.block == 2
    found = rdlm.train(text[0], out="third", init="published", minutes=0.05)
    assert found.config.model == rdlm.load("first").config.model


def test_normalised_text_keeps_the_alphabet_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "--data", *written("text"), "--alphabet", "abcdefghijklmnopqrstuvwxyz ü", "--out", "first", *TINY)
    Path("other.txt").write_text("Über 3 CATS!\n" * 60)
    run("train", "--data", "other.txt", "--normalise", "--out", "second", *STILL, "--init", "first")
    assert "weights of first\n" in capsys.readouterr().err
    assert rdlm.load("second").tokenizer.alphabet == "abcdefghijklmnopqrstuvwxyz ü"  # type: ignore[attr-defined]


def test_an_alphabet_and_another_tokenizer_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--data", *written("text"), "--alphabet", "abc", "--data.tokenizer", "bytes"]) == 2
    assert "an alphabet is that of the tokenizer characters" in capsys.readouterr().err


def test_a_layer_is_put_below_a_network_that_was_trained_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The head has two outputs more: those of the tokens are kept, and so are all of them on the way back."""
    text = written("text")
    run("train", "--data", *text, "--out", "plain", *TINY, "--model.belief", "none")
    plain = weights_of("plain")
    run("train", "--data", text[0], "--out", "above", *STILL, "--model.belief", "ngram", "--init", "plain")
    assert "weights of plain\n" in capsys.readouterr().err
    above = weights_of("above")
    assert above.keys() == plain.keys() and len(above["head.bias"]) == len(plain["head.bias"]) + 2
    for name, parameter in plain.items():
        assert torch.allclose(above[name][: len(parameter)], parameter, atol=1e-9), name
    run("train", "--data", text[0], "--out", "again", *STILL, "--model.belief", "none", "--init", "above")
    for name, parameter in weights_of("again").items():
        assert torch.allclose(parameter, plain[name], atol=1e-9), name


def test_weights_of_another_network_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = first_run()
    wider = ["--model.width", "24", *STILL, "--init", "first"]
    assert cli.main(["train", "--data", text[0], "--out", "second", *wider]) == 2
    assert "most weights of the given model do not fit" in capsys.readouterr().err
    assert cli.main(["train", "--data", *written("images"), "--out", "third", *STILL, "--init", "first"]) == 2
    assert "first is a model of the kind text, and the data are of the kind image" in capsys.readouterr().err


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


def test_a_corpus_with_one_validation_sequence_is_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    """After all the work, the command said that an interval needs two values."""
    Path("small.txt").write_text("The cat sat on the mat, and the dog sat on the cat.\n" * 8)
    run("train", "--data", "small.txt", "--data.length", "20", *TINY)
    capsys.readouterr()
    run("evaluate", "runs/own", "--sequences", "4", "--evaluations", "4", "--samples", "2", "--nfe", "4", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["sequences"] == 1 and "entropy_per_sample_of_data_nats" not in found["metrics"]

"""The models that come with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rdlm
from rdlm import pretrained
from rdlm.api.generate import grid_of
from rdlm.cli import main as cli

LIMITS = {"text8": 15_000_000, "digits": 2_000_000, "dna": 1_000_000, "cifar10": 3_000_000, "words": 13_000_000}
"""Bytes of each model's weights."""

TOTAL = 25_000_000
"""Bytes of all files of all models."""


def test_there_are_models_of_text_images_and_dna() -> None:
    assert set(pretrained.names()) == set(LIMITS)
    kinds = {"text8": "text", "digits": "image", "dna": "dna", "cifar10": "image", "words": "text"}
    assert {name: rdlm.load(name).kind for name in LIMITS} == kinds


def test_all_models_together_are_small() -> None:
    assert sum(file.stat().st_size for file in pretrained.FOLDER.rglob("*") if file.is_file()) < TOTAL


@pytest.mark.parametrize("name", LIMITS)
def test_a_pretrained_model_is_small_and_its_card_has_its_evaluation(name: str) -> None:
    """The card quotes the evaluation of these very weights."""
    folder = pretrained.path(name)
    assert (folder / "model.safetensors").stat().st_size < LIMITS[name]
    (found,) = json.loads((folder / "evaluation.json").read_text())["evaluations"]
    assert found["claims_bound"] and found["split"] == "test"
    bits = next(metric for key, metric in found["metrics"].items() if key.startswith("bits_per_"))
    assert f"{bits['value']:.4g}" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", LIMITS)
def test_a_pretrained_model_has_the_grid_of_equal_information(name: str) -> None:
    levels = grid_of(rdlm.load(name), "information")(8).remaining
    assert len(levels) == 9 and bool((levels.diff() < 0).all())


def test_generate_and_score_need_no_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """English costs less than the same letters in a random order."""
    assert cli.main(["generate", "--steps", "8"]) == 0
    sample = capsys.readouterr().out.strip("\n")
    assert re.fullmatch("[a-z ]+", sample) and len(sample) == rdlm.load().length
    english = "the history of the world is the history of the people who lived in it"
    mixed = "".join(sorted(english, key=lambda letter: (ord(letter) * 7919) % 31))
    (tmp_path / "lines.txt").write_text(f"{english}\n{mixed}\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["score", "lines.txt", "--json"]) == 0
    own, other = json.loads(capsys.readouterr().out)["rows"]
    assert own["high"] < other["low"]


def test_dna_is_generated_by_label(capsys: pytest.CaptureFixture[str]) -> None:
    """Promoters have more of the pair CG than other windows: so do samples with that label."""
    pairs = {}
    for label in ("promoter", "background"):
        assert cli.main(["generate", "dna", "--label", label, "--guidance", "2", "--num", "4", "--steps", "8"]) == 0
        lines = capsys.readouterr().out.split()
        assert len(lines) == 4 and all(re.fullmatch("[ACGT]{1024}", line) for line in lines)
        pairs[label] = sum(line.count("CG") for line in lines)
    assert pairs["promoter"] > 1.5 * pairs["background"]


def test_what_text8_never_has_can_be_scored_and_continued() -> None:
    """Two spaces in a row: the n-gram layer has never seen them, and its float32 probability of them was 0."""
    model = rdlm.load()
    (scored,) = model.score(["the cat  sat"])
    assert 20 < scored.nats.value < 100
    assert model.generate(prompt="the  cat ", length=16, steps=4).samples[0].text.startswith("the  cat ")


def test_sentences_in_word_pieces_cost_less_than_their_words_in_another_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "the game was released in the united states on the first of july , and it was the first of its kind ."
    mixed = " ".join(sorted(words.split(), key=lambda word: (sum(map(ord, word)) * 7919) % 31))
    (tmp_path / "words.txt").write_text(f"{words}\n{mixed}\n")
    assert cli.main(["score", str(tmp_path / "words.txt"), "--model", "words", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own, other = found["rows"]
    assert found["exact"] and own["nats"] < other["nats"] - 5
    assert cli.main(["score", "text8", str(tmp_path / "words.txt"), "--model", "words"]) == 2
    assert "give the model once" in capsys.readouterr().err


def test_misread_words_are_restored_and_new_ones_generated(capsys: pytest.CaptureFixture[str]) -> None:
    model = rdlm.load("words")
    found = model.restore(
        "The fidst railaay reached the coest in 1905; pwople worked in facyories .", channel="symmetric"
    )
    assert found.text == "The first railway reached the coast in 1905; people worked in factories ."
    assert cli.main(["generate", "words", "--order", "strided", "--steps", "4", "--length", "16"]) == 0
    assert len(capsys.readouterr().out.split()) >= 8

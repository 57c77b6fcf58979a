"""Words restored from misread letters, by models of word pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rdlm.api.language_model import LanguageModel
from rdlm.api.restore import ErrorRate, restore, symbols_of
from rdlm.api.restore_words import read_words_through, restore_words
from rdlm.cli.main import main as cli
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.channels import symmetric
from rdlm.data.tokenizer import Characters, wordpiece
from rdlm.data.word_evidence import LETTERS, from_words
from rdlm.errors import InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "cat",
    "hat",
    "sat",
    "on",
    "in",
    "dog",
    "was",
    "red",
    ".",
    "19",
]
PIECES = wordpiece([*WORDS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in LETTERS)])
TEXTS = ["the cat sat on the dog .", "the red hat was in the cat .", "the dog was red ."]
LENGTH = 8


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A model whose network adds nothing to the bigrams of three texts."""
    config = RunConfig(
        data=DataConfig(length=LENGTH),
        model=TransformerConfig(width=8, layers=1, heads=2, belief="bigram", states=64),
        process=ProcessConfig(levels=32, pairs=256, codes="learned", dimension=4),
    )
    torch.manual_seed(0)
    method = Rdlm(config, PIECES.size)
    assert isinstance(method.network, BeliefNetwork)
    rows = [PIECES.encode(text * 2)[:LENGTH].tolist() for text in TEXTS]
    method.network.belief.fit(lambda: torch.tensor(rows))
    method.network.eval()
    about = {"kind": "text", "length": LENGTH, "classes": [], "image": None, "signal": False, "protocol": "words"}
    return LanguageModel("words", method, PIECES, config, about, None)


def channel(error: float) -> torch.Tensor:
    return symmetric(LETTERS, error)


def test_the_evidence_of_a_word_is_that_of_its_letters() -> None:
    found = from_words("Tbe cat.", PIECES, channel(0.1))
    assert found.evidence.shape == (3, PIECES.size)
    wrong = 0.1 / 25
    for word, expected in (("the", 0.81 * wrong), ("cat", 0.0), ("was", 0.0)):
        assert float(found.evidence[0, WORDS.index(word)].exp()) == pytest.approx(expected, rel=1e-5)
    assert float(found.evidence[1, WORDS.index("hat")].exp()) == pytest.approx(0.81 * wrong, rel=1e-5)
    assert found.evidence[2].exp().tolist() == [float(word == ".") for word in [*WORDS, *["x"] * 52]]
    assert found.rows == (0, 0, 0, None, 1, 1, 1, None)
    assert found.seen == ("t", "b", "e", "", "c", "a", "t", "")
    assert sorted(found.words) == [0, 1] and found.words[0].wrong.tolist() == [1]


def test_gaps_and_alternatives_restrict_letters() -> None:
    found = from_words("[ch]at ?og", PIECES)
    possible = [[WORDS[i] for i in row.exp().nonzero()[:, 0].tolist()] for row in found.evidence]
    assert possible == [["cat", "hat"], ["dog"]]


def test_words_that_no_piece_resembles_are_kept_in_their_pieces(model: LanguageModel) -> None:
    """`zqx` is three wrong letters from every word; `cats` is two pieces of which none has four letters."""
    found = from_words("the zqx cats", PIECES, channel(0.1))
    assert found.rows == (0, 0, 0, *[None] * 9)
    assert found.evidence.exp().argmax(1).tolist()[1:] == PIECES.encode("zqx cats").tolist()
    assert restore_words(model, found).text == "the zqx cats"


def test_context_decides_between_words_that_resemble_a_reading(model: LanguageModel) -> None:
    """Both words are one letter away from `zat`, and every word keeps its place, case and punctuation."""
    result = restore(model, "The zat sat. The red zat", channel=channel(0.2))
    assert result.text == "The cat sat. The red hat"
    assert result.read == "The zat sat. The red zat"
    assert result.changed == [4, 21]
    assert result.certainty[4] == result.certainty[6] < result.certainty[0]
    places = result.to_json()["positions"]
    assert places[4]["symbol"] == "cat" and places[3]["symbol"] is None


def test_the_error_rate_is_estimated(model: LanguageModel) -> None:
    text = "tbe cat sat on the dog . the reb hat was in the cat . the dog was red ."
    reading, rate = read_words_through(model, text, "symmetric", "auto")
    assert isinstance(rate, ErrorRate) and 0.01 < rate.value < 0.1  # two of 51 letters are wrong
    assert restore_words(model, reading).text == text.replace("tbe", "the").replace("reb", "red")


def test_samples_are_of_the_joint_posterior(model: LanguageModel) -> None:
    result = restore(model, "the ?at", samples=8, steps=4)
    assert {sample[4:] for sample in result.samples} <= {"cat", "hat", "sat"} and len(result.samples) == 8
    assert all(sample.startswith("the ") for sample in result.samples)


def test_words_are_restored_by_the_command(
    model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = model.save(tmp_path / "model"), tmp_path / "page.txt"
    file.write_text("The zat sat.\n")
    arguments = ["restore", str(folder), str(file), "--channel", "keyboard", "--json"]
    assert cli([*arguments, "--error", "0.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["text"] == "The sat sat."  # of c, h and s only s is beside z
    assert found["error"] == 0.1
    assert cli([*arguments[:-1], "--whole"]) == 2
    assert "leave it out" in capsys.readouterr().err
    assert cli(["restore", str(folder), str(file), "--normalise"]) == 2
    assert "word pieces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"), [("", "empty"), ("1919 .", "no word"), ("[1]at", "'1' at position 0"), ("zqx", "no word")]
)
def test_texts_without_words_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_words(text, PIECES, channel(0.1))


def test_other_tokens_and_channels_are_refused(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="restores the words"):
        symbols_of(model)
    with pytest.raises(InputError, match="channel"):
        read_words_through(model, "the cat", "keybord")
    with pytest.raises(InputError, match="without readable words"):
        read_words_through(model, "???", "symmetric", "auto")
    assert not isinstance(model.tokenizer, Characters)

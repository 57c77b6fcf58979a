"""Words restored from misread letters, by models of word pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rdlm.api.language_model import LanguageModel
from rdlm.api.reading_likelihood import ErrorRate
from rdlm.api.restore import restore, symbols_of
from rdlm.api.restore_words import SHARE, _mixed, read_words_through, restore_words
from rdlm.cli.main import main as cli
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.channels import symmetric
from rdlm.data.evidence import from_text
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, wordpiece
from rdlm.data.word_evidence import LETTERS, from_reading, from_words
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


# -- a mixture with a model of characters ---------------------------------------------------------------


@pytest.fixture(scope="module")
def letters() -> LanguageModel:
    """An untrained model of characters."""
    config = RunConfig(
        data=DataConfig(length=32),
        model=TransformerConfig(width=8, layers=1, heads=2),
        process=ProcessConfig(levels=32, pairs=256),
    )
    torch.manual_seed(0)
    method = Rdlm(config, len(TEXT8_ALPHABET))
    method.network.eval()
    about = {"kind": "text", "length": 32, "classes": [], "image": None, "signal": False, "protocol": "letters"}
    return LanguageModel("letters", method, Characters(TEXT8_ALPHABET), config, about, None)


def test_a_mixture_has_the_share_of_the_words(letters: LanguageModel, model: LanguageModel) -> None:
    text = "Tbe 1?3 c[ao]t zyzyva"
    alone, own = restore(letters, text, channel="symmetric", error=0.1), restore(model, text, channel="symmetric")
    found = restore(letters, text, channel="symmetric", error=0.1, words=model)
    assert found.rows == alone.rows and found.read == alone.read
    word = from_words(text, PIECES, channel(0.1))
    assert own.rows == word.rows and sorted(word.words) == [word.rows[at] for at in (0, 5, 8)]
    for at, letter in enumerate("the"):
        law = torch.zeros(27)
        for index, chance in zip(word.words[0].ids.tolist(), own.posterior[0, word.words[0].ids], strict=True):
            law[TEXT8_ALPHABET.index(WORDS[index][at])] += chance
        wanted = (1 - SHARE) * alone.posterior[at] + SHARE * law / law.sum()
        assert torch.allclose(found.posterior[at], wanted, atol=1e-5), letter
    kept = alone.rows[-3]
    assert kept is not None and torch.equal(found.posterior[kept:], alone.posterior[kept:])  # zyzyva
    assert found.text[3:] == " 1?3 cat zyzyva"


def test_the_best_string_of_a_mixture_need_not_have_the_likeliest_letters() -> None:
    own = torch.tensor([[0.4, 0.6, 0.0], [0.5, 0.5, 0.0]]).double()
    strings, chance = torch.tensor([[0, 2], [1, 2]]), torch.tensor([0.9, 0.1]).double()
    law, best = _mixed(own, torch.tensor([1, 0]), strings, chance)
    assert best.tolist() == [0, 2]  # 0.3 * 0.9, and the own string has 0.7 * 0.6 * 0.5
    assert torch.allclose(law.sum(1), torch.ones(2)) and float(law[0, 0]) == pytest.approx(0.7 * 0.4 + 0.3 * 0.9)
    assert _mixed(own, torch.tensor([1, 0]), strings, torch.tensor([0.5, 0.5]).double())[1].tolist() == [1, 0]


def test_what_words_are_for_is_said(letters: LanguageModel, model: LanguageModel) -> None:
    unknown = restore(letters, "zyzyva", words=model)
    assert unknown.text == "zyzyva" and torch.equal(unknown.posterior, restore(letters, "zyzyva").posterior)
    for one, evidence, words, message in (
        (letters, "the", letters, "letters has no word pieces"),
        (letters, torch.zeros(3, 27), model, "words are read in a text"),
        (model, "the", model, "has word pieces itself"),
    ):
        with pytest.raises(InputError, match=message):
            restore(one, evidence, words=words)


@pytest.mark.parametrize("alphabet", ["ACGT", LETTERS + LETTERS.upper()])
def test_words_are_of_lower_case(alphabet: str) -> None:
    with pytest.raises(InputError, match="a to z in lower case"):
        from_reading(from_text("ACG", alphabet), alphabet, PIECES)


def test_a_channel_of_all_symbols_is_that_of_letters(letters: LanguageModel, model: LanguageModel) -> None:
    table = {"h": {"h": 0.2, "b": 0.7, " ": 0.1}}
    assert restore(letters, "Tbe cat", channel=table, words=model).text == "The cat"

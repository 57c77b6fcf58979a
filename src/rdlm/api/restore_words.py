"""Restoration of words from misread letters, by a model of word pieces: the posterior of every word, Eq. (57)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.api.decoding import sequence_posterior
from rdlm.api.language_model import LanguageModel
from rdlm.api.reading_likelihood import LEAST_ERROR, ErrorRate
from rdlm.api.restore import CHANNELS, Channel, Restoration, matrix_of
from rdlm.data.evidence import Reading, put_back
from rdlm.data.tokenizer import Subwords
from rdlm.data.word_evidence import LETTERS, WordReading, from_reading, from_words, has_word_pieces
from rdlm.errors import InputError, unknown

ITERATIONS = 4
"""Iterations of the estimate of an error rate."""

SHARE = 0.3
"""Share of the model of word pieces in a mixture with a model of characters: chosen on validation text, where shares
from 0.2 to 0.4 differ little (docs/log/2026-11-20-restoration-gaps-and-words.md)."""


def read_words_through(
    model: LanguageModel,
    text: str,
    channel: Channel | None = None,
    error: float | Literal["auto"] | None = None,
    literal: bool = False,
) -> tuple[WordReading, ErrorRate | None]:
    """Return the reading of a text, and the error rate of the channel if it has one.

    Notation and channels are those of `rdlm.api.restore.read_text_through`, over 26 letters.
    """
    read = partial(from_words, text, model.tokenizer, literal=literal)
    if not isinstance(channel, str):
        return read(matrix_of(channel, error, LETTERS)), None
    if channel not in CHANNELS:
        raise unknown("channel", channel, CHANNELS)
    error = 0.1 if error is None else error
    rate = _estimated(model, partial(_through, read, channel)) if error == "auto" else error
    return _through(read, channel, rate), ErrorRate(rate)


def restore_words(model: LanguageModel, reading: WordReading, whole: bool = False, **options: Any) -> Restoration:
    """Return a text with the most likely pieces of its words; options are those of `sequence_posterior`.

    What has no letters, and words that no piece resembles, are kept.
    """
    if whole:
        raise InputError("whole is for models of characters: leave it out")
    posterior, drawn = sequence_posterior(model, reading.evidence, **options)
    assert isinstance(model.tokenizer, Subwords)
    symbols = _symbols(model.tokenizer)
    chosen, passes = posterior.argmax(-1), options.get("passes", 0)
    text, *samples = (_spelled(reading, symbols, row) for row in (chosen.tolist(), *drawn.tolist()))
    read = "".join(char or "?" for char in reading.read)
    calls = passes * options.get("steps", 64) if passes else 1
    return Restoration(text, read, symbols, posterior, chosen, tuple(samples), calls, reading.rows)


def mixed_with_words(found: Restoration, reading: Reading, model: LanguageModel) -> Restoration:
    """Return the restoration of a text under a mixture, in which a model of word pieces has the share `SHARE`.

    The posterior is that of the mixture. The letters of a word are those of its likeliest string among the candidates
    and the one that the model of characters chose, whose law there has independent letters. What is not a word with
    candidates is left as it was.
    """
    if not has_word_pieces(model.tokenizer):
        raise InputError(f"{model.name} has no word pieces: words need a model of them, such as the packaged words")
    words = from_reading(reading, "".join(found.symbols), model.tokenizer)
    if not words.words or found.rows is None:
        return found
    laws, _ = sequence_posterior(model, words.evidence)
    alphabet = torch.tensor([found.symbols.index(letter) for letter in LETTERS])
    posterior, chosen = found.posterior.clone(), found.chosen.clone()
    for row, group in groupby(range(len(words.rows)), lambda at: words.rows[at]):
        own = [found.rows[at] for at in group]
        if row is None or None in own:  # a gap in a number has no position
            continue
        word = words.words[row]
        strings, chance = alphabet[word.letters], laws[row, word.ids].double()
        posterior[own], chosen[own] = _mixed(found.posterior[own].double(), chosen[own], strings, chance / chance.sum())
    text = put_back(reading.read, reading.seen, (found.symbols[index] for index in chosen.tolist()))
    return replace(found, text="".join(text), posterior=posterior, chosen=chosen)


def _mixed(
    own: Float[Tensor, "length v"],
    chosen: Int[Tensor, " length"],
    strings: Int[Tensor, "n length"],
    chance: Float[Tensor, " n"],
) -> tuple[Float[Tensor, "length v"], Int[Tensor, " length"]]:
    """Return the mixture of the laws of a word's letters with strings of given probabilities, and its best string."""
    law = torch.zeros_like(own).scatter_add_(1, strings.t(), chance.expand(len(own), -1))
    every = torch.cat([strings, chosen[None]])
    likely = (1 - SHARE) * own.gather(1, every.t()).prod(0)
    likely[:-1] += SHARE * chance
    return ((1 - SHARE) * own + SHARE * law).float(), every[likely.argmax()]


def _through(read: Callable[..., WordReading], channel: str, error: float) -> WordReading:
    return read(CHANNELS[channel](LETTERS, error))


def _estimated(model: LanguageModel, reading: Callable[[float], WordReading]) -> float:
    """Return the error rate of a channel by expectation maximisation: the expected share of wrong letters."""
    rate = 0.1
    for _ in range(ITERATIONS):
        found = reading(rate)
        letters = sum(bool(view) for view in found.seen)
        if not letters:
            raise InputError("an error rate cannot be estimated from a text without readable words")
        posterior, _ = sequence_posterior(model, found.evidence)
        wrong = sum(float(posterior[row, word.ids] @ word.wrong.float()) for row, word in found.words.items())
        rate = min(max(wrong / letters, LEAST_ERROR), 0.9)
    return rate


@lru_cache(maxsize=2)
def _symbols(tokenizer: Subwords) -> tuple[str, ...]:
    """Return the text of each token."""
    return tuple(tokenizer.decode([index]) for index in range(tokenizer.size))


def _spelled(reading: WordReading, symbols: tuple[str, ...], tokens: list[int]) -> str:
    """Return a text whose uncertain words are those of tokens."""
    letters = []
    for row, _ in groupby(reading.rows):
        if row is not None:
            letters += list(symbols[tokens[row]])
    return "".join(put_back(reading.read, reading.seen, letters))

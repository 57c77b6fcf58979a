"""Evidence about word pieces from misread letters: a word that was read is one position, its candidates are pieces.

A channel reads letter by letter, so the log-likelihood of a piece of `n` letters is the sum over its letters of
`log channel[true, read]`, and pieces of another length are impossible. Everything else is known: punctuation, numbers,
and words that no piece resembles, such as names of several pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.data.evidence import MOST_NUMBERS, Evidence, Read, Reading, Seen, nearest_symbol, text_places
from rdlm.data.tokenizer import Subwords, Tokenizer
from rdlm.errors import InputError

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
"""The alphabet of a channel between words."""

MOST_WRONG: Final = 3
"""A piece may be the word that was read if at most one of so many letters is wrong, or one in a shorter word."""

Place = tuple[Read, str]
"""A character, None if it is unreadable, and its alternatives."""


class Candidates(NamedTuple):
    """The pieces that may be a word that was read."""

    ids: Int[Tensor, " n"]
    log_likelihood: Float[Tensor, " n"]
    letters: Int[Tensor, "n length"]
    wrong: Int[Tensor, " n"]
    """How many of the letters that were read are not those of the piece."""


class WordReading(NamedTuple):
    """A text as it was read, and the evidence about the pieces of its words."""

    evidence: Evidence
    read: tuple[Read, ...]
    """The characters."""
    seen: tuple[Seen, ...]
    """The letter of each character of an uncertain word, None for gaps; the empty string for all that is kept."""
    rows: tuple[int | None, ...]
    """The position of each character of an uncertain word."""
    words: dict[int, Candidates]
    """The candidates of the positions of uncertain words."""
    name: str = ""

    @property
    def kept(self) -> int:
        """The number of characters other than blanks that stay as they are."""
        pairs = zip(self.read, self.rows, strict=True)
        return sum(row is None and char is not None and not char.isspace() for char, row in pairs)


Spellings = dict[int, tuple[Int[Tensor, " n"], Int[Tensor, "n length"]]]
"""By length, the ids of pieces that are whole words of letters, and the letters of each."""


def has_word_pieces(tokenizer: Tokenizer) -> bool:
    """Return whether tokens are WordPieces, whose words can be restored."""
    return isinstance(tokenizer, Subwords) and tokenizer.kind == "wordpiece"


def from_words(
    text: str, tokenizer: Tokenizer, channel: Float[Tensor, "26 26"] | None = None, literal: bool = False
) -> WordReading:
    """Return the evidence of a text in the notation of `rdlm.data.evidence.from_text`, read through a letter channel.

    Without a channel, letters that can be read are certain.
    """
    found = _from_places(text_places(text, LETTERS, literal), tokenizer, channel)
    if not found.words:
        raise InputError("there is nothing to restore: no word of the text resembles one of the model's")
    return found


def from_reading(reading: Reading, alphabet: str, tokenizer: Tokenizer) -> WordReading:
    """Return the evidence about the words, if any, of a text that was read through a channel over an alphabet."""
    if not reading.alternatives:
        raise InputError("words are read in a text, not in evidence of positions")
    if not set(LETTERS) <= set(alphabet) or set(LETTERS.upper()) & set(alphabet):
        raise InputError(f"words need a model whose letters are a to z in lower case; its alphabet is {alphabet!r}")
    channel, index = reading.channel, [alphabet.index(letter) for letter in LETTERS]
    if channel is not None:
        channel = channel[index][:, index]
        channel = channel / channel.sum(1, keepdim=True).clamp_min(torch.finfo(channel.dtype).tiny)
    return _from_places(list(zip(reading.read, reading.alternatives, strict=True)), tokenizer, channel)


def _from_places(places: Sequence[Place], tokenizer: Tokenizer, channel: Float[Tensor, "26 26"] | None) -> WordReading:
    """Return the evidence about the words of characters that were read through a channel of letters."""
    assert isinstance(tokenizer, Subwords)
    spellings = _spellings(tokenizer)
    letters: list[Seen] = [None if char is None else nearest_symbol(char, LETTERS) for char, _ in places]
    log_channel = (torch.eye(len(LETTERS)) if channel is None else channel).double().log()
    seen: list[Seen] = [""] * len(places)
    rows: list[int | None] = [None] * len(places)
    tokens: list[int] = []  # those of uncertain words are not used
    words = {}
    for is_word, group in groupby(range(len(places)), lambda at: places[at][0] is None or letters[at] is not None):
        span = list(group)
        found = _candidates(places, letters, span, log_channel, spellings) if is_word else None
        if found is None:
            tokens += tokenizer.encode("".join(places[at][0] or "" for at in span)).tolist()
            continue
        for at in span:
            seen[at], rows[at] = letters[at], len(tokens)
        words[len(tokens)] = found
        tokens.append(int(found.ids[0]))
    return WordReading(
        _evidence(tokens, words, tokenizer.size), tuple(char for char, _ in places), tuple(seen), tuple(rows), words
    )


def _evidence(tokens: list[int], words: dict[int, Candidates], size: int) -> Float[Tensor, "positions v"]:
    """Return the evidence of certain tokens, and of words with candidates."""
    if len(tokens) * size > MOST_NUMBERS:
        raise InputError(
            f"the text has {len(tokens):,} word pieces, more than {MOST_NUMBERS // size:,}: give the parts one by one"
        )
    evidence = torch.full((len(tokens), size), -math.inf)
    evidence[torch.arange(len(tokens)), torch.tensor(tokens)] = 0.0
    for row, found in words.items():
        evidence[row] = -math.inf
        evidence[row, found.ids] = found.log_likelihood.float()
    return evidence


def _candidates(
    places: Sequence[Place],
    letters: Sequence[Seen],
    span: Sequence[int],
    log_channel: Float[Tensor, "26 26"],
    spellings: Spellings,
) -> Candidates | None:
    """Return the pieces that may be the word at some places; None if there are none."""
    if len(span) not in spellings:
        return None
    ids, spelled = spellings[len(span)]
    likelihood = torch.zeros(len(ids), dtype=torch.float64)
    wrong = torch.zeros(len(ids), dtype=torch.long)
    for column, at in enumerate(span):
        letter, alternatives = letters[at], places[at][1]
        if letter is not None:
            read = LETTERS.index(letter)
            likelihood += log_channel[spelled[:, column], read]
            wrong += spelled[:, column] != read
        elif alternatives:
            likelihood += _among(alternatives, at)[spelled[:, column]]
    possible = (likelihood > -math.inf) & (wrong <= max(1, len(span) // MOST_WRONG))
    if not bool(possible.any()):
        return None
    return Candidates(ids[possible], likelihood[possible], spelled[possible], wrong[possible])


def _among(alternatives: str, at: int) -> Float[Tensor, " 26"]:
    """Return the evidence of `[ae]`: any of these letters, and no other."""
    row = torch.full((len(LETTERS),), -math.inf, dtype=torch.float64)
    for letter in alternatives:
        near = nearest_symbol(letter, LETTERS)
        if near is None:
            raise InputError(f"alternative {letter!r} at position {at} is not a letter")
        row[LETTERS.index(near)] = 0.0
    return row


@lru_cache(maxsize=2)
def _spellings(tokenizer: Subwords) -> Spellings:
    """Return the whole words of letters among the pieces."""
    found: dict[int, list[tuple[int, list[int]]]] = {}
    for piece, number in tokenizer.inner.get_vocab().items():
        if piece and all(letter in LETTERS for letter in piece):
            found.setdefault(len(piece), []).append((number, [LETTERS.index(letter) for letter in piece]))
    return {
        length: (
            torch.tensor([number for number, _ in sorted(pieces)]),
            torch.tensor([letters for _, letters in sorted(pieces)]),
        )
        for length, pieces in found.items()
    }

"""Restoration: the posterior of a sequence given uncertain evidence about every position, Eq. (57).

Evidence `log lambda_i(k)` from a reading is added to that of the process, at the start of which there is none. One
network call gives the posterior of every position; the sampler, started from the evidence, draws whole sequences from
the joint posterior.

| function | what it returns | network calls |
|---|---|---|
| `restore` | posterior of every position; samples | 1, or `passes * steps`; `steps` per window for samples |
| `restore_reads` | posteriors of many short readings | 1 for readings of equal length together |
| `restore_image` | the same of an image with noise | the same |

`decoding` treats long sequences in windows; `reading_likelihood` bounds the likelihood of a reading and estimates error
rates; `restore_words` is for models of word pieces, alone or beside a model of characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rdlm.api.decoding import (
    WHOLE_CALLS,
    check_evidence,
    likeliest,
    marginals,
    rows_of_call,
    sequence_posterior,
)
from rdlm.api.language_model import LanguageModel, load
from rdlm.api.reading_likelihood import ErrorRate, estimate_error
from rdlm.config import OrderName
from rdlm.data.channels import channel_matrix, confusion_of, keyboard, symmetric
from rdlm.data.evidence import (
    Evidence,
    Reading,
    from_array,
    from_laws,
    from_levels,
    from_text,
    is_kept,
    put_back,
)
from rdlm.data.word_evidence import LETTERS, WordReading, has_word_pieces
from rdlm.errors import InputError, unknown

UNSURE: Final = 0.05
"""Least probability of an alternative that is reported."""

CHANNELS: Final = {"symmetric": symmetric, "keyboard": keyboard}
"""Channels with an error rate, by name."""

Array = NDArray[np.floating[Any]]
Laws = Sequence[Mapping[str, float]]
Table = Mapping[str, Mapping[str, float]]
Channel = str | Float[Tensor, "v v"] | Array | Table


@dataclass(frozen=True, eq=False)
class Restoration:
    """The posterior of a sequence, its most likely symbols, and samples of it."""

    text: str
    """The restored text, and what was kept of the reading."""
    read: str
    """What was read; `?` where nothing was."""
    symbols: tuple[str, ...]
    """The text of each token of the vocabulary."""
    posterior: Float[Tensor, "positions v"]
    chosen: Int[Tensor, " positions"]
    """The token of every position: the most likely one, or that of the likeliest whole text."""
    samples: tuple[str, ...]
    calls: int
    """Network calls per window for the posterior and the choice."""
    rows: tuple[int | None, ...] | None = None
    """For every character its row of the posterior, None where it was kept as it was read; None: one row each."""

    @property
    def certainty(self) -> Float[Tensor, " characters"]:
        """The posterior probability of every character of the text; 1 where it was kept."""
        found = self.posterior.gather(-1, self.chosen[:, None])[:, 0]
        if self.rows is None:
            return found
        row = torch.tensor([-1 if row is None else row for row in self.rows])
        return torch.where(row < 0, 1.0, found[row.clamp_min(0)])

    @property
    def changed(self) -> list[int]:
        """The places whose character is not the one that was read."""
        return [at for at, (new, old) in enumerate(zip(self.text, self.read, strict=True)) if new != old]

    def alternatives(self, place: int) -> dict[str, float]:
        """Return other symbols of a character with a probability of at least `UNSURE`, the most likely first."""
        row = place if self.rows is None else self.rows[place]
        if row is None:
            return {}
        likely, index = self.posterior[row].topk(min(int(1 / UNSURE) + 1, len(self.symbols)))
        pairs, chosen = zip(index.tolist(), likely.tolist(), strict=True), int(self.chosen[row])
        return {self.symbols[index]: sure for index, sure in pairs if sure >= UNSURE and index != chosen}

    def to_json(self) -> dict[str, Any]:
        """Return the restoration as plain values."""
        certainty = self.certainty
        best = [self.symbols[index] for index in self.chosen.tolist()]
        symbols = best if self.rows is None else [None if row is None else best[row] for row in self.rows]
        zipped = zip(self.text, symbols, self.read, certainty.tolist(), strict=True)
        places = [
            {"char": char, "symbol": symbol, "read": read, "probability": sure, "alternatives": self.alternatives(at)}
            for at, (char, symbol, read, sure) in enumerate(zipped)
        ]
        about = {"text": self.text, "read": self.read, "changed": len(self.changed), "calls": self.calls}
        return {**about, "expected_errors": float((1 - certainty).sum()), "positions": places} | (
            {"samples": list(self.samples)} if self.samples else {}
        )

    def __repr__(self) -> str:
        share = float(self.certainty.mean())
        return (
            f"<Restoration of {len(self.text)} symbols, {len(self.changed)} changed, {share:.1%} sure: {self.text!r}>"
        )


def restore(
    model: LanguageModel | str | Path | None,
    evidence: str | Evidence | Array | Laws | Reading | WordReading,
    read: str | None = None,
    *,
    channel: Channel | None = None,
    error: float | Literal["auto"] | None = None,
    literal: bool = False,
    words: LanguageModel | str | Path | None = None,
    whole: bool = False,
    passes: int = 0,
    samples: int = 0,
    steps: int = 64,
    order: OrderName = "synchronous",
    seed: int = 0,
    progress: Callable[[int], object] = lambda windows: None,
) -> Restoration:
    """Return the posterior of an uncertain text, of a reading, or given evidence.

    Evidence is a tensor or an array of log-likelihoods [positions, V], or one {symbol: probability} per position.
    `model` is a model or what `rdlm.load` takes. A text has the notation of `rdlm.data.evidence.from_text` and was read
    through a channel: `symmetric` or `keyboard` with an error rate, by default 0.1, or a matrix [true, read]; with
    `literal`, its question marks and brackets are ordinary characters. `read` is shown beside the result. The posterior
    is that of one network call, or the mean over `passes` of the sampler in `steps` calls each. The text has the most
    likely symbol of every position, or, with `whole`, it is the likeliest whole text that is found in `WHOLE_CALLS`
    more calls. `samples` of the joint posterior are drawn in `steps` calls per window. With a model of word pieces,
    `words`, the posterior of a text is a mixture with that of its words.
    """
    model = model if isinstance(model, LanguageModel) else load(model)
    if isinstance(evidence, str):
        evidence, _ = read_text_through(model, evidence, channel, error, literal)
    elif channel is not None or error is not None or literal:
        raise InputError("channel, error and literal are for a text: evidence has the probabilities already")
    elif not isinstance(evidence, Reading | WordReading | Tensor):
        evidence = _reading(model, evidence)
    if isinstance(evidence, WordReading):
        from rdlm.api.restore_words import restore_words

        if words is not None:
            raise InputError(f"{model.name} has word pieces itself: words are for a model of characters")
        sampled = {"passes": passes, "samples": samples, "steps": steps, "order": order, "seed": seed}
        return restore_words(model, evidence, whole, progress=progress, **sampled)
    given = evidence.evidence if isinstance(evidence, Reading) else evidence
    posterior, drawn = sequence_posterior(
        model, given, passes=passes, samples=samples, steps=steps, order=order, seed=seed, progress=progress
    )
    reading = evidence if isinstance(evidence, Reading) else Reading(given, "?" * len(given))
    reading = reading._replace(symbols=read or reading.symbols)
    found = _restoration(model, reading, posterior, drawn, passes * steps if passes else 1, whole)
    if words is None:
        return found
    from rdlm.api.restore_words import mixed_with_words

    return mixed_with_words(found, reading, words if isinstance(words, LanguageModel) else load(words))


def _reading(model: LanguageModel, given: Array | Laws) -> Reading:
    alphabet = "".join(symbols_of(model))
    if isinstance(given, np.ndarray):
        return from_array(given, alphabet)
    if isinstance(given, Sequence) and given and all(isinstance(law, Mapping) for law in given):
        return from_laws(given, alphabet)
    raise InputError(
        "restore takes a text, a tensor or an array of log-likelihoods [positions, V], or a list of one "
        f"{{symbol: probability}} per position, got a {type(given).__name__}; several texts are restored one by one"
    )


@torch.no_grad()
def restore_reads(
    model: LanguageModel, readings: Sequence[Reading], progress: Callable[[int], object] = lambda windows: None
) -> list[Restoration]:
    """Return `restore` of many readings, up to rounding; those of equal length, if it is one window, share calls."""
    size = torch.tensor([len(reading.evidence) for reading in readings])
    found: dict[int, Restoration] = {}
    for length in size.unique().tolist():
        for part in (size == length).nonzero().flatten().split(rows_of_call(length)):
            if length > model.length:
                found |= {number: restore(model, readings[number], progress=progress) for number in part.tolist()}
                continue
            given = torch.stack([check_evidence(model, readings[number].evidence) for number in part])  # [B, L, V]
            for number, posterior in zip(part.tolist(), marginals(model, given), strict=True):
                found[number] = _restoration(model, readings[number], posterior, posterior.new_zeros(0, length), 1)
            progress(len(part))
    return [found[number] for number in range(len(readings))]


def _restoration(
    model: LanguageModel, reading: Reading, posterior: Tensor, drawn: Tensor, calls: int, whole: bool = False
) -> Restoration:
    """Return a posterior and samples with their texts, and what was kept of a reading."""
    symbols, read, rows = symbols_of(model), reading.symbols, None
    chosen = likeliest(model, check_evidence(model, reading.evidence)) if whole else posterior.argmax(-1)
    texts = [[symbols[index] for index in row] for row in (chosen.tolist(), *drawn.tolist())]
    if reading.read:
        texts = [put_back(reading.read, reading.seen, text) for text in texts]
        read, rows = "".join(char or "?" for char in reading.read), _rows_of_characters(reading)
    text, *others = ("".join(text) for text in texts)
    return Restoration(text, read, symbols, posterior, chosen, tuple(others), calls + WHOLE_CALLS * whole, rows)


def _rows_of_characters(reading: Reading) -> tuple[int | None, ...]:
    """Return the row of the posterior of each character, None for those that are kept."""
    rows: list[int | None] = []
    row = 0
    for char, view in zip(reading.read, reading.seen, strict=True):
        rows.append(None if is_kept(char, view) else row)
        row += view != ""
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class ImageRestoration:
    """The posterior of an image, [height, width, channels, levels], and samples of it, in levels."""

    given: Float[Tensor, "height width channels"]
    """The levels that were observed, from 0 to 1; noise may exceed that."""
    posterior: Float[Tensor, "height width channels v"]
    samples: Int[Tensor, "samples height width channels"]
    calls: int

    @property
    def levels(self) -> Int[Tensor, "height width channels"]:
        """The most likely level of every pixel."""
        return self.posterior.argmax(-1)

    @property
    def mean(self) -> Float[Tensor, "height width channels"]:
        """The mean of the posterior, from 0 to 1; it has the least expected squared error."""
        return self.posterior @ torch.linspace(0, 1, self.posterior.shape[-1])

    def to_json(self) -> dict[str, Any]:
        """Return the restoration as plain values: nested lists of height, width and channels."""
        certainty = self.posterior.amax(-1)
        about: dict[str, Any] = {"shape": list(self.levels.shape), "levels": self.levels.tolist()}
        about |= {"mean": self.mean.tolist(), "probability": certainty.tolist()}
        about |= {"expected_errors": float((1 - certainty).sum())}
        return {**about, "calls": self.calls} | ({"samples": self.samples.tolist()} if len(self.samples) else {})


def restore_image(
    model: LanguageModel, given: Float[Tensor, "height width channels"], noise: float, **options: Any
) -> ImageRestoration:
    """Return the posterior of an image observed with Gaussian noise; levels and noise are in units of the whole range.

    Options are those of `sequence_posterior`.
    """
    shape = model.about["image"]
    if shape is None:
        raise InputError(f"{model.name} is a model of {model.kind}, not of images")
    if list(given.shape) != list(shape):
        raise InputError(f"{model.name} has images of {_size(shape)}; this one has {_size(given.shape)}")
    top = model.tokenizer.size - 1
    evidence = from_levels(given.flatten() * top, model.tokenizer.size, noise * top)
    posterior, drawn = sequence_posterior(model, evidence, **options)
    calls = options["passes"] * options.get("steps", 64) if options.get("passes") else 1
    return ImageRestoration(given, posterior.view(*shape, -1), drawn.view(-1, *shape), calls)


def _size(shape: Sequence[int]) -> str:
    height, width, *channels = shape
    return f"{width} x {height} pixels" + (f" and {channels[0]} channels" if channels and channels[0] > 1 else "")


def read_text_through(
    model: LanguageModel,
    text: str,
    channel: Channel | None = None,
    error: float | Literal["auto"] | None = None,
    literal: bool = False,
) -> tuple[Reading | WordReading, ErrorRate | None]:
    """Return the reading of a text with gaps and alternatives, and the error rate of the channel if it has one.

    `channel` is `symmetric`, `keyboard`, a matrix [true, read] of probabilities or {true: {read: probability}}, or
    None: what can be read is right. The error rate of the first two is 0.1 by default. With `literal` there are no
    gaps: all characters are ordinary. A model of word pieces reads words through a channel of letters.
    """
    if has_word_pieces(model.tokenizer):
        from rdlm.api.restore_words import read_words_through

        return read_words_through(model, text, channel, error, literal)
    alphabet = channel_alphabet(model)
    if not isinstance(channel, str):
        return from_text(text, alphabet, matrix_of(channel, error, alphabet), literal), None
    if channel not in CHANNELS:
        raise unknown("channel", channel, CHANNELS)
    make, error = CHANNELS[channel], 0.1 if error is None else error
    if error == "auto":
        read = _symbols_through_channel(from_text(text, alphabet, None, literal), alphabet)
        rate = estimate_error(
            model, lambda rate: from_text(text, alphabet, make(alphabet, rate), literal).evidence, read
        )
    else:
        rate = ErrorRate(error)
    return from_text(text, alphabet, make(alphabet, rate.value), literal), rate


def matrix_of(
    channel: Tensor | Array | Table | None, error: float | str | None, alphabet: str
) -> Float[Tensor, "v v"] | None:
    """Return the matrix of a channel without an error rate, which must not be given; None for no channel."""
    if error is not None:
        raise InputError(f"an error rate needs a channel that has one: {' or '.join(CHANNELS)}")
    matrix = confusion_of(channel, alphabet) if isinstance(channel, Mapping) else channel
    return None if matrix is None else channel_matrix(matrix, alphabet)


def _symbols_through_channel(reading: Reading, alphabet: str) -> Int[Tensor, " positions"]:
    """Return the symbols that were read through the channel; -1 for gaps and for characters that are kept."""
    pairs = [(char, view) for char, view in zip(reading.read, reading.seen, strict=True) if view != ""]
    return torch.tensor([-1 if view is None or is_kept(char, view) else alphabet.index(view) for char, view in pairs])


def channel_alphabet(model: LanguageModel) -> str:
    """Return the characters of a channel through which a model reads texts: its own, or letters for word pieces."""
    return LETTERS if has_word_pieces(model.tokenizer) else "".join(symbols_of(model))


def symbols_of(model: LanguageModel) -> tuple[str, ...]:
    """Return the text of each token; InputError unless each is one character."""
    found = tuple(model.tokenizer.decode([index]) for index in range(model.tokenizer.size))
    if has_word_pieces(model.tokenizer):
        raise InputError(f"{model.name} has word pieces: it restores the words of a text, read through a channel")
    if any(len(symbol) != 1 for symbol in found):
        raise InputError(f"{model.name} has tokens of several characters: restore needs one character per position")
    return found


def cannot_restore(model: LanguageModel) -> str | None:
    """Return why a model cannot restore; None if it can."""
    try:
        model.rdlm.denoiser.check_given()
        channel_alphabet(model)
    except InputError as reason:
        return str(reason)
    return None

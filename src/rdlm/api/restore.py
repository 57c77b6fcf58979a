"""Restoration: the posterior of a sequence given uncertain evidence about every position, Eq. (57).

Evidence `log lambda_i(k)` from a reading is added to that of the process, at the start of which there is none. One
network call gives the posterior of every position; the sampler, started from the evidence, draws whole sequences from
the joint posterior. A long sequence is treated in overlapping windows of the model's length: a position's posterior is
that of the window in which it is farthest from the ends, and samples continue behind what they have decided.

| function | what it returns | network calls |
|---|---|---|
| `restore` | posterior of every position; samples | 1, or `passes * steps`; `steps` per window for samples |
| `restore_reads` | posteriors of many short readings | 1 for readings of equal length together |
| `restore_image` | the same of an image with noise | the same |
| `estimate_error` | the error rate under which a reading is most likely, with an interval | a few |

`reading_likelihood` bounds the likelihood of a reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from rdlm.api.decoding import (
    CERTAIN,
    WHOLE_CALLS,
    certain,
    draw_given,
    likeliest_given,
    posterior_of,
    refined_posterior,
    rows_of_call,
)
from rdlm.api.language_model import LanguageModel, load
from rdlm.config import LONGEST, OrderName
from rdlm.data.channels import channel_matrix, confusion_of, keyboard, symmetric
from rdlm.data.evidence import (
    Reading,
    from_array,
    from_laws,
    from_levels,
    from_text,
    is_kept,
    put_back,
)
from rdlm.data.word_evidence import has_word_pieces
from rdlm.errors import InputError, check_integer, unknown
from rdlm.random import generator_of

SHARED: Final = 32
"""Positions that neighbouring windows share; half of a window that is shorter than twice as many."""

UNSURE: Final = 0.05
"""Least probability of an alternative that is reported."""

ITERATIONS: Final = 30
"""Most iterations of the estimate of an error rate."""

LEAST_ERROR: Final = 1e-4
"""Smallest estimate of an error rate."""

STEEPEST: Final = 0.95
"""Largest slope by which iterations are extrapolated."""

SPREAD, FEW = 32, 4
"""Windows of a long text in which an error rate is estimated; one of so many of them is read for a first estimate."""

CHANNELS: Final = {"symmetric": symmetric, "keyboard": keyboard}
"""Channels with an error rate, by name."""

Evidence = Float[Tensor, "positions v"]
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
    evidence: str | Evidence | Array | Laws | Reading,
    read: str | None = None,
    *,
    channel: Channel | None = None,
    error: float | Literal["auto"] | None = None,
    literal: bool = False,
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
    more calls. `samples` of the joint posterior are drawn in `steps` calls per window.
    """
    model = model if isinstance(model, LanguageModel) else load(model)
    if isinstance(evidence, str) and has_word_pieces(model.tokenizer):
        from rdlm.api.restore_words import read_words_through, restore_words

        words, _ = read_words_through(model, evidence, channel, error, literal)
        sampled = {"passes": passes, "samples": samples, "steps": steps, "order": order, "seed": seed}
        return restore_words(model, words, whole, progress=progress, **sampled)
    if isinstance(evidence, str):
        evidence, _ = read_text_through(model, evidence, channel, error, literal)
    elif channel is not None or error is not None or literal:
        raise InputError("channel, error and literal are for a text: evidence has the probabilities already")
    elif not isinstance(evidence, Reading | Tensor):
        evidence = _reading(model, evidence)
    given = evidence.evidence if isinstance(evidence, Reading) else evidence
    posterior, drawn = sequence_posterior(
        model, given, passes=passes, samples=samples, steps=steps, order=order, seed=seed, progress=progress
    )
    reading = evidence if isinstance(evidence, Reading) else Reading(given, "?" * len(given))
    reading = reading._replace(symbols=read or reading.symbols)
    return _restoration(model, reading, posterior, drawn, passes * steps if passes else 1, whole)


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
            for number, posterior in zip(part.tolist(), _marginals(model, given), strict=True):
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


@torch.no_grad()
def sequence_posterior(
    model: LanguageModel,
    evidence: Evidence,
    *,
    passes: int = 0,
    samples: int = 0,
    steps: int = 64,
    order: OrderName = "synchronous",
    seed: int = 0,
    progress: Callable[[int], object] = lambda windows: None,
) -> tuple[Float[Tensor, "positions v"], Int[Tensor, "samples positions"]]:
    """Return the posterior of every position and samples of the joint posterior, as `restore` explains them.

    `progress` is given the number of windows that are done: each is counted once, and once more for samples.
    """
    evidence = check_evidence(model, evidence)
    for name, value, least in (("passes", passes, 0), ("samples", samples, 0), ("steps", steps, 1)):
        check_integer(name, value)
        if not least <= value <= LONGEST:
            raise InputError(f"{name} must be at least {least} and at most {LONGEST:,}, got {value}")
    if order not in get_args(OrderName):
        raise unknown("order", order, get_args(OrderName))
    spans = overlapping_windows(len(evidence), model.length)
    parts = torch.stack([evidence[begin:end] for begin, end in spans])  # [windows, L, V]
    found = []
    for index, batch in enumerate(parts.split(rows_of_call(parts.shape[1]))):
        generator = generator_of("restore", seed, index)
        if passes:
            found.append(refined_posterior(model.rdlm, batch, passes, steps, order, generator))
        else:
            found.append(_marginals(model, batch))
        progress(len(batch))
    posterior = _joined(torch.cat(found), spans, len(evidence))
    draw = partial(draw_given, model.rdlm, steps=steps, order=order, generator=generator_of("restore samples", seed))
    return posterior, _in_windows(evidence, spans if samples else [], samples, draw, progress)


def read_text_through(
    model: LanguageModel,
    text: str,
    channel: Channel | None = None,
    error: float | Literal["auto"] | None = None,
    literal: bool = False,
) -> tuple[Reading, ErrorRate | None]:
    """Return the reading of a text with gaps and alternatives, and the error rate of the channel if it has one.

    `channel` is `symmetric`, `keyboard`, a matrix [true, read] of probabilities or {true: {read: probability}}, or
    None: what can be read is right. The error rate of the first two is 0.1 by default. With `literal` there are no
    gaps: all characters are ordinary.
    """
    alphabet = "".join(symbols_of(model))
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
        symbols_of(model)
    except InputError as reason:
        return str(reason)
    return None


def check_evidence(model: LanguageModel, evidence: Evidence) -> Float[Tensor, "positions v"]:
    """Return evidence in float32 on the model's device after checking its shape; the model must take evidence."""
    model.rdlm.denoiser.check_given()
    size = model.tokenizer.size
    if evidence.ndim != 2 or evidence.shape[1] != size or len(evidence) < 1 or evidence.is_complex():
        shape = f"{list(evidence.shape)} of {evidence.dtype}"
        raise InputError(f"evidence must have the shape [positions, {size}] and real numbers, got {shape}")
    shifted = evidence.double() - evidence.double().amax(-1, keepdim=True)
    if bool(shifted.isnan().any()):
        at = int(shifted.isnan().any(-1).nonzero()[0])
        raise InputError(f"position {at}: evidence must be finite for at least one symbol, and never NaN or +inf")
    return shifted.clamp_min(-CERTAIN).float().to(next(model.method.network.parameters()).device)


# -- posteriors ---------------------------------------------------------------------------------------


def _marginals(model: LanguageModel, evidence: Float[Tensor, "rows length v"]) -> Float[Tensor, "rows length v"]:
    return posterior_of(model.rdlm, evidence).exp().cpu()


def _in_windows(
    evidence: Evidence,
    spans: list[tuple[int, int]],
    count: int,
    decide: Callable[[Float[Tensor, "rows length v"]], Int[Tensor, "rows length"]],
    progress: Callable[[int], object],
) -> Int[Tensor, "count positions"]:
    """Return whole sequences; each window is decided given the tokens that earlier windows have decided.

    Of the positions that two windows share, the second half is decided in the later window, which has the tokens after
    them.
    """
    token = torch.zeros(count, len(evidence), dtype=torch.long)
    done = 0
    for (begin, end), following in zip(spans, [*(begin for begin, _ in spans[1:]), len(evidence)], strict=False):
        given = evidence[begin:end].expand(count, -1, -1).clone()
        given[:, : done - begin] = certain(token[:, begin:done], evidence.shape[1]).to(given)
        decided = torch.cat([decide(part).cpu() for part in given.split(rows_of_call(end - begin))])
        until = end - max(0, end - following) // 2
        token[:, done:until] = decided[:, done - begin : until - begin]
        done = until
        progress(1)
    return token


def likeliest(model: LanguageModel, evidence: Evidence) -> Int[Tensor, " positions"]:
    """Return the likeliest whole sequence that is found in every window, joined as the posteriors are."""
    spans = overlapping_windows(len(evidence), model.length)
    parts = torch.stack([evidence[begin:end] for begin, end in spans])  # [windows, L, V]
    found = [likeliest_given(model.rdlm, part).cpu() for part in parts.split(rows_of_call(parts.shape[1]))]
    return _joined(torch.cat(found)[..., None], spans, len(evidence))[:, 0]


# -- windows ------------------------------------------------------------------------------------------


def overlapping_windows(length: int, window: int) -> list[tuple[int, int]]:
    """Return spans of at most `window` positions that cover a sequence; neighbours share at least `SHARED` of them."""
    if length <= window:
        return [(0, length)]
    step = max(1, window - min(window // 2, SHARED))
    begins = [*range(0, length - window, step), length - window]
    return [(begin, begin + window) for begin in begins]


def _joined(
    parts: Shaped[Tensor, "windows w v"], spans: list[tuple[int, int]], length: int
) -> Shaped[Tensor, "length v"]:
    """Return each position's row of the window in which it is farthest from an end that is not the sequence's."""
    best, found = torch.full((length,), -1.0), parts.new_zeros(length, parts.shape[-1])
    for part, (begin, end) in zip(parts, spans, strict=True):
        place = torch.arange(begin, end)
        left = (place - begin).float() if begin > 0 else torch.full((end - begin,), math.inf)
        right = (end - 1 - place).float() if end < length else torch.full((end - begin,), math.inf)
        margin = torch.minimum(left, right)
        better = margin > best[begin:end]
        best[begin:end] = torch.where(better, margin, best[begin:end])
        found[begin:end] = torch.where(better[:, None], part, found[begin:end])
    return found


# -- error rates ----------------------------------------------------------------------


class ErrorRate(NamedTuple):
    """The error rate of a channel: a given one, or an estimate with a 95% interval."""

    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"{self.value:.3g}" + ("" if self.interval is None else " [{:.2g}, {:.2g}]".format(*self.interval))

    @staticmethod
    def of(rate: float, slope: float, symbols: int) -> ErrorRate:
        """Return an estimate from `symbols` that were read, where expectation maximisation has that slope.

        The slope is the share of the information that is missing because errors are not known: the likelihood falls
        from its maximum as that of `symbols (1 - slope)` symbols with known errors, by their number times KL(rate, x).
        The interval has all rates x at which it has fallen by less than 1.96^2 / 2.
        """
        limit = 1.96**2 / 2 / (symbols * (1 - slope))
        low, high = (_farthest(rate, end, limit) for end in (0.0, 1.0))
        return ErrorRate(rate, (low if low > LEAST_ERROR else 0.0, high))


def _farthest(rate: float, end: float, limit: float) -> float:
    """Return the rate x between `rate` and `end` at which the divergence KL(rate, x) of two coins is `limit`."""
    near, far = rate, end
    for _ in range(40):
        middle = (near + far) / 2
        divergence = rate * math.log(rate / middle) + (1 - rate) * math.log((1 - rate) / (1 - middle))
        near, far = (middle, far) if divergence < limit else (near, middle)
    return near


@torch.no_grad()
def estimate_error(
    model: LanguageModel,
    reading: Callable[[float], Evidence],
    read: Int[Tensor, " positions"],
    first: float = 0.1,
    tolerance: float = 0.01,
) -> ErrorRate:
    """Return the error rate of a channel by expectation maximisation: the expected share of wrong symbols.

    `reading` gives the evidence for an error rate, `read` the symbols that were read, -1 where nothing was. Of a long
    text `SPREAD` windows are read, and a few of them until the rate is known roughly.
    """
    if not bool((read >= 0).any()):
        raise InputError("an error rate cannot be estimated from a text without readable symbols")
    spans, rate, slope = _spread_windows(read, model.length), first, None
    for part, near in ((spans[::FEW], FEW * tolerance), (spans, tolerance)):
        rate, slope = _fixed_point(partial(_expected_errors, model, reading, read, part), rate, slope, near)
    return ErrorRate.of(rate, slope or 0.0, int(_counted_once(read, spans).sum()))


def _spread_windows(read: Int[Tensor, " positions"], window: int) -> list[tuple[int, int]]:
    """Return spans of at most `window` positions with readable symbols, evenly spread, that cover a short text."""
    size = min(window, len(read))
    count = min(SPREAD, math.ceil(len(read) / size))
    begins = [round(number * (len(read) - size) / max(count - 1, 1)) for number in range(count)]
    spans = [(begin, begin + size) for begin in begins]
    readable = [(begin, end) for begin, end in spans if bool((read[begin:end] >= 0).any())]
    return readable or overlapping_windows(len(read), size)


def _expected_errors(
    model: LanguageModel,
    reading: Callable[[float], Evidence],
    read: Int[Tensor, " positions"],
    spans: Sequence[tuple[int, int]],
    rate: float,
) -> float:
    """Return the expected share of wrong symbols among those that were read in some windows, given an error rate."""
    evidence = reading(rate)
    given = torch.stack([check_evidence(model, evidence[begin:end]) for begin, end in spans])  # [windows, L, V]
    posterior = torch.cat([_marginals(model, part) for part in given.split(rows_of_call(given.shape[1]))])
    symbol = torch.stack([read[begin:end] for begin, end in spans])
    right = posterior.gather(-1, symbol.clamp_min(0)[..., None])[..., 0]
    return float(1 - right[_counted_once(read, spans)].mean())


def _counted_once(read: Int[Tensor, " positions"], spans: Sequence[tuple[int, int]]) -> Bool[Tensor, "windows length"]:
    """Return the positions of windows at which a symbol was read; those in two windows count in the first."""
    counted = torch.stack([read[begin:end] for begin, end in spans]) >= 0
    for row, ((_, end), (begin, _)) in enumerate(pairwise(spans), 1):
        counted[row, : max(0, end - begin)] = False
    return counted


def _fixed_point(
    function: Callable[[float], float], rate: float, slope: float | None, tolerance: float
) -> tuple[float, float]:
    """Return a rate that a function maps to itself, and the function's slope there.

    Iterations are extrapolated by the slope between the last two, at first by the one given: those of EM are slow.
    """
    before: tuple[float, float] | None = None
    for _ in range(ITERATIONS):
        new = function(rate)
        if before is not None and rate != before[0]:
            slope = min(max((new - before[1]) / (rate - before[0]), 0.0), STEEPEST)
        before, step = (rate, new), (new - rate) / (1 - (slope or 0.0))
        found = min(max(rate + step, min(new, rate / 4), LEAST_ERROR), 0.99)
        if abs(found - rate) <= tolerance * rate and slope is not None:
            return found, slope
        rate = found
    return rate, slope or 0.0

"""Evidence from outside: uncertain readings of a sequence as log-likelihoods [positions, V] of its tokens.

| input | function |
|---|---|
| text with `?` or `_` for unreadable characters and `[ae]` for alternatives | `from_text` |
| one {character: probability} per position, as JSON lines | `from_json_lines` |
| a page read by Tesseract, as hOCR with the confidence of every character | `hocr.from_hocr` |
| an array of log-likelihoods | `from_array` |
| bases with Phred qualities | `from_fastq` |
| grey levels with Gaussian noise | `from_levels` |

A text was read through a channel, a matrix of `rdlm.data.channels`.

Ordinary text has characters outside of a small alphabet: `to_symbols` maps each character to the model's input, and
`put_back` writes restored symbols in the place, the case and between the punctuation of the reading.
"""

from __future__ import annotations

import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.data.tokenizer import Tokenizer, normalised
from rdlm.errors import InputError
from rdlm.storage.files import parse_json

GAPS: Final = "?_"
"""Characters that mark an unreadable position."""

CAPITAL: Final = "A"
"""A letter with the case of those that begin sentences."""

NEAR: Final = 20
"""Characters between a letter and the end of the sentence before it, at most."""

TOLERANCE: Final = 1e-3
"""Largest deviation of a sum of probabilities from 1."""

REST: Final = "rest"
"""Key of JSON lines: the probability of all symbols that are not named, together."""

MOST_NUMBERS: Final = 1 << 26
"""Most entries of a channel, and of the evidence of all sequences of a file: 512 MB."""

MOST_READS: Final = 1 << 18
"""Most reads of a file: each takes 0.7 kB of memory, however short it is."""

FASTQ_LINES: Final = "four lines: '@name', bases, '+', qualities"

Evidence = Float[Tensor, "positions v"]


# -- characters and symbols ------------------------------------------------------------------------


Read = str | None
"""A character of a reading; None for an unreadable one."""

Seen = str | None
"""The model's input for a character: a symbol of its alphabet, None for no evidence, the empty string for no
position."""


def to_symbols(read: Sequence[Read], alphabet: str) -> list[Seen]:
    """Return the model's input for each character of a reading; `put_back` is the reverse.

    A character outside of the alphabet becomes its other case or its letter without accent if that is a symbol. Runs of
    blanks, digits and punctuation become one space, with unreadable characters beside a digit; a hyphen at the end of a
    line, and runs at the ends of the text, have no position. Other letters become unreadable. InputError if the
    alphabet has no space for them.
    """
    seen: list[Seen] = []
    for char in read:
        near = None if char is None else nearest_symbol(char, alphabet)
        seen.append("" if char is not None and near is None and _is_mark(char) else near)
    if " " in alphabet:
        _join_blanks(read, seen)
        return seen
    for at, (char, view) in enumerate(zip(read, seen, strict=True)):
        if char is not None and view is None:
            if not char.isspace():
                raise InputError(f"character {char!r} at position {at} is outside the alphabet {alphabet!r}")
            seen[at] = ""
    return seen


def put_back(read: Sequence[Read], seen: Sequence[Seen], symbols: Iterable[str]) -> list[str]:
    """Return a text with one entry per character of a reading, from one restored symbol for each that the model sees.

    A character is kept if it has no restored symbol, or if that equals the model's input. A new symbol has the case of
    the character that it replaces; in a gap that of the letters around it, or a capital that begins a sentence.
    """
    rest = iter(symbols)
    capitals = any(char and view and char != view and char.isupper() for char, view in zip(read, seen, strict=True))
    text = []
    for at, (char, view) in enumerate(zip(read, seen, strict=True)):
        new = "" if view == "" else next(rest)
        if new == view or is_kept(char, view):
            text.append(char or "?")
        elif char is None and capitals and _begins_sentence(read, at):
            text.append(_in_case(new, CAPITAL))
        else:
            text.append(_in_case(new, _pattern(read, seen, at)))
    return text


def is_kept(char: Read, view: Seen) -> bool:
    """Return whether a character stays in the text whatever the model restores."""
    return view == "" or (char is not None and (view is None or (view == " " and char != " ")))


def nearest_symbol(char: str, alphabet: str) -> str | None:
    """Return the symbol for a character: itself, its other case, or the letter of which it is a form.

    Forms are letters with an accent, the long s, wide letters, and others that Unicode calls compatible.
    """
    parts = unicodedata.normalize("NFKD", char)
    base = "".join(part for part in parts if not unicodedata.combining(part))
    forms = (form(letter) for letter in (char, base) for form in (str, str.lower, str.upper))
    return next((form for form in forms if len(form) == 1 and form in alphabet), None)


def _is_mark(char: str) -> bool:
    """Return whether a character belongs to the one before it, or shows a place where a word may be divided."""
    return char == "\u00ad" or unicodedata.category(char) in ("Mn", "Me", "Cf")


def _join_blanks(read: Sequence[Read], seen: list[Seen]) -> None:
    """Map one character of every run of blanks, digits and punctuation to a space, and the others to no position."""

    digits = _gaps_in_numbers(read, seen)

    def is_blank(at: int) -> bool:
        char = read[at]
        if char is None:
            return at in digits
        return seen[at] == " " or (seen[at] is None and not char.isalpha())

    order = [at for at, view in enumerate(seen) if view != ""]
    for blank, run in groupby(order, is_blank):
        if not blank:
            continue
        places = list(run)
        spaces = [at for at in places if seen[at] == " "]
        divided = "".join(read[at] or "" for at in places) in ("-\n", "-\r\n")
        outside = places[0] == order[0] or places[-1] == order[-1]
        for at in places:
            seen[at] = ""
        if spaces or not (divided or outside):
            seen[spaces[0] if spaces else places[0]] = " "


def _gaps_in_numbers(read: Sequence[Read], seen: Sequence[Seen]) -> set[int]:
    """Return the unreadable characters that only others like them separate from a digit outside of the alphabet."""
    found: set[int] = set()
    for places in (range(len(read)), range(len(read) - 1, -1, -1)):
        beside = False
        for at in places:
            char = read[at]
            beside = beside if char is None else char.isdigit() and seen[at] is None
            if beside and char is None:
                found.add(at)
    return found


def _pattern(read: Sequence[Read], seen: Sequence[Seen], at: int) -> str:
    """Return a letter whose case a new symbol takes, or nothing if it takes none.

    This is the replaced letter where the alphabet lacks its case; for a gap it is a letter of the same word, if of the
    two nearest on each side there are at least two and all have that case.
    """
    char = read[at]
    if char is not None and char.isalpha():
        return char if char != seen[at] else ""
    near = [*_nearest_letters(read, at, -1), *_nearest_letters(read, at, 1)]
    letters = "".join(str(read[place]) for place in near)
    alike = len(near) > 1 and (letters.isupper() or letters.islower())
    return letters[0] if alike and all(read[place] != seen[place] for place in near) else ""


def _nearest_letters(read: Sequence[Read], at: int, step: int) -> list[int]:
    """Return the two nearest letters on one side of a gap in its word; other gaps are skipped."""
    found: list[int] = []
    for count in range(1, NEAR):
        place = at + step * count
        char = read[place] if 0 <= place < len(read) else ""
        if char is not None and not char.isalpha():
            break
        found += [place] if char is not None else []
    return found[:2]


def _begins_sentence(read: Sequence[Read], at: int) -> bool:
    """Return whether a place is the first letter of the text, or of what follows a full stop and a blank."""
    before = "".join(char or "x" for char in read[max(0, at - NEAR) : at])
    first = at <= NEAR and not any(map(str.isalnum, before))
    return first or re.search(r"[.!?]\s+[^\w\s]*$", before) is not None


def _in_case(symbol: str, pattern: str) -> str:
    changed = symbol.upper() if pattern.isupper() else symbol.lower() if pattern.islower() else symbol
    return changed if len(changed) == 1 else symbol


# -- readings --------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """A sequence as it was read: the evidence of every position, and the symbol that was read there, or a gap."""

    evidence: Evidence
    symbols: str
    name: str = ""
    read: tuple[Read, ...] = ()
    """The characters of the reading; nothing: the symbols themselves."""
    seen: tuple[Seen, ...] = ()
    """The model's input for each character, by `to_symbols`."""
    alternatives: tuple[str, ...] = ()
    """Of a text: the alternatives of each character."""
    channel: Float[Tensor, "v v"] | None = None
    """The channel through which a text was read; None: what can be read is right."""

    @property
    def kept(self) -> int:
        """The number of characters other than blanks that stay as they are."""
        pairs = zip(self.read, self.seen, strict=True)
        return sum(is_kept(char, view) and not str(char).isspace() for char, view in pairs)


def from_text(text: str, alphabet: str, channel: Float[Tensor, "v v"] | None = None, literal: bool = False) -> Reading:
    r"""Return the evidence of a text: `?` and `_` are unreadable, `[ae]` are alternatives, `\` quotes a character.

    Other characters were read through the channel; without one they are certain. With `literal` all are ordinary.
    """
    check_size(len(alphabet), alphabet, "a channel")
    places = text_places(text, alphabet, literal)
    read = tuple(char for char, _ in places)
    seen = tuple(to_symbols(read, alphabet))
    log_channel = (torch.eye(len(alphabet)) if channel is None else channel).double().log()
    _check_readable(read, seen, alphabet, log_channel)
    evidence = symbol_evidence(read, seen, alphabet, log_channel)
    row = 0
    for at, (_, alternatives) in enumerate(places):
        if alternatives and seen[at] is None:
            evidence[row] = _alternatives(alphabet, alternatives, at)
        row += seen[at] != ""
    among = tuple(alternatives for _, alternatives in places)
    return make_reading(evidence, read, seen)._replace(alternatives=among, channel=channel)


def text_places(text: str, alphabet: str, literal: bool = False) -> list[tuple[Read, str]]:
    """Return the characters of a text in our notation, None for unreadable ones, each with its alternatives.

    With `literal` all characters are ordinary. InputError for more than the evidence of this alphabet may have, without
    reading on.
    """
    most = MOST_NUMBERS // len(alphabet)
    found: Iterable[tuple[Read, str]] = ((char, "") for char in text) if literal else _places(text)
    places = list(islice(found, most + 1))
    if len(places) > most:
        advice = f"at most {most:,} with {len(alphabet):,} symbols; give the parts one by one"
        raise InputError(f"the text has more than {most:,} positions: {advice}")
    if not places:
        raise InputError("there is nothing to restore: the text is empty")
    return places


def _places(text: str) -> Iterator[tuple[Read, str]]:
    """Yield the characters of a text in our notation, None for unreadable ones, each with its alternatives."""
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            yield text[at], ""
        elif text[at] in GAPS:
            yield None, ""
        elif text[at] == "[":
            end = text.find("]", at)
            if end < at + 2 or "[" in text[at + 1 : end]:
                what = "has no alternatives" if end == at + 1 else "is not closed before the next one or the end"
                raise InputError(f"'[' at position {at} {what}: write [ae], or \\[ for a bracket")
            yield None, text[at + 1 : end]
            at = end
        else:
            yield text[at], ""
        at += 1


_MARKED: Final = re.compile(r"(\\[\s\S]|\[[^\]]*\]|[?_])")
"""A quoted character, alternatives, or a gap in a text."""

_UNBRACKETED: Final = re.compile(r"(\\[\s\S]|[?_])")
"""The same where no bracket closes."""


def normalised_reading(tokenizer: Tokenizer, text: str, literal: bool = False) -> tuple[str, str]:
    """Return a text of `from_text` in the characters of a tokenizer but for its marks, and what was changed.

    Without this, characters outside of the alphabet are mapped by `to_symbols` and put back, and digits are not
    spelled.
    """
    parts, keep = ([text], "") if literal else (_marks(text), "[\\")  # every second part is a mark
    found = "".join(part if at % 2 else normalised(tokenizer, part, keep)[0] for at, part in enumerate(parts))
    return found, normalised(tokenizer, "".join(parts[::2]), keep)[1]


def _marks(text: str) -> list[str]:
    """Return a text split at its marks, in one pass: a search for the end of each open bracket would be quadratic."""
    end = text.rfind("]") + 1
    closed, rest = _MARKED.split(text[:end]), _UNBRACKETED.split(text[end:])
    return [*closed[:-1], closed[-1] + rest[0], *rest[1:]]


def symbol_evidence(
    read: Sequence[Read], seen: Sequence[Seen], alphabet: str, log_channel: Float[Tensor, "v v"]
) -> Float[Tensor, "positions v"]:
    """Return the evidence of the characters with a position: by the channel, none, or a certain space."""
    size = len(alphabet)
    unknown, space = torch.zeros(1, size, dtype=torch.float64), torch.full((1, size), -math.inf, dtype=torch.float64)
    space[:, alphabet.find(" ")] = 0.0
    index = {symbol: at for at, symbol in enumerate(alphabet)}
    rows = [
        size + 1 if view == " " and is_kept(char, view) else size if view is None else index[view]
        for char, view in zip(read, seen, strict=True)
        if view != ""
    ]
    return torch.cat([log_channel.T, unknown, space])[rows]


def make_reading(evidence: Evidence, read: tuple[Read, ...], seen: tuple[Seen, ...]) -> Reading:
    """Return a reading after a check that it has a symbol of the model, and that its evidence is possible."""
    symbols = "".join("?" if view is None else view for view in seen)
    if not symbols:
        raise InputError("there is nothing to restore: no character is in the alphabet of the model")
    return Reading(_checked(evidence), symbols, "", read, seen)


def _alternatives(alphabet: str, symbols: str, at: int) -> Float[Tensor, " v"]:
    row = torch.full((len(alphabet),), -math.inf, dtype=torch.float64)
    for symbol in symbols:
        near = nearest_symbol(symbol, alphabet)
        if near is None:
            advice = "if the bracket is part of the text, write \\["
            raise InputError(f"alternative {symbol!r} at position {at} is outside the alphabet {alphabet!r}; {advice}")
        row[alphabet.index(near)] = 0.0
    return row


def from_json_lines(text: str, alphabet: str) -> Reading:
    """Return the evidence of JSON lines, each an object {symbol: probability} of one position.

    Probabilities of a position must sum to 1. A symbol that is not named is impossible, unless the line says what is
    left, as `{"e": 0.7, "c": 0.2, "rest": 0.1}`: the rest is spread evenly over the symbols that are not named.
    """
    laws, lines = [], list(filter(str.strip, text.split("\n")))
    check_size(len(lines), alphabet, "the evidence")
    for number, line in enumerate(lines, 1):
        try:
            law = parse_json(line.encode())
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} is not JSON: {error}") from None
        if not isinstance(law, dict) or not law:
            raise InputError(f"line {number} must be an object {{symbol: probability}}")
        laws.append(law)
    if not laws:
        raise InputError("there is nothing to restore: no line has a position")
    return from_laws(laws, alphabet)


def from_laws(laws: Sequence[Mapping[str, Any]], alphabet: str) -> Reading:
    """Return the evidence of one {symbol: probability} per position, as in `from_json_lines`."""
    rows = [_law(law, alphabet, f"position {at}") for at, law in enumerate(laws)]
    symbols = (alphabet[int(row.argmax())] if row.max() > row.min() else "?" for row in rows)
    return Reading(_checked(torch.stack(rows).log()), "".join(symbols))


def _law(law: Mapping[str, Any], alphabet: str, where: str) -> Float[Tensor, " v"]:
    """Return the probabilities of one JSON line, whose rest is spread over the symbols that are not named."""
    row = torch.full((len(alphabet),), math.nan, dtype=torch.float64)
    for symbol, probability in law.items():
        if symbol != REST:
            row[symbol_index(alphabet, symbol, where)] = probability_of(probability, f"{where}: p({symbol!r})")
    rest, missing = probability_of(law.get(REST, 0.0), f"{where}: {REST!r}"), row.isnan()
    total, count = float(row.nansum()) + rest, int(missing.sum())
    if total == 0:
        raise InputError(f"{where}: the evidence excludes every symbol: all probabilities are 0")
    if rest > 0 and not count:
        raise InputError(f"{where}: {REST!r} is {rest:.4g}, but all symbols are named")
    if abs(total - 1) > TOLERANCE:
        advice = f'; if other symbols are possible, add "{REST}": {1 - total:.4g}' if total < 1 and count else ""
        raise InputError(f"{where}: the probabilities sum to {total:.4g}, not to 1{advice}")
    row[missing] = rest / max(count, 1)
    return row


def from_array(array: np.ndarray[Any, Any], alphabet: str) -> Reading:
    """Return the evidence in an array of log-likelihoods [positions, V]."""
    if array.ndim != 2 or array.shape[1] != len(alphabet) or not len(array) or array.dtype.kind not in "fiu":
        raise InputError(
            f"an array of log-likelihoods must have the shape [positions, {len(alphabet)}] and real numbers, "
            f"got {list(array.shape)} of {array.dtype}"
        )
    evidence = _checked(torch.from_numpy(np.array(array, dtype=np.float64)))
    if bool((evidence >= 0).all()) and bool(((evidence.sum(-1) - 1).abs() <= TOLERANCE).all()):
        raise InputError("the rows of the array sum to 1: these are probabilities; give their logarithms")
    known = evidence.max(-1).values > evidence.min(-1).values
    symbols = (alphabet[best] if sure else "?" for best, sure in zip(evidence.argmax(-1).tolist(), known, strict=True))
    return Reading(evidence, "".join(symbols))


def from_fastq(text: str, alphabet: str = "ACGT", offset: int = 33) -> list[Reading]:
    """Return the evidence of reads with Phred qualities `Q`: a base is wrong with probability `10^(-Q/10)`.

    Bases and qualities may be wrapped, in as many lines each; blank lines between reads are skipped.
    """
    if len(alphabet) < 2:
        raise InputError(f"a read needs an alphabet of at least two bases, not {alphabet!r}")
    reads = list(_fastq_reads(text.splitlines()))
    if not reads:
        raise InputError("there is nothing to restore: the file has no read")
    if len(reads) > MOST_READS:
        raise InputError(f"the file has {len(reads):,} reads: at most {MOST_READS:,}; give the parts one by one")
    check_size(sum(len(bases) for _, bases, _ in reads), alphabet, "the reads")
    return [_read(*read, alphabet, offset) for read in reads]


def _fastq_reads(lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, bases and qualities of every read."""
    at, end = 0, len(lines)
    while at < end:
        if not lines[at].strip():
            at += 1
            continue
        plus = next((place for place in range(at + 1, end) if lines[place].startswith("+")), end)
        count = plus - at - 1  # lines of bases, and of qualities
        if not lines[at].startswith("@") or (plus < end and not count):
            raise InputError(f"line {at + 1} is not the beginning of a FASTQ read, which has {FASTQ_LINES}")
        if plus + count >= end:
            raise InputError(f"line {at + 1}: the read is not complete: it has {FASTQ_LINES}")
        yield lines[at][1:], "".join(lines[at + 1 : plus]), "".join(lines[plus + 1 : plus + 1 + count])
        at = plus + 1 + count


def _read(name: str, bases: str, qualities: str, alphabet: str, offset: int) -> Reading:
    if len(bases) != len(qualities):
        raise InputError(f"read {name!r} has {len(bases)} bases and {len(qualities)} qualities")
    if not bases:
        raise InputError(f"read {name!r} has no bases")
    rows = torch.zeros(len(bases), len(alphabet), dtype=torch.float64)
    bases = "".join(base.upper() if len(base.upper()) == 1 else base for base in bases)  # ß has two capitals
    for at, (base, quality) in enumerate(zip(bases, qualities, strict=True)):
        level = ord(quality) - offset
        if not 0 <= level <= 93:
            raise InputError(f"read {name!r}, position {at}: {quality!r} is not a Phred quality of offset {offset}")
        if base != "N":
            # Qualities of 0 and 1 would make the base read less likely than others: then all are equally likely.
            error = min(10 ** (-level / 10), 1 - 1 / len(alphabet))
            rows[at] = math.log(error / (len(alphabet) - 1))
            rows[at, _place(alphabet, bases, at, f"read {name!r}: ")] = math.log1p(-error)
    return Reading(rows, bases.replace("N", "?"), name)


def from_levels(values: Float[Tensor, " positions"], size: int, noise: float) -> Evidence:
    """Return the evidence of grey levels `0 .. size - 1` observed with Gaussian noise of that standard deviation."""
    if not noise > 0:
        raise InputError(f"the noise of grey levels must be positive, got {noise:g}")
    levels = torch.arange(size, dtype=torch.float64)
    return _checked(-((values.double()[:, None] - levels) ** 2) / (2 * noise**2))


# -- checks ----------------------------------------------------------------------------------------


def _checked(evidence: Evidence) -> Evidence:
    """Return evidence after a check that every position has a possible symbol and no number is NaN or infinity."""
    if bool(evidence.isnan().any()) or bool((evidence == math.inf).any()):
        at = int((evidence.isnan() | (evidence == math.inf)).any(-1).nonzero()[0])
        raise InputError(f"position {at}: evidence must be numbers or -inf, got {evidence[at].tolist()[:4]} ...")
    impossible = (evidence == -math.inf).all(-1)
    if bool(impossible.any()):
        raise InputError(f"position {int(impossible.nonzero()[0])}: the evidence excludes every symbol")
    return evidence


def check_size(positions: int, alphabet: str, what: str) -> None:
    """Raise InputError for evidence, or a channel, of more than `MOST_NUMBERS` numbers."""
    if positions * len(alphabet) > MOST_NUMBERS:
        most = MOST_NUMBERS // len(alphabet)
        advice = f"at most {most:,} with {len(alphabet):,} symbols; give the parts one by one"
        raise InputError(f"{what} has {positions:,} positions: {advice}")


def _check_readable(
    read: Sequence[Read], seen: Sequence[Seen], alphabet: str, log_channel: Float[Tensor, "v v"]
) -> None:
    """Raise InputError for a character as which the channel reads no symbol."""
    excluded = (log_channel == -math.inf).all(0).tolist()
    never = {symbol for symbol, none in zip(alphabet, excluded, strict=True) if none}
    for at, (char, view) in enumerate(zip(read, seen, strict=True)):
        if view in never and not is_kept(char, view):
            raise InputError(f"character {char!r} at position {at}: the channel reads no symbol as {view!r}")


def probability_of(value: Any, what: str) -> float:
    """Return a number from 0 to 1; InputError for anything else."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(f"{what} must be a probability, got {reprlib.repr(value)}")
    return number


def symbol_index(alphabet: str, symbol: str, where: str) -> int:
    """Return the index of a symbol in an alphabet; InputError for anything else."""
    if not isinstance(symbol, str):
        raise InputError(f"{where}: a symbol is a character, got {symbol!r}")
    if len(symbol) > 1:
        reason = "a channel is about one character per position, and m read as rn cannot be given"
        raise InputError(f"{where}: {symbol[:80]!r} is not one character; {reason}")
    if len(symbol) != 1 or symbol not in alphabet:
        raise InputError(f"{where}: {symbol[:80]!r} is not a symbol of the model, whose alphabet is {alphabet!r}")
    return alphabet.index(symbol)


def _place(alphabet: str, text: str, at: int, where: str) -> int:
    if text[at] not in alphabet:
        raise InputError(f"{where}character {text[at]!r} at position {at} is outside the alphabet {alphabet!r}")
    return alphabet.index(text[at])

"""Pages read by an OCR engine, in hOCR, as evidence; the format is that of Tesseract.

`tesseract page.png page -c lstm_choice_mode=2 -c hocr_char_boxes=1 hocr` writes a character as

    <span class='ocrx_cinfo' title='x_bboxes 12 6 18 30; x_conf 98.5'>T</span>
    <span class='ocrx_cinfo' id='lstm_choices_1_1_2'>
     <span class='ocrx_cinfo' id='choice_1_1_7' title='x_confs 92.7'>T</span>
     <span class='ocrx_cinfo' id='choice_1_1_8' title='x_confs 33.1'>F</span>
    </span>

inside of elements of the classes `ocrx_word` and `ocr_line`.
"""

from __future__ import annotations

import math
import unicodedata
from typing import Final
from xml.parsers import expat

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.data.channels import symmetric
from rdlm.data.evidence import (
    Read,
    Reading,
    check_size,
    is_kept,
    make_reading,
    nearest_symbol,
    symbol_evidence,
    to_symbols,
)
from rdlm.errors import InputError

CONFIDENCE_SCALE: Final = 35.0
"""Tesseract's confidence in a character is `100 + 35 log p`, cut off at 0: a certainty is `7 log p`, a percentage
`100 + 5 * certainty`. Of 3,353 characters of four blurred pages with confidences of 80 to 90, 90 to 95, 95 to 98, 98 to
99 and above, 70%, 80%, 86%, 96.5% and 99.7% were right; the formula gives 65%, 81%, 90%, 96% and 99%."""

CHOICE_SCALE: Final = 10.0
CHOICE_SHARE: Final = 0.7
"""Alternatives have weights `exp(confidence / 10)` and 70% of the probability that the first choice is wrong; the rest
is for symbols that are not among them. Fitted to the same pages: 0.57 bits per letter of the truth. Confidences taken
as weights had 1.25."""

SUREST: Final = 0.99
"""Largest probability that is given to an engine's first choice, and that of a space between words."""

DEEPEST: Final = 64
"""Largest depth of nested elements in an hOCR file."""

LONGEST: Final = 256
"""Most code points in the element of one character."""

Choices = dict[str, float]
"""The confidence in the first choice under the empty string, and that in each alternative."""


def from_hocr(text: str, alphabet: str, source: str = "the page") -> Reading:
    """Return the evidence of a page in hOCR, as Tesseract writes it with `hocr_char_boxes` and `lstm_choice_mode=2`.

    The first choice of a character has the probability of its confidence, its alternatives most of the rest. These are
    posterior probabilities of the engine, not likelihoods: knowledge that the engine and the model share is counted
    twice. Spaces between words are nearly certain, line breaks certain.
    """
    places = _Page(source).places(text)
    check_size(max(len(places), len(alphabet)), alphabet, source)
    read = tuple(char for char, _ in places)
    seen = tuple(to_symbols(read, alphabet))
    evidence = symbol_evidence(read, seen, alphabet, symmetric(alphabet, 1 - SUREST).log())
    row = 0
    for (char, choices), view in zip(places, seen, strict=True):
        if view and choices and not is_kept(char, view):
            evidence[row] = _choice_law(view, choices, alphabet).log()
        row += view != ""
    return make_reading(evidence, read, seen)


def _choice_law(first: str, choices: Choices, alphabet: str) -> Float[Tensor, " v"]:
    """Return the probabilities of the symbols of one character; alternatives outside of the alphabet are left out."""
    right = min(math.exp((choices[""] - 100) / CONFIDENCE_SCALE), SUREST)
    weight = torch.zeros(len(alphabet), dtype=torch.float64)
    for char, confidence in choices.items():
        symbol = nearest_symbol(char, alphabet) if char else None
        if symbol is not None and symbol != first:
            place = alphabet.index(symbol)
            weight[place] = max(float(weight[place]), math.exp(confidence / CHOICE_SCALE))
    share = CHOICE_SHARE if bool(weight.any()) else 0.0
    law = (1 - right) * (share * weight / weight.sum().clamp_min(1e-9) + (1 - share) / len(alphabet))
    law[alphabet.index(first)] += right
    return law


class _Page:
    """The parser of an hOCR page: characters with their choices, spaces between words, line breaks between lines.

    Nothing outside of the text is read: entity declarations are refused, and no document type is fetched.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[tuple[Read, Choices]] = []
        self.open: list[str] = []  # the kinds of the elements around the current text
        self.text = ""
        self.confidence = math.nan
        self.words = 0
        self.separator = ""

    def places(self, text: str) -> list[tuple[Read, Choices]]:
        """Return the characters of the page with their choices."""
        parser = expat.ParserCreate("utf-8")  # whatever encoding the page declares: the text is decoded already
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.EntityDeclHandler = self._characters, self._refuse
        parser.AttlistDeclHandler = self._refuse_default
        try:
            parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            raise InputError(f"{self.source} is not hOCR: {error}") from None
        if self.words and not self.found:
            options = "tesseract page.png page -c hocr_char_boxes=1 -c lstm_choice_mode=2 hocr"
            raise InputError(f"{self.source} has words without characters: write it with {options}")
        if not self.found:
            raise InputError(f"{self.source} is not hOCR with recognised text: it has no element of class ocrx_cinfo")
        return self.found

    def _refuse(self, name: str, *_: object) -> None:
        raise InputError(f"{self.source} declares the entity {name!r}: entities of a file are not read")

    def _refuse_default(self, element: str, *_: object) -> None:
        """Raise InputError for declared attributes: each element would have a copy of them, of any length."""
        raise InputError(f"{self.source} declares attributes of {element!r}: declarations of a file are not read")

    def _start(self, _: str, attributes: dict[str, str]) -> None:
        if len(self.open) >= DEEPEST:
            raise InputError(f"{self.source} has elements nested more than {DEEPEST} deep")
        kind, title = attributes.get("class", ""), attributes.get("title", "")
        if kind in ("ocr_line", "ocr_header", "ocr_caption", "ocr_textfloat", "ocr_par") and self.found:
            self.separator = "\n"
        if kind == "ocrx_word":
            self.words += 1
            self.separator = self.separator or (" " if self.found else "")
        if kind == "ocrx_cinfo":
            self.text, self.confidence = "", math.nan
            for name in ("x_conf ", "x_confs "):
                if name in title:
                    kind, self.confidence = name.strip(), self._number(title.partition(name)[2].split(";")[0])
        self.open.append(kind)

    def _number(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= 100:
            raise InputError(f"{self.source}: a confidence must be a number from 0 to 100, got {text.strip()!r}")
        return number

    def _characters(self, text: str) -> None:
        if len(self.text) <= LONGEST:  # between characters there may be any amount of text
            self.text += text[: LONGEST + 1]

    def _end(self, _: str) -> None:
        kind, text = self.open.pop(), self.text.strip()
        if kind in ("x_conf", "x_confs") and len(self.text) > LONGEST:
            raise InputError(f"{self.source}: the element of a character has more than {LONGEST} code points")
        if kind == "x_conf" and text:
            if self.separator:
                self.found.append((self.separator, {}))
                self.separator = ""
            self.found += [(char, {"": self.confidence}) for char in unicodedata.normalize("NFKC", text)]
        elif kind == "x_confs" and len(text) == 1 and self.found and self.found[-1][1]:
            self.found[-1][1][text] = self.confidence
        if kind in ("x_conf", "x_confs"):
            self.text = ""

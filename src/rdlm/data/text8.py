"""The published rules that make text8 out of a Wikipedia dump: visible text in 26 letters and spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Applied in this order to each stretch of a dump that ends in '>', which in practice is an article:
# a '>' inside an article is written &gt;.
RULES: tuple[tuple[re.Pattern[bytes], bytes], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE if ignore_case else 0), replacement)
    for pattern, replacement, ignore_case in (
        (rb"<.*>", b"", False),  # the tag that ends the stretch, from the first '<' of its line
        (rb"&amp;", b"&", False),
        (rb"&lt;", b"<", False),
        (rb"&gt;", b">", False),
        (rb"<ref[^<]*</ref>", b"", False),
        (rb"<[^>]*>", b"", False),
        (rb"\[http:[^] ]*", b"[", False),  # an outside link keeps its words
        (rb"\|thumb", b"", True),
        (rb"\|left", b"", True),
        (rb"\|right", b"", True),
        (rb"\|\d+px", b"", True),
        (rb"\[\[image:[^\[\]]*\|", b"", True),  # an image keeps its caption
        (rb"\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]", True),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b"", False),  # the same article in other languages
        (rb"\[\[[^|\]]*\|", b"[[", False),  # a link keeps the words that are shown
        (rb"\{\{[^}]*\}\}", b"", False),
        (rb"\{[^}]*\}", b"", False),
        (rb"[\[\]]", b"", False),
        (rb"&[^;]*;", b" ", False),
    )
)
DIGITS = dict(zip(b"0123456789", b"zero one two three four five six seven eight nine".split(), strict=True))
_DIGIT = re.compile(rb"[0-9]")
_SPACES = re.compile(rb" +")
_LETTERS = bytes(c if 97 <= c <= 122 else c + 32 if 65 <= c <= 90 else 32 for c in range(256))


def letters(text: bytes) -> bytes:
    """Return a text in lower-case letters with one space between words, at its start, and none at its end.

    Digits are spelt out one by one; everything else, letters beyond a to z included, becomes space.
    """
    spelt = _DIGIT.sub(lambda digit: b" %b " % DIGITS[digit[0][0]], text)
    return _SPACES.sub(b" ", b" %b " % spelt.translate(_LETTERS))[:-1]


def visible(stretch: bytes) -> bytes:
    """Return what a reader would see of an article's wiki markup."""
    for pattern, replacement in RULES:
        stretch = pattern.sub(replacement, stretch)
    return stretch


def clean(dump: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the cleaned text of a dump's articles, without redirections and what is outside <text>."""
    inside = False
    for stretch in _stretches(dump):
        if b"<text " in stretch:
            inside = True
        if b"#redirect" in stretch.lower():
            inside = False
        if inside:
            inside = b"</text>" not in stretch
            yield letters(visible(stretch))


def _stretches(dump: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the dump cut after every '>', whatever blocks it comes in."""
    rest: list[bytes] = []
    for block in dump:
        *ended, last = block.split(b">")
        for part in ended:
            yield b"".join([*rest, part, b">"])
            rest = []
        rest.append(last)
    if final := b"".join(rest):
        yield final

"""Views of a restored text."""

from __future__ import annotations

import re

from rdlm.display.restoration import COLOURS, PLAIN, restoration_page, terminal_text


def place(char: str, read: str, probability: float, **alternatives: float) -> dict[str, object]:
    return {"char": char, "read": read, "probability": probability, "alternatives": alternatives}


PLACES = [
    place("a", "a", 1.0),
    place("b", "x", 0.95),
    place("<", "<", 0.8, c=0.15),
    place(" ", "?", 0.3, d=0.25, e=0.2),
    place("\x1b", "\x1b", 1.0),
]
ROW = {"name": "<i>", "changed": 2, "expected_errors": 0.95, "positions": PLACES, "samples": ["<s>"]}


def test_colours_of_the_terminal() -> None:
    changed, unsure, guess = (COLOURS[name] for name in ("changed", "unsure", "guess"))
    expected = f"a{changed}b{PLAIN}{unsure}<{PLAIN}{guess} {PLAIN}\ufffd"  # escape codes of a reading are not sent
    assert terminal_text(PLACES) == expected


def test_the_page_is_self_contained_and_escapes_what_it_shows() -> None:
    page = restoration_page([ROW], "a <b> of __SECTIONS__")
    assert "<i>" not in page and "<s>" not in page and "&lt;s&gt;" in page and "a &lt;b&gt; of __SECTIONS__" in page
    assert not re.search(r"<script|https?:|src=|@import|url\(", page) and "default-src 'none'" in page
    assert 'class="changed" tabindex="0" data-about="b 95%, read x"' in page
    assert 'class="unsure" tabindex="0" data-about="&lt; 80%; or c 15%"' in page
    assert 'class="guess changed" tabindex="0" data-about="space 30%, read ?; or d 25%, e 20%">␣</b>' in page
    assert "The 3 least sure of 3" in page and page.count("<pre>") == 3
    assert "prefers-color-scheme: dark" in page
